//! Seconds, as the packet path counts them.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub fn now() -> u32 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec as u32
}

/// Returns at the start of a second.
pub fn await_tick() {
    let began = now();
    while now() == began {
        thread::sleep(Duration::from_millis(1));
    }
}
