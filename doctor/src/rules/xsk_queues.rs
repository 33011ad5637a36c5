//! Queues that no AF_XDP socket listens to.

use ringway_host::netlink::xdp_sockets::XdpSocket;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// A socket gets the frames of one queue.
pub const RULE: Rule = Rule {
    number: 71,
    name: "xsk-queues",
    rule: "every queue of an interface with an AF_XDP socket has one",
    source: "kernel documentation, networking/af_xdp: queue ids",
    why: "Frames that the card puts on another queue never reach the program.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let sockets: Vec<XdpSocket> = facts.json("/netlink/xdp_sockets.json")?;
    let interfaces = facts.network()?.interfaces.iter();
    let bound =
        interfaces.filter(|one| sockets.iter().any(|socket| socket.ifindex == one.link.ifindex));
    Ok(each_interface(bound, |one| {
        let name = &one.link.name;
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
        let outcome = Outcome::warn(
            name,
            format!("{} of {queues} queues have a socket", with.len()),
        )
        .saw("ss --xdp, queues", format!("{with:?}"))
        .saw(format!("ethtool -l {name}"), queues)
        .advice(format!(
            "steer the flows wanted: ethtool -N {name} flow-type udp4 dst-port PORT action QUEUE"
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
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_of_four() {
        let on = |queues: &[u32]| {
            let socket =
                |queue: &u32| XdpSocket { ifindex: 2, queue: *queue, ..XdpSocket::default() };
            let sockets: Vec<XdpSocket> = queues.iter().map(socket).collect();
            Machine::healthy().json("/netlink/xdp_sockets.json", sockets)
        };
        assert_eq!(on(&[0]).fixes(&RULE), ["ethtool -L eth0 combined 1"]);
        assert_eq!(on(&[0]).undos(&RULE), ["ethtool -L eth0 combined 4"]);
        table(
            &RULE,
            [
                (on(&[0]), Severity::Warn),
                (on(&[1]), Severity::Warn),
                (on(&[0, 1, 2, 3]), Severity::Ok),
            ],
        );
    }
}
