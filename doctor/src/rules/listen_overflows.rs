//! Connections that wait for accept(2).

use ringway_host::netlink::sockets::Sockets;

use super::listeners::{nearly_full, suspects, with_remedy};
use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Severity};

/// The accept queue is the place where a slow server loses its clients.
pub const RULE: Rule = Rule {
    number: 34,
    name: "listen-overflows",
    rule: "no accept queue overflows, none is nearly full",
    source: "TuneD, profile throughput-performance (somaxconn); netdata, alarm tcp_listen_overflows (more than 5: critical)",
    why: "A client whose last handshake packet finds the queue full waits a second or more for the retransmission.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let overflows = facts.counter("TcpExt", "ListenOverflows")?;
    let Sockets { listeners: all, .. } = facts.json("/netlink/sockets.json")?;
    let full = all.iter().filter(nearly_full).count();
    if overflows.delta == 0 && full == 0 {
        let said = format!("{} sockets listen, none is nearly full", all.len());
        return Outcome::ok(MACHINE, said).into();
    }
    let severity = if overflows.delta > 5 { Severity::Crit } else { Severity::Warn };
    let said = format!(
        "{} times in {:.0} s a connection found an accept queue full; {full} of {} queues are nearly full now",
        overflows.delta,
        facts.seconds,
        all.len()
    );
    let seen = Outcome::new(severity, MACHINE, said)
        .counted("/proc/net/netstat TcpExt ListenOverflows", overflows.delta);
    with_remedy(facts, seen, &suspects(&all))?.into()
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::sockets::Listener;

    use super::*;
    use crate::testing::Machine;

    fn queue(waiting: u32, limit: u32) -> Machine {
        Machine::healthy().edit("/netlink/sockets.json", |sockets: &mut Sockets| {
            sockets.listeners =
                vec![Listener { address: [10, 0, 0, 1].into(), port: 80, waiting, limit }];
        })
    }

    #[test]
    fn overflows_and_nearly_full_queues() {
        for (machine, wanted) in [
            (Machine::healthy(), Severity::Ok),
            (Machine::healthy().counts("TcpExt", "ListenOverflows", 3), Severity::Warn),
            (Machine::healthy().counts("TcpExt", "ListenOverflows", 6), Severity::Crit),
            (queue(115, 128), Severity::Ok),
            (queue(116, 128), Severity::Warn),
            (queue(1, 1), Severity::Ok),
            (Machine::healthy().remove("/netlink/sockets.json"), Severity::Unknown),
        ] {
            assert_eq!(machine.worst(&RULE), wanted, "{:?}", machine.outcomes(&RULE));
        }
        let small = queue(16, 16).put("/proc/sys/net/core/somaxconn", "16");
        assert_eq!(small.fixes(&RULE), ["sysctl -w net.core.somaxconn=4096"]);
        assert!(queue(128, 128).fixes(&RULE).is_empty());
        // One cause is one finding, whatever shows it.
        let both = small.counts("TcpExt", "ListenOverflows", 9);
        assert_eq!(both.outcomes(&RULE).len(), 1);
    }
}
