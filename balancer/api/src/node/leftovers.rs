//! Leftovers of a node on its host, beside pins: routing rules of its probe tunnel, multicast
//! addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ringway_host::neighbour_packets::multicast;
use ringway_host::netlink::links;
use ringway_host::netlink::rules::{self, MarkRule};
use ringway_host::{Error, Mac};
use ringway_kernel::View;
use ringway_wire::nd::Neighbour;

/// Name of the device; the kernel puts a number in.
pub const DEVICE: &str = "rwprobe%d";

/// Whether this is the name of such a device, of whichever node.
pub fn is_device(name: &str) -> bool {
    let number = name.strip_prefix(DEVICE.trim_end_matches("%d"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Numbers of routing tables, one a device.
pub const TABLES: u32 = 0x7277_0000;

/// Groups, each with the interface that is to receive it.
pub type Groups = BTreeSet<(u32, Ipv6Addr)>;

/// Removes rules whose device has gone with its daemon; how many.
///
/// # Errors
/// The kernel refuses.
pub fn remove_stale() -> Result<usize, Error> {
    let stale = stale()?;
    for rule in &stale {
        rules::remove(rule)?;
    }
    Ok(stale.len())
}

/// Rules that lead to a device that is no more.
///
/// # Errors
/// The kernel does not tell.
pub fn stale() -> Result<Vec<MarkRule>, Error> {
    let mut rules = rules::ours()?;
    if rules.is_empty() {
        return Ok(rules);
    }
    let links = links::all()?;
    let prefix = DEVICE.trim_end_matches("%d");
    let alive = |table: u32| {
        let mut devices = links.iter().filter(|link| link.name.starts_with(prefix));
        devices.any(|link| table == TABLES | link.ifindex & 0xffff)
    };
    rules.retain(|rule| rule.table & !0xffff == TABLES && !alive(rule.table));
    Ok(rules)
}

/// The groups of these addresses, on each interface.
pub fn of(announced: &BTreeSet<IpAddr>, indexes: impl Iterator<Item = u32>) -> Groups {
    let v6 = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(Neighbour::solicited_nodes(*address)),
    };
    let groups: BTreeSet<Ipv6Addr> = announced.iter().filter_map(v6).collect();
    indexes.flat_map(|index| groups.iter().map(move |group| (index, *group))).collect()
}

/// Groups that a node's interfaces may receive on its behalf, by its tables alone. What cannot be
/// read is left out.
pub fn of_tables(view: &View) -> Groups {
    let announced = view.announced().unwrap_or_default();
    let interfaces = view.interfaces().unwrap_or_default();
    // In another network namespace the index means another device.
    let here = interfaces.iter().filter(|interface| {
        let link = links::by_index(interface.ifindex).ok();
        link.and_then(|link| link.mac).is_some_and(|mac| mac.0 == interface.mac)
    });
    of(&announced, here.map(|interface| interface.ifindex))
}

/// Has the interfaces receive them no longer. Returns what was given up, in words, and what failed.
pub fn give_up<'a>(
    groups: impl IntoIterator<Item = &'a (u32, Ipv6Addr)>,
) -> (Vec<String>, Vec<Error>) {
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for (ifindex, group) in groups {
        let mac = Mac::of_multicast(*group);
        match multicast::stop_receiving(*ifindex, mac) {
            Ok(true) => done.push(format!("multicast address {mac} (IPv6 group {group})")),
            Ok(false) | Err(Error::NoInterface { .. }) => {}
            Err(error) => errors.push(error),
        }
    }
    (done, errors)
}
