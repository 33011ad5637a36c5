//! The daemon: looks after the packet path until told to stop, and then leaves it running.

mod announce;
mod attachment;
mod background_reads;
mod config_loader;
mod datapath_thread;
mod load;
mod log_limit;
mod log_transitions;
mod netlink_watch;
mod override_writer;
mod posted_status;
mod reload;
mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringway_api::documents::status::{self, Problem};
use ringway_api::error::Error;
use ringway_api::overrides::{self, Overrides};
use ringway_api::state_dir::State;
use ringway_config::Config;
use ringway_kernel::{AttachState, Interface, XdpMode};
use ringway_plan::Observed;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::backends::{BackendSet, Line, Replies};
use crate::health::dsr_probe::ProbeTunnel;
use crate::health::{self, Checks};
use crate::monitor::counter_watch::{self, CounterWatch};
use crate::monitor::no_reply_watch::{self, NoReplyWatch};
use crate::network::next_hop::{self, Existing, Ways};
use crate::network::solicitations::Solicitations;
use crate::notify::Notifier;
use crate::preflight;
use crate::server::control::Command;
use crate::snapshot::StatusStore;

use background_reads::{BackgroundReads, Seen};
use config_loader::ConfigLoader;
use datapath_thread::{DatapathCommand, DatapathEvent, DatapathThread};
use log_limit::LogLimiter;
use log_transitions::{LogTransitions, beside};
use netlink_watch::{NetlinkEvent, NetlinkWatch};
use override_writer::OverrideWriter;
use reload::{Change, Led};

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(3);
/// What is looked at regularly is looked at this often, or every so many times.
const TICK: Duration = counter_watch::PERIOD;
/// Lines of the log that come together within this are counted together.
const CROWD: u64 = every(Duration::from_secs(2));
const A_SECOND: u64 = every(Duration::from_secs(1));
/// The ways to backends are looked up this often even when the kernel tells no change.
const LOOK_ANYWAY: u64 = every(Duration::from_secs(30));
const LOOK_AT_MACHINE: u64 = every(Duration::from_secs(30));
/// Counting ten million flows takes half a second: a count that took long is used again for a while (snapshot.rs).
const LOOK_AT_TABLES: u64 = every(Duration::from_millis(1500));
/// A state directory that could not be used is tried again this often.
const LOOK_AT_STATE: u64 = every(Duration::from_secs(5));
/// The packet path's thread must be heard within this; it is asked every moment, and may be busy for a while
/// with the rings of a large configuration.
const SILENCE: Duration = Duration::from_secs(5);
/// A first start waits this long at most for the first results of checks.
const FIRST_RESULTS: Duration = Duration::from_secs(3);
/// Rosters that are kept for status while their tables are being written.
const ORDERS_KNOWN: usize = 4;
/// A tick this late means that the process did not run: stopped, or without a processor.
const AWAY: Duration = Duration::from_secs(3);
/// A document that is being written when the daemon stops is waited for no longer.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// So many ticks.
const fn every(period: Duration) -> u64 {
    (period.as_millis() / TICK.as_millis()) as u64
}

/// Runs the gateway of this configuration in the calling thread's network namespace, until
/// SIGTERM or SIGINT. The packet path stays when this returns without error. `commit`: what the program was built from.
///
/// # Errors
/// It cannot start; what a first start had made is taken away again.
pub fn run(config: Config, commit: Option<&'static str>) -> Result<(), Error> {
    start::raise_open_files()?;
    if let Some(nodes) = Notifier::kept() {
        ringway_kernel::give_nodes(&nodes);
    }
    start::await_interfaces(&config);
    let machine = start::preflight(&config)?;
    let begun = start::Begun::new(config, commit);
    let (reports, from_path) = mpsc::unbounded_channel();
    // Gives privileges up when the programs are loaded, so there must be no other thread yet.
    let datapath = DatapathThread::open(&begun.config, reports)?;
    // Not before: a start that another daemon refuses has its reason as its only words.
    start::tell_of_machine(&machine);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("no runtime: {error}"), ""))?;
    let outcome = runtime.block_on(look_after(begun, datapath, from_path));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn look_after(
    begun: start::Begun,
    datapath: DatapathThread,
    from_path: mpsc::UnboundedReceiver<DatapathEvent>,
) -> Result<(), Error> {
    let fresh = datapath.opened.taken_over.is_none();
    start::tell(&datapath.opened);
    let config = &begun.config;
    let (socket, node) = (config.api.socket.clone().into_inner(), config.node.name.to_string());
    let mut daemon = match start::prepare(begun, datapath, from_path).await {
        Ok(daemon) => daemon,
        Err((error, datapath)) => {
            datapath.close();
            start::undo(&node, fresh);
            return Err(error);
        }
    };
    let outcome = daemon.live().await;
    daemon.notifier.stopping();
    // A disk that hangs keeps nobody from stopping.
    let _ = timeout(LAST_WRITE, daemon.keeper.finish(|| daemon.backend_set.saved())).await;
    daemon.writer.finish().await;
    if let Some(pins) = daemon.datapath.view.pins() {
        let _ = pins.forget_socket();
    }
    daemon.datapath.close();
    // The next daemon would remove it, too; without it `status` knows at once.
    let _ = std::fs::remove_file(socket);
    match &outcome {
        Ok(()) if !daemon.status_store.commit_confirm.waiting().is_empty() => {
            let names = daemon.status_store.commit_confirm.waiting().join(", ");
            tracing::warn!("stopped before `ringway confirm`: detached from {names} again");
        }
        Ok(()) if daemon.attached => {
            tracing::info!("stopped; traffic still flows; `ringway detach` stops it");
        }
        _ => start::undo(&node, fresh && !daemon.attached),
    }
    outcome
}

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
    /// Read and judge changes.
    loader: ConfigLoader,
    /// Keeps overrides.
    writer: OverrideWriter,
    /// Roads that were made for them.
    led: (mpsc::UnboundedSender<Led>, mpsc::UnboundedReceiver<Led>),
    /// Changes that have begun.
    changes: u64,
    /// Some backend has not its whole weight yet.
    slow_start: bool,
    /// SIGHUP has come.
    hung_up: bool,
    last_reload: Option<status::Reload>,
    reloads: status::Reloads,
    datapath: DatapathThread,
    from_path: mpsc::UnboundedReceiver<DatapathEvent>,
    interfaces: Vec<Interface>,
    backend_set: BackendSet,
    /// As it was when the tables were written; status shows this one.
    in_tables: BackendSet,
    /// As it was when the tables were ordered that are not written yet, by the order's number.
    in_orders: VecDeque<(u64, BackendSet)>,
    /// Orders to write the tables.
    orders: u64,
    kept: BTreeSet<(u32, IpAddr)>,
    /// [`Surroundings::own_addresses`](crate::health::dsr_probe::Surroundings::own_addresses)
    own_addresses: BTreeSet<IpAddr>,
    /// What the interfaces receive for announced IPv6 addresses.
    solicitations: Solicitations,
    watch: NetlinkWatch,
    results: mpsc::Receiver<health::Event>,
    checks: Checks,
    /// [`Checks::lost_authorities`], as last posted.
    lost_authorities: Vec<String>,
    /// [`Checks::not_made`], as last posted.
    not_made: BTreeMap<health::Lack, u64>,
    /// The checks of dsr backends take it.
    probe_tunnel: Option<ProbeTunnel>,
    probe_tunnel_error: Option<Error>,
    status_store: Arc<StatusStore>,
    /// What survives this process.
    state: Arc<State>,
    keeper: health::Keeper,
    notifier: Notifier,
    attached: bool,
    /// An order to attach is on its way.
    attaching: bool,
    /// Attach at the latest then, whatever is not known yet.
    attach_by: Instant,
    modes: BTreeMap<u32, (XdpMode, String)>,
    /// How our programs stood at the last beat, by slot.
    attach_states: BTreeMap<u32, AttachState>,
    /// Slots of interfaces that are not there.
    gone: BTreeSet<u32>,
    /// The interfaces as they were found last.
    existing: Existing,
    /// An order to pin what is provisional is on its way.
    confirming: bool,
    /// An order to attach again is on its way.
    mending: bool,
    mend_error: Option<Error>,
    /// How often each was attached again, and when last, by slot.
    again: BTreeMap<u32, (u64, Instant)>,
    alarm: CounterWatch,
    looks: BackgroundReads,
    silence: NoReplyWatch,
    /// What had come from each backend when the counters were read last.
    replies: Replies,
    machine: preflight::Report,
    /// When the packet path's thread was heard last.
    beaten: Instant,
    /// It has been asked for a beat, and has not answered.
    beating: bool,
    beat_error: Option<Error>,
    apply_error: Option<Error>,
    told_ready: bool,
    /// What the log knows of problems.
    told: LogTransitions,
    /// What it was told lately of backends and services.
    log_limiter: LogLimiter,
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
        let status_store = self.status_store.clone();
        loop {
            let begins = !self.attached && !self.attaching;
            if begins && (!self.backend_set.waiting() || Instant::now() >= self.attach_by) {
                self.attach();
            }
            let due = self.due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let until = self.change.as_ref().and_then(Change::until);
            tokio::select! {
                Some(event) = self.results.recv() => self.result(&event),
                Some(command) = self.commands.recv(), if self.attached && self.change.is_none() => {
                    self.begin(command);
                }
                Some(judged) = self.loader.next() => self.judged(judged),
                Some(written) = self.writer.next() => self.written(written),
                Some(led) = self.led.1.recv() => self.led(led),
                () = sleep_until(until.unwrap_or(due)), if until.is_some() => {}
                news = self.watch.next() => match news {
                    NetlinkEvent::Changed => self.refresh(),
                    NetlinkEvent::Found(found) => self.ways(*found),
                    NetlinkEvent::Unknown => {}
                },
                Some(report) = self.from_path.recv() => self.report(report)?,
                Some(seen) = self.looks.next() => self.seen(seen),
                () = sleep_until(due), if self.due.is_some() => self.apply(),
                () = sleep_until(self.attach_by), if !self.attached && !self.attaching => {}
                _ = watchdog.tick() => self.notifier.watchdog(),
                _ = tick.tick() => self.tick(),
                () = status_store.commit_confirm.rung() => self.confirm(),
                stop = signals.next() => match stop {
                    true => return Ok(()),
                    false => self.hung_up = true,
                },
            }
            if self.attached && self.change.is_none() && std::mem::take(&mut self.hung_up) {
                self.begin(Command::Reload { dry_run: false, file: None, reply: None });
            }
            self.go_on();
            self.status_store.turn();
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
        if self.ticks.is_multiple_of(CROWD) {
            self.log_limiter.end();
        }
        if !std::mem::replace(&mut self.beating, true) {
            self.datapath.order(DatapathCommand::Beat);
        }
        if self.attached {
            self.looks.at_books(self.seen_interfaces());
        }
        if self.ticks.is_multiple_of(A_SECOND) {
            self.second();
        }
        if self.beaten.elapsed() > SILENCE {
            self.post();
        }
        if !self.confirming
            && let Some(names) = self.status_store.commit_confirm.expire()
        {
            tracing::error!(interfaces = ?names, "no `ringway confirm` in time: detaching again");
            self.datapath.order(DatapathCommand::Revert);
            self.post();
        }
    }

    fn second(&mut self) {
        self.keeper.tick(|| self.backend_set.saved());
        // Backends that begin slowly get more every now and then, and at last all.
        let slow_start = self.backend_set.is_starting_slowly();
        if self.apply_error.is_some() || slow_start || self.slow_start {
            self.apply_soon();
        }
        self.slow_start = slow_start;
        let lost = self.checks.lost_authorities();
        let not_made = self.checks.not_made();
        if lost != self.lost_authorities || not_made != self.not_made {
            (self.lost_authorities, self.not_made) = (lost, not_made);
            self.post();
        }
        if self.ticks.is_multiple_of(LOOK_ANYWAY) || self.watch.failed() || self.watch.is_asking() {
            self.refresh();
        }
        if self.attached
            && self.change.is_none()
            && self.ticks.is_multiple_of(LOOK_AT_STATE)
            && self.state.trouble(overrides::DOCUMENT)
            && self.loader.running() == 0
            && !self.writer.is_busy()
        {
            self.begin(Command::Recall);
        }
        if self.attached && self.ticks.is_multiple_of(every(no_reply_watch::PERIOD)) {
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

    /// Has it pinned; the loop waits for nobody.
    fn confirm(&mut self) {
        let commit_confirm = &self.status_store.commit_confirm;
        match commit_confirm.waiting().is_empty() {
            true => commit_confirm.answer(&commit_confirm.nothing()),
            false => {
                self.confirming = true;
                self.datapath.order(DatapathCommand::Confirm);
            }
        }
    }

    fn confirmed(&mut self, answer: Result<Vec<String>, Error>) {
        self.confirming = false;
        let commit_confirm = &self.status_store.commit_confirm;
        if let Ok(names) = &answer
            && !names.is_empty()
        {
            commit_confirm.end();
            tracing::info!(interfaces = ?names, "confirmed: attached for good");
        }
        commit_confirm.answer(&answer);
    }

    fn seen(&mut self, seen: Seen) {
        match seen {
            Seen::Traffic(sample, replies) => {
                self.replies = replies;
                self.tend();
                let before = self.silence.problems();
                self.silence.note(std::time::Instant::now(), sample);
                for problem in beside(&self.silence.problems(), &before) {
                    if self.log_limiter.admits(false) {
                        tracing::warn!(remedy = problem.remedy, "{}", problem.error);
                    }
                }
            }
            // What could not be asked is as it was.
            Seen::Machine(report) if report.blind => return,
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
    fn alarmed(&mut self, before: &[Problem]) {
        let now = self.alarm.findings(|_| false);
        let (begun, over) = (beside(&now, before), beside(before, &now));
        for finding in &begun {
            tracing::warn!(remedy = finding.remedy, "{}", finding.error);
        }
        let over: BTreeSet<_> = over.into_iter().map(Problem::identity).collect();
        for (kind, subject) in &over {
            tracing::info!("{subject}: {} is over, or has become usual: told no more", kind.name());
        }
        if !(begun.is_empty() && over.is_empty()) {
            self.post();
        }
    }

    fn result(&mut self, event: &health::Event) {
        if let (health::Health::Down, Some(backend)) =
            (event.health, self.backend_set.address(event))
        {
            self.watch.doubt(backend);
        }
        if let Some(service) = self.backend_set.service(event) {
            self.silence.forget(service);
        }
        self.keeper.changed();
        let next = self.change.as_mut().and_then(Change::backend_set);
        let news = next.and_then(|next| next.take(event));
        if let Some(text) = self.backend_set.take(event).or(news) {
            let good = event.health.is_up();
            // That backends are up is what a start expects: the line "serving" has how many.
            let line = Line { good, text, lost_by: self.backend_set.lost_by(event) };
            match good && !self.told_ready || self.follows(&line) {
                true => tracing::debug!("{}", line.text),
                false => self.log_limiter.tell(&line),
            }
        }
        self.apply_soon();
    }

    fn ways(&mut self, found: netlink_watch::Found) {
        let netlink_watch::Found { existing, ways: Ways { ways, kept, .. }, probe_tunnel: around } =
            found;
        self.found(existing);
        let own = around.own_addresses();
        if std::mem::replace(&mut self.own_addresses, own) != self.own_addresses {
            self.apply_soon();
        }
        netlink_watch::release(self.kept.difference(&kept).copied().collect());
        self.kept = kept;
        let not_yet = Err(next_hop::NoWay::NotYet);
        let way = |address| ways.get(&address).unwrap_or(&not_yet).clone();
        let (changed, news) = self.backend_set.take_ways(way);
        self.log_lines(&news, "lost the way to");
        self.tend();
        if changed {
            self.silence = NoReplyWatch::default();
            self.apply_soon();
        }
        let mut both = self.backend_set.ways();
        if let Some(next) = self.change.as_mut().and_then(Change::backend_set) {
            next.take_ways(way);
            both.extend(next.ways());
        }
        if let Some(probe_tunnel) = &mut self.probe_tunnel {
            self.probe_tunnel_error = probe_tunnel.update(&both, &self.interfaces, &around).err();
        }
    }

    /// Connections of backends that are down go on no longer than they may.
    fn tend(&mut self) {
        let now = std::time::Instant::now();
        if let Some(next) = self.change.as_mut().and_then(Change::backend_set) {
            next.tend(now, &self.replies);
        }
        let ended = self.backend_set.tend(now, &self.replies);
        if !ended.is_empty() {
            self.log_lines(&ended, "reset the connections of");
            self.apply_soon();
        }
    }

    /// Takes note of how the interfaces are, and tells the packet path.
    fn found(&mut self, existing: Existing) {
        for interface in &existing.interfaces {
            let known = self.interfaces.iter_mut().find(|known| known.slot == interface.slot);
            if let Some(known) = known.filter(|known| *known != interface) {
                self.datapath.order(DatapathCommand::Describe(interface.clone()));
                *known = interface.clone();
            }
        }
        if self.attached {
            self.receive_solicitations();
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
            self.datapath.order(DatapathCommand::Beat);
        }
        if changed {
            self.post();
        }
    }

    /// Looks up the ways to backends that are, and that will be.
    fn refresh(&mut self) {
        let mut addresses = self.backend_set.addresses();
        if let Some(next) = self.change.as_mut().and_then(Change::backend_set) {
            addresses.extend(next.addresses());
            addresses.sort();
            addresses.dedup();
        }
        let ours = self.interfaces.iter().filter(|interface| self.is_attached(interface));
        self.watch.refresh(addresses, ours.map(|i| (i.slot, i.ifindex)).collect());
    }

    /// # Errors
    /// It could not attach at the start.
    fn report(&mut self, report: DatapathEvent) -> Result<(), Error> {
        match report {
            DatapathEvent::Applied(number, outcome) => {
                let written = |(ordered, _): &&(u64, BackendSet)| number >= Some(*ordered);
                let count = self.in_orders.iter().take_while(written).count();
                if let Some((_, backend_set)) = self.in_orders.drain(..count).next_back() {
                    self.in_tables = backend_set;
                }
                let error = outcome.err();
                // It is tried again every second; once is enough to tell.
                if let Some(error) =
                    error.as_ref().filter(|e| Some(*e) != self.apply_error.as_ref())
                {
                    tracing::error!(%error, "tables not written");
                }
                self.apply_error = error;
            }
            DatapathEvent::Adopted(outcome) => {
                self.adopted(outcome);
                return Ok(());
            }
            DatapathEvent::Confirmed(answer) => self.confirmed(answer),
            DatapathEvent::Beat(outcome) => {
                // It answers.
                (self.beating, self.beaten) = (false, Instant::now());
                if let Err(error) = outcome {
                    self.unread(error);
                }
            }
            DatapathEvent::Standings(Ok(attach_states)) => {
                let known = (self.beat_error.take(), self.attach_states.clone());
                if self.attached {
                    self.verify(attach_states);
                }
                if known == (None, self.attach_states.clone()) {
                    return Ok(());
                }
            }
            DatapathEvent::Standings(Err(error)) => self.unread(error),
            DatapathEvent::Attached(interfaces, outcome) => self.attached(&interfaces, outcome)?,
            DatapathEvent::Mended(interfaces, outcome) => self.mended(&interfaces, outcome),
        }
        self.post();
        Ok(())
    }

    fn unread(&mut self, error: Error) {
        if self.beat_error.as_ref() != Some(&error) {
            tracing::error!(%error, "the packet path cannot be read");
        }
        self.beat_error = Some(error);
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
            true => {
                self.orders += 1;
                // Of orders that wait the newest alone is written, so an older one is not missed.
                if self.in_orders.len() >= ORDERS_KNOWN {
                    self.in_orders.pop_front();
                }
                self.in_orders.push_back((self.orders, self.backend_set.clone()));
                let observed = observed(&self.backend_set, &self.own_addresses);
                self.datapath.order(DatapathCommand::Apply(self.orders, observed));
            }
            false => self.post(),
        }
    }
}

/// What the tables are made from.
fn observed(backend_set: &BackendSet, own: &BTreeSet<IpAddr>) -> Box<Observed> {
    let mut observed = Box::new(backend_set.observed());
    observed.own_addresses.clone_from(own);
    observed
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
