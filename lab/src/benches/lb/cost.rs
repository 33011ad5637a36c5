//! Processor time of a request.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::harness::cpu::{self, TICK, Task, ticks};
use crate::{Error, Result};

/// Time that was spent so far, or on something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// By all processors on anything but idling: client, balancer and backends.
    pub all: Duration,
    /// Of that, on softirqs. The packets' way is here, whoever sent them.
    pub softirq: Duration,
    /// By the balancer's process, where there is one.
    pub balancer: Option<Duration>,
    /// By programs of this machine that are neither client, balancer nor backend, at least: the
    /// kernel may count softirqs as time of the program that they interrupt.
    pub others: Duration,
}

/// The times that a measurement reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    all: Duration,
    softirq: Duration,
    programs: Duration,
    balancer: Option<Duration>,
    own: Duration,
}

impl Clock {
    /// `balancer` and `backends` are processes. The client is one that has ended.
    pub(super) fn read(balancer: Option<u32>, backends: &[u32]) -> Result<Self> {
        let path = PathBuf::from("/proc/stat");
        let stat = fs::read_to_string(&path).map_err(|source| Error::Read { path, source })?;
        let of = |pid: u32| Task::process(pid).user_and_system();
        let balancer = balancer.map(of).transpose()?;
        let backends: Result<Duration> = backends.iter().map(|pid| of(*pid)).sum();
        let [programs, irq, softirq] = busy(&stat).unwrap_or_default().map(|ticks| TICK * ticks);
        Ok(Self {
            all: programs + irq + softirq,
            softirq,
            programs,
            balancer,
            own: backends? + balancer.unwrap_or_default() + cpu::children(),
        })
    }

    pub(super) fn since(self, before: Self) -> Spent {
        let balancer = self.balancer.zip(before.balancer);
        let programs = self.programs.saturating_sub(before.programs);
        Spent {
            all: self.all.saturating_sub(before.all),
            softirq: self.softirq.saturating_sub(before.softirq),
            balancer: balancer.map(|(now, before)| now.saturating_sub(before)),
            others: programs.saturating_sub(self.own.saturating_sub(before.own)),
        }
    }
}

/// Ticks of programs, of interrupts and of softirqs: `cpu user nice system idle iowait irq softirq
/// steal ...` (proc_stat(5)).
fn busy(stat: &str) -> Option<[u32; 3]> {
    let ticks = ticks(stat)?;
    let &[user, nice, system, _, _, irq, softirq, ..] = ticks.as_slice() else { return None };
    Some([
        u32::try_from(user + nice + system).ok()?,
        irq.try_into().ok()?,
        softirq.try_into().ok()?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        assert_eq!(busy("cpu  1 2 3 1000 2000 4 5 3000 0 0\ncpu0 9\n"), Some([6, 4, 5]));
        assert_eq!(busy("cpu  1 2 3\n"), None);
    }

    #[test]
    fn only_what_came_since() {
        let at = |seconds| {
            let time = Duration::from_secs(seconds);
            Clock {
                all: 9 * time,
                softirq: time,
                programs: 8 * time,
                balancer: Some(time),
                own: 3 * time,
            }
        };
        let [one, three] = [1, 3].map(Duration::from_secs);
        let spent = Spent { all: 9 * one, softirq: one, balancer: Some(one), others: 5 * one };
        assert_eq!(at(3).since(at(2)), spent);
        assert_eq!(at(3).since(Clock::default()).balancer, None);
        assert_eq!(at(3).since(at(2)).all, 3 * three);
    }
}
