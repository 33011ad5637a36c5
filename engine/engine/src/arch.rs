//! Code that depends on the processor: the cycle counter and prefetching.
//!
//! Barriers need none: those of the language ([`std::sync::atomic`]) become each processor's own,
//! and the rings use no other. Nor does copying: `copy_from_slice` of a frame is the C library's,
//! which chooses by the processor at hand.

use std::sync::OnceLock;
use std::time::Duration;

/// A moment by the processor's own counter, which is read without a system call. Its zero is
/// arbitrary, its rate constant ([`Cycles::per_second`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cycles(pub u64);

impl Cycles {
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
    pub(crate) fn per_millisecond() -> u64 {
        (Self::per_second() / 1000).max(1)
    }

    /// Milliseconds, given how many cycles one has; they overflow after 49 days.
    #[inline]
    pub(crate) fn milliseconds(self, per_millisecond: u64) -> u32 {
        (self.0 / per_millisecond) as u32
    }

    /// Counts from `earlier` to here; 0 where it was not earlier.
    #[inline]
    pub fn since(self, earlier: Cycles) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Prefetches the cache line in which these bytes begin.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
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

/// x86-64: the time-stamp counter, which runs at one rate on all processors since 2008.
#[cfg(target_arch = "x86_64")]
mod cpu {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _rdtsc};

    #[inline]
    pub(super) fn cycles() -> u64 {
        // SAFETY: every x86-64 has this instruction, and Linux lets programs use it.
        unsafe { _rdtsc() }
    }

    pub(super) fn cycles_per_second() -> u64 {
        super::measured(cycles)
    }

    #[inline]
    pub(super) fn prefetch(place: *const u8) {
        // SAFETY: a hint: it reads nothing that the program would see, and no address is wrong.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
}

/// arm64: the virtual counter of the architecture, which says its own rate.
#[cfg(target_arch = "aarch64")]
mod cpu {
    use core::arch::asm;

    #[inline]
    pub(super) fn cycles() -> u64 {
        let count: u64;
        // SAFETY: Linux lets programs read this register; nothing else is touched.
        unsafe {
            asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags))
        };
        count
    }

    pub(super) fn cycles_per_second() -> u64 {
        let rate: u64;
        // SAFETY: as above.
        unsafe {
            asm!("mrs {}, cntfrq_el0", out(reg) rate, options(nomem, nostack, preserves_flags))
        };
        rate
    }

    #[inline]
    pub(super) fn prefetch(place: *const u8) {
        // SAFETY: a hint: it reads nothing that the program would see, and no address is wrong.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags)) };
    }
}

/// Every other processor, by the system's clock, which most can read without a system call (vDSO).
/// MIPS64 is among them: its counter (RDHWR) and PREF want assembly, which stable Rust does not
/// have for it.
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod cpu {
    use std::sync::OnceLock;
    use std::time::Instant;

    /// Nanoseconds since the first call.
    #[inline]
    pub(super) fn cycles() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        // 584 years fit.
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    pub(super) fn cycles_per_second() -> u64 {
        1_000_000_000
    }

    #[inline]
    pub(super) fn prefetch(_: *const u8) {}
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
        // The rate was measured on a busy machine, and this thread may have waited between the two
        // clocks.
        assert!(end.since(start) > Cycles::per_second() / 200);
        prefetch(&[1, 2, 3]);
        prefetch(&[]);
    }
}
