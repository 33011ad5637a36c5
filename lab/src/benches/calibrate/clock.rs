//! Processor time of one's own: what others take in between is not in it.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::harness::cpu::{TICK, programs_ticks};

/// The calling thread's time on a processor, softirqs that it ran for itself with it.
pub(super) fn thread() -> Duration {
    duration(ClockId::ThreadCPUTime)
}

fn duration(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Nanoseconds for each of so many.
pub(super) fn each(spent: Duration, count: u64) -> f64 {
    spent.as_nanos() as f64 / count.max(1) as f64
}

/// The load that other processes put on this machine meanwhile.
#[derive(Debug)]
pub(super) struct Others {
    began: Instant,
    before: Option<Duration>,
}

impl Others {
    pub(super) fn watch() -> Self {
        Self { began: Instant::now(), before: theirs() }
    }

    /// Processors that they kept busy on average; none where /proc does not say.
    pub(super) fn cores(&self) -> Option<f64> {
        let spent = theirs()?.saturating_sub(self.before?);
        Some(spent.as_secs_f64() / self.began.elapsed().as_secs_f64().max(1e-9))
    }
}

/// User and system time of all that is not this process or its children; softirqs are nobody's.
fn theirs() -> Option<Duration> {
    let busy = programs_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    let own = own_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(TICK * u32::try_from(busy.saturating_sub(own)).ok()?)
}

/// User and system time, and that of children: fields 14 to 17 (proc_pid_stat(5)).
fn own_ticks(stat: &str) -> Option<u64> {
    let fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    fields.take(4).map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let stat = "42 (a) b) R 1 2 3 4 5 6 7 8 9 10 30 10 5 1 20 0 1 0 1";
        assert_eq!(own_ticks(stat), Some(46));
    }

    #[test]
    fn own_time_is_nobody_elses() {
        let before = thread();
        std::thread::sleep(Duration::from_millis(20));
        assert!(thread() - before < Duration::from_millis(20));
        assert!((each(Duration::from_micros(3), 2) - 1500.0).abs() < 1e-9);
    }
}
