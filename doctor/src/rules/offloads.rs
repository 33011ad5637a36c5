//! Offloads: work that the stack leaves to devices.

use ringway_host::{Interface, Network};

use crate::facts::FarEnd;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Unknown, each_interface};

pub const OFFLOADS: Rule = Rule {
    number: 29,
    name: "offloads",
    rule: "GSO and TSO are on, and on cards GRO",
    source: "kernel documentation, networking/segmentation-offloads",
    why: "Without them each packet of 1500 bytes walks through the stack by itself, up to forty times as many.",
    profiles: &[],
    check: offloads,
};

fn offloads(facts: &Facts) -> Looked {
    // A host that passes packets on needs them as they came.
    if matches!(facts.profile, Some(Profile::Balancer | Profile::Bypass)) {
        return Ok(Vec::new());
    }
    let interfaces = facts.interfaces()?;
    let network = facts.network()?;
    Ok(each_interface(interfaces, |one, name| {
        let card = one.link.kind.is_none();
        let veth = one.link.kind.as_deref() == Some("veth");
        if !card && !veth {
            return Ok(Outcome::ok(name, "made of software"));
        }
        let offloads = &one.offloads;
        // TSO needs the device's checksums; a device that cannot do it has GSO.
        let no_tso = !offloads.tso && !offloads.gso && offloads.tx_checksum;
        let mut off = vec![("gso", offloads.gso), ("tso", !no_tso)];
        // On veth it is off until somebody wants NAPI there.
        off.extend((card && !is_below_program(network, one)).then_some(("gro", offloads.gro)));
        off.retain(|(_, on)| !on);
        // The kernel keeps both off without scatter-gather, whatever is asked for.
        if !offloads.scatter_gather && off.iter().any(|(what, _)| *what != "gro") {
            off.insert(0, ("sg", false));
        }
        // With an XDP program on a veth pair they must be off.
        if off.is_empty() || !one.link.xdp.is_empty() {
            return Ok(Outcome::ok(name, "on, or off for XDP's sake"));
        }
        let names: Vec<&str> = off.iter().map(|(what, _)| *what).collect();
        let all = |on: &str| {
            names.iter().map(|what| format!("{what} {on}")).collect::<Vec<_>>().join(" ")
        };
        Ok(Outcome::info(name, format!("off: {}", names.join(", ")))
            .saw(format!("ethtool -k {name}"), all("off"))
            .ethtool("-K", name, all("on"), all("off")))
    }))
}

/// Whether an XDP program on a bridge, bond or the like gets this card's packets behind GRO: it
/// wants them as they came.
fn is_below_program(network: &Network, one: &Interface) -> bool {
    fn search(network: &Network, one: &Interface, depth: u8) -> bool {
        let uppers = network.interfaces.iter().filter(|upper| one.link.carries(&upper.link));
        depth > 0
            && uppers
                .into_iter()
                .any(|upper| !upper.link.xdp.is_empty() || search(network, upper, depth - 1))
    }
    // As deep as the kernel lets devices be stacked.
    search(network, one, 8)
}

pub const LRO: Rule = Rule {
    number: 30,
    name: "lro",
    rule: "LRO is off where packets are forwarded or an XDP program is attached",
    source: "kernel documentation, networking/segmentation-offloads; drivers refuse XDP while LRO is on",
    why: "What it glued together cannot be sent on as it came: too large, with wrong acknowledgements.",
    profiles: &[],
    check: lro,
};

fn lro(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let forwards = facts.sysctl("net/ipv4/ip_forward")? != 0;
    Ok(each_interface(interfaces, |one, name| {
        let passes_on =
            forwards || facts.native(one) || !one.link.xdp.is_empty() || one.link.master.is_some();
        if !one.offloads.lro || !passes_on {
            return Ok(Outcome::ok(name, if one.offloads.lro { "on, on an end" } else { "off" }));
        }
        Ok(Outcome::warn(name, "LRO is on, and packets are passed on")
            .saw(format!("ethtool -k {name}, large-receive-offload"), "on")
            .saw("/proc/sys/net/ipv4/ip_forward", i32::from(forwards))
            .ethtool("-K", name, "lro off", "lro on"))
    }))
}

pub const VETH_CHECKSUM: Rule = Rule {
    number: 74,
    name: "veth-checksum",
    rule: "where one end of a veth pair has native XDP, the other polls (XDP or GRO), and finishes \
           checksums itself unless the program does, as Ringway's balancer",
    source: "Linux, drivers/net/veth.c: veth_xdp_xmit, veth_convert_skb_to_xdp_buff",
    why: "What XDP sends to an end that does not poll is lost in silence, and frames with \
          unfinished checksums are dropped by their receiver.",
    profiles: &[],
    check: veth_checksum,
};

const OR: &str = "or attach it in generic mode (of Ringway: xdp_mode = \"generic\"), which needs nothing of the far end";

fn veth_checksum(facts: &Facts) -> Looked {
    let native: Vec<&Interface> =
        facts.of_kind("veth")?.into_iter().filter(|one| facts.native(one)).collect();
    Ok(each_interface(native, |one, _| pair(facts, one)))
}

fn pair(facts: &Facts, one: &Interface) -> Result<Outcome, Unknown> {
    let (name, far) = (&one.link.name, facts.far_end(one)?);
    let FarEnd { name: Some(peer), native, unfinished, .. } = &far else {
        return Ok(elsewhere(facts, one, &far));
    };
    let mut outcome =
        Outcome::warn(peer, format!("{name}, its other end, has native XDP")).advice(OR);
    if *unfinished == Some(true) && !facts.finishes_checksums() {
        let seen = format!("ethtool -k {peer}, tx-checksumming");
        outcome = outcome.saw(seen, "on").ethtool("-K", peer, "tx off", "tx on");
    }
    if far.polls == Some(false) {
        let seen = format!("ethtool -k {peer}, generic-receive-offload");
        outcome = outcome.saw(seen, "off").ethtool("-K", peer, "gro on", "gro off");
    }
    let by = if *native == Some(true) { "native XDP" } else { "GRO" };
    Ok(outcome.or_ok(format!("checksums are finished, and it polls: it has {by}")))
}

/// Of a far end in another namespace, the kernel tells here only whether it polls.
fn elsewhere(facts: &Facts, one: &Interface, far: &FarEnd) -> Outcome {
    let name = &one.link.name;
    let far_end = format!("the far end of {name}, in another network namespace,");
    if far.polls == Some(false) {
        let lost =
            format!("{far_end} has neither GRO nor native XDP: what is sent into it is lost");
        let gro = Fix::ethtool("-K", "IFACE", "gro on").after("there:");
        return Outcome::warn(name, lost)
            .saw(format!("netlink netdev, xdp-features of {name}, ndo-xmit"), "off")
            .advice(Fix::Sequence(vec![gro, OR.into()]));
    }
    if far.polls.is_some() && facts.finishes_checksums() {
        return Outcome::ok(name, format!("{far_end} polls"));
    }
    let polls = if far.polls.is_some() { "polls, but" } else { "may not poll, and" };
    let why = format!(
        "{far_end} {polls} whether it leaves checksums unfinished cannot be seen; run it there, too (ethtool -k IFACE)"
    );
    Outcome { lasting: one.link.lower_elsewhere, ..Outcome::unknown(name, why) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringway_host::netlink::links::{Xdp, XdpMode};

    use super::*;
    use crate::Program;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn what_is_off() {
        let off = |index: usize| {
            healthy().network(|network| {
                let offloads = &mut network.interfaces[index].offloads;
                (offloads.gso, offloads.tso, offloads.gro) = (false, false, false);
            })
        };
        assert_eq!(off(1).fixes(&OFFLOADS), ["ethtool -K eth0 gso on tso on gro on"]);
        assert_eq!(off(2).undos(&OFFLOADS), ["ethtool -K veth0 gso off tso off"]);
        let scattered = |index: usize, gso| {
            off(index).network(|network| {
                let offloads = &mut network.interfaces[index].offloads;
                (offloads.scatter_gather, offloads.gso, offloads.tso) = (false, gso, gso);
            })
        };
        assert_eq!(scattered(2, false).fixes(&OFFLOADS), ["ethtool -K veth0 sg on gso on tso on"]);
        assert_eq!(scattered(1, true).fixes(&OFFLOADS), ["ethtool -K eth0 gro on"]);
        let below = |xdp: &[Xdp]| {
            let machine = off(1).network(|network| {
                let offloads = &mut network.interfaces[1].offloads;
                (offloads.gso, offloads.tso) = (true, true);
                network.interfaces[1].link.master = Some(9);
            });
            machine.interface(2, 9, "br0", |bridge| {
                (bridge.link.kind, bridge.link.lower) = (Some("bridge".into()), None);
                bridge.link.xdp = xdp.to_vec();
            })
        };
        assert_eq!(below(&[]).fixes(&OFFLOADS), ["ethtool -K eth0 gro on"]);
        let generic = Xdp { program: 7, mode: XdpMode::Generic };
        assert!(below(&[generic]).fixes(&OFFLOADS).is_empty());
        let balancer = off(1).profile(Profile::Balancer);
        table(&OFFLOADS, [(off(1), Info), (off(2), Info), (balancer, Severity::Ok)]);
    }

    #[test]
    fn where_packets_are_passed_on() {
        let end = healthy().network(|network| network.interfaces[1].offloads.lro = true);
        let router = end.clone().put("/proc/sys/net/ipv4/ip_forward", "1");
        assert_eq!(router.fixes(&LRO), ["ethtool -K eth0 lro off"]);
        let program = Program { interfaces: vec!["eth0".into()], native: vec!["eth0".into()] };
        let looked = (LRO.check)(&end.facts().with_program(program)).unwrap();
        assert_eq!(looked[0].severity, Warn, "{looked:?}");
        table(&LRO, [(end, Severity::Ok), (router, Warn)]);
    }

    fn pair(tx_checksum: bool, gro: bool, native: bool) -> Machine {
        let machine = healthy().interface(2, 4, "veth1", |peer| {
            (peer.link.lower, peer.link.lower_elsewhere) = (Some(3), false);
            (peer.offloads.tx_checksum, peer.offloads.gro) = (tx_checksum, gro);
        });
        machine.network(|network| {
            let own = &mut network.interfaces[2].link;
            (own.lower, own.lower_elsewhere) = (Some(4), false);
            if native {
                own.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
            }
        })
    }

    #[test]
    fn the_far_end_of_native_xdp() {
        let fixes = ["ethtool -K veth1 tx off", "ethtool -K veth1 gro on"];
        assert_eq!(pair(true, false, true).fixes(&VETH_CHECKSUM), fixes);
        let elsewhere = healthy().network(|network| {
            network.interfaces[2].link.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
        });
        let polls = |bits: u64| {
            elsewhere.clone().json("/netlink/xdp_features.json", BTreeMap::from([(3, bits)]))
        };
        let rows = [
            (pair(true, true, true), Warn),
            (pair(false, false, true), Warn),
            (pair(false, true, true), Severity::Ok),
            (elsewhere.clone(), Unknown),
            (polls(3), Warn),
            (polls(7), Unknown),
        ];
        table(&VETH_CHECKSUM, rows);
    }

    /// It finishes checksums itself.
    #[test]
    fn before_ringways_program_is_attached() {
        let fixes = |gro: bool, native: &[&str]| -> Vec<String> {
            let program = Program {
                interfaces: vec!["veth0".into()],
                native: native.iter().map(|name| (*name).into()).collect(),
            };
            let found =
                veth_checksum(&pair(true, gro, false).facts().with_program(program)).unwrap();
            found
                .into_iter()
                .flat_map(|one| one.changes)
                .map(|change| change.fix.to_string())
                .collect()
        };
        assert_eq!(fixes(false, &["veth0"]), ["ethtool -K veth1 gro on"]);
        assert!(fixes(true, &["veth0"]).is_empty() && fixes(false, &[]).is_empty());
    }
}
