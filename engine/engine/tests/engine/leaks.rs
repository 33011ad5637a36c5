//! Frames that are never let go are found while the engine runs, and whoever has them is named.

use std::sync::Arc;
use std::time::Duration;
use std::{mem, thread};

use ringway_engine::{App, Burst, Cycles, Engine, EngineConfig, Status, Verdict, WorkerConfig};
use ringway_xsk::{Packet, Pool, Umem, UmemConfig};

struct Leaky {
    seen: u64,
    /// Packets that replace those that are taken away.
    others: Pool,
}

impl Leaky {
    fn new() -> Self {
        let others = Umem::new(&UmemConfig { frames: 64, ..UmemConfig::default() }).unwrap();
        Self { seen: 0, others: others.pool().unwrap() }
    }

    fn lose(&self, packet: &mut Packet) {
        let mut other = self.others.allocate().unwrap();
        mem::swap(packet, &mut other);
        mem::forget(other);
    }
}

impl App for Leaky {
    fn name(&self) -> &'static str {
        "leaky"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|packet| {
            self.seen += 1;
            if self.seen.is_multiple_of(1000) {
                self.lose(packet);
            }
            Verdict::Forward(0)
        });
    }
}

fn engine() -> Engine {
    let app = Arc::new(|| Box::new(Leaky::new()) as Box<dyn App>);
    let worker = WorkerConfig { cpu: None, ports: vec!["null:64".parse().unwrap()], app };
    Engine::start(&EngineConfig::default(), vec![worker]).unwrap()
}

/// Reads the status once a second, as `ringway engine` does, until it has what is wanted.
fn found<T>(engine: &Engine, looks: u32, wanted: impl Fn(Status) -> Option<T>) -> Option<T> {
    (0..looks).find_map(|_| {
        thread::sleep(Duration::from_secs(1));
        wanted(engine.status().0)
    })
}

#[test]
fn lost_frames_are_named() {
    let engine = engine();
    let leak = found(&engine, 9, |mut status| status.leaks.pop()).unwrap();
    assert_eq!((&*leak.stage, leak.worker, leak.lost), ("leaky: received", 0, true), "{leak}");
    assert!(leak.frames > 0 && leak.oldest_ms > 2000, "{leak}");
    // A worker that is silent for a second lacks in the text.
    let parts = ["worker 0 has lost", "are nobody's"];
    let said = found(&engine, 9, |status| {
        let said = status.to_string();
        parts.iter().all(|part| said.contains(part)).then_some(said)
    });
    assert!(said.is_some(), "{}", engine.status().0);
    let report = engine.stop().pop().unwrap().unwrap();
    assert!(!report.audit.balanced());
    let [leak] = &*report.leaks else { panic!("{:?}", report.leaks) };
    let wanted = ("leaky: received", report.audit.lost_frames);
    assert_eq!((&*leak.stage, i64::from(leak.frames)), wanted);
}
