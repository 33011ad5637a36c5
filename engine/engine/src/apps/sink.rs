//! `sink`: where packets end.

use crate::app::App;
use crate::arch::Cycles;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// Counts what comes, and frees it.
#[derive(Debug, Default)]
pub struct Sink {
    bytes: u64,
}

impl App for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|packet| {
            self.bytes += packet.len() as u64;
            Verdict::Drop(Reason::Consumed)
        });
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        vec![("bytes".into(), self.bytes)]
    }
}
