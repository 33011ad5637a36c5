//! The clocks of what a thread or this process has spent on processors.
//!
//! Each has three (include/linux/posix-timers_types.h): one runs in nanoseconds, the two that tell
//! user mode from the kernel are samples, one at each tick of the processor, and say themselves how
//! long that is.

use std::io;

use crate::{Error, Result};

const USER_AND_SYSTEM: i32 = 0;
const USER: i32 = 1;
const EXACT: i32 = 2;
const PER_THREAD: i32 = 4;

/// Those of a thread of this process, or of all its threads together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks(i32);

impl Clocks {
    pub(super) fn of_thread(id: i32) -> Self {
        Self(!id << 3 | PER_THREAD)
    }

    pub(super) fn of_this_process() -> Self {
        Self(!0 << 3)
    }

    /// Nanoseconds, in steps of [`resolution`], when ticks came in user mode.
    pub(super) fn user(self) -> Result<u64> {
        read(self.0 | USER, libc::clock_gettime)
    }

    /// The same, in user mode or in the kernel, without interrupts and softirqs.
    pub(super) fn user_and_system(self) -> Result<u64> {
        read(self.0 | USER_AND_SYSTEM, libc::clock_gettime)
    }

    /// Nanoseconds on a processor, interrupts and softirqs that came in between among them.
    pub(super) fn exact(self) -> Result<u64> {
        read(self.0 | EXACT, libc::clock_gettime)
    }
}

/// Nanoseconds between two samples.
pub(super) fn resolution() -> Result<u64> {
    read(Clocks::of_this_process().0 | USER, libc::clock_getres)
}

type Call = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

fn read(clock: i32, call: Call) -> Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls only write the time that they are given, which outlives them.
    if unsafe { call(clock, &raw mut time) } != 0 {
        let source = io::Error::last_os_error();
        return Err(Error::Run { program: "a clock of processor time".into(), source });
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn samples_and_what_is_exact() {
        let this = Clocks::of_thread(rustix::thread::gettid().as_raw_nonzero().get());
        let all = Clocks::of_this_process();
        let step = resolution().unwrap();
        assert!((1..=10_000_000).contains(&step), "{step}");
        let before = this.exact().unwrap();
        let mut sum = 0_u64;
        let deadline = Instant::now() + Duration::from_secs(60);
        // Ticks may come while a hypervisor lets the processor stand still.
        while this.user_and_system().unwrap() < 3 * step || this.exact().unwrap() <= before + step {
            assert!(Instant::now() < deadline, "time on a processor runs");
            sum = std::hint::black_box(sum + 1);
        }
        assert!(this.user().unwrap() <= this.user_and_system().unwrap());
        let sampled = this.user_and_system().unwrap();
        assert!(all.user_and_system().unwrap() >= sampled);
        assert!(Clocks::of_thread(i32::MAX >> 4).exact().is_err(), "nobody's");
    }
}
