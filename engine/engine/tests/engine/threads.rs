//! Workers on threads of their own, which hand packets to each other.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ringway_engine::apps::{L2fwd, Macs, Sink, Source};
use ringway_engine::{
    App, AppFactory, Burst, Cycles, Engine, EngineConfig, EngineError, Idle, Verdict, WorkerConfig,
    WorkerOptions, WorkerReport,
};
use ringway_xsk::UmemConfig;

use crate::frames;

fn config(idle: Idle) -> EngineConfig {
    let umem = UmemConfig { frames: 4096, ..UmemConfig::default() };
    let options = WorkerOptions { idle, ..WorkerOptions::default() };
    EngineConfig { umem, options, ..EngineConfig::default() }
}

fn worker<A: App + 'static>(
    ports: &[&str],
    app: impl Fn() -> A + Send + Sync + 'static,
) -> WorkerConfig {
    let app: AppFactory = Arc::new(move || Box::new(app()));
    WorkerConfig { cpu: None, ports: ports.iter().map(|p| p.parse().unwrap()).collect(), app }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what} has not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn balanced(reports: &[Result<WorkerReport, EngineError>]) {
    for report in reports {
        let report = report.as_ref().unwrap();
        assert!(report.error.is_none(), "{:?}", report.error);
        assert!(report.audit.balanced(), "{}\n{}", report.audit, report.status);
    }
}

#[test]
fn from_worker_to_worker() {
    for idle in [Idle::Adaptive, Idle::Latency] {
        const PACKETS: u64 = 20_000;
        let engine = Engine::start(
            &config(idle),
            vec![
                worker(&["memory:a"], || Source::new(frames::ping(), PACKETS, 32)),
                worker(&["memory:a", "memory:b"], || L2fwd::new(Macs::Swap)),
                worker(&["memory:b"], Sink::default),
            ],
        )
        .unwrap();
        wait_until("what was sent", || {
            let (status, _) = engine.status();
            let sink = status.workers.iter().find(|worker| worker.app == "sink");
            let received = sink.map_or(0, |worker| worker.packets.received_packets);
            let forwarder = status.workers.iter().find(|worker| worker.app == "l2fwd");
            let dropped: u64 =
                forwarder.map_or(0, |w| w.packets.dropped.iter().map(|d| d.packets).sum());
            received + dropped == PACKETS
        });
        assert!(engine.is_over(), "a source that has sent all ends");
        let reports = engine.stop();
        balanced(&reports);
        let sleeps = reports[2].as_ref().unwrap().status.sleeps;
        assert!(idle == Idle::Adaptive || sleeps == 0);
    }
}

struct Slow(Arc<AtomicU64>);

impl App for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|_| Verdict::Forward(0));
        std::thread::sleep(Duration::from_millis(5));
    }

    fn on_round(&mut self, _now: Cycles, _burst: &mut Burst<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A source at full rate, a forwarder, a consumer that is too slow; all of them restarted again and
/// again.
#[test]
fn soak() {
    let seconds = std::env::var("RINGWAY_SOAK").ok().and_then(|s| s.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let rounds = Arc::new(AtomicU64::new(0));
    let of_slow = rounds.clone();
    let engine = Engine::start(
        &config(Idle::Adaptive),
        vec![
            worker(&["memory:a"], || Source::new(frames::udp(b"hello"), u64::MAX, 64)),
            worker(&["memory:a", "memory:b,slots=64"], || L2fwd::new(Macs::AsIs)),
            worker(&["memory:b"], move || Slow(of_slow.clone())),
        ],
    )
    .unwrap();
    let mut restarts = 0;
    while Instant::now() < until {
        let before = rounds.load(Relaxed);
        wait_until("a round of the slow one", || rounds.load(Relaxed) > before + 10);
        engine.restart();
        restarts += 1;
        let (status, silent) = engine.status();
        assert!(silent.is_empty() && !engine.is_over(), "{silent:?} after {restarts} restarts");
        assert!(status.workers.iter().all(|w| w.packets.difference_packets == 0), "{status}");
    }
    assert!(restarts > 0);
    balanced(&engine.stop());
}

#[test]
fn what_cannot_start_says_why() {
    let start =
        |workers| Engine::start(&config(Idle::Adaptive), workers).err().unwrap().to_string();
    let sink = |ports: &[&str]| worker(ports, Sink::default);
    for (workers, why) in [
        (vec![], "the engine has no port"),
        (vec![sink(&["memory:a"]); 256], "256 workers are too many: at most 255"),
        (vec![sink(&["memory:a", "memory:a"]), sink(&[])], "worker 1 has no port"),
        (vec![sink(&["memory:a"])], "memory:a is named once"),
        (vec![sink(&["memory:a"; 3])], "worker 0: memory:a: a cable has two ends"),
        (vec![sink(&["pcap:/none/x:"])], "worker 0: pcap:/none/x: reading /none/x: No such file"),
        (
            vec![WorkerConfig { cpu: Some(9999), ..sink(&["memory:a"]) }],
            "cannot run on CPU 9999; this process may use [",
        ),
    ] {
        let error = start(workers);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn bound_to_a_cpu() {
    let engine = Engine::start(
        &config(Idle::Adaptive),
        vec![WorkerConfig { cpu: Some(0), ..worker(&["memory:a", "memory:a"], Sink::default) }],
    );
    let (status, _) = engine.unwrap().status();
    assert!(status.to_string().starts_with("worker 0: sink on CPU 0, idle "), "{status}");
}
