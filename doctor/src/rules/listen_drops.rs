//! SYNs and connections that a listening socket dropped for other reasons than a full accept queue.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Every overflow is a drop, too; what is more has another cause.
pub const RULE: Rule = Rule {
    number: 35,
    name: "listen-drops",
    rule: "ListenDrops grows no faster than ListenOverflows",
    source: "Linux, net/ipv4/tcp_ipv4.c and tcp_input.c: who counts LINUX_MIB_LISTENDROPS",
    why: "Connections are refused though the accept queue has room: for want of memory, ports or a route.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let drops = facts.counter("TcpExt", "ListenDrops")?;
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    let others = drops.delta.saturating_sub(overflows.delta);
    if others == 0 {
        return Outcome::ok(MACHINE, "no drop but those of full accept queues").into();
    }
    let said = format!("{others} connections were dropped by listening sockets that had room");
    Outcome::warn(MACHINE, said)
        .counted("/proc/net/netstat TcpExt ListenDrops", drops.delta)
        .counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta)
        .advice(
            "look at memory (checks tcp-memory and abort-on-memory), and at SYN queues (syn-queue)",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn what_is_more_than_overflows() {
        let machine = |drops, overflows| {
            let machine = Machine::healthy().counts("TcpExt", "ListenDrops", drops);
            machine.counts("TcpExt", "ListenOverflows", overflows)
        };
        table(&RULE, [(machine(5, 5), Severity::Ok), (machine(6, 5), Severity::Warn)]);
    }
}
