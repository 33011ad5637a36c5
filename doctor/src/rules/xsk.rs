//! AF_XDP sockets.

use ringway_host::netlink::xdp_sockets::XdpSocket;

use crate::{Facts, Fix, Looked, Outcome, Rule, each, each_interface};

pub const XSK_RINGS: Rule = Rule {
    number: 70,
    name: "xsk-rings",
    rule: "no AF_XDP socket has a full RX ring or an empty FILL ring, or drops frames",
    source: "kernel documentation, networking/af_xdp, XDP_STATISTICS",
    why: "The program does not fetch frames, or give frames back, as fast as they come.",
    profiles: &[],
    check: xsk_rings,
};

fn xsk_rings(facts: &Facts) -> Looked {
    let (before, after): (Vec<XdpSocket>, Vec<XdpSocket>) =
        facts.pair("/netlink/xdp_sockets.json")?;
    let network = facts.network()?;
    let subject = |socket: &&XdpSocket| {
        let interface = network.interface_by_index(socket.ifindex);
        let name = interface.map_or("unbound", |one| one.link.name.as_str());
        format!("{name} queue {}", socket.queue)
    };
    Ok(each(&after, subject, |socket| {
        let was = before.iter().find(|was| was.inode == socket.inode);
        let delta =
            |of: fn(&XdpSocket) -> u64| of(socket).saturating_sub(was.map_or(of(socket), of));
        let mut outcome = Outcome::warn(subject(socket), "its socket loses frames");
        for (name, count) in [
            ("rx_dropped", delta(|one| one.rx_dropped)),
            ("rx_ring_full", delta(|one| one.rx_ring_full)),
            ("fill_ring_empty_descs", delta(|one| one.fill_ring_empty)),
        ] {
            if count > 0 {
                outcome = outcome.saw(format!("getsockopt XDP_STATISTICS, {name}"), count);
            }
        }
        if outcome.evidence.is_empty() {
            return Ok(Outcome::ok(subject(socket), "nothing lost"));
        }
        let XdpSocket { rx_ring, fill_ring, .. } = **socket;
        Ok(outcome
            .saw("XDP_RX_RING, entries", rx_ring)
            .saw("XDP_UMEM_FILL_RING, entries", fill_ring)
            .advice(format!("larger rings, in powers of two: RX {}, FILL {}; or a processor of its own for the program", rx_ring * 2, fill_ring * 2)))
    }))
}

pub const XSK_QUEUES: Rule = Rule {
    number: 71,
    name: "xsk-queues",
    rule: "every queue of an interface with an AF_XDP socket has one",
    source: "kernel documentation, networking/af_xdp: queue ids",
    why: "Frames that the card puts on another queue never reach the program.",
    profiles: &[],
    check: xsk_queues,
};

fn xsk_queues(facts: &Facts) -> Looked {
    let sockets: Vec<XdpSocket> = facts.json("/netlink/xdp_sockets.json")?;
    let interfaces = facts.network()?.interfaces.iter();
    let bound =
        interfaces.filter(|one| sockets.iter().any(|socket| socket.ifindex == one.link.ifindex));
    Ok(each_interface(bound, |one, name| {
        let queues = one.channels.map_or(one.link.rx_queues, |channels| channels.rx);
        let mut with: Vec<u32> = sockets
            .iter()
            .filter(|socket| socket.ifindex == one.link.ifindex)
            .map(|socket| socket.queue)
            .collect();
        with.sort_unstable();
        with.dedup();
        if with.len() >= queues as usize {
            return Ok(Outcome::ok(name, format!("all of {queues} queues")));
        }
        let outcome =
            Outcome::warn(name, format!("{} of {queues} queues have a socket", with.len()))
                .saw("ss --xdp, queues", format!("{with:?}"))
                .saw(format!("ethtool -l {name}"), queues)
                .advice(format!(
                    "steer the flows wanted: {}",
                    Fix::ethtool("-N", name, "flow-type udp4 dst-port PORT action QUEUE")
                ));
        if one.channels.is_some() && with == [0] {
            // drivers/net/veth.c counts receive and transmit queues apart.
            let veth = one.link.kind.as_deref() == Some("veth");
            let which = if veth { "rx" } else { "combined" };
            let set = |queues: u32| format!("{which} {queues}");
            return Ok(outcome.ethtool("-L", name, set(1), set(queues)));
        }
        Ok(outcome)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn each_way_to_lose() {
        let socket = |full, empty| XdpSocket {
            inode: 7,
            ifindex: 3,
            rx_ring: 2048,
            rx_ring_full: full,
            fill_ring_empty: empty,
            ..XdpSocket::default()
        };
        let path = "/netlink/xdp_sockets.json";
        let machine = |full, empty| {
            let machine = healthy().json(path, [socket(0, 0)]);
            machine.then(path, &serde_json::to_string(&[socket(full, empty)]).unwrap())
        };
        assert_eq!(machine(1, 0).outcomes(&XSK_RINGS)[0].subject, "veth0 queue 0");
        let rows = [(machine(0, 0), Severity::Ok), (machine(1, 0), Warn), (machine(0, 1), Warn)];
        table(&XSK_RINGS, rows);
    }

    #[test]
    fn one_of_four() {
        let on = |queues: &[u32]| {
            let socket =
                |queue: &u32| XdpSocket { ifindex: 2, queue: *queue, ..XdpSocket::default() };
            let sockets: Vec<XdpSocket> = queues.iter().map(socket).collect();
            healthy().json("/netlink/xdp_sockets.json", sockets)
        };
        assert_eq!(on(&[0]).fixes(&XSK_QUEUES), ["ethtool -L eth0 combined 1"]);
        assert_eq!(on(&[0]).undos(&XSK_QUEUES), ["ethtool -L eth0 combined 4"]);
        table(&XSK_QUEUES, [(on(&[0]), Warn), (on(&[1]), Warn), (on(&[0, 1, 2, 3]), Severity::Ok)]);
    }
}
