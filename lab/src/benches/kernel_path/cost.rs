//! The cost of a thread: processor time by kind, context switches; and the machine's other load
//! meanwhile.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::clock::Clocks;
use crate::harness::cpu::{TICK, programs_ticks, thread_named, ticks};
use crate::{Error, Result};

pub(super) const TICK_NS: u64 = TICK.as_nanos() as u64;

/// Sums since some moment, or differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in system calls, with interrupts and softirqs that came in between.
    pub system_ns: u64,
    /// Nanoseconds of samples, by which user and system are told apart.
    pub sampled_ns: u64,
    /// Nanoseconds of softirqs on all processors, strangers' too, in steps of ten milliseconds.
    pub softirq_ns: u64,
    /// Nanoseconds that other processes have had on all processors, in the same steps.
    pub others_ns: u64,
    pub switches: u64,
}

/// A thread of this process.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    path: PathBuf,
    clocks: Clocks,
}

impl Thread {
    /// The calling thread.
    pub(super) fn this() -> Self {
        Self::of(rustix::thread::gettid().as_raw_nonzero().get())
    }

    fn of(id: i32) -> Self {
        Self { path: format!("/proc/self/task/{id}").into(), clocks: Clocks::of_thread(id) }
    }

    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(Self::of(thread_named(name)?.file_name()?.to_str()?.parse().ok()?))
    }

    pub(super) fn spent(&self) -> Result<Spent> {
        let read = |path: PathBuf| {
            fs::read_to_string(&path).map_err(|source| Error::Read { path, source })
        };
        let (user, all) = (self.clocks.user()?, self.clocks.user_and_system()?);
        let (user_ns, system_ns) = split(user, all, self.clocks.exact()?);
        let stat = read("/proc/stat".into())?;
        let ours = Clocks::of_this_process().user_and_system()?;
        let programs_ns = programs_ticks(&stat).unwrap_or(0) * TICK_NS;
        Ok(Spent {
            user_ns,
            system_ns,
            sampled_ns: all,
            softirq_ns: softirq_ticks(&stat).unwrap_or(0) * TICK_NS,
            others_ns: programs_ns.saturating_sub(ours),
            switches: switches(&read(self.path.join("status"))?),
        })
    }
}

impl Spent {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            system_ns: self.system_ns.saturating_sub(before.system_ns),
            sampled_ns: self.sampled_ns.saturating_sub(before.sampled_ns),
            softirq_ns: self.softirq_ns.saturating_sub(before.softirq_ns),
            others_ns: self.others_ns.saturating_sub(before.others_ns),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// The exact time, parted as the samples are.
fn split(user: u64, all: u64, exact: u64) -> (u64, u64) {
    let part = u128::from(exact) * u128::from(user) / u128::from(all.max(1));
    let user = u64::try_from(part).unwrap_or(exact).min(exact);
    (user, exact - user)
}

/// `cpu user nice system idle iowait irq softirq ...` (proc_stat(5)).
fn softirq_ticks(stat: &str) -> Option<u64> {
    ticks(stat)?.get(6).copied()
}

fn switches(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let stat = "cpu  1 2 3 4 5 6 7 8\ncpu0 9\n";
        assert_eq!((softirq_ticks(stat), softirq_ticks("cpu 1 2")), (Some(7), None));
        assert_eq!(switches("voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"), 7);
    }

    #[test]
    fn exact_time_by_samples() {
        assert_eq!(split(30, 40, 1000), (750, 250));
        assert_eq!(split(0, 0, 1000), (0, 1000));
        assert_eq!(split(40, 40, 1000), (1000, 0));
    }

    #[test]
    fn this_thread_spends() {
        let thread = Thread::this();
        let before = thread.spent().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let spent = thread.spent().unwrap().since(before);
        assert!(spent.switches >= 1, "{spent:?}");
        assert!(Thread::named("nobody has this").is_none());
    }
}
