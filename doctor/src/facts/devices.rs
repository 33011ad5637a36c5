//! Interfaces, and what their drivers say.

use std::collections::BTreeMap;

use ringway_host::Interface;
use ringway_host::netlink::counters::Stats;
use serde::de::DeserializeOwned;

use super::{Counter, Facts, MOST};
use crate::Unknown;

impl Facts {
    /// Cards: what is no device made of software.
    pub fn cards(&self) -> Result<Vec<&Interface>, Unknown> {
        let card =
            |one: &&Interface| one.link.kind.is_none() && !one.link.loopback && self.concerns(one);
        Ok(self.network()?.interfaces.iter().filter(card).collect())
    }

    /// All but loopback that are up.
    pub fn interfaces(&self) -> Result<Vec<&Interface>, Unknown> {
        let wanted = |one: &&Interface| one.link.up && !one.link.loopback && self.concerns(one);
        Ok(self.network()?.interfaces.iter().filter(wanted).collect())
    }

    /// Interfaces of a kind, such as `veth`.
    pub fn of_kind(&self, kind: &str) -> Result<Vec<&Interface>, Unknown> {
        let wanted =
            |one: &&Interface| one.link.kind.as_deref() == Some(kind) && self.concerns(one);
        Ok(self.network()?.interfaces.iter().filter(wanted).collect())
    }

    /// Interfaces of the first look that the second does not have under this name.
    pub fn gone(&self) -> Result<Vec<String>, Unknown> {
        let (before, _): (BTreeMap<String, Stats>, BTreeMap<String, Stats>) =
            self.pair("/netlink/stats.json")?;
        let network = self.network()?;
        let wanted =
            |name: &String| self.program.as_ref().is_none_or(|one| one.interfaces.contains(name));
        let gone = |name: &String| network.interface(name).is_none() && wanted(name);
        Ok(before.into_keys().filter(gone).collect())
    }

    /// Ethtool's answer about an interface: `ethtool::<Rings>("eth0", "rings")`.
    pub fn ethtool<T: DeserializeOwned>(&self, name: &str, what: &str) -> Result<T, Unknown> {
        self.json(&format!("/ethtool/{name}/{what}.json"))
    }

    /// Names of an interface's transmit queues, such as `tx-0`, in the order of their numbers.
    /// Every interface has one.
    pub fn tx_queues(&self, name: &str) -> Result<Vec<String>, Unknown> {
        let directory = format!("/sys/class/net/{name}/queues");
        let mut queues = self.list(&directory)?;
        queues.retain(|queue| queue.starts_with("tx-"));
        queues.sort_by_key(|queue| queue[3..].parse::<u32>().unwrap_or(u32::MAX));
        if queues.is_empty() {
            return Err(Unknown(format!("{directory}: not collected")));
        }
        Ok(queues)
    }

    /// A device's counters at both moments.
    pub fn device(&self, name: &str) -> Result<(Stats, Stats), Unknown> {
        let (before, after): (BTreeMap<String, Stats>, BTreeMap<String, Stats>) =
            self.pair("/netlink/stats.json")?;
        let absent = || Unknown(format!("{name} has gone or came meanwhile"));
        Ok((*before.get(name).ok_or_else(absent)?, *after.get(name).ok_or_else(absent)?))
    }

    /// One of a device's counters.
    pub fn device_counter(
        &self,
        name: &str,
        of: impl Fn(&Stats) -> u64,
    ) -> Result<Counter, Unknown> {
        let (before, after) = self.device(name)?;
        let of = |stats: &Stats| of(stats).min(MOST as u64);
        let total = of(&after);
        Ok(Counter { total, delta: total.saturating_sub(of(&before)) })
    }

    /// Packets that a card had no room for.
    pub fn missed(&self, name: &str) -> Result<Counter, Unknown> {
        self.device_counter(name, |stats| {
            stats.rx_missed_errors.saturating_add(stats.rx_fifo_errors)
        })
    }
}
