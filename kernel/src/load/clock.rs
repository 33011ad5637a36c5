//! The kernel's ticks as a clock: constants for bpf/gateway/clock.bpf.h.

use std::os::fd::AsFd;

use ringway_abi::raw::{RW_TICK_SHIFT, rw_clock};
use ringway_bpf_sys::{Instruction, Program};
use rustix::time::{ClockId, clock_getres};

use crate::testrun::{self, Frame};
use crate::{Error, Result};

const NANOSECONDS: u128 = 1_000_000_000;

/// Counts ticks as the kernel does now, and sets its clock by its CLOCK_MONOTONIC: that of this
/// process may be another one's, in a time namespace.
pub(crate) fn ticks() -> Result<rw_clock> {
    let program = Program { name: "rw_ticks", instructions: &READ, frags: false }.load();
    let program =
        program.map_err(|error| Error::System { action: "count ticks", source: error.source })?;
    let (verdict, read, _) = testrun::run_any(program.as_fd(), Frame::new(&[0; 16]))?;
    let (words, _) = read.as_chunks();
    let (1, [ticks, since]) = (verdict, words) else {
        let source = std::io::Error::other("the frame came back otherwise");
        return Err(Error::System { action: "count ticks", source });
    };
    let [ticks, since] = [*ticks, *since].map(u64::from_ne_bytes);
    let tick = (clock_getres(ClockId::MonotonicCoarse).tv_nsec as u128).max(1);
    Ok(clock(ticks, since.into(), tick))
}

/// Writes the number of ticks and the nanoseconds of CLOCK_MONOTONIC as of the last one into a
/// frame. A tick may come in between.
const READ: [Instruction; 13] = [
    (0xbf, 0x16, 0, 0),  // r6 = r1
    (0x85, 0, 0, 118),   // bpf_jiffies64
    (0xbf, 0x07, 0, 0),  // r7 = r0
    (0x85, 0, 0, 160),   // bpf_ktime_get_coarse_ns
    (0x61, 0x61, 0, 0),  // r1 = data
    (0x61, 0x62, 4, 0),  // r2 = data_end
    (0xbf, 0x13, 0, 0),  // r3 = r1
    (0x07, 0x03, 0, 16), // r3 += 16
    (0x2d, 0x23, 2, 0),  // beyond r2: no frame of ours
    (0x7b, 0x71, 0, 0),  // data[0] = r7
    (0x7b, 0x01, 8, 0),  // data[1] = r0
    (0xb7, 0x00, 0, 1),  // XDP_DROP
    (0x95, 0, 0, 0),
];

/// `ticks`: so many when the clock showed `since`, both nanoseconds.
fn clock(ticks: u64, since: u128, tick: u128) -> rw_clock {
    let seconds = |nanoseconds: u128| ((nanoseconds << RW_TICK_SHIFT) / NANOSECONDS) as u64;
    let per_tick = seconds(tick);
    rw_clock { per_tick, base: seconds(since).wrapping_sub(ticks.wrapping_mul(per_tick)) }
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
