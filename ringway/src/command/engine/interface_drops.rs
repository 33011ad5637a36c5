//! Packets that interfaces dropped while an engine ran. Those that a driver lost before the engine
//! are in no port's counters.

use std::collections::BTreeMap;
use std::fmt;

use ringway_engine::spread::Spread;
use ringway_host::netlink::counters::{self, Stats};
use serde::Serialize;

/// Drops of interfaces when the engine began.
pub struct DropBaseline(BTreeMap<String, u64>);

/// Packets that an interface dropped since then.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct InterfaceDrops {
    interface: String,
    /// Dropped or missed on reception. Drivers differ in whether packets are among them for which a
    /// socket's ring was full.
    pub rx_dropped_packets: u64,
}

impl DropBaseline {
    /// Of the interfaces of these ports. One whose counters cannot be read is left out.
    pub fn start(ports: &[Spread]) -> Self {
        let mut all = counters::stats().unwrap_or_default();
        let known = ports.iter().filter_map(Spread::interface);
        Self(known.filter_map(|name| Some((name.into(), dropped(&all.remove(name)?)))).collect())
    }

    pub fn lost(self) -> Vec<InterfaceDrops> {
        self.until(&counters::stats().unwrap_or_default())
    }

    fn until(self, now: &BTreeMap<String, Stats>) -> Vec<InterfaceDrops> {
        let lost = |(interface, before): (String, u64)| {
            let now = dropped(now.get(&interface)?);
            // An interface that was made anew counts from zero.
            let rx_dropped_packets = now.checked_sub(before).unwrap_or(now);
            Some(InterfaceDrops { interface, rx_dropped_packets })
        };
        self.0.into_iter().filter_map(lost).collect()
    }
}

fn dropped(stats: &Stats) -> u64 {
    stats.rx_dropped + stats.rx_missed_errors
}

impl fmt::Display for InterfaceDrops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, rx_dropped_packets } = self;
        write!(
            f,
            "interface {interface}: {rx_dropped_packets} packets dropped on reception since the start, some of which \
             `ring full` may count, too; `ip -s link show dev {interface}`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_meanwhile() {
        let since =
            || DropBaseline([("eth0".into(), 5), ("eth1".into(), 1), ("gone".into(), 1)].into());
        let stats = |rx_dropped, rx_missed_errors| Stats {
            rx_dropped,
            rx_missed_errors,
            ..Stats::default()
        };
        let now = [("eth0".into(), stats(6, 3)), ("eth1".into(), stats(0, 0))].into();
        let lost = since().until(&now);
        let counts: Vec<_> =
            lost.iter().map(|l| (l.interface.as_str(), l.rx_dropped_packets)).collect();
        assert_eq!(counts, [("eth0", 4), ("eth1", 0)]);
        assert!(lost[0].to_string().starts_with("interface eth0: 4 packets dropped"));
    }
}
