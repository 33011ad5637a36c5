//! SYNs that found the SYN queue full.

use crate::check::MACHINE;
use crate::{Check, Facts, Looked, Outcome};

/// With cookies they are answered, without they are dropped.
pub const CHECK: Check = Check {
    number: 36,
    name: "syn-queue",
    rule: "TCPReqQFullDrop and TCPReqQFullDoCookies do not grow",
    source: "netdata, alarms tcp_syn_queue_drops and tcp_syn_queue_cookies; kernel documentation, networking/ip-sysctl",
    why: "More clients are in the middle of their handshake than the queue holds (about 304 bytes each).",
    profiles: &[],
    look,
};

const KEY: &str = "net/ipv4/tcp_max_syn_backlog";
const LIMIT: &str = "net/core/somaxconn";

fn look(facts: &Facts) -> Looked {
    let drops = facts.counter("TcpExt", "TCPReqQFullDrop")?;
    let cookies = facts.counter("TcpExt", "TCPReqQFullDoCookies")?;
    if drops.delta + cookies.delta <= 1 {
        return Outcome::ok(MACHINE, "SYN queues have room").into();
    }
    let said = format!(
        "{} SYNs found the SYN queue full: {} dropped, {} answered with a cookie",
        drops.delta + cookies.delta,
        drops.delta,
        cookies.delta
    );
    let now = facts.sysctl(KEY)?;
    let outcome =
        if drops.delta > 0 { Outcome::crit(MACHINE, said) } else { Outcome::warn(MACHINE, said) };
    let mut outcome = outcome
        .counted("/proc/net/netstat TcpExt TCPReqQFullDrop", drops.delta)
        .counted("/proc/net/netstat TcpExt TCPReqQFullDoCookies", cookies.delta)
        .saw(format!("/proc/sys/{KEY}"), now)
        .change(facts.set(KEY, (now * 2).max(4096))?);
    // net/ipv4/tcp_input.c, tcp_conn_request: the accept queue's limit is that of the SYN queue.
    let limit = facts.sysctl(LIMIT)?;
    if limit < 4096 {
        outcome = outcome.saw(format!("/proc/sys/{LIMIT}"), limit).change(facts.set(LIMIT, 4096)?);
    }
    outcome
        .advice("the program's listen(2) backlog bounds the SYN queue, too: have it ask for more, and start it again")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn dropped_or_answered_with_a_cookie() {
        let machine = |name, by| Machine::healthy().counts("TcpExt", name, by);
        let dropped = machine("TCPReqQFullDrop", 2);
        assert_eq!(dropped.fixes(&CHECK), ["sysctl -w net.ipv4.tcp_max_syn_backlog=4096"]);
        let small = dropped.clone().put("/proc/sys/net/core/somaxconn", "16");
        assert_eq!(small.fixes(&CHECK)[1], "sysctl -w net.core.somaxconn=4096");
        table(
            &CHECK,
            [
                (dropped, State::Crit),
                (machine("TCPReqQFullDoCookies", 2), State::Warn),
                (machine("TCPReqQFullDoCookies", 1), State::Ok),
            ],
        );
    }
}
