//! The daemon: looks after the packet path until told to stop, and then leaves it running.

mod announce;
mod change;
mod load;
mod looks;
mod path;
mod start;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ringway_config::Config;
use ringway_kernel::{Interface, XdpMode};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::api::control::Command;
use crate::board::{self, Board};
use crate::health::{self, Checks};
use crate::next_hop::{self, Ways};
use crate::notify::Notifier;
use crate::overrides::{self, Overrides};
use crate::preflight;
use crate::problem::Error;
use crate::road::Road;
use crate::roster::Roster;
use crate::silence::{self, Silence};
use crate::state::State;
use crate::status::{self, Problem, Status};
use change::Change;
use load::Loaded;
use looks::{Looks, Seen};
use path::{Order, Path, Report};
use watch::{News, Watch};

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(3);
/// The ways to backends are looked up this often (seconds) even when the kernel tells no change.
const LOOK_ANYWAY: u64 = 30;
/// The machine is looked at again this often, in seconds.
const LOOK_AT_MACHINE: u64 = 30;
/// A state directory that could not be used is tried again this often, in seconds.
const LOOK_AT_STATE: u64 = 5;
/// The packet path's thread must be heard within this; it is asked every second.
const SILENCE: Duration = Duration::from_secs(5);
/// A first start waits this long at most for the first results of checks.
const FIRST_RESULTS: Duration = Duration::from_secs(3);

/// Runs the gateway of this configuration in the calling thread's network namespace, until
/// SIGTERM or SIGINT. The packet path stays when this returns without error.
///
/// # Errors
/// It cannot start; what a first start had made is taken away again.
pub fn run(config: Config) -> Result<(), Error> {
    start::raise_open_files();
    start::preflight(&config)?;
    let begun = start::Begun::new(config);
    let (reports, from_path) = mpsc::unbounded_channel();
    // Gives privileges up when the programs are loaded, so there must be no other thread yet.
    let path = Path::open(&begun.config, reports)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("no runtime: {error}"), ""))?;
    let outcome = runtime.block_on(look_after(begun, path, from_path));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn look_after(
    begun: start::Begun,
    path: Path,
    from_path: mpsc::UnboundedReceiver<Report>,
) -> Result<(), Error> {
    let fresh = path.opened.taken_over.is_none();
    start::tell(&path.opened);
    let config = &begun.config;
    let (socket, node) = (config.api.socket.clone().into_inner(), config.node.name.to_string());
    let mut daemon = match start::prepare(begun, path, from_path).await {
        Ok(daemon) => daemon,
        Err((error, path)) => {
            path.close();
            start::undo(&node, fresh);
            return Err(error);
        }
    };
    let outcome = daemon.live().await;
    daemon.notifier.stopping();
    daemon.keeper.finish(|| daemon.roster.saved()).await;
    if let Some(pins) = daemon.path.view.pins() {
        let _ = pins.forget_socket();
    }
    daemon.path.close();
    // The next daemon would remove it, too; without it `status` knows at once.
    let _ = std::fs::remove_file(socket);
    match &outcome {
        Ok(()) if !daemon.board.guard.waiting().is_empty() => {
            let names = daemon.board.guard.waiting().join(", ");
            tracing::warn!("stopped before `ringway confirm`: detached from {names} again");
        }
        Ok(()) if daemon.attached => {
            tracing::info!("stopped; traffic still flows; `ringway detach` stops it");
        }
        _ => start::undo(&node, fresh && !daemon.attached),
    }
    outcome
}

type Judged = Result<Loaded, Error>;

/// Everything the loop knows.
struct Daemon {
    /// In force: the file's, with overrides.
    config: Arc<Config>,
    file: Arc<Config>,
    overrides: Overrides,
    commands: mpsc::Receiver<Command>,
    /// The change that is on its way.
    change: Option<Change>,
    /// Changes that were read and judged.
    judged: (mpsc::UnboundedSender<Judged>, mpsc::UnboundedReceiver<Judged>),
    /// Some backend has not its whole weight yet.
    rising: bool,
    /// SIGHUP has come.
    hung_up: bool,
    last_reload: Option<status::Reload>,
    path: Path,
    from_path: mpsc::UnboundedReceiver<Report>,
    interfaces: Vec<Interface>,
    roster: Roster,
    kept: BTreeSet<(u32, IpAddr)>,
    watch: Watch,
    results: mpsc::Receiver<health::Event>,
    checks: Checks,
    /// The checks of dsr backends take it.
    road: Option<Road>,
    road_error: Option<Error>,
    board: Arc<Board>,
    /// What survives this process.
    state: Arc<State>,
    keeper: health::Keeper,
    notifier: Notifier,
    attached: bool,
    /// Attach at the latest then, whatever is not known yet.
    attach_by: Instant,
    modes: BTreeMap<u32, (XdpMode, String)>,
    lost: BTreeSet<u32>,
    /// Names of interfaces that are down.
    down: Vec<String>,
    looks: Looks,
    silence: Silence,
    machine: preflight::Report,
    /// When the packet path's thread was heard last.
    beaten: Instant,
    beat_error: Option<Error>,
    apply_error: Option<Error>,
    told_ready: bool,
    ticks: u64,
    /// Apply what has changed then.
    due: Option<Instant>,
}

impl Daemon {
    async fn live(&mut self) -> Result<(), Error> {
        let mut signals = Signals::new()?;
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let period = self.notifier.watchdog_period().unwrap_or(Duration::from_secs(3600));
        let mut watchdog = interval(period);
        self.apply_soon();
        let board = self.board.clone();
        loop {
            if !self.attached && (!self.roster.waiting() || Instant::now() >= self.attach_by) {
                self.attach().await?;
            }
            let due = self.due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let until = self.change.as_ref().and_then(Change::until);
            tokio::select! {
                Some(event) = self.results.recv() => self.result(&event),
                Some(command) = self.commands.recv(), if self.attached && self.change.is_none() => {
                    self.begin(command);
                }
                Some(judged) = self.judged.1.recv() => self.judged(judged),
                () = sleep_until(until.unwrap_or(due)), if until.is_some() => {}
                news = self.watch.next() => match news {
                    News::Changed => self.look(),
                    News::Found(found) => self.ways(found),
                },
                Some(report) = self.from_path.recv() => self.report(report),
                Some(seen) = self.looks.next() => self.seen(seen),
                () = sleep_until(due), if self.due.is_some() => self.apply(),
                () = sleep_until(self.attach_by), if !self.attached => {}
                _ = watchdog.tick() => self.notifier.watchdog(),
                _ = tick.tick() => self.tick(),
                () = board.guard.rung() => self.confirm().await,
                stop = signals.next() => match stop {
                    true => return Ok(()),
                    false => self.hung_up = true,
                },
            }
            if self.attached && self.change.is_none() && std::mem::take(&mut self.hung_up) {
                self.begin(Command::Reload { dry_run: false, file: None, reply: None });
            }
            self.go_on();
            self.board.turn();
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.keeper.tick(|| self.roster.saved());
        self.path.order(Order::Beat);
        // Backends that begin slowly get more every now and then, and at last all.
        let rising = self.roster.is_rising();
        if self.apply_error.is_some() || rising || self.rising {
            self.apply_soon();
        }
        self.rising = rising;
        if self.ticks.is_multiple_of(LOOK_ANYWAY) {
            self.look();
        }
        if self.attached
            && self.change.is_none()
            && self.ticks.is_multiple_of(LOOK_AT_STATE)
            && self.state.trouble(overrides::DOCUMENT)
        {
            self.begin(Command::Recall);
        }
        if self.attached && self.ticks.is_multiple_of(silence::PERIOD.as_secs()) {
            self.looks.at_traffic();
        }
        if self.attached && self.ticks.is_multiple_of(LOOK_AT_MACHINE) {
            self.looks.at_machine();
        }
        if self.beaten.elapsed() > SILENCE {
            self.post();
        }
        if let Some(names) = self.board.guard.expire() {
            tracing::error!(interfaces = ?names, "no `ringway confirm` in time: detaching again");
            self.path.order(Order::Revert);
            self.post();
        }
    }

    async fn confirm(&mut self) {
        let guard = &self.board.guard;
        let answer = match guard.waiting().is_empty() {
            true => guard.nothing(),
            false => self.path.confirm().await,
        };
        if let Ok(names) = &answer
            && !names.is_empty()
        {
            guard.end();
            tracing::info!(interfaces = ?names, "confirmed: attached for good");
        }
        guard.answer(&answer);
        self.post();
    }

    fn seen(&mut self, seen: Seen) {
        match seen {
            Seen::Traffic(sample) => {
                let before = self.silence.problems().len();
                self.silence.note(std::time::Instant::now(), sample);
                for problem in self.silence.problems().iter().skip(before) {
                    tracing::warn!(remedy = problem.remedy, "{}", problem.error);
                }
            }
            Seen::Machine(report) => self.machine = report,
        }
        self.post();
    }

    fn result(&mut self, event: &health::Event) {
        if let (health::Health::Down, Some(backend)) = (event.health, self.roster.address(event)) {
            watch::doubt(backend);
        }
        if let Some(service) = self.roster.service(event) {
            self.silence.forget(service);
        }
        self.keeper.changed();
        let next = self.change.as_mut().and_then(Change::roster);
        let news = next.and_then(|next| next.take(event));
        if let Some(line) = self.roster.take(event).or(news) {
            match event.health.is_up() {
                true => tracing::info!("{line}"),
                false => tracing::warn!("{line}"),
            }
        }
        self.apply_soon();
    }

    fn ways(&mut self, found: watch::Found) {
        for interface in found.interfaces {
            if !self.interfaces.contains(&interface) {
                self.path.order(Order::Describe(interface.clone()));
            }
            let known = self.interfaces.iter_mut().find(|known| known.slot == interface.slot);
            if let Some(known) = known {
                *known = interface;
            }
        }
        if self.down != found.down {
            self.down = found.down;
            self.post();
        }
        let Ways { ways, kept } = found.ways;
        watch::release(self.kept.difference(&kept).copied().collect());
        self.kept = kept;
        let not_yet = Err(next_hop::NoWay::NotYet);
        if self.roster.take_ways(|address| ways.get(&address).unwrap_or(&not_yet).clone()) {
            self.silence = Silence::default();
            self.apply_soon();
        }
        let mut both = self.roster.ways();
        if let Some(next) = self.change.as_mut().and_then(Change::roster) {
            next.take_ways(|address| ways.get(&address).unwrap_or(&not_yet).clone());
            both.extend(next.ways());
        }
        if let Some(road) = &mut self.road {
            self.road_error = road.update(&both, &self.interfaces).err();
        }
    }

    /// Looks up the ways to backends that are, and that will be.
    fn look(&mut self) {
        let mut addresses = self.roster.addresses();
        if let Some(next) = self.change.as_mut().and_then(Change::roster) {
            addresses.extend(next.addresses());
            addresses.sort();
            addresses.dedup();
        }
        self.watch.look(addresses);
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Applied(outcome) => {
                let error = outcome.err();
                // It is tried again every second; once is enough to tell.
                if let Some(error) =
                    error.as_ref().filter(|e| Some(*e) != self.apply_error.as_ref())
                {
                    tracing::error!(%error, "tables not written");
                }
                self.apply_error = error;
            }
            Report::Adopted(outcome) => return self.adopted(outcome),
            Report::Beat(Ok(modes)) => {
                self.beaten = Instant::now();
                self.beat_error = None;
                if self.attached {
                    self.verify(&modes);
                }
            }
            Report::Beat(Err(error)) => {
                tracing::error!(%error, "the packet path cannot be read");
                self.beat_error = Some(error);
            }
        }
        self.post();
    }

    /// Compares how our programs are attached with how they should be.
    fn verify(&mut self, modes: &[(u32, Option<XdpMode>)]) {
        for interface in &self.interfaces {
            let attached =
                modes.iter().any(|(slot, mode)| *slot == path::below(interface) && mode.is_some());
            if attached && self.lost.remove(&interface.slot) {
                tracing::info!(interface = interface.name, "attached again");
            } else if !attached && self.lost.insert(interface.slot) {
                tracing::error!(interface = interface.name, "our program is no longer attached");
            }
        }
    }

    fn apply_soon(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + SETTLE);
    }

    fn apply(&mut self) {
        self.due = None;
        if self.change.as_ref().is_some_and(Change::is_ordered) {
            // The roster in force is not that of the tables any more, or not yet.
            return;
        }
        // Before the first attachment nothing is in force, so nothing is hurried. After it, status
        // follows when the tables are written: it should not be ahead of them.
        match self.attached {
            true => self.path.order(Order::Apply(Box::new(self.roster.observed()))),
            false => self.post(),
        }
    }

    /// Writes the tables, then lets packets in.
    async fn attach(&mut self) -> Result<(), Error> {
        self.due = None;
        let attached = self.path.attach(self.interfaces.clone(), self.roster.observed()).await?;
        // Beats from before must not be held against what is attached now.
        while let Ok(report) = self.from_path.try_recv() {
            self.report(report);
        }
        let stacked = next_hop::stacked(&self.interfaces);
        let refused = attached.iter().position(|attached| attached.refused.is_some());
        let refused = refused
            .map(|place| format!("{}, which refuses it", self.interfaces[place].name))
            .or_else(|| next_hop::obstacle(&self.interfaces, &stacked));
        let provisional =
            |(_, attached): &(&Interface, &ringway_kernel::Attached)| attached.provisional;
        let names = self.interfaces.iter().zip(&attached).filter(provisional);
        let names: Vec<String> = names.map(|(interface, _)| interface.name.clone()).collect();
        if !names.is_empty() {
            let shown = names.join(", ");
            let within = self.board.guard.begin(names).as_secs();
            tracing::warn!(
                "{shown} carries the default route: within {within} s see that this machine can still be \
                 reached, and run `ringway confirm`; otherwise it is detached again"
            );
        }
        for (interface, attached) in self.interfaces.iter().zip(attached) {
            let why = match stacked.get(&interface.slot) {
                Some(kind) => format!("native XDP can neither run on it nor send to it: a {kind}"),
                None => start::why(*self.config.node.xdp_mode, &attached, refused.as_deref()),
            };
            let (name, mode) = (&interface.name, attached.mode.name());
            tracing::info!(
                interface = name,
                mode,
                taken_over = attached.taken_over,
                "attached: {why}"
            );
            self.modes.insert(interface.slot, (attached.mode, why));
        }
        self.attached = true;
        self.roster.start();
        // What comes from now on is compared with this.
        self.looks.at_traffic();
        self.looks.at_machine();
        announce::start(&self.config, &self.interfaces);
        self.post();
        Ok(())
    }

    /// Puts up what is known now.
    fn post(&mut self) {
        let (problems, unready) = (self.problems(), self.unready());
        let ready = self.attached && self.apply_error.is_none();
        let (up, all) = self.roster.serving();
        let services = match self.config.services.len() {
            1 => "1 service".to_owned(),
            n => format!("{n} services"),
        };
        let line = format!("{services}, {up} of {all} backends get traffic");
        if ready && !self.told_ready {
            self.told_ready = true;
            self.notifier.ready(&line);
            tracing::info!("serving: {line}");
        } else if self.told_ready {
            self.notifier.status(&line);
        }
        self.board.post(Status {
            node: self.config.node.name.to_string(),
            problems,
            unready,
            findings: self.findings(),
            interfaces: self.interfaces.iter().map(|interface| self.shown(interface)).collect(),
            services: self.roster.shown(),
            overrides: self.overrides.shown(&self.file),
            last_reload: self.last_reload.clone(),
            ..Status::default()
        });
    }

    fn shown(&self, interface: &Interface) -> status::Interface {
        let mode = self.modes.get(&interface.slot);
        status::Interface {
            name: interface.name.clone(),
            ifindex: interface.ifindex,
            slot: interface.slot,
            attached: mode.is_some() && !self.lost.contains(&interface.slot),
            mode: mode.map(|(mode, _)| mode.name().to_owned()).unwrap_or_default(),
            mode_reason: mode.map(|(_, why)| why.clone()).unwrap_or_default(),
            ..status::Interface::default()
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.own_problems();
        problems.extend(self.service_problems());
        problems.extend(self.state.problems());
        problems.extend(looks::problems(&self.machine));
        problems
    }

    /// Why the node should get no traffic. One service's trouble is no reason while another is
    /// served; nor is it that an address is not here, which keepalived would bring.
    fn unready(&self) -> Vec<Problem> {
        let mut unready = self.own_problems();
        let services = self.service_problems();
        if services.len() >= self.roster.services().len() {
            unready.extend(services);
        }
        unready.extend(looks::unready(&self.machine));
        unready
    }

    fn service_problems(&self) -> Vec<Problem> {
        let mut problems = self.roster.problems();
        problems.extend(self.silence.problems());
        problems
    }

    /// Those of the node as a whole.
    fn own_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.attached {
            problems.push(Problem {
                error: "starting: not attached yet".into(),
                remedy: "wait for the first results of the health checks".into(),
            });
        }
        problems.extend(self.board.guard.problem());
        problems.extend(self.down.iter().map(|name| Problem {
            error: format!("interface {name} is down: no packet comes in or goes out by it"),
            remedy: format!("ip link set dev {name} up"),
        }));
        let reverted = self.board.guard.reverted();
        let lost = |i: &&Interface| self.lost.contains(&i.slot) && !reverted.contains(&i.name);
        for interface in self.interfaces.iter().filter(lost) {
            problems.push(Problem {
                error: format!(
                    "{}: the interface has vanished, or our program was detached or replaced",
                    interface.name
                ),
                remedy: format!(
                    "see `ip link show dev {}`, then restart the daemon: it attaches again",
                    interface.name
                ),
            });
        }
        if self.beaten.elapsed() > SILENCE {
            problems.push(Problem {
                error: "the thread that writes the packet path's tables does not answer".into(),
                remedy: "restart the daemon (no packet is lost), and report its log".into(),
            });
        }
        let errors = self.beat_error.iter().chain(&self.apply_error).chain(&self.road_error);
        let errors = errors.cloned();
        problems.extend(errors.map(Problem::from));
        problems
    }

    /// What is worth knowing, and does not make the node unhealthy.
    fn findings(&self) -> Vec<Problem> {
        let mut findings = self.change_findings();
        findings.extend(looks::findings(&self.machine));
        let uncounted = self.path.opened.losses_uncounted.as_ref();
        findings.extend(uncounted.map(|why| board::losses_uncounted(Some(&why.to_string()))));
        // The kernel finishes checksums itself in its generic path.
        if self.modes.values().any(|(mode, _)| *mode == XdpMode::Native) {
            findings.extend(self.silence.findings());
        }
        findings
    }
}

/// Signals that the daemon knows.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| Error::failed(format!("signals not heard: {error}"), ""))
        };
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one; true when it means to stop, false when the configuration is to be read again.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
            _ = self.hangup.recv() => false,
        }
    }
}
