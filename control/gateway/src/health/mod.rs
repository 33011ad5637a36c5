//! Health checks: one task per target, results to the daemon over a channel.
//!
//! Each target is checked when it appears, then at every `interval` counted from the beginning of
//! the previous check, so a dead backend is noticed within `interval * fall + timeout`. `pace` says
//! how checks are spread in time.
//!
//! A backend that is sent the clients' own packets (dsr) is asked at the service address, by a [`Lane`].
//!
//! Checks leave from the node's own ephemeral ports. Validation keeps the nat pool out of
//! `net.ipv4.ip_local_port_range`, so a check never uses a port of the pool.

pub mod by_hand;
mod dns;
pub mod durations;
mod exec;
mod failure;
mod fit;
mod http;
mod https;
mod pace;
mod peer;
mod saved;
pub mod state;
mod tcp;
mod trust;
mod udp;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use ringway_config::{Check, CheckKind, endpoint_text};

pub use failure::Failure;
pub use fit::unfit;
pub use peer::{Lane, Peer, Source};
pub use saved::{Keeper, Saved};
pub use state::{Causes, Health, Machine};

use durations::{Counted, Durations};
use pace::Pace;
use trust::Trust;

/// Checks in flight at most: bounds descriptors when thousands of targets begin together.
const IN_FLIGHT: usize = 1024;

/// One thing to check.
#[derive(Clone, Debug)]
pub struct Target {
    /// The caller's number for it, returned with every event.
    pub id: usize,
    /// Name of its service.
    pub service: String,
    /// Its own address and port.
    pub backend: SocketAddr,
    /// Where to ask.
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
    durations: Durations,
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

    /// How long checks took since the daemon began.
    pub fn durations(&self) -> Counted {
        self.durations.counted()
    }

    fn count(&self, result: &Result<(), String>, took: Duration) {
        self.durations.count(took);
        match result {
            Ok(()) => self.passed.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
        let failure = result.as_ref().err().cloned();
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// A target changed its state, or is down for another reason than before.
#[derive(Clone, Debug)]
pub struct Event {
    /// [`Target::id`].
    pub id: usize,
    /// The new state.
    pub health: Health,
    /// When.
    pub at: SystemTime,
    /// Why, when it went down or is down.
    pub reason: Option<String>,
}

/// The running checks; dropping it stops them.
#[derive(Debug)]
pub struct Checks {
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// By the number of the target.
    running: HashMap<usize, AbortHandle>,
}

impl Checks {
    /// Begins checking. Changes of state arrive on `events`.
    pub fn start(targets: Vec<Target>, events: &mpsc::Sender<Event>) -> Checks {
        let shared = Arc::new(Shared {
            in_flight: Semaphore::new(IN_FLIGHT),
            programs: Semaphore::new(exec::AT_ONCE),
            trust: Trust::default(),
        });
        let (tasks, running) = (JoinSet::new(), HashMap::new());
        let mut checks = Checks { events: events.clone(), shared, tasks, running };
        checks.follow(targets);
        checks
    }

    /// Checks these targets and no others from now on. Those whose number is being checked go on as
    /// they were, undisturbed: what is to be checked in another way has another number.
    pub fn follow(&mut self, targets: Vec<Target>) {
        self.shared.trust.keep(targets.iter().filter_map(|target| match &target.check.kind {
            CheckKind::Https(_, tls) => Some(tls),
            _ => None,
        }));
        let wanted: HashSet<usize> = targets.iter().map(|target| target.id).collect();
        self.running.retain(|id, task| {
            let stays = wanted.contains(id);
            if !stays {
                task.abort();
            }
            stays
        });
        let new = targets.into_iter().filter(|target| !self.running.contains_key(&target.id));
        let new: Vec<Target> = new.collect();
        let count = new.len();
        for (place, target) in new.into_iter().enumerate() {
            let (id, interval) = (target.id, target.check.interval);
            let pace = Pace::new(id, place, count, interval);
            let watch = watch(target, pace, self.shared.clone(), self.events.clone());
            self.running.insert(id, self.tasks.spawn(watch));
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

impl Checks {
    /// Why files of authorities that were read before cannot be read any more.
    pub fn lost_authorities(&self) -> Vec<String> {
        self.shared.trust.lost()
    }
}

/// What all checks have in common.
#[derive(Debug)]
struct Shared {
    in_flight: Semaphore,
    programs: Semaphore,
    trust: Trust,
}

async fn watch(target: Target, pace: Pace, shared: Arc<Shared>, events: mpsc::Sender<Event>) {
    let mut machine = Machine::new(target.check.rise, target.check.fall, target.initial);
    let mut causes = Causes::new(target.check.fall);
    let interval = target.check.interval;
    let mut gaps = [pace.gap, pace.gap].into_iter();
    let mut next = Instant::now() + pace.first;
    loop {
        // No burst after a stall: what was missed is skipped.
        next = next.max(Instant::now());
        sleep_until(next).await;
        let gate = match target.check.kind {
            CheckKind::Exec(_) => &shared.programs,
            _ => &shared.in_flight,
        };
        let (result, sort, took) = {
            let Ok(_permit) = gate.acquire().await else { return };
            let began = Instant::now();
            let result = ask(&target, &shared.trust).await;
            let took = began.elapsed();
            let sort = result.as_ref().err().map(Failure::sort);
            let result = result.map_err(|failure| in_words(&failure, &target.check));
            if target.check.log_checks {
                log(&target, &result, took);
            }
            (result, sort, took)
        };
        target.record.count(&result, took);
        let changed = machine.observe(result.is_ok());
        let another = causes.observe(machine.health(), sort);
        if let Some(health) = changed.or(another.then_some(Health::Down)) {
            let reason = result.err();
            let event = Event { id: target.id, health, at: SystemTime::now(), reason };
            if events.send(event).await.is_err() {
                return;
            }
        }
        next += gaps.next().unwrap_or(interval);
    }
}

async fn ask(target: &Target, trust: &Trust) -> Result<(), Failure> {
    let to = Peer { address: target.address, lane: target.lane.clone() };
    let limit = target.check.timeout;
    match &target.check.kind {
        CheckKind::Tcp => tcp::tcp(&to, limit).await,
        CheckKind::Http(check) => http::http(&to, check, limit).await,
        CheckKind::Https(check, tls) => https::https(&to, check, tls, trust, limit).await,
        CheckKind::Udp(check) => udp::udp(&to, check, limit).await,
        CheckKind::Dns(check) => dns::dns(&to, check, limit).await,
        CheckKind::Exec(check) => exec::exec(check, &target.service, target.address, limit).await,
    }
}

/// Why a check failed; and where it asked, if not at the backend's own address.
fn in_words(failure: &Failure, check: &Check) -> String {
    match &check.address {
        Some(address) => format!("{failure} (asked at {address})"),
        None => failure.to_string(),
    }
}

/// One result, for those who asked for every one of them.
fn log(target: &Target, result: &Result<(), String>, took: Duration) {
    let (service, backend) = (&target.service, endpoint_text(target.backend));
    let kind = target.check.kind.name();
    let ms = took.as_micros() as f64 / 1000.0;
    match result {
        Ok(()) => tracing::info!(check = kind, ms, "{service}: backend {backend} passed"),
        Err(failure) => {
            tracing::info!(check = kind, ms, "{service}: backend {backend} failed: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn target(address: SocketAddr) -> Target {
        Target {
            id: 7,
            service: "web".into(),
            backend: address,
            address,
            lane: None,
            check: Check {
                kind: CheckKind::Tcp,
                address: None,
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

    #[tokio::test]
    async fn following_disturbs_nobody_who_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let target = |id: usize| Target { id, ..target(address) };
        let (send, mut receive) = mpsc::channel(8);
        let (one, two) = (target(1), target(2));
        let counted = two.record.clone();
        let mut checks = Checks::start(vec![one, two.clone()], &send);
        let mut first = [0, 0].map(|_| 0);
        for id in &mut first {
            *id = receive.recv().await.expect("up").id;
        }
        first.sort_unstable();
        assert_eq!(first, [1, 2]);
        // Number 2 would say again that it is up, were it begun anew.
        checks.follow(vec![two, target(3)]);
        assert_eq!(receive.recv().await.expect("up").id, 3);
        checks.follow(vec![target(3)]);
        // What had begun may end; then nothing more is counted.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let so_far = counted.passed();
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(counted.passed(), so_far);
        assert!(receive.try_recv().is_err());
    }
}
