//! SYNs that found the SYN queue full.

use ringway_host::netlink::sockets::Sockets;

use super::listeners::with_remedy;
use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// With cookies they are answered, without they are dropped.
pub const RULE: Rule = Rule {
    number: 36,
    name: "syn-queue",
    rule: "TCPReqQFullDrop and TCPReqQFullDoCookies do not grow",
    source: "netdata, alarms tcp_syn_queue_drops and tcp_syn_queue_cookies; Linux, net/ipv4/tcp_input.c, tcp_conn_request",
    why: "More clients are in the middle of their handshake than the queue holds (about 304 bytes each).",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_max_syn_backlog";

fn check(facts: &Facts) -> Looked {
    let drops = facts.counter("TcpExt", "TCPReqQFullDrop")?.delta;
    let with = facts.counter("TcpExt", "TCPReqQFullDoCookies")?;
    let setting = facts.sysctl("net/ipv4/tcp_syncookies")?;
    // With 2 every SYN is counted here, however much room there is.
    let cookies = if setting == 2 { 0 } else { with.delta };
    if drops + cookies <= 1 {
        return Outcome::ok(MACHINE, "SYN queues have room").into();
    }
    let said = format!(
        "{} SYNs found the SYN queue full: {drops} dropped, {cookies} answered with a cookie",
        drops + cookies
    );
    let outcome =
        if drops > 0 { Outcome::crit(MACHINE, said) } else { Outcome::warn(MACHINE, said) };
    let mut outcome = outcome
        .counted("/proc/net/netstat TcpExt TCPReqQFullDrop", drops)
        .counted("/proc/net/netstat TcpExt TCPReqQFullDoCookies", cookies);
    // net/ipv4/tcp_input.c, tcp_conn_request: the accept queue's limit is that of the SYN queue; this one, or rather
    // three quarters of it, counts without cookies alone.
    let now = facts.sysctl(KEY)?;
    if setting == 0 && now < 4096 {
        outcome = outcome.saw(format!("/proc/sys/{KEY}"), now).change(facts.set(KEY, 4096)?);
    }
    let Sockets { listeners, .. } = facts.json("/netlink/sockets.json")?;
    let least = listeners.iter().map(|one| one.limit).min();
    let smallest: Vec<_> = listeners.iter().filter(|one| Some(one.limit) == least).collect();
    let outcome = with_remedy(facts, outcome, &smallest)?;
    let advice = outcome.advice.clone().unwrap_or_default();
    outcome.advice(format!("if it is no flood: {advice}")).into()
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::sockets::Listener;

    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn dropped_or_answered_with_a_cookie() {
        let machine = |name, by| {
            let machine = Machine::healthy().counts("TcpExt", name, by);
            machine.edit("/netlink/sockets.json", |sockets: &mut Sockets| {
                let address = [10, 0, 0, 1].into();
                sockets.listeners = vec![Listener { address, port: 80, waiting: 0, limit: 16 }];
            })
        };
        let cookies = |value: &str| {
            machine("TCPReqQFullDrop", 2).put("/proc/sys/net/ipv4/tcp_syncookies", value)
        };
        let small = |machine: Machine| machine.put("/proc/sys/net/core/somaxconn", "16");
        let somaxconn = "sysctl -w net.core.somaxconn=4096";
        // The program asked for no more.
        assert!(cookies("1").fixes(&RULE).is_empty());
        assert_eq!(small(cookies("1")).fixes(&RULE), [somaxconn]);
        let backlog = "sysctl -w net.ipv4.tcp_max_syn_backlog=4096";
        assert_eq!(small(cookies("0")).fixes(&RULE), [backlog, somaxconn]);
        let always = machine("TCPReqQFullDoCookies", 20);
        table(
            &RULE,
            [
                (cookies("1"), Severity::Crit),
                (machine("TCPReqQFullDoCookies", 2), Severity::Warn),
                (machine("TCPReqQFullDoCookies", 1), Severity::Ok),
                (always.put("/proc/sys/net/ipv4/tcp_syncookies", "2"), Severity::Ok),
            ],
        );
    }
}
