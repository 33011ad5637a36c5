//! The daemon: looks after the packet path until told to stop, and then leaves it running.

mod announce;
mod attachment;
mod change;
mod condition;
mod load;
mod looks;
mod path;
mod start;
mod told;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringway_config::Config;
use ringway_kernel::{Interface, Standing, XdpMode};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::alarm::{self, Alarm};
use crate::api::control::Command;
use crate::board::Board;
use crate::health::{self, Checks};
use crate::next_hop::{self, Existing, Ways};
use crate::notify::Notifier;
use crate::overrides::{self, Overrides};
use crate::preflight;
use crate::problem::Error;
use crate::road::Road;
use crate::roster::{Line, Roster};
use crate::silence::{self, Silence};
use crate::state::State;
use crate::status;
use change::Change;
use load::{Loaded, Refusal};
use looks::{Looks, Seen};
use path::{Order, Path, Report};
use told::Told;
use watch::{News, Watch};

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(3);
/// What is looked at regularly is looked at this often, or every so many times.
const TICK: Duration = alarm::PERIOD;
const A_SECOND: u64 = every(Duration::from_secs(1));
/// The ways to backends are looked up this often even when the kernel tells no change.
const LOOK_ANYWAY: u64 = every(Duration::from_secs(30));
const LOOK_AT_MACHINE: u64 = every(Duration::from_secs(30));
/// Counting ten million flows takes half a second: a count that took long is used again for a while (board.rs).
const LOOK_AT_TABLES: u64 = every(Duration::from_millis(1500));
/// A state directory that could not be used is tried again this often.
const LOOK_AT_STATE: u64 = every(Duration::from_secs(5));
/// The packet path's thread must be heard within this; it is asked every moment, and may be busy for a while
/// with the rings of a large configuration.
const SILENCE: Duration = Duration::from_secs(5);
/// A first start waits this long at most for the first results of checks.
const FIRST_RESULTS: Duration = Duration::from_secs(3);
/// A tick this late means that the process did not run: stopped, or without a processor.
const AWAY: Duration = Duration::from_secs(3);

/// So many ticks.
const fn every(period: Duration) -> u64 {
    (period.as_millis() / TICK.as_millis()) as u64
}

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

type Judged = Result<Loaded, Refusal>;

/// Everything the loop knows.
struct Daemon {
    /// In force: the file's, with overrides.
    config: Arc<Config>,
    file: Arc<Config>,
    /// When the file in force was read.
    read_at: SystemTime,
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
    reloads: status::Reloads,
    path: Path,
    from_path: mpsc::UnboundedReceiver<Report>,
    interfaces: Vec<Interface>,
    roster: Roster,
    kept: BTreeSet<(u32, IpAddr)>,
    watch: Watch,
    results: mpsc::Receiver<health::Event>,
    checks: Checks,
    /// [`Checks::lost_authorities`], as last posted.
    lost_authorities: Vec<String>,
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
    /// How our programs stood at the last beat, by slot.
    standings: BTreeMap<u32, Standing>,
    /// Slots of interfaces that are not there.
    gone: BTreeSet<u32>,
    /// The interfaces as they were found last.
    existing: Existing,
    /// An order to attach again is on its way.
    mending: bool,
    mend_error: Option<Error>,
    /// How often each was attached again, and when last, by slot.
    again: BTreeMap<u32, (u64, Instant)>,
    alarm: Alarm,
    looks: Looks,
    silence: Silence,
    machine: preflight::Report,
    /// When the packet path's thread was heard last.
    beaten: Instant,
    beat_error: Option<Error>,
    apply_error: Option<Error>,
    told_ready: bool,
    /// What the log knows of problems.
    told: Told,
    ticks: u64,
    ticked: Instant,
    /// Apply what has changed then.
    due: Option<Instant>,
}

impl Daemon {
    async fn live(&mut self) -> Result<(), Error> {
        let mut signals = Signals::new()?;
        let mut tick = interval(TICK);
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
                    News::Unknown => {}
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
        let since = std::mem::replace(&mut self.ticked, Instant::now()).elapsed();
        if since > AWAY {
            tracing::warn!(
                "was away for {} s: this process was stopped, or got no processor; meanwhile nobody checked \
                 the backends, and traffic went on as before",
                since.as_secs()
            );
        }
        self.path.order(Order::Beat);
        if self.attached {
            self.looks.at_books(self.seen_interfaces());
        }
        if self.ticks.is_multiple_of(A_SECOND) {
            self.second();
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

    fn second(&mut self) {
        self.keeper.tick(|| self.roster.saved());
        // Backends that begin slowly get more every now and then, and at last all.
        let rising = self.roster.is_rising();
        if self.apply_error.is_some() || rising || self.rising {
            self.apply_soon();
        }
        self.rising = rising;
        let lost = self.checks.lost_authorities();
        if lost != self.lost_authorities {
            self.lost_authorities = lost;
            self.post();
        }
        if self.ticks.is_multiple_of(LOOK_ANYWAY) || self.watch.failed() {
            self.look();
        }
        if self.attached
            && self.change.is_none()
            && self.ticks.is_multiple_of(LOOK_AT_STATE)
            && self.state.trouble(overrides::DOCUMENT)
        {
            self.begin(Command::Recall);
        }
        if self.attached && self.ticks.is_multiple_of(every(silence::PERIOD)) {
            self.looks.at_traffic();
        }
        if self.attached && self.ticks.is_multiple_of(LOOK_AT_MACHINE) {
            self.looks.at_machine();
        }
        if self.attached && self.ticks.is_multiple_of(LOOK_AT_TABLES) {
            self.looks.at_tables();
        }
    }

    /// Interfaces with books of their own: name, slot and index.
    fn seen_interfaces(&self) -> Vec<(String, u32, u32)> {
        let here = self.interfaces.iter().filter(|i| !self.gone.contains(&i.slot));
        here.map(|i| (i.name.clone(), i.slot, i.ifindex)).collect()
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
            Seen::Books(sample) => {
                let before = self.alarm.findings(|_| false);
                self.alarm.note(std::time::Instant::now(), sample);
                return self.alarmed(&before);
            }
            Seen::Tables(flows, tracked) => {
                let before = self.alarm.findings(|_| false);
                self.alarm.tables(&flows, &tracked);
                return self.alarmed(&before);
            }
        }
        self.post();
    }

    /// Says aloud what was not there before. Figures that only grow are posted with the next traffic.
    fn alarmed(&mut self, before: &[status::Problem]) {
        let about = |finding: &status::Problem| {
            let subject = finding.error.split(':').next().unwrap_or_default();
            (finding.kind.clone(), subject.to_owned())
        };
        let now = self.alarm.findings(|_| false);
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (before.iter().map(about).collect(), now.iter().map(about).collect());
        for finding in now.iter().filter(|finding| !old.contains(&about(finding))) {
            tracing::warn!(remedy = finding.remedy, "{}", finding.error);
        }
        for (kind, subject) in old.difference(&new) {
            tracing::info!("{subject}: {kind} is over, or has become usual: told no more");
        }
        if old != new {
            self.post();
        }
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
        self.found(found.existing);
        let Ways { ways, kept } = found.ways;
        watch::release(self.kept.difference(&kept).copied().collect());
        self.kept = kept;
        let not_yet = Err(next_hop::NoWay::NotYet);
        let way = |address| ways.get(&address).unwrap_or(&not_yet).clone();
        let (changed, news) = self.roster.take_ways(way);
        tell(&news);
        if changed {
            self.silence = Silence::default();
            self.apply_soon();
        }
        let mut both = self.roster.ways();
        if let Some(next) = self.change.as_mut().and_then(Change::roster) {
            next.take_ways(way);
            both.extend(next.ways());
        }
        if let Some(road) = &mut self.road {
            self.road_error = road.update(&both, &self.interfaces).err();
        }
    }

    /// Takes note of how the interfaces are, and tells the packet path.
    fn found(&mut self, existing: Existing) {
        for interface in &existing.interfaces {
            let known = self.interfaces.iter_mut().find(|known| known.slot == interface.slot);
            if let Some(known) = known.filter(|known| *known != interface) {
                self.path.order(Order::Describe(interface.clone()));
                *known = interface.clone();
            }
        }
        let here: BTreeSet<u32> = existing.interfaces.iter().map(|i| i.slot).collect();
        let all = self.interfaces.iter().map(|interface| interface.slot);
        let gone: BTreeSet<u32> = all.filter(|slot| !here.contains(slot)).collect();
        let moved = self.gone != gone;
        let of = |e: &Existing| (e.down.clone(), e.no_carrier.clone(), e.renamed.clone());
        let changed = moved || of(&self.existing) != of(&existing);
        (self.gone, self.existing) = (gone, existing);
        if moved {
            // How our program stands there.
            self.path.order(Order::Beat);
        }
        if changed {
            self.post();
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
        let ours = self.interfaces.iter().filter(|interface| self.is_attached(interface));
        self.watch.look(addresses, ours.map(|i| (i.slot, i.ifindex)).collect());
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
            Report::Beat(Ok(standings)) => {
                self.beaten = Instant::now();
                self.beat_error = None;
                if self.attached {
                    self.verify(standings);
                }
            }
            Report::Mended(interfaces, outcome) => self.mended(&interfaces, outcome),
            Report::Beat(Err(error)) => {
                tracing::error!(%error, "the packet path cannot be read");
                self.beat_error = Some(error);
            }
        }
        self.post();
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
}

/// A cable that is pulled costs many backends their way at once.
fn tell(news: &[Line]) {
    const SHOWN: usize = 20;
    for Line { good, text } in news.iter().take(SHOWN) {
        match good {
            true => tracing::info!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }
    if let Some(more) = news.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        tracing::warn!("and so of {more} more backends: `ringway status` has each");
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
