//! Devices that lie upon others. The stack takes a packet for the device that handed it over, then
//! once more for the one upon it (net/core/dev.c, another_round); no tracepoint sees the second
//! time, but the upper device counts.

use ringway_host::{Interface, Network};
use serde::Serialize;

use super::Samples;
use crate::Facts;

/// Kinds that lie upon one device.
const CARRIED: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
/// Kinds that packets of their ports are taken for at once; a bridge hands them to the stack anew.
const BUNDLES: [&str; 2] = ["bond", "team"];
/// And all that have ports.
const PORTED: [&str; 3] = ["bridge", "bond", "team"];

/// A device that packets of the one below go on to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upper {
    pub interface: String,
    /// `vlan`, `macvlan` and so on.
    pub kind: String,
    /// Of a VLAN device its number.
    pub vlan: Option<u16>,
    /// Packets, between the samples.
    pub packets: u64,
}

fn is_of(one: &Interface, kinds: &[&str]) -> bool {
    one.link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
}

/// Whether it lies upon one device, here or elsewhere.
pub(super) fn is_carried(one: &Interface) -> bool {
    is_of(one, &CARRIED)
}

/// Whether it bundles its ports.
pub(super) fn bundles(one: &Interface) -> bool {
    is_of(one, &BUNDLES)
}

/// The device that it lies upper_devices, where that is in this namespace.
pub(super) fn lower<'a>(network: &'a Network, one: &Interface) -> Option<&'a Interface> {
    let here = is_carried(one) && !one.link.lower_elsewhere;
    one.link.lower.filter(|_| here).and_then(|ifindex| network.interface_by_index(ifindex))
}

/// Its ports, where it is a bridge or a bundle.
pub(super) fn ports<'a>(network: &'a Network, one: &Interface) -> Vec<&'a Interface> {
    let port = |port: &&Interface| port.link.master == Some(one.link.ifindex);
    let ports = network.interfaces.iter().filter(port);
    if is_of(one, &PORTED) { ports.collect() } else { Vec::new() }
}

/// Packets that an interface received between the samples.
pub(super) fn received(facts: &Facts, one: &Interface) -> u64 {
    let stats = facts.device(&one.link.name);
    stats.map_or(0, |(before, after)| after.rx_packets.saturating_sub(before.rx_packets))
}

pub(super) fn uppers(samples: &Samples, ifindex: u32) -> Vec<Upper> {
    let Ok(network) = samples.facts.network() else { return Vec::new() };
    let upon = |one: &&Interface| lower(network, one).is_some_and(|it| it.link.ifindex == ifindex);
    let upper = |one: &Interface| Upper {
        interface: one.link.name.clone(),
        kind: one.link.kind.clone().unwrap_or_default(),
        vlan: one.link.vlan.map(|tag| tag.id),
        packets: received(samples.facts, one),
    };
    network.interfaces.iter().filter(upon).map(upper).collect()
}

/// Notes about devices above and below.
pub(super) fn notes(samples: &Samples) -> Vec<String> {
    let Ok(network) = samples.facts.network() else { return Vec::new() };
    let one = samples.interface;
    let mut notes = Vec::new();
    if is_carried(one) && lower(network, one).is_none() {
        notes.push(
            "the device that it lies upon is in another network namespace: look there".into(),
        );
    }
    let ports = ports(network, one);
    if !ports.is_empty() {
        let names: Vec<&str> = ports.iter().map(|port| port.link.name.as_str()).collect();
        notes.push(format!(
            "its packets arrive at its ports: {}; ask for the path of one of them",
            names.join(", ")
        ));
    }
    notes
}
