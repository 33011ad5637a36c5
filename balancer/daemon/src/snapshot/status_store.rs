//! What the daemon's loop posts, and those who ask read together with the kernel's counters. Nobody
//! waits for the loop.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock::Timestamp;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::readiness::Readiness;
use ringway_api::documents::shield::{Blocked, ShieldStatus};
use ringway_api::documents::status::{self, FlowTable, Problem, Status, Tracked};
use ringway_api::error::Error;
use ringway_api::node::liveness;
use ringway_api::node::tables::{captures, shield_observed};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::shield::RuntimeShield;
use ringway_kernel::{ServiceState, View};

use super::flow_count::FlowCount;
use super::{Counters, Process, Snapshot};
use crate::backends::departed::Departed;
use crate::commit_confirm::CommitConfirm;
use crate::monitor::mitigation_program::ProgramOutcomes;
use crate::monitor::rates::{Meter, Sample};

/// Shared by the daemon's loop, the API and the metrics.
#[derive(Debug)]
pub struct StatusStore {
    posted: RwLock<Arc<Snapshot>>,
    /// Where counters are read; none are shown without.
    view: Option<View>,
    started: SystemTime,
    /// The commit that the program was built from.
    pub commit: Option<&'static str>,
    turned: Mutex<Instant>,
    /// Attachments that wait for `ringway confirm`.
    pub commit_confirm: CommitConfirm,
    /// The program of mitigation.
    pub program_outcomes: ProgramOutcomes,
    flows: FlowCount,
    meter: Mutex<Meter>,
    /// Counters of backends that have left.
    departed: Mutex<Departed>,
}

/// The heavy sources that are asked for: to read them takes a millisecond.
#[derive(Debug)]
pub enum Sources {
    None,
    /// Of all services.
    All,
    /// Of those that take part in an attack.
    Of(AttackStatus),
}

/// Whether findings of attacks say how many sources are heavy: to read them takes a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeavySources {
    Unread,
    Counted,
}

impl StatusStore {
    /// An empty board of a daemon that starts now.
    pub fn new(node: &str, view: Option<View>) -> StatusStore {
        let status_store = StatusStore {
            posted: RwLock::default(),
            view,
            started: SystemTime::now(),
            commit: None,
            turned: Mutex::new(Instant::now()),
            commit_confirm: CommitConfirm::default(),
            program_outcomes: ProgramOutcomes::default(),
            flows: FlowCount::default(),
            meter: Mutex::default(),
            departed: Mutex::default(),
        };
        let problems = vec![ProblemKind::Starting.problem("starting", "wait")];
        status_store.post(Snapshot { node: node.to_owned(), problems, ..Snapshot::default() });
        status_store
    }

    /// Puts up a new picture.
    pub fn post(&self, snapshot: Snapshot) {
        *self.posted.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    fn posted(&self) -> Arc<Snapshot> {
        self.posted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `[node] name`.
    pub fn node(&self) -> String {
        self.posted().node.clone()
    }

    /// The loop has turned.
    pub fn turn(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Another configuration or other weights are in force: flows that were counted before are
    /// counted anew.
    pub fn settle(&self) {
        self.flows.settle();
    }

    /// How long the loop has been stuck, if it is.
    pub fn stalled(&self) -> Option<Duration> {
        Some(self.loop_age()).filter(|age| *age > liveness::STALLED)
    }

    /// How long ago the loop turned.
    fn loop_age(&self) -> Duration {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether the node, or this service of it, should get traffic: without counters, at once.
    pub fn readiness(&self, service: Option<&str>) -> Readiness {
        self.posted().readiness(self.stall(), service)
    }

    /// The shield with its counts and these heavy sources, read on a thread that may wait.
    ///
    /// # Errors
    /// The daemon has not posted it yet, or the kernel's tables cannot be read.
    pub async fn shield(
        status_store: &Arc<StatusStore>,
        sources: Sources,
    ) -> Result<ShieldStatus, Error> {
        let posted = status_store.posted();
        let (config, runtime) = posted.shield.as_ref().ok_or_else(starting)?;
        let mut status = ShieldStatus::new(config, runtime);
        status.enter_lists(&posted.lists);
        status.enter_attacks(config, &posted.attacks, &posted.attacks_found);
        status.enter_usual(&posted.usual);
        status.program_failures = status_store.program_outcomes.failures();
        let config = config.clone();
        let status_store = status_store.clone();
        let reading = tokio::task::spawn_blocking(move || {
            if let Some(view) = &status_store.view {
                status.count(view.shield_counts()?);
                if !(status.limits.is_empty() && status.mitigation.is_empty()) {
                    let (services, arrivals) = (view.services()?, view.arrivals()?);
                    status.enter_answers(&services, &view.syn_answers()?);
                    status.count_limits(&services, &arrivals);
                    let (heavy, wall) = (|| view.heavy_sources(), SystemTime::now());
                    match sources {
                        Sources::None => {}
                        Sources::All => status.enter_heavy(&services, &heavy()?, wall),
                        Sources::Of(attack) => {
                            status.enter_heavy_of(&attack, &services, &heavy()?, wall);
                        }
                    }
                }
                status.enter_secrets(&config, view.syn_secrets()?);
                status.counted_since = view.counting_since().map(Timestamp);
                let meter = status_store.meter.lock().unwrap_or_else(PoisonError::into_inner);
                meter.fill_shield(&mut status, Instant::now());
            }
            Ok(status)
        });
        let not_read = |error: String| Error::failed(error, "see the daemon's log");
        let read = reading.await.map_err(|error| not_read(format!("shield not read: {error}")))?;
        read.map_err(|error: ringway_kernel::Error| not_read(error.to_string()))
    }

    /// What was blocked and allowed at run time.
    ///
    /// # Errors
    /// The daemon has not posted it yet.
    pub fn blocked(&self) -> Result<Blocked, Error> {
        let posted = self.posted();
        let (config, runtime) = posted.shield.as_ref().ok_or_else(starting)?;
        Ok(Blocked::new(config, true, runtime))
    }

    /// The problem that the loop is stuck, if it is.
    fn stall(&self) -> Option<Problem> {
        self.stalled().map(|age| liveness::stalled(age, std::process::id().into()))
    }

    pub fn problems(&self) -> Vec<Problem> {
        self.posted().problems.clone()
    }

    /// Takes the counters of these services and of all interfaces as they are now, for rates.
    pub(crate) fn meter(&self, services: &[ServiceState]) -> ringway_kernel::Result<()> {
        let Some(view) = &self.view else { return Ok(()) };
        let posted = self.posted();
        let slots = posted.interfaces.iter().map(|interface| interface.slot);
        let ledgers = slots.map(|slot| Ok((slot, view.ledger(slot)?)));
        let ledgers = ledgers.collect::<ringway_kernel::Result<Vec<_>>>()?;
        let observed = shield_observed(view)?;
        let mut sample = Sample::of_tables(Instant::now(), services, &ledgers, &observed);
        let config = posted.shield.as_ref().map(|(config, _)| config);
        if let Some(config) = config.filter(|config| config.shield.is_some()) {
            let mut shield = ShieldStatus::new(config, &RuntimeShield::default());
            shield.count(view.shield_counts()?);
            shield.enter_answers(services, &view.syn_answers()?);
            shield.count_limits(services, &view.arrivals()?);
            sample = sample.with_shield(&mut shield);
        }
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).note(sample);
        Ok(())
    }

    /// How many flows there are, counted lately; `None` without a view. Takes a while.
    pub(crate) fn flow_tables(&self) -> ringway_kernel::Result<Option<(FlowTable, Tracked)>> {
        self.view.as_ref().map(|view| self.flows.read(view)).transpose()
    }

    /// The picture with the kernel's counters, read on a thread that may wait.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub async fn read(
        status_store: &Arc<StatusStore>,
        heavy: HeavySources,
    ) -> Result<Status, Error> {
        let status_store = status_store.clone();
        let reading = tokio::task::spawn_blocking(move || status_store.read_now(heavy));
        reading.await.unwrap_or_else(|error| {
            Err(Error::failed(format!("status not read: {error}"), "see the daemon's log"))
        })
    }

    /// Reads it on this thread, which may wait.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn read_now(&self, heavy: HeavySources) -> Result<Status, Error> {
        // Held until everything is read: what is read later is never less.
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.posted();
        let read = |view: &View| -> ringway_kernel::Result<Counters> {
            let (flow_table, tracked) = self.flows.read(view)?;
            Counters::read(view, &snapshot, flow_table, tracked, heavy)
        };
        let counters = self.view.as_ref().map(read).transpose();
        let counters =
            counters.map_err(|error| Error::failed(error.to_string(), "see the daemon's log"))?;
        let mut status = snapshot.status(self.process(), counters);
        if let Some(view) = &self.view {
            departed.note(&mut status.services);
            status.captures = captures(view);
            let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.fill(&mut status, Instant::now());
        }
        Ok(status)
    }

    fn process(&self) -> Process {
        let daemon = status::Daemon {
            running: true,
            pid: Some(std::process::id().into()),
            since: Some(Timestamp(self.started)),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            commit: self.commit.map(str::to_owned),
            uptime_s: Some(self.started.elapsed().unwrap_or_default().as_secs()),
            loop_age_ms: Some(self.loop_age().as_millis() as u64),
            configuration: None,
        };
        let (confirm, untold) = (self.commit_confirm.finding(), self.program_outcomes.findings());
        Process { daemon, stalled: self.stall(), confirm, untold }
    }
}

fn starting() -> Error {
    Error::failed("the daemon is starting", "ask again")
}
