//! Packets dropped because the way back to their sender leads elsewhere.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome};

/// Strict reverse path filtering wants the route to a sender to lead out where its packet came in.
pub const CHECK: Check = Check {
    number: 55,
    name: "reverse-path",
    rule: "IPReversePathFilter does not grow",
    source: "kernel documentation, networking/ip-sysctl, rp_filter (RFC 3704)",
    why: "Packets vanish without a trace where routes are not symmetric.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let dropped = facts.counter("TcpExt", "IPReversePathFilter")?;
    if dropped.delta == 0 {
        return Outcome::ok(MACHINE, "no packet was dropped").into();
    }
    let said = format!(
        "{} packets came in where the way back to their sender does not lead",
        dropped.delta
    );
    let mut outcome = Outcome::warn(MACHINE, said)
        .counted("/proc/net/netstat TcpExt IPReversePathFilter", dropped.delta)
        .advice("right if senders are forged; otherwise mend the route, or filter loosely (2)");
    let names = facts.interfaces()?.into_iter().map(|one| one.link.name.clone());
    // The greater of an interface's own and that of "all" counts.
    for name in names.chain(["all".to_owned()]) {
        let key = format!("net/ipv4/conf/{name}/rp_filter");
        if facts.sysctl(&key) == Ok(1) {
            outcome = outcome.saw(format!("/proc/sys/{key}"), 1).change(facts.set(&key, 2)?);
        }
    }
    outcome.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn strict_ones_are_loosened() {
        let strict = Machine::healthy()
            .counts("TcpExt", "IPReversePathFilter", 1)
            .put("/proc/sys/net/ipv4/conf/veth0/rp_filter", "1")
            .put("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2");
        assert_eq!(strict.fixes(&CHECK), ["sysctl -w net.ipv4.conf.veth0.rp_filter=2"]);
        table(&CHECK, [(strict, State::Warn)]);
    }
}
