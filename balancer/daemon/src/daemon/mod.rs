//! The daemon: looks after the packet path until told to stop, and then leaves it running.
//!
//! What it does is decided in `step`, a step for each event. The loop here hears of events and
//! carries effects out; it waits for none.

mod announce;
mod background;
mod config_loader;
mod datapath_thread;
mod document_writer;
mod load;
mod log_limit;
mod log_transitions;
mod machine_problems;
mod netlink_watch;
mod posted_status;
mod probe_routes;
mod program_runner;
mod shield_answer;
pub mod shield_plan;
pub mod shield_warnings;
mod start;
mod step;
mod wide_prefix;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ringway_api::documents::changes::Changes;
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::error::Error;
use ringway_api::overrides::Overrides;
use ringway_api::shield::{RuntimeShield, ShieldChange};
use ringway_api::state_dir::StateDir;
use ringway_config::Config;
use ringway_kernel::View;
use ringway_kernel::shield::ChallengeKey;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::health::cookies::{CookieChecks, CookieEvent};
use crate::health::{self, CheckTarget, Checks};
use crate::notify::Notifier;
use crate::reload_diff;
use crate::server::control::{PendingRequests, Reply, Request, ShieldReply, ShieldRequest};
use crate::snapshot::{HeavySources, StatusStore};

use background::Background;
use config_loader::{ConfigLoader, Load};
use datapath_thread::{DatapathEvent, DatapathThread};
use document_writer::{DocumentWriter, NONE};
use load::{Now, Refusal};
use log_limit::LogLimiter;
use netlink_watch::{Found, NetlinkEvent, NetlinkWatch};
use probe_routes::ProbeRoutes;
use program_runner::ProgramRunner;
use shield_answer::Changed;
use step::{Effect, Event, Judge, Moment, State, TICK};

/// A document that is being written when the daemon stops is waited for no longer.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Runs the gateway of this configuration in the calling thread's network namespace, until
/// SIGTERM or SIGINT. The packet path stays when this returns without error. `commit`: what the
/// program was built from.
///
/// # Errors
/// It cannot start; what a first start had made is taken away again.
pub fn run(config: Config, commit: Option<&'static str>) -> Result<(), Error> {
    start::raise_open_files()?;
    if let Some(nodes) = Notifier::kept() {
        ringway_kernel::give_nodes(nodes);
    }
    start::await_interfaces(&config);
    let machine = start::preflight(&config)?;
    let start_config = start::StartConfig::new(config, commit);
    let (reports, from_path) = mpsc::unbounded_channel();
    // Gives privileges up when the programs are loaded, so there must be no other thread yet.
    let datapath =
        DatapathThread::open(&start_config.config, start_config.shield.clone(), reports)?;
    // Not before: a start that another daemon refuses has its reason as its only words.
    start::tell_of_machine(&machine);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("no runtime: {error}"), ""))?;
    let outcome = runtime.block_on(look_after(start_config, datapath, from_path));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn look_after(
    start_config: start::StartConfig,
    datapath: DatapathThread,
    from_path: mpsc::UnboundedReceiver<DatapathEvent>,
) -> Result<(), Error> {
    let fresh = datapath.opened.taken_over.is_none();
    start::tell(&datapath.opened);
    let config = &start_config.config;
    let (socket, node) = (config.api.socket.clone().into_inner(), config.node.name.to_string());
    let (mut daemon, found) = match start::prepare(start_config, datapath, from_path).await {
        Ok(prepared) => prepared,
        Err((error, datapath)) => {
            datapath.close();
            start::undo(&node, fresh);
            return Err(error);
        }
    };
    let outcome = daemon.live(found).await;
    daemon.notifier.stopping();
    // A disk that hangs keeps nobody from stopping.
    let _ =
        timeout(LAST_WRITE, daemon.health_file.finish(|| daemon.state.backend_set().saved())).await;
    daemon.writer.finish().await;
    daemon.shield_writer.finish().await;
    if let Some(pins) = daemon.datapath.view.pins() {
        let _ = pins.forget_socket();
    }
    daemon.datapath.close();
    // The next daemon would remove it, too; without it `status` knows at once.
    let _ = std::fs::remove_file(socket);
    let attached = daemon.state.attachment().is_done();
    match &outcome {
        Ok(()) if !daemon.state.confirm_state().waiting().is_empty() => {
            let names = daemon.state.confirm_state().waiting().join(", ");
            tracing::warn!("stopped before `ringway confirm`: detached from {names} again");
        }
        Ok(()) if attached => {
            tracing::info!("stopped; {}", after_the_end(daemon.state.reload().config.as_ref()));
        }
        _ => start::undo(&node, fresh && !attached),
    }
    outcome
}

fn after_the_end(config: &Config) -> &'static str {
    match (config.services.is_empty(), &config.forward) {
        (true, Some(_)) => {
            "in five seconds the kernel has every packet; `ringway detach` removes the programs"
        }
        (_, None) => "traffic still flows; `ringway detach` stops it",
        (false, Some(_)) => {
            "traffic of services still flows, and in five seconds the kernel has the rest; `ringway \
             detach` stops it"
        }
    }
}

impl Moment {
    fn now() -> Moment {
        Moment { now: std::time::Instant::now(), wall: std::time::SystemTime::now() }
    }
}

/// The state, and all sources of events and targets of effects.
struct Daemon {
    state: State,
    commands: mpsc::Receiver<Request>,
    requests: PendingRequests<Reply>,
    shield_changes: mpsc::Receiver<ShieldRequest>,
    shield_requests: PendingRequests<ShieldReply>,
    loader: ConfigLoader,
    writer: DocumentWriter<Overrides>,
    shield_writer: DocumentWriter<RuntimeShield>,
    datapath: DatapathThread,
    from_path: mpsc::UnboundedReceiver<DatapathEvent>,
    watch: NetlinkWatch,
    results: mpsc::Receiver<health::CheckEvent>,
    checks: Checks,
    cookie_results: mpsc::Receiver<CookieEvent>,
    cookie_checks: CookieChecks,
    probe_routes: ProbeRoutes,
    status_store: Arc<StatusStore>,
    state_dir: Arc<StateDir>,
    health_file: health::HealthFile,
    notifier: Notifier,
    background: Background,
    program_runner: ProgramRunner,
    /// Lines that the log has had lately about backends and services.
    log_limiter: LogLimiter,
}

impl Daemon {
    /// `found`: the network at the start.
    async fn live(&mut self, found: Found) -> Result<(), Error> {
        self.handle(Event::Network(Ok(Box::new(found))))?;
        let mut signals = Signals::new()?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let period = self.notifier.watchdog_period().unwrap_or(Duration::from_secs(3600));
        let mut watchdog = interval(period);
        let status_store = self.status_store.clone();
        loop {
            let until = self.state.until().map(Instant::from_std);
            let event = tokio::select! {
                Some(event) = self.results.recv() => Event::Checked(event),
                Some(event) = self.cookie_results.recv() => Event::Cookies(event),
                Some((command, reply)) = self.commands.recv(), if self.state.takes_commands() => {
                    Event::Command(command, self.requests.add(reply))
                }
                Some((change, by, reply)) = self.shield_changes.recv(),
                    if self.state.takes_shield_changes() =>
                {
                    Event::Shield(change, by, self.shield_requests.add(reply))
                }
                // What goes wrong is a problem until it is right.
                Some(_) = self.shield_writer.next() => continue,
                Some(judged) = self.loader.next() => Event::Judged(Box::new(judged)),
                Some(written) = self.writer.next() => Event::Written(written),
                Some(made) = self.probe_routes.next() => {
                    Event::Led(self.probe_routes.take(made, self.state.reload().next()))
                }
                news = self.watch.next() => match news {
                    NetlinkEvent::Changed => Event::NetworkChanged,
                    NetlinkEvent::Found(found) => Event::Network(found),
                },
                Some(report) = self.from_path.recv() => Event::Datapath(report),
                Some(event) = self.background.next() => Event::Background(event),
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    Event::Time
                }
                _ = watchdog.tick() => {
                    self.notifier.watchdog();
                    continue;
                }
                _ = tick.tick() => Event::Tick,
                () = status_store.commit_confirm.rung() => Event::Confirm,
                stop = signals.next() => match stop {
                    true => return Ok(()),
                    false => Event::HungUp,
                },
            };
            self.handle(event)?;
            self.status_store.turn();
        }
    }

    /// A step, its effects, and what follows from these at once.
    ///
    /// # Errors
    /// The daemon cannot go on.
    fn handle(&mut self, event: Event) -> Result<(), Error> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.state.step(Moment::now(), event) {
                events.extend(self.carry_out(effect)?);
            }
        }
        Ok(())
    }

    /// # Errors
    /// The daemon cannot go on.
    fn carry_out(&mut self, effect: Effect) -> Result<Option<Event>, Error> {
        let (reload, attachment) = (self.state.reload(), self.state.attachment());
        match effect {
            Effect::Datapath(command) => self.datapath.order(command),
            Effect::Checks => self.follow_checks(),
            Effect::ProbeWays(around) => {
                let mut ways = self.state.backend_set().ways();
                ways.extend(reload.next().map(|(_, next)| next.ways()).unwrap_or_default());
                let error = self.probe_routes.update(&ways, &attachment.interfaces, &around);
                return Ok(Some(Event::ProbeWays(error)));
            }
            Effect::Lead(number) => {
                let next = reload.next();
                let led = next.and_then(|next| self.probe_routes.lead(number, next));
                return Ok(led.map(Event::Led));
            }
            Effect::Load(number, judge) => {
                let refused = self.loader.begin(number, self.load(judge)).err();
                return Ok(
                    refused.map(|error| Event::Judged(Box::new((number, Err(error.into())))))
                );
            }
            Effect::Keep(number, overrides) => self.writer.write(number, overrides),
            Effect::RunProgram(run) => self.program_runner.run(run),
            Effect::KeepShield(runtime) => self.shield_writer.write(NONE, runtime),
            Effect::LookUpWays(addresses, known) => self.watch.refresh(addresses, known),
            Effect::Doubt(backend) => self.background.doubt(backend),
            Effect::Release(neighbours) => self.background.release(neighbours),
            Effect::Announce(addresses, interfaces) => {
                self.background.announce(addresses, &interfaces);
            }
            Effect::ReceiveSolicitations => {
                let ours = announce::ours(&reload.config);
                self.background.receive_solicitations(&ours, &attachment.interfaces);
            }
            Effect::HealthChanged => self.health_file.changed(),
            Effect::ReadTraffic => self.background.read_traffic(),
            Effect::ReadCounters(interfaces) => self.background.read_counters(interfaces),
            Effect::ReadTables => self.background.read_tables(),
            Effect::ReadLists(known) => {
                let in_force = self.state.shield_plan();
                self.background.read_lists(reload.config.clone(), in_force, known);
            }
            Effect::ReadMachine(config) => {
                self.background.reconfigure(config);
                self.background.read_machine();
            }
            Effect::Survey => {
                self.cookie_checks.set_key(self.cookie_key());
                self.health_file.tick(|| self.state.backend_set().saved());
                return Ok(Some(Event::Surveyed(self.survey())));
            }
            Effect::Reloading => self.notifier.reloading(),
            Effect::Reloaded => self.notifier.reloaded(),
            Effect::Serving => self.serving(),
            Effect::Recount => self.status_store.settle(),
            Effect::Post => return Ok(Some(Event::Posted(self.post()))),
            Effect::Answer(request, outcome) => {
                if let Some(reply) = self.requests.take(request) {
                    answer(reply, *outcome, self.datapath.view.clone());
                }
            }
            Effect::AnswerShield(request, change, outcome) => {
                if let Some(reply) = self.shield_requests.take(request) {
                    let config = reload.config.clone();
                    let (runtime, plan) = (self.state.shield_in_force(), self.state.shield_plan());
                    let changed = Changed { config, runtime, plan };
                    answer_shield(reply, change, *outcome, changed, self.datapath.view.clone());
                }
            }
            Effect::AnswerConfirm(answer) => self.status_store.commit_confirm.answer(&answer),
            Effect::Log(line) => self.log_limiter.write(&line),
            Effect::LogRest => self.log_limiter.end(),
            Effect::Fail(error) => return Err(error),
        }
        Ok(None)
    }

    /// Checks backends that are and that will be.
    fn follow_checks(&mut self) {
        let next = self.state.reload().next().map(|(_, next)| next);
        let all = || [Some(self.state.backend_set()), next].into_iter().flatten();
        let routes = self.probe_routes.keep(|id| all().any(|set| set.has(id)));
        let targets = all().flat_map(|set| set.targets(&routes));
        let targets: BTreeMap<usize, CheckTarget> =
            targets.map(|target| (target.id, target)).collect();
        self.checks.follow(targets.into_values().collect());
        let targets = all().flat_map(|set| set.cookie_targets(&routes)).collect();
        self.cookie_checks.set_key(self.cookie_key());
        self.cookie_checks.follow(targets);
    }

    /// The key of cookies that backends can have.
    fn cookie_key(&self) -> Option<ChallengeKey> {
        self.state.shield_plan().and_then(|plan| plan.secret.key)
    }

    /// Reads and judges a change, on a thread that may wait.
    fn load(&self, judge: Judge) -> Load {
        let now = Now {
            config: self.state.reload().config.clone(),
            backend_set: self.state.backend_set().clone(),
            shield: self.state.shield_plan(),
            view: self.datapath.view.clone(),
        };
        let reload = self.state.reload();
        let (file, known) = (reload.file.clone(), reload.overrides.clone());
        let kept = reload.to_keep().cloned();
        let (state_dir, status_store) = (self.state_dir.clone(), self.status_store.clone());
        Box::new(move || match judge {
            Judge::File(meant) => {
                let loaded = load::file(&now, meant.as_deref(), known);
                // The last that is known of backends that may leave.
                let _ = status_store.read_now(HeavySources::Unread);
                loaded
            }
            Judge::Overridden(change) => {
                load::overridden(&now, &file, kept, &change, &state_dir).map_err(Refusal::from)
            }
            Judge::Recalled => load::recalled(&now, &file, &state_dir).map_err(Refusal::from),
        })
    }
}

/// Tells who asked, and may have gone. A backend's flows are counted now that the tables are
/// written, so that one that is drained has no more than these; on a thread that may wait.
fn answer(reply: Reply, mut outcome: Result<Changes, Error>, view: View) {
    tokio::task::spawn_blocking(move || {
        if let Ok(Changes { backend: Some(told), .. }) = &mut outcome {
            match reload_diff::flows_of(&view, &told.service, (told.address, told.port).into()) {
                Ok(flows) => told.flows = flows,
                Err(error) => {
                    let what = format!("it is done, but its flows could not be counted: {error}");
                    outcome = Err(Error::failed(what, "see `ringway status`"));
                }
            }
        }
        let _ = reply.send(outcome);
    });
}

/// Tells who asked about the shield, with its counts, on a thread that may wait.
fn answer_shield(
    reply: ShieldReply,
    change: ShieldChange,
    outcome: Result<ShieldStatus, Error>,
    changed: Changed,
    view: View,
) {
    tokio::task::spawn_blocking(move || {
        let outcome = outcome.map(|mut status| {
            // What was asked for is done, counted or not.
            status.count(view.shield_counts().unwrap_or_default());
            status
        });
        let _ = reply.send(changed.answer(&change, outcome));
    });
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
