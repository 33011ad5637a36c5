//! What depends on the processor: its cycle counter, and how to have it fetch memory in advance; one file each.
//!
//! Barriers need none: those of the language ([`std::sync::atomic`]) become each processor's own, and the rings use no other.
//! Nor does copying: `copy_from_slice` of a frame is the C library's, which chooses by the processor at hand.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod fallback;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as cpu;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
use fallback as cpu;
#[cfg(target_arch = "x86_64")]
use x86_64 as cpu;

use std::sync::OnceLock;
use std::time::Duration;

/// A moment by the processor's own counter, which is read without a system call. Its zero is arbitrary, its rate constant
/// ([`Cycles::per_second`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cycles(pub u64);

impl Cycles {
    /// Now.
    #[inline]
    pub fn now() -> Self {
        Self(cpu::cycles())
    }

    /// The counter's rate. The first call may take some milliseconds, to measure it.
    pub fn per_second() -> u64 {
        static RATE: OnceLock<u64> = OnceLock::new();
        *RATE.get_or_init(|| cpu::cycles_per_second().max(1000))
    }

    /// How many pass in a millisecond; at least one.
    pub fn per_millisecond() -> u64 {
        (Self::per_second() / 1000).max(1)
    }

    /// Milliseconds, given how many cycles one has; they overflow after 49 days.
    #[inline]
    pub fn milliseconds(self, per_millisecond: u64) -> u32 {
        (self.0 / per_millisecond) as u32
    }

    /// Counts from `earlier` to here; 0 where it was not earlier.
    #[inline]
    pub fn since(self, earlier: Cycles) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `earlier` to here.
    pub fn time_since(self, earlier: Cycles) -> Duration {
        Duration::from_secs_f64(self.since(earlier) as f64 / Self::per_second() as f64)
    }
}

/// Has the processor fetch the cache line that these bytes begin in, since they will be read soon.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    cpu::prefetch(bytes.as_ptr());
}

/// A counter's rate, by the system's clock.
#[allow(dead_code, reason = "aarch64 can ask the processor")]
fn measured(count: impl Fn() -> u64) -> u64 {
    let (start, first) = (std::time::Instant::now(), count());
    std::thread::sleep(Duration::from_millis(5));
    let (time, last) = (start.elapsed(), count());
    (last.saturating_sub(first) as f64 / time.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        let (clock, start) = (std::time::Instant::now(), Cycles::now());
        while clock.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let end = Cycles::now();
        assert!(end > start && start.since(end) == 0);
        // The rate was measured on a busy machine, and this thread may have waited between the two clocks.
        assert!(end.time_since(start) > Duration::from_millis(5));
        prefetch(&[1, 2, 3]);
        prefetch(&[]);
    }
}
