//! arm64: the virtual counter of the architecture, which says its own rate.

use core::arch::asm;

#[inline]
pub(super) fn cycles() -> u64 {
    let count: u64;
    // SAFETY: Linux lets programs read this register; nothing else is touched.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

pub(super) fn cycles_per_second() -> u64 {
    let rate: u64;
    // SAFETY: as above.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) rate, options(nomem, nostack, preserves_flags)) };
    rate
}

#[inline]
pub(super) fn prefetch(place: *const u8) {
    // SAFETY: a hint: it reads nothing that the program would see, and no address is wrong.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags)) };
}
