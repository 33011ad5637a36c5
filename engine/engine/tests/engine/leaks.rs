//! Frames that are never let go are found while the engine runs, and whoever has them is named.

use std::sync::Arc;
use std::time::Duration;
use std::{mem, thread};

use ringway_engine::{
    App, Burst, Cycles, Engine, EngineConfig, Leak, Verdict, WorkerConfig, own_stage,
};
use ringway_xsk::{Packet, Pool, Umem, UmemConfig};

/// How a packet is kept.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    /// Every thousandth, in the app's own stage, where the worker does not know of it.
    Lost,
    /// Every thousandth, held.
    Held,
    /// The first alone, held.
    One,
}

struct Leaky {
    keep: Keep,
    seen: u64,
    /// What takes the place of packets that are taken away.
    others: Pool,
}

impl Leaky {
    fn new(keep: Keep) -> Self {
        let others = Umem::new(&UmemConfig { frames: 64, ..UmemConfig::default() }).unwrap();
        Self { keep, seen: 0, others: others.pool().unwrap() }
    }

    fn lose(&self, packet: &mut Packet) {
        packet.set_stage(own_stage(1));
        let mut other = self.others.allocate().unwrap();
        mem::swap(packet, &mut other);
        mem::forget(other);
    }
}

impl App for Leaky {
    fn name(&self) -> &'static str {
        "leaky"
    }

    fn stages(&self) -> &'static [&'static str] {
        &["asked", "answered"]
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|packet| {
            self.seen += 1;
            match self.keep {
                Keep::Lost if self.seen.is_multiple_of(1000) => self.lose(packet),
                Keep::Held if self.seen.is_multiple_of(1000) => return Verdict::Hold,
                Keep::One if self.seen == 1 => return Verdict::Hold,
                _ => {}
            }
            Verdict::Forward(0)
        });
    }
}

fn engine(keep: Keep) -> Engine {
    let app = Arc::new(move || Box::new(Leaky::new(keep)) as Box<dyn App>);
    let worker = WorkerConfig { cpu: None, ports: vec!["null:64".parse().unwrap()], app };
    Engine::start(&EngineConfig::default(), vec![worker]).unwrap()
}

/// Looks once a second, as `ringway engine` does.
fn found(engine: &Engine, looks: u32) -> Option<Leak> {
    (0..looks).find_map(|_| {
        thread::sleep(Duration::from_secs(1));
        engine.status().0.leaks.pop()
    })
}

#[test]
fn lost_frames_are_named() {
    let engine = engine(Keep::Lost);
    let leak = found(&engine, 9).unwrap();
    assert_eq!((&*leak.stage, leak.worker, leak.lost), ("leaky: answered", 0, true), "{leak}");
    assert!(leak.frames > 0 && leak.oldest_ms > 2000, "{leak}");
    let said = engine.status().0.to_string();
    assert!(said.contains("worker 0 has lost") && said.contains("are nobody's"), "{said}");
    let report = engine.stop().pop().unwrap().unwrap();
    assert!(!report.books.balanced());
    let [leak] = &*report.leaks else { panic!("{:?}", report.leaks) };
    assert_eq!(
        (&*leak.stage, i64::from(leak.frames)),
        ("leaky: answered", report.books.lost_frames)
    );
}

#[test]
fn held_frames_are_named() {
    let engine = engine(Keep::Held);
    let leak = found(&engine, 9).unwrap();
    assert_eq!((&*leak.stage, leak.lost), ("leaky: received", false), "{leak}");
    let report = engine.stop().pop().unwrap().unwrap();
    assert!(report.books.balanced() && report.leaks.is_empty(), "{}", report.books);
}

#[test]
fn one_that_is_held_for_long_is_no_leak() {
    let engine = engine(Keep::One);
    assert_eq!(found(&engine, 9), None);
}
