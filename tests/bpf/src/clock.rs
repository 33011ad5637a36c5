//! Seconds, as the packet path counts them.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The packet path counts ticks, which may be one ahead of this clock's, or behind.
const APART: i64 = 20_000_000;
const SECOND: i64 = 1_000_000_000;

/// Returns when no second ends or begins.
pub fn now() -> u32 {
    loop {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicCoarse);
        if (APART..SECOND - APART).contains(&tv_nsec) {
            return tv_sec as u32;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns at the start of a second.
pub fn await_tick() {
    let began = now();
    while now() == began {
        thread::sleep(Duration::from_millis(1));
    }
}
