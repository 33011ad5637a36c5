//! Connections that TCP broke off for want of memory.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// The last thing that TCP does about memory.
pub const RULE: Rule = Rule {
    number: 46,
    name: "abort-on-memory",
    rule: "TCPAbortOnMemory does not grow",
    source: "Linux, net/ipv4/tcp_timer.c: tcp_out_of_resources; netdata, alarm tcp_connections",
    why: "Connections in use are reset because there are too many orphans, or TCP is out of memory.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let aborted = facts.counter("TcpExt", "TCPAbortOnMemory")?;
    if aborted.delta == 0 {
        return Outcome::ok(MACHINE, "none was broken off").into();
    }
    Outcome::crit(
        MACHINE,
        format!("{} connections were broken off for want of memory", aborted.delta),
    )
    .counted("/proc/net/netstat TcpExt TCPAbortOnMemory", aborted.delta)
    .advice("see the checks tcp-memory and orphans, which have the commands")
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn one_is_too_many() {
        table(&RULE, [(Machine::healthy().counts("TcpExt", "TCPAbortOnMemory", 1), State::Crit)]);
    }
}
