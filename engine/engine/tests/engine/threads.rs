//! Workers on threads of their own, which hand packets to each other.

use std::sync::Arc;
use std::time::Duration;

use ringway_engine::apps::{L2fwd, Macs, Sink, Source};
use ringway_engine::{
    App, AppFactory, Engine, EngineConfig, Idle, WorkerConfig, WorkerOptions, WorkerReport,
};
use ringway_testnet::wait_until;
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
        wait_until("what was sent", Duration::from_secs(30), || {
            let (status, _) = engine.status();
            let sink = status.workers.iter().find(|worker| worker.app == "sink");
            let received = sink.map_or(0, |worker| worker.packets.received_packets);
            let forwarder = status.workers.iter().find(|worker| worker.app == "l2fwd");
            let dropped: u64 =
                forwarder.map_or(0, |w| w.packets.dropped.iter().map(|d| d.packets).sum());
            received + dropped == PACKETS
        })
        .unwrap();
        wait_until("the end of a source that has sent all", Duration::from_secs(30), || {
            engine.is_over()
        })
        .unwrap();
        let reports: Vec<_> = engine.stop().into_iter().map(Result::unwrap).collect();
        for WorkerReport { error, audit, status, .. } in &reports {
            assert!(error.is_none() && audit.balanced(), "{error:?}\n{audit}\n{status}");
        }
        let sleeps = reports[2].status.sleeps;
        assert!(idle == Idle::Adaptive || sleeps == 0);
    }
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
    )
    .unwrap();
    let mut status = None;
    wait_until("the worker's answer", Duration::from_secs(30), || {
        let (now, silent) = engine.status();
        status = silent.is_empty().then_some(now);
        status.is_some()
    })
    .unwrap();
    let status = status.unwrap();
    assert!(status.to_string().starts_with("worker 0: sink on CPU 0, idle "), "{status}");
}
