//! Processor time of a request.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::harness::cpu::{TICK, Task, ticks};
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
}

impl Spent {
    /// So far. `balancer` is a process.
    pub(super) fn now(balancer: Option<u32>) -> Result<Self> {
        let path = PathBuf::from("/proc/stat");
        let stat = fs::read_to_string(&path).map_err(|source| Error::Read { path, source })?;
        let balancer = balancer.map(|pid| Task::process(pid).user_and_system()).transpose()?;
        let (all, softirq) = busy(&stat).unwrap_or_default();
        Ok(Self { all: TICK * all, softirq: TICK * softirq, balancer })
    }

    pub(super) fn since(self, before: Self) -> Self {
        let balancer = self.balancer.zip(before.balancer);
        Self {
            all: self.all.saturating_sub(before.all),
            softirq: self.softirq.saturating_sub(before.softirq),
            balancer: balancer.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Ticks of all that is not idle, and of softirqs: `cpu user nice system idle iowait irq softirq
/// steal ...` (proc_stat(5)).
fn busy(stat: &str) -> Option<(u32, u32)> {
    let ticks = ticks(stat)?;
    let &[user, nice, system, _, _, irq, softirq, ..] = ticks.as_slice() else { return None };
    let all = user + nice + system + irq + softirq;
    Some((all.try_into().ok()?, softirq.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        assert_eq!(busy("cpu  1 2 3 1000 2000 4 5 3000 0 0\ncpu0 9\n"), Some((15, 5)));
        assert_eq!(busy("cpu  1 2 3\n"), None);
    }

    #[test]
    fn only_what_came_since() {
        let at = |seconds| Spent {
            all: Duration::from_secs(seconds),
            softirq: Duration::from_secs(seconds),
            balancer: Some(Duration::from_secs(seconds)),
        };
        assert_eq!(at(5).since(at(2)), at(3));
    }
}
