//! The kernel's ticks as a clock: constants for bpf/gateway/clock.bpf.h.

use std::os::fd::{AsFd, OwnedFd};

use ringway_abi::raw::{RW_TICK_SHIFT, rw_clock};
use ringway_bpf_sys::{Instruction, Program};
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::testrun::{self, Frame};
use crate::{Error, Result};

const NANOSECONDS: u128 = 1_000_000_000;

/// Counts ticks as the kernel does now, and sets its clock by CLOCK_MONOTONIC.
pub(crate) fn ticks() -> Result<rw_clock> {
    let (low, high) = (load(0)?, load(32)?);
    let read = || Ok::<_, Error>(u64::from(run(&high)?) << 32 | u64::from(run(&low)?));
    // A coarse clock moves with each tick. None may come in between.
    let (now, ticks) = loop {
        let before = read()?;
        let now = clock_gettime(ClockId::MonotonicCoarse);
        if read()? == before {
            break (now, before);
        }
    };
    let since = now.tv_sec.unsigned_abs() as u128 * NANOSECONDS + now.tv_nsec as u128;
    let tick = (clock_getres(ClockId::MonotonicCoarse).tv_nsec as u128).max(1);
    Ok(clock(ticks, since, tick))
}

/// `ticks`: so many when the clock showed `since`, both nanoseconds.
fn clock(ticks: u64, since: u128, tick: u128) -> rw_clock {
    let seconds = |nanoseconds: u128| ((nanoseconds << RW_TICK_SHIFT) / NANOSECONDS) as u64;
    let per_tick = seconds(tick);
    rw_clock { per_tick, base: seconds(since).wrapping_sub(ticks.wrapping_mul(per_tick)) }
}

/// A program that returns 32 bits of the number of ticks, from this one on.
fn load(shift: i32) -> Result<OwnedFd> {
    const JIFFIES64: i32 = 118;
    let instructions: [Instruction; 3] =
        [(0x85, 0, 0, JIFFIES64), (0x77, 0, 0, shift), (0x95, 0, 0, 0)];
    let loaded = Program { name: "rw_ticks", instructions: &instructions, frags: false }.load();
    loaded.map_err(|error| Error::System { action: "count ticks", source: error.source })
}

fn run(program: &OwnedFd) -> Result<u32> {
    // It looks at no packet. The kernel wants one nevertheless.
    Ok(testrun::run_any(program.as_fd(), Frame::new(&[0; 14]))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in bpf/gateway/clock.bpf.h.
    fn seconds(clock: rw_clock, ticks: u64) -> u64 {
        ticks.wrapping_mul(clock.per_tick).wrapping_add(clock.base) >> RW_TICK_SHIFT
    }

    #[test]
    fn ticks_are_seconds_for_years() {
        const YEAR: u64 = 365 * 86_400;
        for (hz, tick) in [(100, 10_000_000), (250, 4_000_000), (300, 3_333_333), (1000, 1_000_000)]
        {
            // The kernel's count wraps, as 32 bits, five minutes after the boot.
            let boot = u64::from(u32::MAX) + 1 - 300 * hz;
            for uptime in [1, 299, 301, YEAR, 10 * YEAR] {
                let now = u128::from(uptime) * NANOSECONDS;
                let ticks = boot + (now / tick) as u64;
                let clock = clock(ticks, now, tick);
                for later in [0, 1, 3_600, YEAR] {
                    let want = uptime + later;
                    let have =
                        seconds(clock, ticks + (u128::from(later) * NANOSECONDS / tick) as u64);
                    assert!(want - have <= 1, "{hz}: {have} s after {uptime} + {later}");
                }
            }
        }
    }
}
