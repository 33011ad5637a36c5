//! Whether two ends of one link let packets of the same size through.

use ringway_host::Interface;

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome, Unknown};

/// A veth pair, and a bridge with its ports.
pub const CHECK: Check = Check {
    number: 59,
    name: "mtu",
    rule: "both ends of a veth pair, and a bridge's ports, have one MTU; no connection finds a black hole",
    source: "heuristic of Ringway; kernel documentation, networking/ip-sysctl, tcp_mtu_probing (RFC 4821)",
    why: "What is larger than the far end takes is dropped there, and nobody sends an ICMP error: connections hang.",
    profiles: &[],
    look,
};

const PROBING: &str = "net/ipv4/tcp_mtu_probing";

fn look(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let mut found = Vec::new();
    for interface in &network.interfaces {
        if let Some(peer) =
            network.peer(interface).filter(|peer| peer.link.mtu > interface.link.mtu)
        {
            found.push(mismatch(interface, peer, "its veth peer"));
        }
        let bridge = interface.link.master.and_then(|index| network.interface_by_index(index));
        let bridge = bridge.filter(|one| one.link.kind.as_deref() == Some("bridge"));
        let ports =
            || network.interfaces.iter().filter(|one| one.link.master == interface.link.master);
        let largest = bridge.and_then(|_| ports().max_by_key(|port| port.link.mtu));
        if let Some(port) = largest.filter(|port| port.link.mtu > interface.link.mtu) {
            found.push(mismatch(interface, port, "of the same bridge"));
        }
    }
    found.push(black_holes(facts)?);
    Ok(found)
}

fn mismatch(small: &Interface, large: &Interface, what: &str) -> Outcome {
    let (name, mtu, other, most) =
        (&small.link.name, small.link.mtu, &large.link.name, large.link.mtu);
    let said = format!("it takes {mtu} bytes, and {other}, {what}, takes {most}");
    let set = |mtu: u32| format!("ip link set dev {name} mtu {mtu}");
    Outcome::warn(name, said)
        .saw(format!("ip link show {name}, mtu"), mtu)
        .saw(format!("ip link show {other}, mtu"), most)
        .fix(set(most), set(mtu))
}

/// Probing that had to be done tells of roads where ICMP errors do not come through.
fn black_holes(facts: &Facts) -> Result<Outcome, Unknown> {
    let failed = facts.counter("TcpExt", "TCPMTUPFail")?;
    if failed.delta == 0 {
        return Ok(Outcome::ok(MACHINE, "no connection had to shrink its packets"));
    }
    let said = format!("{} probes found packets too large for the road", failed.delta);
    let outcome =
        Outcome::info(MACHINE, said).saw("/proc/net/netstat TcpExt TCPMTUPFail", failed.delta);
    if facts.sysctl(PROBING)? == 0 {
        return Ok(outcome.change(facts.set(PROBING, 1)?));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn a_pair_and_a_bridge() {
        let pair = Machine::healthy().network(|network| {
            let mut peer = network.interfaces[2].clone();
            (peer.link.ifindex, peer.link.name, peer.link.mtu) = (4, "veth1".into(), 9000);
            peer.link.lower = Some(3);
            peer.link.lower_elsewhere = false;
            network.interfaces[2].link.lower = Some(4);
            network.interfaces[2].link.lower_elsewhere = false;
            network.interfaces.push(peer);
        });
        assert_eq!(pair.fixes(&CHECK), ["ip link set dev veth0 mtu 9000"]);
        assert_eq!(pair.undos(&CHECK), ["ip link set dev veth0 mtu 1500"]);
        let bridge = Machine::healthy().network(|network| {
            let mut bridge = network.interfaces[2].clone();
            (bridge.link.ifindex, bridge.link.kind) = (9, Some("bridge".into()));
            network.interfaces[1].link.master = Some(9);
            network.interfaces[2].link.master = Some(9);
            network.interfaces[1].link.mtu = 1400;
            network.interfaces.push(bridge);
        });
        assert_eq!(bridge.fixes(&CHECK), ["ip link set dev eth0 mtu 1500"]);
        let hole = Machine::healthy().counts("TcpExt", "TCPMTUPFail", 1);
        table(&CHECK, [(pair, State::Warn), (bridge, State::Warn), (hole, State::Info)]);
    }
}
