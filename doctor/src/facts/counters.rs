//! The kernel's counters.

use super::{Facts, MOST, strange, text};
use crate::{Sample, Unknown};

/// A counter at both moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Since the network namespace was made.
    pub total: u64,
    /// Between the two samples.
    pub delta: u64,
}

/// One processor's packet counters (/proc/net/softnet_stat).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Softnet {
    pub cpu: u64,
    pub processed: Counter,
    /// Dropped because the backlog was full.
    pub dropped: Counter,
    /// Times that work was left over when the budget was spent.
    pub squeezed: Counter,
    /// Times that another processor asked it to take packets (RPS).
    pub asked_by_rps: Counter,
    /// Packets that flow limits dropped.
    pub flow_limited: Counter,
    /// Packets waiting.
    pub backlog: u64,
}

impl Facts {
    /// A counter of /proc/net/snmp or netstat: `counter("TcpExt", "ListenOverflows")`.
    pub fn counter(&self, group: &str, name: &str) -> Result<Counter, Unknown> {
        let path = match group {
            "TcpExt" | "IpExt" | "MPTcpExt" => "/proc/net/netstat",
            _ => "/proc/net/snmp",
        };
        self.note(path);
        let find = |sample: &Sample| {
            let found = in_groups(text(sample, path)?, group, name);
            found
                .map(|number| number.min(MOST as u64))
                .ok_or_else(|| Unknown(format!("{path}: this kernel has no {group} {name}")))
        };
        let total = find(&self.after)?;
        let before = find(&self.before)?;
        Ok(Counter { total, delta: total.saturating_sub(before) })
    }

    /// A number of /proc/net/sockstat: `sockstat("TCP", "tw")`.
    pub fn sockstat(&self, group: &str, name: &str) -> Result<u64, Unknown> {
        let path = "/proc/net/sockstat";
        let all = self.text(path)?;
        let line = all.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
        let mut words = line.unwrap_or_default().split_ascii_whitespace();
        let value = words.find(|word| *word == name).and_then(|_| words.next()?.parse().ok());
        value.ok_or_else(|| Unknown(format!("{path}: this kernel has no {group} {name}")))
    }

    /// By processor. The line's number is not the processor's; field 13 is.
    pub fn softnet(&self) -> Result<Vec<Softnet>, Unknown> {
        let path = "/proc/net/softnet_stat";
        let (before, after) = self.texts(path)?;
        let table = |text| softnet(text).ok_or_else(|| strange(path, text));
        let (before, after) = (table(before)?, table(after)?);
        let one = |now: &Vec<u64>| {
            let then = before.iter().find(|then| then[12] == now[12]);
            let at = |place: usize| {
                let was = then.map_or(now[place], |then| then[place]);
                Counter { total: now[place], delta: now[place].saturating_sub(was) }
            };
            Softnet {
                cpu: now[12],
                processed: at(0),
                dropped: at(1),
                squeezed: at(2),
                asked_by_rps: at(9),
                flow_limited: at(10),
                backlog: now[11],
            }
        };
        Ok(after.iter().map(one).collect())
    }
}

/// Two lines for a group: names, then values.
fn in_groups(text: &str, group: &str, name: &str) -> Option<u64> {
    let of_group = |line: &'_ &str| line.strip_prefix(group).is_some_and(|l| l.starts_with(':'));
    let mut lines = text.lines().filter(of_group);
    let at = lines.next()?.split(' ').position(|one| one == name)?;
    lines.next()?.split(' ').nth(at)?.parse().ok()
}

/// Thirteen or more columns in hexadecimal (softnet_seq_show, net/core/net-procfs.c; Linux 5.10).
fn softnet(text: &str) -> Option<Vec<Vec<u64>>> {
    let line = |line: &str| {
        let number = |word| Some(u64::from_str_radix(word, 16).ok()?.min(MOST as u64));
        let words = line.split_ascii_whitespace().map(number);
        words.collect::<Option<Vec<u64>>>().filter(|columns| columns.len() >= 13)
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values() {
        let text = "TcpExt: SyncookiesSent ListenDrops\nTcpExt: 1 7\nIpExt: InNoRoutes\nIpExt: 3\n";
        assert_eq!(in_groups(text, "TcpExt", "ListenDrops"), Some(7));
        assert_eq!(in_groups(text, "IpExt", "InNoRoutes"), Some(3));
        assert_eq!(in_groups(text, "IpExt", "ListenDrops"), None);
        assert_eq!(in_groups("TcpExt: A\n", "TcpExt", "A"), None);
    }

    #[test]
    fn processors_are_named_by_their_own_column() {
        let line = "0000000a 00000002 00000000 0 0 0 0 0 0 0 00000000 00000003 00000005";
        let table = softnet(line).unwrap();
        assert_eq!((table[0][0], table[0][1], table[0][11], table[0][12]), (10, 2, 3, 5));
        assert_eq!(softnet("1 2 3"), None);
    }
}
