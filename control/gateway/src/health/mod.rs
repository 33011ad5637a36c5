//! Health checks: one task per target, results to the daemon over a channel.
//!
//! Each target is checked at once when it appears, then at every `interval` counted from the
//! beginning of the previous check, so a dead backend is noticed within `interval * fall +
//! timeout`. The second check comes after a part of the interval that differs from target to
//! target, which spreads checks in time.
//!
//! A backend that is sent the clients' own packets (dsr) is asked at the service address, by a [`Lane`].
//!
//! Checks leave from the node's own ephemeral ports. Validation keeps the nat pool out of
//! `net.ipv4.ip_local_port_range`, so a check never uses a port of the pool.

pub mod probe;
pub mod state;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use ringway_config::{Check, CheckKind};

pub use probe::{Lane, Source};
pub use state::{Health, Machine};

/// Checks in flight at most: bounds descriptors when thousands of targets begin together.
const IN_FLIGHT: usize = 1024;

/// One thing to check.
#[derive(Clone, Debug)]
pub struct Target {
    /// The caller's number for it, returned with every event.
    pub id: usize,
    /// Where to connect.
    pub address: SocketAddr,
    /// How to get to one backend of several that have this address.
    pub lane: Option<Lane>,
    /// What is asked, how often, and how many results count.
    pub check: Check,
    /// State to begin with.
    pub initial: Health,
    /// Where results are counted.
    pub record: Arc<Record>,
}

/// Counted results of one target; read by status and metrics.
#[derive(Debug, Default)]
pub struct Record {
    passed: AtomicU64,
    failed: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

impl Record {
    /// Checks passed since the daemon began.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Checks failed since the daemon began.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Why the last check failed; `None` when it passed.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, result: &Result<(), probe::Failure>) {
        match result {
            Ok(()) => self.passed.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
        let failure = result.as_ref().err().map(ToString::to_string);
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// A target changed its state.
#[derive(Clone, Debug)]
pub struct Event {
    /// [`Target::id`].
    pub id: usize,
    /// The new state.
    pub health: Health,
    /// When.
    pub at: SystemTime,
    /// Why, when it went down.
    pub reason: Option<String>,
}

/// The running checks; dropping it stops them.
#[derive(Debug)]
pub struct Checks {
    _tasks: JoinSet<()>,
}

impl Checks {
    /// Begins checking. Changes of state arrive on `events`.
    pub fn start(targets: Vec<Target>, events: &mpsc::Sender<Event>) -> Checks {
        let gate = Arc::new(Semaphore::new(IN_FLIGHT));
        let count = targets.len() as u32;
        let mut tasks = JoinSet::new();
        for (place, target) in targets.into_iter().enumerate() {
            // The second check: between a half and a whole interval after the first.
            let half = target.check.interval / 2;
            let phase = half + half * (place as u32 + 1) / count;
            tasks.spawn(watch(target, phase, gate.clone(), events.clone()));
        }
        Checks { _tasks: tasks }
    }
}

async fn watch(target: Target, phase: Duration, gate: Arc<Semaphore>, events: mpsc::Sender<Event>) {
    let mut machine = Machine::new(target.check.rise, target.check.fall, target.initial);
    let mut next = Instant::now();
    let mut gap = phase;
    loop {
        let result = {
            let Ok(_permit) = gate.acquire().await else { return };
            ask(&target).await
        };
        target.record.count(&result);
        if let Some(health) = machine.observe(result.is_ok()) {
            let reason = result.err().map(|failure| failure.to_string());
            let event = Event { id: target.id, health, at: SystemTime::now(), reason };
            if events.send(event).await.is_err() {
                return;
            }
        }
        // Never two at once, and no burst after a stall: skip what was missed.
        next = (next + gap).max(Instant::now());
        gap = target.check.interval;
        sleep_until(next).await;
    }
}

async fn ask(target: &Target) -> Result<(), probe::Failure> {
    let to = probe::Peer { address: target.address, lane: target.lane.clone() };
    match &target.check.kind {
        CheckKind::Tcp => probe::tcp(&to, target.check.timeout).await,
        CheckKind::Http(http) => probe::http(&to, &http.path, target.check.timeout).await,
        _ => Err(probe::Failure::NoWay("not built yet".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn target(address: SocketAddr) -> Target {
        Target {
            id: 7,
            address,
            lane: None,
            check: Check {
                kind: CheckKind::Tcp,
                port: None,
                interval: Duration::from_millis(20),
                timeout: Duration::from_millis(100),
                rise: 2,
                fall: 2,
                log_checks: false,
            },
            initial: Health::Unknown,
            record: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_dead_backend_is_noticed_and_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let target = target(address);
        let record = target.record.clone();
        let (send, mut receive) = mpsc::channel(8);
        let _checks = Checks::start(vec![target], &send);

        let event = receive.recv().await.expect("first result");
        assert_eq!((event.id, event.health), (7, Health::Up));
        drop(listener);
        let event = receive.recv().await.expect("down");
        assert_eq!(event.health, Health::Down);
        assert!(event.reason.expect("reason").contains("refused"));
        assert!(record.failed() >= 2 && record.last_failure().is_some());

        let _listener = TcpListener::bind(address).await.expect("bind again");
        assert_eq!(receive.recv().await.expect("up").health, Health::Up);
        assert!(record.passed() >= 2 && record.last_failure().is_none());
    }

    #[tokio::test]
    async fn dropping_the_checks_stops_them() {
        let (send, mut receive) = mpsc::channel(8);
        let checks = Checks::start(vec![target("127.0.0.1:1".parse().expect("address"))], &send);
        assert_eq!(receive.recv().await.expect("down").health, Health::Down);
        drop(checks);
        drop(send);
        assert!(receive.recv().await.is_none());
    }
}
