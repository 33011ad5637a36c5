//! Health checks: one task per target, results to the daemon over a channel.
//!
//! Each target is checked when it appears, then at every `interval` counted from the beginning of
//! the previous check, so a dead backend is noticed within `interval * fall + timeout`. `pace` says
//! how checks are spread in time.
//!
//! A backend that is sent the clients' own packets (dsr) is asked at the service address, by a
//! [`ProbeRoute`].
//!
//! What this machine cannot ask ([`not_asked`]) says nothing about a backend, and changes nothing.
//!
//! Checks leave from the node's own ephemeral ports. Validation keeps the nat pool out of
//! `net.ipv4.ip_local_port_range`, so a check never uses a port of the pool.

pub mod by_hand;
pub mod cookies;
mod dns;
pub mod dsr_probe;
pub mod exec;
mod failure;
mod fit;
mod http;
mod https;
mod not_asked;
mod pace;
mod peer;
mod saved;
pub mod state;
mod tcp;
mod trust;
mod udp;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ringway_config::{Check, CheckKind, endpoint_text};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

pub use failure::Failure;
pub use fit::unfit;
pub use not_asked::{Lack, NotAsked};
pub use peer::{Peer, ProbeRoute, Source};
pub use saved::{HealthFile, Saved};
pub use state::{Causes, HealthState};

pub use ringway_api::documents::health::Health;

use crate::descriptor_reserve::DescriptorReserve;
use exec::{LastRun, Permit};
use not_asked::Unasked;
use pace::Pace;
use ringway_api::documents::durations::{Counted, Durations};
use ringway_api::documents::status::Problem;
use ringway_plan::tables::SynOffer;
use trust::Trust;

/// Checks in flight at most: bounds descriptors when thousands of targets begin together.
const IN_FLIGHT: usize = 1024;
/// Checks at once that the reserve of descriptors has room for.
const RESERVED: usize = 8;

#[derive(Clone, Debug)]
pub struct CheckTarget {
    /// The caller's number for it, returned with every event.
    pub id: usize,
    pub service: String,
    /// Its own address and port.
    pub backend: SocketAddr,
    pub address: SocketAddr,
    /// How to get to one backend of several that have this address.
    pub probe_route: Option<ProbeRoute>,
    /// The question, its period, and how many results count.
    pub check: Check,
    pub initial: Health,
    pub record: Arc<Record>,
}

impl CheckTarget {
    /// Whether what it learns of TCP holds for clients: the check asks the same server.
    fn asks_where_clients_do(&self) -> bool {
        self.check.address.is_none() && self.address.port() == self.backend.port()
    }
}

/// Counted results of one target; read by status and metrics.
#[derive(Debug, Default)]
pub struct Record {
    counts: Arc<Counts>,
    last_failure: Mutex<Option<String>>,
    host_gone: AtomicBool,
}

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    failed: AtomicU64,
    durations: Durations,
}

impl Record {
    /// Of the same backend, asked in another way from now on: it goes on counting.
    pub fn go_on(&self) -> Record {
        Record { counts: self.counts.clone(), ..Record::default() }
    }

    /// Checks passed since the daemon began.
    pub fn passed(&self) -> u64 {
        self.counts.passed.load(Ordering::Relaxed)
    }

    /// Checks failed since the daemon began.
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Relaxed)
    }

    /// Why the last check failed; `None` when it passed.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the last check met nobody at that address: the network said that the host is
    /// unreachable.
    pub fn host_gone(&self) -> bool {
        self.host_gone.load(Ordering::Relaxed)
    }

    /// How long checks took since the daemon began.
    pub fn durations(&self) -> Counted {
        self.counts.durations.counted()
    }

    fn count(&self, result: &Result<(), String>, took: Duration) {
        self.counts.durations.count(took);
        match result {
            Ok(()) => self.counts.passed.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.counts.failed.fetch_add(1, Ordering::Relaxed),
        };
        let failure = result.as_ref().err().cloned();
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// A target changed its state, is down for another reason than before, or is up and offers
/// something else.
#[derive(Clone, Debug)]
pub struct CheckEvent {
    /// [`CheckTarget::id`].
    pub id: usize,
    pub health: Health,
    pub at: SystemTime,
    /// Why, when it went down or is down.
    pub reason: Option<String>,
    /// What the backend has offered in the last TCP handshake with it.
    pub offer: Option<SynOffer>,
}

/// The running checks; dropping it stops them.
#[derive(Debug)]
pub struct Checks {
    events: mpsc::Sender<CheckEvent>,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    /// By the number of the target.
    running: HashMap<usize, AbortHandle>,
}

impl Checks {
    /// Begins checking. Changes of state arrive on `events`.
    pub fn start(targets: Vec<CheckTarget>, events: &mpsc::Sender<CheckEvent>) -> Checks {
        let shared = Arc::new(Shared {
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            programs: Arc::new(Semaphore::new(exec::AT_ONCE)),
            trust: Trust::default(),
            reserve: DescriptorReserve::new(RESERVED),
            unasked: Unasked::default(),
        });
        let (tasks, running) = (JoinSet::new(), HashMap::new());
        let mut checks = Checks { events: events.clone(), shared, tasks, running };
        checks.follow(targets);
        checks
    }

    /// Checks these targets and no others from now on. Those whose number is being checked go on as
    /// they were, undisturbed: what is to be checked in another way has another number.
    pub fn follow(&mut self, targets: Vec<CheckTarget>) {
        self.shared.trust.keep(targets.iter().filter_map(|target| match &target.check.kind {
            CheckKind::Https(_, tls) => Some(tls),
            _ => None,
        }));
        let wanted: HashSet<usize> = targets.iter().map(|target| target.id).collect();
        self.shared.unasked.keep(|id| wanted.contains(&id));
        self.running.retain(|id, task| {
            let stays = wanted.contains(id);
            if !stays {
                task.abort();
            }
            stays
        });
        let new = targets.into_iter().filter(|target| !self.running.contains_key(&target.id));
        let new: Vec<CheckTarget> = new.collect();
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

    /// Reasons why this machine cannot ask now.
    pub fn problems(&self) -> Vec<Problem> {
        self.shared.unasked.problems()
    }

    /// By what was lacking, how many checks could not be made since the daemon began.
    pub fn not_made(&self) -> BTreeMap<Lack, u64> {
        self.shared.unasked.counts()
    }
}

/// Shared parts of all checks.
#[derive(Debug)]
struct Shared {
    in_flight: Arc<Semaphore>,
    programs: Arc<Semaphore>,
    trust: Trust,
    reserve: DescriptorReserve,
    unasked: Unasked,
}

async fn watch(
    target: CheckTarget,
    pace: Pace,
    shared: Arc<Shared>,
    events: mpsc::Sender<CheckEvent>,
) {
    let mut machine = HealthState::new(target.check.rise, target.check.fall, target.initial);
    let mut causes = Causes::new(target.check.fall);
    let interval = target.check.interval;
    let mut last = LastRun::default();
    let (mut offer, mut offer_told) = (None, None);
    let mut gaps = [pace.gap, pace.gap].into_iter();
    let mut next = Instant::now() + pace.first;
    loop {
        // No burst after a stall: what was missed is skipped.
        next = next.max(Instant::now());
        sleep_until(next).await;
        let (result, sort, took) = {
            let limit = target.check.timeout;
            let (result, took) = match last.end(limit).await {
                Err(failure) => (Err(failure), limit),
                Ok(()) => {
                    let Some(permit) = permit(&target, &shared).await else { return };
                    let to = Peer::new(target.address, target.probe_route.clone());
                    let asked = ask_by_all_means(&target, &to, &shared, &mut last, &permit).await;
                    offer = to
                        .offer
                        .get()
                        .copied()
                        .filter(|_| target.asks_where_clients_do())
                        .or(offer);
                    asked
                }
            };
            if let Err(Failure::NotAsked(why)) = &result {
                shared.unasked.note(target.id, Some(why));
                next += gaps.next().unwrap_or(interval);
                continue;
            }
            shared.unasked.note(target.id, None);
            let sort = result.as_ref().err().map(Failure::sort);
            let gone = result.as_ref().is_err_and(Failure::is_host_gone);
            target.record.host_gone.store(gone, Ordering::Relaxed);
            let result = result.map_err(|failure| in_words(&failure, &target.check));
            if target.check.log_checks {
                log(&target, &result, took);
            }
            (result, sort, took)
        };
        target.record.count(&result, took);
        let changed = machine.observe(result.is_ok());
        let another = causes.observe(machine.health(), sort);
        let offers = (machine.health() == Health::Up && offer != offer_told).then_some(Health::Up);
        if let Some(health) = changed.or(another.then_some(Health::Down)).or(offers) {
            let reason = result.err();
            let event = CheckEvent { id: target.id, health, at: SystemTime::now(), reason, offer };
            offer_told = offer;
            if events.send(event).await.is_err() {
                return;
            }
        }
        next += gaps.next().unwrap_or(interval);
    }
}

/// Waits for room for one check. Programs that do not end may have taken it for good, which is
/// told.
async fn permit(target: &CheckTarget, shared: &Shared) -> Option<Permit> {
    let CheckKind::Exec(_) = target.check.kind else {
        return shared.in_flight.clone().acquire_owned().await.ok().map(Arc::new);
    };
    let mut waiting = pin!(shared.programs.clone().acquire_owned());
    loop {
        match timeout(target.check.interval, &mut waiting).await {
            Ok(permit) => return permit.ok().map(Arc::new),
            Err(_) => shared.unasked.note(target.id, Some(&exec::no_room())),
        }
    }
}

/// Asks; once more with descriptors of the reserve, where there are no others. Nothing was sent
/// before.
async fn ask_by_all_means(
    target: &CheckTarget,
    to: &Peer,
    shared: &Shared,
    last: &mut LastRun,
    permit: &Permit,
) -> (Result<(), Failure>, Duration) {
    let began = Instant::now();
    let result = ask(target, to, &shared.trust, last, permit).await;
    if !result.as_ref().is_err_and(Failure::lacks_descriptors) {
        return (result, began.elapsed());
    }
    let _loan = shared.reserve.lend().await;
    let began = Instant::now();
    let result = ask(target, to, &shared.trust, last, permit).await;
    (result, began.elapsed())
}

async fn ask(
    target: &CheckTarget,
    to: &Peer,
    trust: &Trust,
    last: &mut LastRun,
    permit: &Permit,
) -> Result<(), Failure> {
    let limit = target.check.timeout;
    match &target.check.kind {
        CheckKind::Tcp => tcp::tcp(to, limit).await,
        CheckKind::Http(check) => http::http(to, check, limit).await,
        CheckKind::Https(check, tls) => https::https(to, check, tls, trust, limit).await,
        CheckKind::Udp(check) => udp::udp(to, check, limit).await,
        CheckKind::Dns(check) => dns::dns(to, check, limit).await,
        CheckKind::Exec(check) => {
            let (service, permit) = (&target.service, permit.clone());
            exec::exec(check, service, target.address, limit, last, permit).await
        }
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
fn log(target: &CheckTarget, result: &Result<(), String>, took: Duration) {
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

    fn target(address: SocketAddr) -> CheckTarget {
        CheckTarget {
            id: 7,
            service: "web".into(),
            backend: address,
            address,
            probe_route: None,
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
        // Nobody else has this address, where its port stays free.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = SocketAddr::from(([127, 128 | high, middle, low], 0));
        let listener = TcpListener::bind(own).await.expect("bind");
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

    /// Where clients connect, and not elsewhere.
    #[tokio::test]
    async fn what_a_server_offers_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (send, mut receive) = mpsc::channel(8);
        let elsewhere = CheckTarget {
            id: 8,
            backend: "127.0.0.1:1".parse().expect("address"),
            ..target(address)
        };
        let _checks = Checks::start(vec![target(address), elsewhere], &send);
        for _ in 0..2 {
            let event = receive.recv().await.expect("first results");
            assert_eq!(event.health, Health::Up);
            assert_eq!(event.offer.is_some(), event.id == 7, "{event:?}");
            assert!(event.offer.is_none_or(|offer| offer.mss > 1000), "{event:?}");
        }
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(receive.try_recv().is_err(), "it is told once");
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
    async fn programs_that_do_not_end_leave_no_room_and_this_is_told() {
        let (send, _receive) = mpsc::channel(8);
        let address = "192.0.2.7:80".parse().expect("an address");
        let command = ["/bin/sleep", "100"].map(String::from).to_vec();
        let kind = CheckKind::Exec(ringway_config::ExecCheck { command: command.into() });
        let timeout = Duration::from_secs(60);
        let check = Check { kind, timeout, ..target(address).check };
        let one = |id| CheckTarget { id, check: check.clone(), ..target(address) };
        let checks = Checks::start((0..=exec::AT_ONCE).map(one).collect(), &send);
        let began = Instant::now();
        let problem = loop {
            if let Some(problem) = checks.problems().pop() {
                break problem;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "nothing is told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(problem.error.contains("64 programs of checks have not ended"), "{problem:?}");
        assert!(problem.error.contains("this affects 1 backend,"), "{problem:?}");
        assert_eq!(checks.shared.programs.available_permits(), 0);
    }

    #[tokio::test]
    async fn following_disturbs_nobody_who_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let target = |id: usize| CheckTarget { id, ..target(address) };
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
