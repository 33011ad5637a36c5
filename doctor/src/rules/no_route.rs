//! Packets for which there was no way.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown};

/// Either they are for somebody else and this host does not forward, or it has no route.
pub const RULE: Rule = Rule {
    number: 56,
    name: "no-route",
    rule: "InAddrErrors, InNoRoutes and OutNoRoutes do not grow",
    source: "RFC 4293, ipSystemStatsInAddrErrors, InNoRoutes and OutNoRoutes",
    why: "Packets come in for addresses that are not this host's, or programs send where no route leads: they are dropped.",
    profiles: &[],
    check,
};

/// Nobody listens there.
pub const CLOSED_PORTS: Rule = Rule {
    number: 88,
    name: "closed-ports",
    rule: "fewer than 10 datagrams a second come for UDP ports that nobody listens on",
    source: "heuristic of Ringway; RFC 4113, udpNoPorts",
    why: "A program that should listen is gone, or listens on another address; or somebody scans ports.",
    profiles: &[],
    check: closed_ports,
};

const FORWARD: &str = "net/ipv4/ip_forward";

fn check(facts: &Facts) -> Looked {
    Ok(vec![incoming(facts)?, outgoing(facts)?])
}

fn incoming(facts: &Facts) -> Result<Outcome, Unknown> {
    let address = facts.counter("Ip", "InAddrErrors")?;
    let route = facts.counter("IpExt", "InNoRoutes")?;
    let lost = address.delta + route.delta;
    if lost == 0 {
        return Ok(Outcome::ok(MACHINE, "no packet was without a way"));
    }
    let forwards = facts.sysctl(FORWARD)?;
    let outcome = Outcome::warn(
        MACHINE,
        format!("{lost} packets were dropped: no way leads where they want"),
    )
    .counted("/proc/net/snmp Ip InAddrErrors", address.delta)
    .counted("/proc/net/netstat IpExt InNoRoutes", route.delta)
    .saw(format!("/proc/sys/{FORWARD}"), forwards);
    if forwards == 0 {
        let outcome =
            outcome.advice("if this host shall not pass packets on, find out who sends them here");
        return Ok(outcome.change(facts.set(FORWARD, 1)?));
    }
    Ok(outcome.advice("`ip route get ADDRESS` says which is missing; then: ip route add ..."))
}

fn outgoing(facts: &Facts) -> Result<Outcome, Unknown> {
    let lost = facts.counter("Ip", "OutNoRoutes")?.delta;
    if lost == 0 {
        return Ok(Outcome::ok(SENDING, "each packet of this host had a route"));
    }
    let said = format!("{lost} packets of this host's own programs had no route");
    Ok(Outcome::warn(SENDING, said).counted("/proc/net/snmp Ip OutNoRoutes", lost).advice(
        "the program gets ENETUNREACH, which its log should name with the address; `ip route get \
         ADDRESS`, then: ip route add ...",
    ))
}

const SENDING: &str = "sending";

fn closed_ports(facts: &Facts) -> Looked {
    let lost = facts.counter("Udp", "NoPorts")?.delta;
    if lost as f64 <= facts.seconds * 10.0 {
        return Outcome::ok(MACHINE, format!("{lost} datagrams for closed ports")).into();
    }
    let said =
        format!("{lost} datagrams in {:.0} s for ports that nobody listens on", facts.seconds);
    Outcome::info(MACHINE, said)
        .counted("/proc/net/snmp Udp NoPorts", lost)
        .advice("`tcpdump -ni any 'icmp[0:2] = 0x0303'` shows the answers with ports and senders")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn a_host_that_should_forward() {
        let forwards = |text: &str| {
            let machine = Machine::healthy().put(&format!("/proc/sys/{FORWARD}"), text);
            machine.counts("Ip", "InAddrErrors", 3)
        };
        assert_eq!(forwards("0").fixes(&RULE), ["sysctl -w net.ipv4.ip_forward=1"]);
        assert!(forwards("1").fixes(&RULE).is_empty());
        let route = Machine::healthy().counts("IpExt", "InNoRoutes", 1);
        let own = Machine::healthy().counts("Ip", "OutNoRoutes", 1);
        let rows =
            [(forwards("0"), Severity::Warn), (route, Severity::Warn), (own, Severity::Warn)];
        table(&RULE, rows);
    }

    #[test]
    fn datagrams_for_nobody() {
        // In two seconds.
        let machine = |count| Machine::healthy().counts("Udp", "NoPorts", count);
        table(&CLOSED_PORTS, [(machine(20), Severity::Ok), (machine(21), Severity::Info)]);
    }
}
