//! XDP programs on the parts of a bond.

use ringway_host::Interface;

use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// Since Linux 5.15 a bond takes a program for all of its parts.
pub const RULE: Rule = Rule {
    number: 75,
    name: "bond-xdp",
    rule: "an XDP program is on the bond, or on every one of its parts",
    source: "Linux, drivers/net/bonding/bond_main.c: bond_xdp_set",
    why: "A program on some of the parts sees some of the packets, and the bond chooses which.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let bonds = facts.of_kind("bond")?;
    let network = facts.network()?;
    Ok(each_interface(bonds, |bond| {
        let name = &bond.link.name;
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

#[cfg(test)]
mod tests {
    use ringway_host::netlink::links::{Xdp, XdpMode};

    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::{Machine, table};
    use crate::{Program, Severity};

    #[test]
    fn one_of_two_parts() {
        let bond = |on_bond: bool| {
            Machine::healthy().network(|network| {
                let program = vec![Xdp { program: 1, mode: XdpMode::Native }];
                let mut bond = network.interfaces[1].clone();
                (bond.link.ifindex, bond.link.name, bond.link.kind) =
                    (9, "bond0".into(), Some("bond".into()));
                if on_bond {
                    bond.link.xdp = program.clone();
                }
                network.interfaces[1].link.master = Some(9);
                network.interfaces[2].link.master = Some(9);
                network.interfaces[1].link.xdp = program;
                network.interfaces.push(bond);
            })
        };
        table(&RULE, [(bond(false), Severity::Warn), (bond(true), Severity::Ok)]);
    }

    #[test]
    fn a_bond_that_is_to_get_a_program() {
        let machine = Machine::healthy().network(|network| {
            let mut bond = network.interfaces[1].clone();
            (bond.link.ifindex, bond.link.name, bond.link.kind) =
                (9, "bond0".into(), Some("bond".into()));
            network.interfaces[1].link.master = Some(9);
            network.interfaces.push(bond);
        });
        let looked = |bits: Option<u64>| {
            let bits = bits.map(|bits| (9, bits)).into_iter().collect();
            let program =
                Program { interfaces: vec!["bond0".into()], native: vec!["bond0".into()] };
            let features: BTreeMap<u32, u64> = bits;
            let machine = machine.clone().json("/netlink/xdp_features.json", features);
            check(&machine.facts().with_program(program)).unwrap().remove(0)
        };
        let unknown = looked(None);
        assert!(unknown.severity == Severity::Unknown && unknown.found.contains("eth0 (ixgbe)"));
        assert_eq!(looked(Some(0)).severity, Severity::Warn);
        assert_eq!(looked(Some(3)).severity, Severity::Ok);
    }
}
