//! XDP programs on cards, bonds and veth pairs.

use std::collections::BTreeMap;

use ringway_host::Interface;
use ringway_host::ethtool::Channels;
use ringway_host::netlink::links::XdpMode;
use ringway_host::netlink::xdp_features::XdpFeatures;

use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Unknown, each, each_interface};

pub const XDP_GENERIC: Rule = Rule {
    number: 69,
    name: "xdp-generic",
    rule: "an XDP program is native where the driver can",
    source: "kernel documentation, networking/xdp; netlink family netdev, xdp-features",
    why: "Generic XDP comes after the cost that XDP is there to save.",
    profiles: &[],
    check: xdp_generic,
};

fn xdp_generic(facts: &Facts) -> Looked {
    let interfaces = &facts.network()?.interfaces;
    let generic =
        interfaces.iter().filter(|one| one.link.xdp.iter().any(|xdp| xdp.mode == XdpMode::Generic));
    Ok(each_interface(generic, |one, name| {
        let features: BTreeMap<u32, XdpFeatures> = facts.json("/netlink/xdp_features.json")?;
        if !features.get(&one.link.ifindex).is_some_and(|features| features.native()) {
            return Ok(Outcome::ok(name, "generic, as its driver knows no other"));
        }
        let program = one.link.xdp.first().map_or(0, |xdp| xdp.program);
        Ok(Outcome::warn(name, format!("program {program} is generic, and the driver has native XDP"))
            .saw(format!("ip link show {name}"), "xdpgeneric")
            .advice("attach it in native mode (xdpdrv; of Ringway: xdp_mode = \"native\"), and look why that was refused: LRO, \
                     a large MTU, too few queues"))
    }))
}

/// Since Linux 5.15 a bond takes a program for all of its parts.
pub const BOND_XDP: Rule = Rule {
    number: 75,
    name: "bond-xdp",
    rule: "an XDP program is on the bond, or on every one of its parts",
    source: "Linux, drivers/net/bonding/bond_main.c: bond_xdp_set",
    why: "A program on some of the parts sees some of the packets, and the bond chooses which.",
    profiles: &[],
    check: bond_xdp,
};

fn bond_xdp(facts: &Facts) -> Looked {
    let bonds = facts.of_kind("bond")?;
    let network = facts.network()?;
    Ok(each_interface(bonds, |bond, name| {
        let parts: Vec<_> = network
            .interfaces
            .iter()
            .filter(|one| one.link.master == Some(bond.link.ifindex))
            .collect();
        if facts.native(bond) && bond.link.xdp.is_empty() {
            return whole(facts, bond, &parts);
        }
        let with = parts.iter().filter(|part| !part.link.xdp.is_empty()).count();
        if with == 0 || !bond.link.xdp.is_empty() || with == parts.len() {
            return Ok(Outcome::ok(
                name,
                format!("{with} of {} parts have a program", parts.len()),
            ));
        }
        Ok(Outcome::warn(
            name,
            format!("{with} of its {} parts have an XDP program, others none", parts.len()),
        )
        .saw(format!("ip link show master {name}, with xdp"), with)
        .advice("attach it to the bond; in generic mode, if the bond refuses"))
    }))
}

/// A bond that is to get a native program takes it only if all of its parts do.
fn whole(facts: &Facts, bond: &Interface, parts: &[&Interface]) -> Result<Outcome, Unknown> {
    let name = &bond.link.name;
    let driver = |part: &&Interface| match &part.driver {
        Some(driver) => format!("{} ({})", part.link.name, driver.name),
        None => part.link.name.clone(),
    };
    let of = match parts {
        [] => "no device".into(),
        parts => parts.iter().map(driver).collect::<Vec<_>>().join(", "),
    };
    match facts.native_xdp(bond) {
        Some(true) => Ok(Outcome::ok(name, format!("of {of}: native on all"))),
        None => Err(Unknown(format!("of {of}: whether all of them take native XDP is not told"))),
        Some(false) => {
            let why = "one of them, or the way it spreads packets, does not allow native XDP";
            let modes = "native: balance-rr, active-backup, balance-xor and 802.3ad, but not with hash policy vlan+srcmac";
            Ok(Outcome::warn(name, format!("of {of}: {why}"))
                .saw(format!("netlink netdev, xdp-features of {name}, basic"), "off")
                .advice(format!(
                    "grep -E \"Bonding Mode|Hash Policy\" /proc/net/bonding/{name} ({modes}); or attach in generic mode \
                     (of Ringway: xdp_mode = \"generic\")"
                )))
        }
    }
}

pub const DRIVER_QUEUES: Rule = Rule {
    number: 76,
    name: "driver-queues",
    rule: "ena: half of the queues at most are in use; virtio_net: as many are to spare as there are processors",
    source: "Linux, drivers/net/ethernet/amazon/ena: ena_xdp_legal_queue_count; drivers/net/virtio_net.c: virtnet_xdp_set",
    why: "The driver refuses native XDP, or all processors share one queue under a lock.",
    profiles: &[Profile::Balancer, Profile::Bypass],
    check: driver_queues,
};

fn driver_queues(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?.len() as u32;
    Ok(each_interface(cards, |card, name| {
        let driver = card.driver.as_ref().map_or("", |driver| driver.name.as_str());
        let Some(Channels { rx, max_tx, .. }) = card.channels else {
            return Ok(Outcome::ok(name, "it has one queue, as far as its driver tells"));
        };
        if !facts.gets_native(card) {
            return Ok(Outcome::ok(
                name,
                "no program goes into the driver, or one is in it already",
            ));
        }
        let most = match driver {
            "ena" => max_tx / 2,
            "virtio_net" => max_tx.saturating_sub(cpus),
            _ => {
                return Ok(Outcome::ok(name, format!("driver {driver} is not known to be choosy")));
            }
        };
        if rx <= most {
            return Ok(Outcome::ok(name, format!("{rx} of {max_tx} queues are in use")));
        }
        let seen = Outcome::warn(
            name,
            format!("{rx} of {max_tx} queues are in use: too few are left for XDP"),
        )
        .saw(format!("ethtool -l {name}"), format!("{rx} of {max_tx}"));
        let set = |queues: u32| Fix::ethtool("-L", name, format!("combined {queues}"));
        if most == 0 {
            return Ok(seen.advice("give the machine more queues (virtio: twice its processors)"));
        }
        Ok(seen.fix(set(most), set(rx)))
    }))
}

pub const XDP_MTU: Rule = Rule {
    number: 77,
    name: "xdp-mtu",
    rule: "an interface for XDP has an MTU of 3498 bytes at most, or programs with frags; a tunnel's packets fit what is below it",
    source: "kernel documentation, networking/xdp: a page less headroom (256), skb_shared_info (320) and Ethernet header",
    why: "Drivers refuse a program without frags, or drop what is larger. Tunnels of dsr add 20 to 48 bytes to each packet.",
    profiles: &[Profile::Balancer, Profile::Bypass],
    check: xdp_mtu,
};

const MOST: u32 = 3498;

fn xdp_mtu(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let name = |one: &&Interface| one.link.name.clone();
    let mut found = each(interfaces.clone(), name, |one| Ok(page(one)));
    let tunnels = interfaces.into_iter().filter_map(|one| Some((one, overhead(one)?)));
    found.extend(each(
        tunnels,
        |(one, _)| one.link.name.clone(),
        |(one, bytes)| tunnel(facts, one, *bytes),
    ));
    Ok(found)
}

fn page(one: &Interface) -> Outcome {
    let (name, mtu) = (&one.link.name, one.link.mtu);
    if mtu <= MOST {
        return Outcome::ok(name, format!("{mtu} bytes"));
    }
    // No fix: nobody should lose jumbo frames to a program that takes them.
    Outcome::info(name, format!("{mtu} bytes are more than XDP without frags takes"))
        .saw(format!("ip link show {name}, mtu"), mtu)
        .advice(format!(
            "Ringway's programs take them; for one without frags: {}",
            Fix::link(name, format!("mtu {MOST}"))
        ))
}

/// Bytes that a tunnel adds to each packet: the least that its kind may.
fn overhead(one: &Interface) -> Option<u32> {
    Some(match one.link.kind.as_deref()? {
        "ipip" | "sit" => 20,
        "gre" => 24,
        "ip6tnl" => 40,
        "gretap" => 38,
        "ip6gre" => 44,
        "vxlan" | "geneve" => 50,
        "wireguard" => 60,
        _ => return None,
    })
}

fn tunnel(facts: &Facts, one: &Interface, bytes: u32) -> Result<Outcome, Unknown> {
    let (name, mtu) = (&one.link.name, one.link.mtu);
    let lower = one.link.lower.filter(|_| !one.link.lower_elsewhere);
    let lower = lower.map(|lower| facts.network().map(|network| network.interface_by_index(lower)));
    let Some(lower) = lower.transpose()?.flatten() else {
        let why = "the device that its packets leave by is not told: whether they fit is not known";
        return Err(Unknown(format!("{name}: {why}")));
    };
    let (below, room) = (&lower.link.name, lower.link.mtu.saturating_sub(bytes));
    if mtu <= room {
        return Ok(Outcome::ok(
            name,
            format!("{mtu} bytes and {bytes} of its headers fit {below}"),
        ));
    }
    let set = |mtu: u32| Fix::link(name, format!("mtu {mtu}"));
    let said = format!("{mtu} bytes and {bytes} of its headers are more than {below} takes");
    Ok(Outcome::warn(name, said)
        .saw(format!("ip link show {name}, mtu"), mtu)
        .saw(format!("ip link show {below}, mtu"), lower.link.mtu)
        .fix(set(room), set(mtu)))
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::links::Xdp;

    use super::*;
    use crate::Program;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn where_native_is_there() {
        let attached = |mode| {
            healthy().network(|network| {
                network.interfaces[2].link.xdp = vec![Xdp { program: 5, mode }];
            })
        };
        let cannot =
            attached(XdpMode::Generic).json("/netlink/xdp_features.json", BTreeMap::from([(3, 0)]));
        let unknown = attached(XdpMode::Generic).remove("/netlink/xdp_features.json");
        let rows = [
            (attached(XdpMode::Generic), Warn),
            (attached(XdpMode::Native), Severity::Ok),
            (cannot, Severity::Ok),
            (unknown, Unknown),
        ];
        table(&XDP_GENERIC, rows);
    }

    #[test]
    fn one_of_two_parts() {
        let bond = |on_bond: bool| {
            let program = || vec![Xdp { program: 1, mode: XdpMode::Native }];
            let machine = healthy().interface(1, 9, "bond0", |bond| {
                bond.link.kind = Some("bond".into());
                bond.link.xdp = if on_bond { program() } else { Vec::new() };
            });
            machine.network(|network| {
                network.interfaces[1..3].iter_mut().for_each(|one| one.link.master = Some(9));
                network.interfaces[1].link.xdp = program();
            })
        };
        table(&BOND_XDP, [(bond(false), Warn), (bond(true), Severity::Ok)]);
    }

    #[test]
    fn a_bond_that_is_to_get_a_program() {
        let bond = |bond: &mut Interface| bond.link.kind = Some("bond".into());
        let machine = healthy().interface(1, 9, "bond0", bond);
        let machine = machine.network(|network| network.interfaces[1].link.master = Some(9));
        let looked = |bits: Option<u64>| {
            let bits = bits.map(|bits| (9, bits)).into_iter().collect();
            let program =
                Program { interfaces: vec!["bond0".into()], native: vec!["bond0".into()] };
            let features: BTreeMap<u32, u64> = bits;
            let machine = machine.clone().json("/netlink/xdp_features.json", features);
            bond_xdp(&machine.facts().with_program(program)).unwrap().remove(0)
        };
        let unknown = looked(None);
        assert!(unknown.severity == Unknown && unknown.found.contains("eth0 (ixgbe)"));
        assert_eq!(looked(Some(0)).severity, Warn);
        assert_eq!(looked(Some(3)).severity, Severity::Ok);
    }

    #[test]
    fn each_drivers_own_rule() {
        let card = |driver: &str, rx: u32| {
            healthy().network(|network| {
                let card = &mut network.interfaces[1];
                card.driver.as_mut().unwrap().name = driver.into();
                card.channels.as_mut().unwrap().rx = rx;
            })
        };
        assert_eq!(card("ena", 8).fixes(&DRIVER_QUEUES), ["ethtool -L eth0 combined 4"]);
        let rows = [
            (card("ena", 4), Severity::Ok),
            (card("ena", 5), Warn),
            (card("virtio_net", 4), Severity::Ok),
            (card("virtio_net", 5), Warn),
            (card("ixgbe", 8), Severity::Ok),
        ];
        table(&DRIVER_QUEUES, rows);
    }

    #[test]
    fn jumbo_frames() {
        let mtu = |mtu| healthy().network(|network| network.interfaces[1].link.mtu = mtu);
        assert_eq!(mtu(9000).fixes(&XDP_MTU), [""; 0]);
        table(&XDP_MTU, [(mtu(3498), Severity::Ok), (mtu(3499), Info)]);
    }

    #[test]
    fn what_a_tunnel_adds() {
        let tunnel = |mtu, lower: Option<u32>| {
            healthy().interface(2, 9, "vx", |tunnel| {
                (tunnel.link.kind, tunnel.link.mtu) = (Some("vxlan".into()), mtu);
                (tunnel.link.lower, tunnel.link.lower_elsewhere) = (lower, false);
            })
        };
        let large = tunnel(1451, Some(2));
        assert_eq!(large.fixes(&XDP_MTU), ["ip link set dev vx mtu 1450"]);
        let rows =
            [(large, Warn), (tunnel(1450, Some(2)), Severity::Ok), (tunnel(1450, None), Unknown)];
        table(&XDP_MTU, rows);
    }
}
