//! The packet path's time: constants for bpf/gateway/clock.bpf.h.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, BPF_F_RDONLY_PROG, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use ringway_abi::IntoBytes;
use ringway_abi::raw::{RW_TICK_SHIFT, rw_clock};
use ringway_bpf_sys::{Instruction, Program};
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::testrun::{self, Frame};
use crate::{Error, Result};

const NANOSECONDS: u128 = 1_000_000_000;

/// Seconds of CLOCK_MONOTONIC, as records and rings have them.
pub fn now_seconds() -> u32 {
    clock_gettime(ClockId::Monotonic).tv_sec as u32
}

/// The clock of a gateway: its programs and this crate agree on it.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The kernel's ticks, set by CLOCK_MONOTONIC when a program is loaded.
    #[default]
    Kernel,
    /// One that stands still until it is set: for tests.
    Manual(Arc<ManualClock>),
}

impl Clock {
    /// Seconds since boot, as records have them.
    pub fn now_seconds(&self) -> u32 {
        match self {
            Self::Kernel => now_seconds(),
            Self::Manual(manual) => manual.now().as_secs() as u32,
        }
    }

    /// The time of day, by which nodes agree.
    pub fn wall_time(&self) -> SystemTime {
        match self {
            Self::Kernel => SystemTime::now(),
            Self::Manual(manual) => manual.wall_time(),
        }
    }

    pub(crate) fn ticks(&self) -> Result<rw_clock> {
        match self {
            Self::Kernel => ticks(),
            Self::Manual(manual) => Ok(stopped(manual.now())),
        }
    }

    /// The map that stands in for a program's own constants.
    pub(crate) fn map(&self) -> Option<&MapHandle> {
        match self {
            Self::Kernel => None,
            Self::Manual(manual) => Some(&manual.map),
        }
    }
}

/// A clock that stands still until it is set. Programs read it from the map that their constants
/// would be in, which libbpf neither fills nor freezes when it is given one.
#[derive(Debug)]
pub struct ManualClock {
    map: MapHandle,
    nanoseconds: AtomicU64,
}

impl ManualClock {
    /// Shows `since_boot`.
    ///
    /// # Errors
    /// The kernel makes no map.
    pub fn new(since_boot: Duration) -> Result<Arc<Self>> {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as _,
            map_flags: BPF_F_RDONLY_PROG | BPF_F_MMAPABLE,
            ..Default::default()
        };
        let value = size_of::<rw_clock>() as u32;
        let map = MapHandle::create(MapType::Array, Some("clock"), 4, value, 1, &options);
        let map = map.map_err(|source| failed("make a clock", source))?;
        let clock = Self { map, nanoseconds: AtomicU64::new(0) };
        clock.set(since_boot)?;
        Ok(Arc::new(clock))
    }

    /// Since boot.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// The time of day: the machine was booted in September 2026.
    pub fn wall_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_790_000_000) + self.now()
    }

    /// Shows `since_boot`, to a nanosecond, which may be earlier than before.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&self, since_boot: Duration) -> Result<()> {
        let value = stopped(since_boot);
        let put = self.map.update(0u32.as_bytes(), value.as_bytes(), MapFlags::ANY);
        put.map_err(|source| failed("set a clock", source))?;
        let nanoseconds = u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.store(nanoseconds, Ordering::Relaxed);
        Ok(())
    }

    /// Shows so much more.
    ///
    /// # Errors
    /// As of [`ManualClock::set`].
    pub fn advance(&self, time: Duration) -> Result<()> {
        self.set(self.now() + time)
    }
}

fn failed(action: &'static str, source: libbpf_rs::Error) -> Error {
    Error::System { action, source: std::io::Error::other(source) }
}

/// Rounded up: a second that has begun is never shown as the one before.
fn stopped(since_boot: Duration) -> rw_clock {
    let base = (since_boot.as_nanos() << RW_TICK_SHIFT).div_ceil(NANOSECONDS) as u64;
    rw_clock { per_tick: 0, base }
}

/// Counts ticks as the kernel does now, and sets its clock by its CLOCK_MONOTONIC: that of this
/// process may be another one's, in a time namespace.
fn ticks() -> Result<rw_clock> {
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
