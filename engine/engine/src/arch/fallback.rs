//! Every other processor, by the system's clock, which most can read without a system call (vDSO). MIPS64 is among them: its
//! counter (RDHWR) and PREF want assembly, which stable Rust does not have for it.

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
