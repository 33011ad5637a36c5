//! Connections tracked on a machine that only passes packets on.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// Tracking is for firewalls and NAT.
pub const RULE: Rule = Rule {
    number: 52,
    name: "conntrack-forwarder",
    rule: "a machine that only forwards tracks no connections",
    source: "heuristic of Ringway",
    why: "Each packet is looked up in a table, and each new flow makes an entry, for nobody's use.",
    profiles: &[Profile::Balancer],
    check,
};

fn check(facts: &Facts) -> Looked {
    let forwards = facts.sysctl("net/ipv4/ip_forward")? != 0;
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    if !forwards || count < 1000 {
        return Outcome::ok(MACHINE, format!("{count} connections are tracked")).into();
    }
    Outcome::info(MACHINE, format!("it forwards, and tracks {count} connections"))
        .saw("/proc/sys/net/ipv4/ip_forward", 1)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .advice("if no rule asks for states and there is no NAT: `notrack` in a chain of priority raw; else a flowtable")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn a_forwarder_that_tracks() {
        let machine = |forward: &str, count: &str| {
            Machine::healthy()
                .put("/proc/sys/net/ipv4/ip_forward", forward)
                .put("/proc/sys/net/netfilter/nf_conntrack_count", count)
        };
        let rows = [
            (machine("1", "1000"), State::Info),
            (machine("1", "999"), State::Ok),
            (machine("0", "1000"), State::Ok),
        ];
        table(&RULE, rows);
    }
}
