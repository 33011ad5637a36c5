//! Packets for which there was no way.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Either they are for somebody else and this host does not forward, or it has no route.
pub const RULE: Rule = Rule {
    number: 56,
    name: "no-route",
    rule: "InAddrErrors and InNoRoutes do not grow",
    source: "RFC 4293, ipSystemStatsInAddrErrors and InNoRoutes",
    why: "Packets come in for addresses that are not this host's, and are dropped.",
    profiles: &[],
    check,
};

const FORWARD: &str = "net/ipv4/ip_forward";

fn check(facts: &Facts) -> Looked {
    let address = facts.counter("Ip", "InAddrErrors")?;
    let route = facts.counter("IpExt", "InNoRoutes")?;
    let lost = address.delta + route.delta;
    if lost == 0 {
        return Outcome::ok(MACHINE, "no packet was without a way").into();
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
        return outcome.change(facts.set(FORWARD, 1)?).into();
    }
    outcome.advice("`ip route get ADDRESS` says which is missing; then: ip route add ...").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
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
        table(&RULE, [(forwards("0"), State::Warn), (route, State::Warn)]);
    }
}
