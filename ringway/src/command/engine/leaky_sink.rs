//! `ringway engine sink --leak-every N`: a program with a bug, on purpose, by which what finds
//! leaks is tried out end to end.

use std::mem;

use ringway_engine::{App, Burst, Cycles, Reason, Verdict};
use ringway_xsk::{Packet, Pool, Umem, UmemConfig};

/// Drops what comes, and loses the frames of each Nth packet.
pub struct LeakySink {
    every: u64,
    seen: u64,
    /// A packet from there takes the place of one that is lost, which cannot be taken away
    /// otherwise; none without memory.
    others: Option<Pool>,
}

impl LeakySink {
    /// `every`: at least 1.
    pub fn new(every: u64) -> Self {
        let others = Umem::new(&UmemConfig { frames: 64, ..UmemConfig::default() });
        Self { every, seen: 0, others: others.ok().and_then(|umem| umem.pool()) }
    }

    fn lose(&self, packet: &mut Packet) {
        if let Some(mut other) = self.others.as_ref().and_then(Pool::allocate) {
            mem::swap(packet, &mut other);
            mem::forget(other);
        }
    }
}

impl App for LeakySink {
    fn name(&self) -> &'static str {
        "leaky sink"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|packet| {
            self.seen += 1;
            if self.seen.is_multiple_of(self.every) {
                self.lose(packet);
            }
            Verdict::Drop(Reason::Consumed)
        });
    }
}
