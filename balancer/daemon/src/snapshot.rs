//! What the daemon tells those who ask: it posts what it knows, they read it together with the
//! kernel's counters. Nobody waits for the daemon's loop.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock;
use ringway_api::documents::readiness::Readiness;
use ringway_api::documents::status::{FlowTable, Problem, SCHEMA, Status, Tracked};
use ringway_api::error::Error;
use ringway_api::node::liveness;
use ringway_api::node::tables::{add_traffic, captures, count, flow_table, flows_now, tracked};
use ringway_api::problem_kind::ProblemKind;
use ringway_kernel::{ServiceState, View};
use ringway_plan::tables::ServiceKey;

use crate::backends::departed::Departed;
use crate::commit_confirm::CommitConfirm;
use crate::monitor::rates::{Meter, Sample};

/// A count of flows is shown for so many times what it took, so that those who keep asking cost a twentieth of one
/// processor ...
const COUNT_SHARE: u32 = 20;
/// ... and for this long at most.
const COUNT_FRESH: Duration = Duration::from_secs(10);

/// Shared by the daemon's loop, the API and the metrics.
#[derive(Debug)]
pub struct StatusStore {
    posted: RwLock<Arc<Status>>,
    /// Where counters are read; none are shown without.
    view: Option<View>,
    started: SystemTime,
    /// What the program was built from.
    pub commit: Option<&'static str>,
    turned: Mutex<Instant>,
    /// What waits for `ringway confirm`.
    pub commit_confirm: CommitConfirm,
    /// Counting a large flow table takes a while.
    flows: Mutex<Option<Count>>,
    /// When it was last decided anew who gets new flows.
    settled: Mutex<Option<Instant>>,
    /// What happens per second.
    meter: Mutex<Meter>,
    /// What backends that have left had counted.
    departed: Mutex<Departed>,
}

/// Flows, counted.
#[derive(Clone, Debug)]
struct Count {
    begun: Instant,
    took: Duration,
    flows: FlowTable,
    tracked: Tracked,
}

impl Count {
    fn now(view: &View) -> ringway_kernel::Result<Count> {
        let begun = Instant::now();
        let (flows, tracked) = (flow_table(view)?, tracked(view)?);
        Ok(Count { begun, took: begun.elapsed(), flows, tracked })
    }

    /// Whether it can be shown now. One from before a change says nothing of what follows it: who waits for the last
    /// flow of a drained backend must not be told of a time when the backend had not got its flows yet.
    fn is_fresh(&self, settled: Option<Instant>, now: Instant) -> bool {
        let lasts = (self.took * COUNT_SHARE).min(COUNT_FRESH);
        now.duration_since(self.begun) < lasts && settled.is_none_or(|at| self.begun > at)
    }
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
            flows: Mutex::default(),
            settled: Mutex::default(),
            meter: Mutex::default(),
            departed: Mutex::default(),
        };
        let problems = vec![ProblemKind::Starting.problem("starting", "wait")];
        status_store.post(Status { node: node.to_owned(), problems, ..Status::default() });
        status_store
    }

    /// Puts up a new picture; `status` needs neither counters nor the daemon's own data.
    pub fn post(&self, mut status: Status) {
        status.schema = SCHEMA.to_owned();
        status.healthy = status.problems.is_empty();
        status.degraded = status.is_degraded();
        status.daemon.running = true;
        status.daemon.pid = Some(std::process::id().into());
        status.daemon.since = Some(clock::rfc3339(self.started));
        status.daemon.version = Some(env!("CARGO_PKG_VERSION").to_owned());
        status.daemon.commit = self.commit.map(str::to_owned);
        *self.posted.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(status);
    }

    /// `[node] name`.
    pub fn node(&self) -> String {
        self.posted.read().unwrap_or_else(PoisonError::into_inner).node.clone()
    }

    /// The loop has turned.
    pub fn turn(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Another configuration or other weights are in force: flows that were counted before are counted anew.
    pub fn settle(&self) {
        *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
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
        let posted = self.posted.read().unwrap_or_else(PoisonError::into_inner).clone();
        Readiness::of(&posted, self.stalled(), service)
    }

    /// What is wrong now.
    pub fn problems(&self) -> Vec<Problem> {
        self.posted.read().unwrap_or_else(PoisonError::into_inner).problems.clone()
    }

    /// Takes the counters of these services and of all interfaces as they are now, for rates.
    pub(crate) fn meter(&self, services: &[ServiceState]) -> ringway_kernel::Result<()> {
        let Some(view) = &self.view else { return Ok(()) };
        let posted = self.posted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let slots = posted.interfaces.iter().map(|interface| interface.slot);
        let books = slots.map(|slot| Ok((slot, view.ledger(slot)?)));
        let books = books.collect::<ringway_kernel::Result<Vec<_>>>()?;
        let sample = Sample::of_tables(Instant::now(), services, &books);
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).note(sample);
        Ok(())
    }

    /// How many flows there are, counted lately; `None` without a view. Takes a while.
    pub(crate) fn flow_tables(&self) -> ringway_kernel::Result<Option<(FlowTable, Tracked)>> {
        self.view.as_ref().map(|view| self.count_flows(view)).transpose()
    }

    /// The picture with the kernel's counters, read on a thread that may wait.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub async fn read(status_store: &Arc<StatusStore>) -> Result<Status, Error> {
        let status_store = status_store.clone();
        let reading = tokio::task::spawn_blocking(move || status_store.read_now());
        reading.await.unwrap_or_else(|error| {
            Err(Error::failed(format!("status not read: {error}"), "see the daemon's log"))
        })
    }

    /// Reads it on this thread, which may wait.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn read_now(&self) -> Result<Status, Error> {
        // Held until everything is read: what is read later is never less.
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let posted = self.posted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut status = Status::clone(&posted);
        status.findings.splice(..0, self.commit_confirm.finding());
        status.daemon.loop_age_ms = Some(self.loop_age().as_millis() as u64);
        if let Some(age) = self.stalled() {
            let stalled = liveness::stalled(age, std::process::id().into());
            status.problems.insert(0, stalled.clone());
            status.unready.insert(0, stalled);
            (status.healthy, status.degraded) = (false, false);
        }
        status.daemon.uptime_s = Some(self.started.elapsed().unwrap_or_default().as_secs());
        if let Some(view) = &self.view {
            self.count_flows(view)
                .and_then(|(table, tracked)| {
                    (status.flow_table, status.tracked) = (Some(table), Some(tracked));
                    fill(&mut status, view)
                })
                .map(|()| departed.note(&mut status.services))
                .map_err(|error| Error::failed(error.to_string(), "see the daemon's log"))?;
            status.captures = captures(view);
            let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.fill(&mut status, Instant::now());
        }
        Ok(status)
    }
}

impl StatusStore {
    /// Counted anew when the last count has become old.
    fn count_flows(&self, view: &View) -> ringway_kernel::Result<(FlowTable, Tracked)> {
        let mut known = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = *self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.take().filter(|count| count.is_fresh(settled, Instant::now()));
        let Count { begun, mut flows, tracked, .. } =
            known.insert(fresh.map_or_else(|| Count::now(view), Ok)?).clone();
        flows.age_ms = begun.elapsed().as_millis() as u64;
        Ok((flows, tracked))
    }
}

/// Adds the kernel's counters to interfaces, services and backends.
fn fill(status: &mut Status, view: &View) -> ringway_kernel::Result<()> {
    for place in 0..status.interfaces.len() {
        let books = view.ledger(status.interfaces[place].slot)?;
        count(status, place, &books);
    }
    let states = view.services()?;
    let states: HashMap<ServiceKey, &ServiceState> = states.iter().map(|s| (s.key, s)).collect();
    let flows = status.flow_table.as_ref().map(|table| &table.by_backend);
    for service in &mut status.services {
        let Some(state) = service.key().and_then(|key| states.get(&key)) else { continue };
        for backend in &mut service.backends {
            let Ok(address) = backend.address.parse() else { continue };
            let endpoint = SocketAddr::new(address, backend.port);
            if let Some(found) = state.backends.iter().find(|b| b.address == endpoint) {
                add_traffic(backend, &found.traffic);
                backend.current_flows = flows_now(state, found, flows);
            }
        }
        service.current_flows = service.backends.iter().map(|each| each.current_flows).sum();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_from_before_a_change_is_not_shown_after_it() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let count = |took| Count {
            begun,
            took: ms(took),
            flows: FlowTable::default(),
            tracked: Tracked::default(),
        };
        assert!(count(10).is_fresh(None, begun + ms(199)));
        assert!(!count(10).is_fresh(None, begun + ms(200)), "counting again costs little");
        assert!(count(5000).is_fresh(None, begun + ms(9_999)));
        assert!(!count(5000).is_fresh(None, begun + ms(10_000)));
        assert!(count(5000).is_fresh(Some(begun - ms(1)), begun + ms(2)));
        assert!(!count(5000).is_fresh(Some(begun + ms(1)), begun + ms(2)), "a drain since");
    }
}
