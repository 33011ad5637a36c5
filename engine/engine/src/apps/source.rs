//! `source` makes packets; `sink` frees them.

use ringway_xsk::Buffer as _;

use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// Sends copies of a frame by port 0, as fast as it takes them, and consumes packets that come in.
pub struct Source {
    frame: Vec<u8>,
    left: u64,
    burst: usize,
}

impl Source {
    /// `count` copies, up to `burst` at once.
    pub fn new(frame: Vec<u8>, count: u64, burst: usize) -> Self {
        Self { frame, left: count, burst: burst.max(1) }
    }
}

impl<P: BufferPool> App<P> for Source {
    fn name(&self) -> &'static str {
        "source"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        burst.decide(|_| Verdict::Drop(Reason::Consumed));
    }

    fn on_round(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        // No more than fits: a packet without room would be dropped.
        let room = self.burst.saturating_sub(burst.waiting(0));
        let wanted = room.min(usize::try_from(self.left).unwrap_or(room));
        let made = burst.originate_burst(wanted, |packet| match packet.append(&self.frame) {
            Ok(()) => Verdict::Forward(0),
            Err(_) => Verdict::Drop(Reason::NoRoom),
        });
        self.left -= made as u64;
    }

    fn is_finished(&self) -> bool {
        self.left == 0
    }

    fn is_source(&self) -> bool {
        true
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        vec![("left to send".into(), self.left)]
    }
}

/// Counts packets that come in, and frees them.
#[derive(Debug, Default)]
pub struct Sink {
    bytes: u64,
}

impl<P: BufferPool> App<P> for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        burst.decide(|packet| {
            self.bytes += packet.len() as u64;
            Verdict::Drop(Reason::Consumed)
        });
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        vec![("bytes".into(), self.bytes)]
    }
}
