//! TCP's counters in the calling thread's network namespace: /proc/net/netstat and /proc/net/snmp.

use std::collections::BTreeMap;
use std::fs;

use crate::{Error, Result};

/// Of the thread, which may be in another namespace than its process (proc_pid_net(5)).
const FILES: [&str; 2] = ["/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp"];
/// Those that tell overflows, losses and scarcity from health.
const TELLING: [&str; 9] = [
    "ListenOverflows",
    "ListenDrops",
    "TCPReqQFullDrop",
    "TCPReqQFullDoCookies",
    "TCPTimeouts",
    "TCPSynRetrans",
    "RetransSegs",
    "AttemptFails",
    "TCPTimeWaitOverflow",
];

/// All counters of TCP at one moment, by the names that `nstat` has without the prefix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    pub(crate) fn read() -> Result<Self> {
        let mut all = BTreeMap::new();
        for path in FILES {
            let text = fs::read_to_string(path)
                .map_err(|source| Error::Read { path: path.into(), source })?;
            all.extend(parse(&text));
        }
        Ok(Self(all))
    }

    /// One of them; zero where this kernel has none of that name.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Those that tell something and have moved since.
    pub(crate) fn since(&self, before: &Self) -> BTreeMap<&'static str, u64> {
        let moved = TELLING.map(|name| (name, self.get(name).saturating_sub(before.get(name))));
        moved.into_iter().filter(|(_, by)| *by > 0).collect()
    }
}

/// Counters for a table: `ListenOverflows 3, TCPTimeouts 1`.
pub(crate) fn in_words(moved: &BTreeMap<&'static str, u64>) -> String {
    let all: Vec<_> = moved.iter().map(|(name, by)| format!("{name} {by}")).collect();
    if all.is_empty() { "no counter of trouble moved".into() } else { all.join(", ") }
}

/// Pairs of lines, `TcpExt: NAME ...` and `TcpExt: NUMBER ...`.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.chunks_exact(2).filter(|pair| {
        pair.iter().all(|line| line.starts_with("TcpExt: ") || line.starts_with("Tcp: "))
    });
    let columns =
        pairs.flat_map(|pair| pair[0].split_whitespace().zip(pair[1].split_whitespace()).skip(1));
    columns.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_moved() {
        let text = "Tcp: MaxConn CurrEstab RetransSegs\nTcp: -1 7 3\nUdp: A\nUdp: 9\n\
                    TcpExt: ListenOverflows ListenDrops\nTcpExt: 5 5\n";
        let before = Counters(parse(text));
        assert_eq!((before.get("CurrEstab"), before.get("MaxConn"), before.get("A")), (7, 0, 0));
        let after = Counters(parse(&text.replace("5 5", "5 9").replace("7 3", "900 4")));
        let moved = after.since(&before);
        assert_eq!(moved, [("ListenDrops", 4), ("RetransSegs", 1)].into());
        assert_eq!(in_words(&moved), "ListenDrops 4, RetransSegs 1");
        assert_eq!(in_words(&before.since(&before)), "no counter of trouble moved");
    }
}
