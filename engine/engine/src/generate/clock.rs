//! A clock that two workers, or two machines, can compare.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970: what the system's clock said at first, and steady time since. A step of the system's clock is not noticed, so that
/// it makes no latency.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    /// Set by the system's clock. Those who share one share its error, too.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Until the year 2554.
        Self { start: Instant::now(), start_ns: since.as_nanos() as u64 }
    }

    /// Nanoseconds since 1970.
    #[inline]
    pub fn now(&self) -> u64 {
        self.start_ns + self.start.elapsed().as_nanos() as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
