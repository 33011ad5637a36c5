//! x86-64: the time-stamp counter, which runs at one rate on all processors since 2008.

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
