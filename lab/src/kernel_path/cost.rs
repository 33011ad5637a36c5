//! What a thread spends: processor time by where it went, context switches; and softirq time of the machine.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use crate::{Error, Result};

/// /proc counts in hundredths of a second wherever Linux runs today (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// Sums since some moment, or differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in system calls, with interrupts and softirqs that came in between.
    pub system_ns: u64,
    /// Nanoseconds of softirqs on all processors, strangers' too, in steps of ten milliseconds.
    pub softirq_ns: u64,
    /// Context switches.
    pub switches: u64,
}

/// A thread of this process.
#[derive(Clone, Debug)]
pub(super) struct Thread(PathBuf);

impl Thread {
    /// The calling one.
    pub(super) fn this() -> Self {
        let id = rustix::thread::gettid().as_raw_nonzero();
        Self(format!("/proc/self/task/{id}").into())
    }

    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let tasks = fs::read_dir("/proc/self/task").ok()?.flatten().map(|entry| entry.path());
        let is = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        tasks.into_iter().find(is).map(Self)
    }

    /// Since it began.
    pub(super) fn spent(&self) -> Result<Spent> {
        let read = |file: &str| {
            let path = self.0.join(file);
            fs::read_to_string(&path).map_err(|source| Error::Read { path, source })
        };
        let (user, system) = ticks(&read("stat")?).unwrap_or((0, 0));
        // Nanoseconds on a processor; some kernels have no such file.
        let exact = read("schedstat").ok().and_then(|text| text.split(' ').next()?.parse().ok());
        let (user_ns, system_ns) = split(user, system, exact);
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let softirq_ns = softirq_ticks(&stat).unwrap_or(0) * TICK_NS;
        Ok(Spent { user_ns, system_ns, softirq_ns, switches: switches(&read("status")?) })
    }
}

impl Spent {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            system_ns: self.system_ns.saturating_sub(before.system_ns),
            softirq_ns: self.softirq_ns.saturating_sub(before.softirq_ns),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// The exact time, parted as the ticks are. Without any the ticks themselves.
fn split(user: u64, system: u64, exact: Option<u64>) -> (u64, u64) {
    match (exact, user + system) {
        (Some(exact), 0) => (0, exact),
        (Some(exact), all) => {
            let user = (u128::from(exact) * u128::from(user) / u128::from(all)) as u64;
            (user, exact - user)
        }
        (None, _) => (user * TICK_NS, system * TICK_NS),
    }
}

/// User and system time: fields 14 and 15; the second is in parentheses and may have spaces (proc_pid_stat(5)).
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// `cpu user nice system idle iowait irq softirq ...` (proc_stat(5)).
fn softirq_ticks(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(6)?.parse().ok()
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
        let stat = "42 (a) b) R 1 2 3 4 5 6 7 8 9 10 30 10 0 0 20 0 1 0 1";
        assert_eq!(ticks(stat), Some((30, 10)));
        assert_eq!(softirq_ticks("cpu  1 2 3 4 5 6 7 8\ncpu0 9\n"), Some(7));
        assert_eq!(switches("voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"), 7);
    }

    #[test]
    fn exact_time_by_ticks() {
        assert_eq!(split(30, 10, Some(1000)), (750, 250));
        assert_eq!(split(0, 0, Some(1000)), (0, 1000));
        assert_eq!(split(3, 1, None), (3 * TICK_NS, TICK_NS));
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
