//! Connections in TIME_WAIT, and room for them.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// TIME_WAIT keeps late packets of one connection out of the next; it costs half a kilobyte.
pub const RULE: Rule = Rule {
    number: 38,
    name: "time-wait",
    rule: "fewer than 90 % of tcp_max_tw_buckets wait",
    source: "kernel documentation, networking/ip-sysctl, tcp_max_tw_buckets: do not lower it",
    why: "What finds no room is closed at once, and a late packet can then reach the next connection.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_max_tw_buckets";

fn check(facts: &Facts) -> Looked {
    let waiting = facts.sockstat("TCP", "tw")?;
    let most = facts.sysctl(KEY)?;
    let overflow = facts.counter("TcpExt", "TCPTimeWaitOverflow")?;
    let full = waiting as f64 >= most as f64 * 0.9;
    if !full && overflow.delta == 0 {
        let said = format!("{waiting} of {most} connections in TIME_WAIT, {} KiB", waiting / 2);
        return Outcome::ok(MACHINE, said).into();
    }
    let said = format!(
        "{waiting} connections in TIME_WAIT, {most} may be; {} found no room",
        overflow.delta
    );
    Outcome::warn(MACHINE, said)
        .saw("/proc/net/sockstat TCP tw", waiting)
        .counted("/proc/net/netstat TcpExt TCPTimeWaitOverflow", overflow.delta)
        .saw(format!("/proc/sys/{KEY}"), most)
        .change(facts.set(KEY, (most * 2).max(131_072))?)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn near_the_limit_or_over_it() {
        let waiting = |tw: u32| {
            let text = format!("sockets: used 3\nTCP: inuse 1 orphan 0 tw {tw} alloc 4 mem 97");
            Machine::healthy()
                .put("/proc/net/sockstat", &text)
                .put(&format!("/proc/sys/{KEY}"), "100")
        };
        assert_eq!(waiting(90).fixes(&RULE), ["sysctl -w net.ipv4.tcp_max_tw_buckets=131072"]);
        table(
            &RULE,
            [
                (waiting(89), Severity::Ok),
                (waiting(90), Severity::Warn),
                (Machine::healthy().counts("TcpExt", "TCPTimeWaitOverflow", 1), Severity::Warn),
            ],
        );
    }
}
