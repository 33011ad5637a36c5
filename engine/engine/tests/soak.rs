//! All at once for as long as is wanted: a source at full rate, links that flap, workers that begin
//! anew and a consumer that is too slow. At the end the ledger balances, and nothing has grown. As
//! root; skipped aloud otherwise.
//!
//! `RINGWAY_SOAK=1800` is half an hour of it; without, it is ten seconds. Alone in its process, whose
//! memory is measured.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringway_engine::apps::{L2fwd, Macs, Source};
use ringway_engine::ports::af_xdp::OnLoss;
use ringway_engine::status::WorkerStatus;
use ringway_engine::{
    App, Burst, Cycles, Engine, EngineConfig, PortSpec, Reason, Verdict, WorkerConfig,
};
use ringway_testnet::{End, Namespace, VethOptions, root_or_skip, veth, wait_until};

const SOON: Duration = Duration::from_secs(30);
/// Memory that an allocator may keep for itself, in KiB.
const SLACK_KIB: u64 = 4096;

struct Slow;

impl App for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        thread::sleep(Duration::from_millis(1));
        burst.decide(|_packet| Verdict::Drop(Reason::Consumed));
    }
}

fn worker<A: App + 'static>(
    ports: &[&str],
    app: impl Fn() -> A + Send + Sync + 'static,
) -> WorkerConfig {
    let port = |text: &&str| {
        let mut port: PortSpec = text.parse().unwrap();
        if let PortSpec::AfXdp(config) = &mut port {
            config.on_loss = OnLoss::Reopen;
        }
        port
    };
    let app = Arc::new(move || Box::new(app()) as Box<dyn App>);
    WorkerConfig { cpu: None, ports: ports.iter().map(port).collect(), app }
}

fn start(namespace: &Namespace, workers: Vec<WorkerConfig>) -> Engine {
    let mut config = EngineConfig::default();
    config.umem.frames = 16_384;
    let started = namespace.run(move || Engine::start(&config, workers)).unwrap();
    started.unwrap_or_else(|e| panic!("{e}"))
}

fn seconds() -> u64 {
    std::env::var("RINGWAY_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// KiB in memory, and open files.
fn size() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib = line.split_whitespace().next().unwrap().parse().unwrap();
    (kib, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

struct Soak {
    here: Namespace,
    there: Namespace,
    sends: Engine,
    receives: Engine,
}

impl Soak {
    fn new() -> Self {
        let (here, there) = (Namespace::new("here").unwrap(), Namespace::new("there").unwrap());
        let ends = (End::new(&there, "eth0"), End::new(&here, "eth0"));
        veth(&ends.0, &ends.1, &VethOptions::default()).unwrap();
        let receives = [
            worker(&["af_xdp:eth0:0", "memory:a,slots=64"], || L2fwd::new(Macs::Swap)),
            worker(&["memory:a"], || Slow),
        ];
        let receives = start(&here, receives.into());
        let source = || Source::new(vec![2; 60], u64::MAX, 64);
        let sends = start(&there, vec![worker(&["af_xdp:eth0:0"], source)]);
        Self { here, there, sends, receives }
    }

    /// Both are alive, and miss no packet.
    fn status(&self) -> (Vec<WorkerStatus>, Vec<WorkerStatus>) {
        let of = |engine: &Engine| {
            let (status, silent) = engine.status();
            assert!(!engine.is_over(), "{status}");
            // A machine that is busy may not answer within a second.
            let whole = |w: &&WorkerStatus| w.packets.difference_packets != 0;
            assert!(status.workers.iter().find(whole).is_none(), "{status}");
            assert!(status.leaks.is_empty(), "{status}");
            if silent.is_empty() { status.workers } else { Vec::new() }
        };
        (of(&self.sends), of(&self.receives))
    }

    /// Packets come, and more than the consumer takes.
    fn flows(&self) {
        let counts = || {
            let (_, receives) = self.status();
            let first = receives.first()?;
            Some((first.ports[0].statistics.received_packets, first.packets.received_packets))
        };
        let mut before = None;
        wait_until("packets", SOON, || {
            let now = counts();
            before = before.or(now);
            // Those of the worker begin anew with it, those of the port do not.
            matches!((before, now), (Some((port, _)), Some((now, _))) if now > port + 1000)
        })
        .unwrap();
    }

    fn flap(&self, side: &Namespace) {
        let of_side = |(sends, receives): (Vec<WorkerStatus>, Vec<WorkerStatus>)| {
            let workers = if std::ptr::eq(side, &self.there) { sends } else { receives };
            workers.first().map(|worker| worker.ports[0].statistics.lost)
        };
        side.ip("link set eth0 down").unwrap();
        wait_until("the loss", SOON, || of_side(self.status()) == Some(true)).unwrap();
        side.ip("link set eth0 up").unwrap();
        wait_until("its return", SOON, || of_side(self.status()) == Some(false)).unwrap();
        self.flows();
    }

    fn round(&self) {
        self.flows();
        self.flap(&self.here);
        self.receives.restart();
        self.flows();
        self.flap(&self.there);
        self.sends.restart();
        self.flows();
    }
}

#[test]
fn soak() {
    if !root_or_skip("soak") {
        return;
    }
    let soak = Soak::new();
    let until = Instant::now() + Duration::from_secs(seconds());
    // Before it is measured all has happened once.
    soak.round();
    let (kib, files) = size();
    let mut rounds = 1;
    while Instant::now() < until {
        soak.round();
        rounds += 1;
    }
    let after = size();
    assert!(after.0 <= kib + SLACK_KIB && after.1 <= files, "{kib} KiB, {files} files: {after:?}");
    let (_, receives) = soak.status();
    let slow =
        receives.first().map(|w| w.packets.dropped.iter().any(|d| d.reason == Reason::PortFull));
    eprintln!("{rounds} rounds, {kib} KiB at first and {} at the end", after.0);
    let Soak { sends, receives, .. } = soak;
    for report in [receives.stop(), sends.stop()].into_iter().flatten().map(Result::unwrap) {
        assert!(report.error.is_none(), "{:?}", report.error);
        assert!(report.audit.balanced(), "{}\n{}", report.audit, report.status);
    }
    // One processor is the source's and the consumer's in turn.
    let alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    assert!(alone || slow.unwrap_or(true), "the consumer was not too slow");
}
