//! Offloads that are off on a host that ends connections.

use ringway_host::{Interface, Network};

use crate::{Facts, Looked, Outcome, Profile, Rule, each_interface};

/// GRO, GSO and TSO let the stack handle 64 KiB at a time.
pub const RULE: Rule = Rule {
    number: 29,
    name: "offloads",
    rule: "GSO and TSO are on, and on cards GRO",
    source: "kernel documentation, networking/segmentation-offloads",
    why: "Without them each packet of 1500 bytes walks through the stack by itself, up to forty times as many.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    // Who passes packets on wants them as they came.
    if matches!(facts.profile, Some(Profile::Balancer | Profile::Bypass)) {
        return Ok(Vec::new());
    }
    let interfaces = facts.interfaces()?;
    let network = facts.network()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
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

/// Whether an XDP program on a bridge, bond or the like gets this card's packets behind GRO: it wants them as they came.
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

#[cfg(test)]
mod tests {
    use ringway_host::netlink::links::{Xdp, XdpMode};

    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn what_is_off() {
        let off = |index: usize| {
            Machine::healthy().network(|network| {
                let offloads = &mut network.interfaces[index].offloads;
                (offloads.gso, offloads.tso, offloads.gro) = (false, false, false);
            })
        };
        assert_eq!(off(1).fixes(&RULE), ["ethtool -K eth0 gso on tso on gro on"]);
        assert_eq!(off(2).undos(&RULE), ["ethtool -K veth0 gso off tso off"]);
        let scattered = |index: usize, gso| {
            off(index).network(|network| {
                let offloads = &mut network.interfaces[index].offloads;
                (offloads.scatter_gather, offloads.gso, offloads.tso) = (false, gso, gso);
            })
        };
        assert_eq!(scattered(2, false).fixes(&RULE), ["ethtool -K veth0 sg on gso on tso on"]);
        assert_eq!(scattered(1, true).fixes(&RULE), ["ethtool -K eth0 gro on"]);
        let below = |xdp: &[Xdp]| {
            off(1).network(|network| {
                let offloads = &mut network.interfaces[1].offloads;
                (offloads.gso, offloads.tso) = (true, true);
                network.interfaces[1].link.master = Some(9);
                let mut bridge = network.interfaces[2].clone();
                (bridge.link.ifindex, bridge.link.name) = (9, "br0".into());
                (bridge.link.kind, bridge.link.lower) = (Some("bridge".into()), None);
                bridge.link.xdp = xdp.to_vec();
                network.interfaces.push(bridge);
            })
        };
        assert_eq!(below(&[]).fixes(&RULE), ["ethtool -K eth0 gro on"]);
        let generic = Xdp { program: 7, mode: XdpMode::Generic };
        assert!(below(&[generic]).fixes(&RULE).is_empty());
        let balancer = off(1).profile(Profile::Balancer);
        table(
            &RULE,
            [(off(1), Severity::Info), (off(2), Severity::Info), (balancer, Severity::Ok)],
        );
    }
}
