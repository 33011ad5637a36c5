//! HTTP load that knows, of every request, when it was sent, how it ended and which backend it was
//! on.
//!
//! wrk counts failures but cannot say whose they were. Here some connections are kept alive and
//! used again and again, so a failure on one belongs to the backend that has answered on it before;
//! others are opened at a fixed pace whatever happens to the earlier ones, so that the moment from
//! which new connections succeed again is seen to some 10 ms even while each lost one hangs until
//! its timeout.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringway_testnet::Namespace;

use super::http::{Connection, Fault};
use crate::{Error, Result};

/// The load to put on.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub target: SocketAddr,
    /// Connections kept alive, each with one request at a time.
    pub kept_alive: usize,
    /// Between an answer and the next request on a connection that is kept alive.
    pub pause: Duration,
    /// New connections per second, one request each.
    pub new_per_s: u32,
    /// For connecting, and again for one answer. Less than a second, so that a lost SYN is seen and
    /// not mended by its retransmission.
    pub timeout: Duration,
}

impl Plan {
    /// Some thousand requests per second.
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            kept_alive: 48,
            pause: Duration::from_millis(4),
            new_per_s: 100,
            timeout: Duration::from_millis(900),
        }
    }

    /// Long enough for both timeouts, so that no opener is late for its next connection.
    fn period(self) -> Duration {
        self.timeout * 2 + Duration::from_millis(200)
    }

    fn openers(self) -> u32 {
        (f64::from(self.new_per_s) * self.period().as_secs_f64()).ceil() as u32
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// When it began: for the first request of a connection, when connecting began.
    pub sent: Instant,
    /// When it was known to have failed.
    pub ended: Instant,
    pub fault: Fault,
    /// The backend that had answered on this connection before; `None` on a new one.
    pub backend: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Tally {
    pub answered: BTreeMap<String, u64>,
    /// From sending (for a connection's first: from connecting) to the complete answer, ns.
    pub latency: Histogram<u64>,
    /// All that failed, in no order.
    pub failures: Vec<Failure>,
    /// When the first requests of new connections were sent that were answered.
    pub opened: Vec<Instant>,
    pub elapsed: Duration,
}

/// A histogram of 1 us to 60 s, exact to 1..2 per cent, and small enough to have one per
/// connection.
pub(super) fn nanoseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 2)
        .expect("bounds are in order and the precision is below 6")
}

impl Tally {
    pub(super) fn empty() -> Self {
        Self {
            answered: BTreeMap::new(),
            latency: nanoseconds(),
            failures: Vec::new(),
            opened: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Answers of all backends.
    pub fn answers(&self) -> u64 {
        self.answered.values().sum()
    }

    /// Answers and failures.
    pub fn requests(&self) -> u64 {
        self.answers() + self.failures.len() as u64
    }

    fn add(&mut self, other: Self) {
        for (backend, count) in other.answered {
            *self.answered.entry(backend).or_default() += count;
        }
        // Same bounds, so this cannot fail.
        let _ = self.latency.add(&other.latency);
        self.failures.extend(other.failures);
        self.opened.extend(other.opened);
    }

    fn answer(&mut self, backend: &str, sent: Instant) {
        match self.answered.get_mut(backend) {
            Some(count) => *count += 1,
            None => drop(self.answered.insert(backend.to_owned(), 1)),
        }
        self.latency.saturating_record(sent.elapsed().as_nanos() as u64);
    }

    fn fail(&mut self, sent: Instant, fault: Fault, backend: Option<String>) {
        self.failures.push(Failure { sent, ended: Instant::now(), fault, backend });
    }
}

struct Shared {
    plan: Plan,
    begin: Instant,
    stop: AtomicBool,
    answers: AtomicU64,
}

/// Load that is on. Dropping it ends it as well.
pub struct Load {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<Result<Tally>>>,
}

impl Load {
    /// Starts it from within `client`.
    pub fn start(client: &Namespace, plan: Plan) -> Result<Self> {
        let shared = Arc::new(Shared {
            plan,
            begin: Instant::now(),
            stop: AtomicBool::new(false),
            answers: AtomicU64::new(0),
        });
        let mut load = Self { shared, workers: Vec::new() };
        for _ in 0..plan.kept_alive {
            load.spawn(client, keep_alive)?;
        }
        for n in 0..plan.openers() {
            load.spawn(client, move |shared| open_at_pace(shared, n))?;
        }
        Ok(load)
    }

    fn spawn(
        &mut self,
        client: &Namespace,
        work: impl FnOnce(&Shared) -> Tally + Send + 'static,
    ) -> Result<()> {
        let (client, shared) = (client.clone(), Arc::clone(&self.shared));
        let worker = thread::Builder::new()
            .name("load".into())
            .stack_size(256 << 10)
            .spawn(move || {
                client.enter()?;
                Ok(work(&shared))
            })
            .map_err(|source| Error::Run { program: "a thread of the load".into(), source })?;
        self.workers.push(worker);
        Ok(())
    }

    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Lets the requests under way end, and counts.
    pub fn stop(mut self) -> Result<Tally> {
        let elapsed = self.shared.begin.elapsed();
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::empty();
        for worker in self.workers.drain(..) {
            let one = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            tally.add(one);
        }
        tally.elapsed = elapsed;
        Ok(tally)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// One request on a new connection, which is returned with the name of the backend that
    /// answered.
    fn open(&self, tally: &mut Tally) -> Option<(Connection, String)> {
        let sent = Instant::now();
        let opened = Connection::open(self.plan.target, self.plan.timeout)
            .and_then(|mut connection| Ok((connection.get(self.plan.timeout)?, connection)));
        match opened {
            Ok((backend, connection)) => {
                self.answers.fetch_add(1, Ordering::Relaxed);
                tally.answer(&backend, sent);
                tally.opened.push(sent);
                Some((connection, backend))
            }
            Err(fault) => {
                tally.fail(sent, fault, None);
                None
            }
        }
    }

    /// One more request on a connection to `backend`; false when it failed.
    fn again(&self, connection: &mut Connection, backend: &str, tally: &mut Tally) -> bool {
        let sent = Instant::now();
        match connection.get(self.plan.timeout) {
            Ok(name) if name == backend => {
                self.answers.fetch_add(1, Ordering::Relaxed);
                tally.answer(backend, sent);
                true
            }
            // Another backend answering on the same connection: a flow that did not stay.
            Ok(_) => {
                tally.fail(sent, Fault::BadAnswer, Some(backend.to_owned()));
                false
            }
            Err(fault) => {
                tally.fail(sent, fault, Some(backend.to_owned()));
                false
            }
        }
    }
}

fn keep_alive(shared: &Shared) -> Tally {
    let mut tally = Tally::empty();
    while shared.on() {
        if let Some((mut connection, backend)) = shared.open(&mut tally) {
            while shared.on() {
                thread::sleep(shared.plan.pause);
                if !shared.again(&mut connection, &backend, &mut tally) {
                    break;
                }
            }
        }
        if shared.on() {
            // A refusal comes at once: do not turn it into a flood.
            thread::sleep(shared.plan.pause);
        }
    }
    tally
}

/// Opener `n`: its first connection at its place within the period, the next one a period later,
/// and so on.
fn open_at_pace(shared: &Shared, n: u32) -> Tally {
    /// How soon an opener that waits notices the end.
    const GLANCE: Duration = Duration::from_millis(50);
    let mut tally = Tally::empty();
    let period = shared.plan.period();
    let mut next = shared.begin + period * n / shared.plan.openers();
    while shared.on() {
        let wait = next.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            drop(shared.open(&mut tally));
            next += period;
        } else {
            thread::sleep(wait.min(GLANCE));
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openers_keep_the_pace() {
        let plan = Plan::new("127.0.0.1:80".parse().unwrap());
        let between = plan.period() / plan.openers();
        assert!(between <= Duration::from_millis(10), "{between:?}");
        assert!(plan.period() > plan.timeout * 2);
    }

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::empty();
        for _ in 0..2 {
            let mut one = Tally::empty();
            let now = Instant::now();
            one.answer("b1", now);
            one.answer("b1", now);
            one.answer("b2", now);
            one.fail(now, Fault::Reset, None);
            all.add(one);
        }
        assert_eq!((all.answers(), all.requests(), all.latency.len()), (6, 8, 6));
        assert_eq!(all.answered.get("b1"), Some(&4));
    }
}
