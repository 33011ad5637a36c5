//! Whether two ends of one link let packets of the same size through.

use ringway_host::{Interface, Network};

use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Rule, Unknown};

/// A veth pair, and a bridge with its ports.
pub const RULE: Rule = Rule {
    number: 59,
    name: "mtu",
    rule: "both ends of a veth pair, and a bridge's ports, have one MTU; no connection finds a black hole",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_mtu_probing (RFC 4821)",
    why: "What is larger than the far end takes is dropped there, and nobody sends an ICMP error: connections hang.",
    profiles: &[],
    check,
};

const PROBING: &str = "net/ipv4/tcp_mtu_probing";

fn check(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let mut found: Vec<Outcome> =
        network.interfaces.iter().filter_map(|interface| one(facts, network, interface)).collect();
    found.push(black_holes(facts).unwrap_or_else(|why| Outcome::unknown(MACHINE, why)));
    Ok(found)
}

/// Against each that takes its packets or has them from it; `None`: there is none.
fn one(facts: &Facts, network: &Network, interface: &Interface) -> Option<Outcome> {
    if interface.link.kind.as_deref() == Some("veth") && interface.link.lower_elsewhere {
        let found = elsewhere(facts, interface);
        return Some(found.unwrap_or_else(|why| Outcome::unknown(&interface.link.name, why)));
    }
    let peer = network.peer(interface).map(|peer| (peer, "its veth peer"));
    let upper = network
        .interfaces
        .iter()
        .filter(|upper| carried(upper) && upper.link.lower == Some(interface.link.ifindex));
    let upper = upper.map(|upper| (upper, "which it carries,"));
    let bridge = interface.link.master.and_then(|index| network.interface_by_index(index));
    let bridge = bridge.filter(|one| one.link.kind.as_deref() == Some("bridge"));
    let ports = network.interfaces.iter().filter(|one| {
        bridge.is_some() && one.link.master == interface.link.master && *one != interface
    });
    let ports = ports.map(|port| (port, "of the same bridge"));
    let others = peer.into_iter().chain(upper).chain(ports);
    let (largest, what) = others.max_by_key(|(other, _)| other.link.mtu)?;
    if largest.link.mtu > interface.link.mtu {
        return Some(mismatch(interface, largest, what));
    }
    let said = format!("{} bytes, no less than the others on its link", interface.link.mtu);
    Some(Outcome::ok(&interface.link.name, said))
}

/// A far end that is not seen gives itself away by what is lost between the two
/// (drivers/net/veth.c, is_skb_forwardable).
fn elsewhere(facts: &Facts, interface: &Interface) -> Result<Outcome, Unknown> {
    let Interface { link, .. } = interface;
    let unseen = "its far end is in another network namespace, whose MTU is not seen from here: `ip link` there shows it";
    let lost = facts
        .device_counter(&link.name, |stats| stats.rx_dropped.saturating_add(stats.tx_dropped))?;
    if lost.delta == 0 {
        return Err(Unknown(unseen.into()));
    }
    let said = format!("{} packets were lost between its two ends; {unseen}", lost.delta);
    Ok(Outcome::info(&link.name, said)
        .saw(format!("ip link show {}, mtu", link.name), link.mtu)
        .counted(format!("ip -s link show {}, dropped", link.name), lost.delta)
        .advice(
            "what is larger than the receiving end's MTU is lost so: compare with the far end's (`ip -all netns exec ip \
             link` shows those with a name); other causes: a full backlog (softnet-backlog), XDP",
        ))
}

/// It lies upon another device here, whose frames are its own.
fn carried(one: &Interface) -> bool {
    let upon = matches!(one.link.kind.as_deref(), Some("vlan" | "macvlan" | "ipvlan"));
    upon && !one.link.lower_elsewhere
}

fn mismatch(small: &Interface, large: &Interface, what: &str) -> Outcome {
    let (name, mtu, other, most) =
        (&small.link.name, small.link.mtu, &large.link.name, large.link.mtu);
    let said = format!("it takes {mtu} bytes, and {other}, {what}, takes {most}");
    let set = |mtu: u32| Fix::link(name, format!("mtu {mtu}"));
    Outcome::warn(name, said)
        .saw(format!("ip link show {name}, mtu"), mtu)
        .saw(format!("ip link show {other}, mtu"), most)
        .fix(set(most), set(mtu))
}

/// Probing that had to be done means that some paths lose ICMP errors.
fn black_holes(facts: &Facts) -> Result<Outcome, Unknown> {
    let probing = facts.sysctl(PROBING)?;
    let failed = facts.counter("TcpExt", "TCPMTUPFail")?;
    let refused = facts.counter("Ip", "FragFails")?;
    if refused.delta > 0 {
        let said =
            format!("{} packets were too large for the way on, and may not be cut", refused.delta);
        return Ok(Outcome::info(MACHINE, said)
            .counted("/proc/net/snmp Ip FragFails", refused.delta)
            .advice("senders are told (ICMP): see that no firewall keeps it from them, or align the MTUs"));
    }
    if failed.delta == 0 && probing == 0 {
        let why = format!(
            "whether a path drops large packets without telling is not known: with net.ipv4.tcp_mtu_probing = 0 the \
             kernel does not probe; `{}` lets it probe where a connection hangs",
            Fix::sysctl(PROBING, 1)
        );
        return Err(Unknown(why));
    }
    if failed.delta == 0 {
        return Ok(Outcome::ok(MACHINE, "no connection had to shrink its packets"));
    }
    let said = format!("{} probes found packets too large for the path", failed.delta);
    let outcome =
        Outcome::info(MACHINE, said).counted("/proc/net/netstat TcpExt TCPMTUPFail", failed.delta);
    if probing == 0 {
        return Ok(outcome.change(facts.set(PROBING, 1)?));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{Machine, healthy};

    #[test]
    fn a_pair_and_a_bridge() {
        let over = |one: &mut Interface, lower: u32| {
            (one.link.lower, one.link.lower_elsewhere) = (Some(lower), false);
        };
        let pair = healthy().network(|network| over(&mut network.interfaces[2], 4));
        let pair = pair.interface(2, 4, "veth1", |peer| {
            peer.link.mtu = 9000;
            over(peer, 3);
        });
        assert_eq!(pair.fixes(&RULE), ["ip link set dev veth0 mtu 9000"]);
        assert_eq!(pair.undos(&RULE), ["ip link set dev veth0 mtu 1500"]);
        let bridge = healthy().network(|network| {
            network.interfaces[1..].iter_mut().for_each(|one| one.link.master = Some(9));
            network.interfaces[1].link.mtu = 1400;
        });
        let bridge = bridge.interface(2, 9, "br0", |bridge| {
            (bridge.link.kind, bridge.link.master) = (Some("bridge".into()), None);
        });
        assert_eq!(bridge.fixes(&RULE), ["ip link set dev eth0 mtu 1500"]);
        let vlan = healthy().interface(2, 9, "eth0.5", |vlan| {
            (vlan.link.kind, vlan.link.mtu) = (Some("vlan".into()), 9000);
            over(vlan, 2);
        });
        assert_eq!(vlan.fixes(&RULE), ["ip link set dev eth0 mtu 9000"]);
        let hole = healthy().counts("TcpExt", "TCPMTUPFail", 1);
        let refused = healthy().counts("Ip", "FragFails", 1);
        let blind = healthy().put("/proc/sys/net/ipv4/tcp_mtu_probing", "0");
        // The far end of its veth is a container's.
        let lossy = healthy().stats("veth0", |stats| stats.rx_dropped += 5);
        let near = healthy().network(|network| network.interfaces[2].link.lower_elsewhere = false);
        let rows = [
            (near, Severity::Ok),
            (lossy, Info),
            (healthy(), Unknown),
            (Machine::unknown(), Unknown),
            (pair, Warn),
            (bridge, Warn),
            (vlan, Warn),
            (hole, Info),
            (refused, Info),
            (blind, Unknown),
        ];
        for (row, (machine, wanted)) in rows.into_iter().enumerate() {
            assert_eq!(machine.worst(&RULE), wanted, "row {row}");
        }
    }
}
