//! `checker`: where packets of generators end, and are found to be lost, late or twice.

use std::sync::{Arc, Mutex, PoisonError};

use crate::app::App;
use crate::arch::Cycles;
use crate::burst::{Burst, Verdict};
use crate::generate::{Checked, Clock};
use crate::status::reason::Reason;

/// Takes all that comes, and counts it by what it is stamped with.
pub struct Checker {
    clock: Clock,
    checked: Arc<Mutex<Checked>>,
}

impl Checker {
    /// Counts in `checked`, which others may look at meanwhile; it is locked once a burst. The clock should be that of the generator.
    pub fn new(clock: Clock, checked: Arc<Mutex<Checked>>) -> Self {
        Self { clock, checked }
    }
}

impl App for Checker {
    fn name(&self) -> &'static str {
        "checker"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        // Counts that are whole, whoever panicked.
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        // Came together, as far as anybody can tell.
        let now = self.clock.now();
        burst.decide(|packet| {
            checked.take(packet.data(), now);
            Verdict::Drop(Reason::Consumed)
        });
    }
}
