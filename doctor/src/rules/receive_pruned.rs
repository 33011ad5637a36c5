//! What TCP threw out of receive buffers.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// A full buffer is pruned: data that had come, and was promised, is dropped.
pub const RULE: Rule = Rule {
    number: 43,
    name: "receive-pruned",
    rule: "RcvPruned, OfoPruned and TCPOFODrop do not grow",
    source: "kernel documentation, networking/ip-sysctl, tcp_rmem",
    why: "The sender must send again what had come already.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_rmem";

fn check(facts: &Facts) -> Looked {
    let mut outcome = Outcome::warn(MACHINE, "TCP throws data out of full receive buffers");
    for name in ["RcvPruned", "OfoPruned", "TCPOFODrop"] {
        let counter = facts.counter("TcpExt", name)?;
        if counter.delta > 0 {
            outcome = outcome.counted(format!("/proc/net/netstat TcpExt {name}"), counter.delta);
        }
    }
    if outcome.evidence.is_empty() {
        return Outcome::ok(MACHINE, "nothing was thrown away").into();
    }
    let [least, first, most] = facts.sysctls(KEY)?;
    let wanted = (most * 2).max(6_291_456);
    outcome
        .saw(format!("/proc/sys/{KEY}"), format!("{least} {first} {most}"))
        .change(facts.set(KEY, format!("{least} {first} {wanted}"))?)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn each_counter() {
        let rows = ["RcvPruned", "OfoPruned", "TCPOFODrop"];
        let rows = rows.map(|name| (Machine::healthy().counts("TcpExt", name, 1), Severity::Warn));
        table(&RULE, rows);
    }
}
