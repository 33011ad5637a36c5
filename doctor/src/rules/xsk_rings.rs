//! AF_XDP sockets that lose frames.

use ringway_host::netlink::xdp_sockets::XdpSocket;

use crate::{Facts, Looked, Outcome, Rule, each};

/// The kernel's half of a socket counts what it could not hand over.
pub const RULE: Rule = Rule {
    number: 70,
    name: "xsk-rings",
    rule: "no AF_XDP socket has a full RX ring or an empty FILL ring, or drops frames",
    source: "kernel documentation, networking/af_xdp, XDP_STATISTICS",
    why: "The program does not fetch frames, or give frames back, as fast as they come.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

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
            let machine = Machine::healthy().json(path, [socket(0, 0)]);
            machine.then(path, &serde_json::to_string(&[socket(full, empty)]).unwrap())
        };
        assert_eq!(machine(1, 0).outcomes(&RULE)[0].subject, "veth0 queue 0");
        table(
            &RULE,
            [
                (machine(0, 0), Severity::Ok),
                (machine(1, 0), Severity::Warn),
                (machine(0, 1), Severity::Warn),
            ],
        );
    }
}
