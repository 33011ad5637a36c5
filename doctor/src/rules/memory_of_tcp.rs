//! Memory of all TCP sockets together, of those without a program too, and what is broken off for want of it.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Severity};

pub const TCP_MEMORY: Rule = Rule {
    number: 40,
    name: "tcp-memory",
    rule: "TCP uses less than tcp_mem's pressure mark, and 90 % of its limit",
    source: "netdata, alarm tcp_memory; kernel documentation, networking/ip-sysctl, tcp_mem",
    why: "Above the mark windows shrink and connections slow down; at the limit they are broken off.",
    profiles: &[],
    check: tcp_memory,
};

const MEMORY: &str = "net/ipv4/tcp_mem";

fn tcp_memory(facts: &Facts) -> Looked {
    let used = facts.sockstat("TCP", "mem")? as i64;
    let [low, pressure, limit] = facts.sysctls(MEMORY)?;
    let severity = match used {
        _ if used as f64 > limit as f64 * 0.9 => Severity::Crit,
        _ if used > pressure => Severity::Warn,
        _ => return Outcome::ok(MACHINE, format!("{used} of {limit} pages")).into(),
    };
    let said =
        format!("TCP uses {used} pages: pressure begins at {pressure}, the limit is {limit}");
    Outcome::new(severity, MACHINE, said)
        .saw("/proc/net/sockstat TCP mem", used)
        .saw(format!("/proc/sys/{MEMORY}"), format!("{low} {pressure} {limit}"))
        .change(facts.set(MEMORY, format!("{} {} {}", low * 2, pressure * 2, limit * 2))?)
        .advice("if memory is short, smaller buffers instead: tcp_rmem and tcp_wmem")
        .into()
}

pub const ORPHANS: Rule = Rule {
    number: 41,
    name: "orphans",
    rule: "orphaned connections are fewer than 25 % of tcp_max_orphans",
    source: "netdata, alarm tcp_orphans (25 % and 50 %)",
    why: "When there are too many the kernel resets them, and what they had still to send is lost.",
    profiles: &[],
    check: orphans,
};

const MAX_ORPHANS: &str = "net/ipv4/tcp_max_orphans";

fn orphans(facts: &Facts) -> Looked {
    let orphans = facts.sockstat("TCP", "orphan")?;
    let most = facts.sysctl(MAX_ORPHANS)?;
    let severity = match orphans as f64 / most as f64 {
        share if share > 0.5 => Severity::Crit,
        share if share > 0.25 => Severity::Warn,
        _ => return Outcome::ok(MACHINE, format!("{orphans} of {most}")).into(),
    };
    Outcome::new(severity, MACHINE, format!("{orphans} orphaned connections, {most} may be"))
        .saw("/proc/net/sockstat TCP orphan", orphans)
        .saw(format!("/proc/sys/{MAX_ORPHANS}"), most)
        .change(facts.set(MAX_ORPHANS, most * 2)?)
        .advice("each costs up to 64 KiB; a lower net.ipv4.tcp_fin_timeout ends them sooner")
        .into()
}

pub const ABORT_ON_MEMORY: Rule = Rule {
    number: 46,
    name: "abort-on-memory",
    rule: "TCPAbortOnMemory does not grow",
    source: "Linux, net/ipv4/tcp_timer.c: tcp_out_of_resources; netdata, alarm tcp_connections",
    why: "Connections in use are reset because there are too many orphans, or TCP is out of memory.",
    profiles: &[],
    check: abort_on_memory,
};

fn abort_on_memory(facts: &Facts) -> Looked {
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
    use crate::testing::{Machine, table};

    #[test]
    fn pressure_and_limit() {
        let uses = |pages: u32| {
            let text = format!("TCP: inuse 1 orphan 0 tw 0 alloc 4 mem {pages}");
            Machine::healthy().put("/proc/net/sockstat", &text)
        };
        table(
            &TCP_MEMORY,
            [
                (uses(150_000), Severity::Ok),
                (uses(150_001), Severity::Warn),
                (uses(180_001), Severity::Crit),
            ],
        );
    }

    #[test]
    fn a_quarter_and_a_half() {
        let orphans = |count: u32| {
            let text = format!("TCP: inuse 1 orphan {count} tw 0 alloc 4 mem 1");
            Machine::healthy()
                .put("/proc/net/sockstat", &text)
                .put(&format!("/proc/sys/{MAX_ORPHANS}"), "1000")
        };
        table(
            &ORPHANS,
            [
                (orphans(250), Severity::Ok),
                (orphans(251), Severity::Warn),
                (orphans(501), Severity::Crit),
            ],
        );
    }

    #[test]
    fn one_is_too_many() {
        table(
            &ABORT_ON_MEMORY,
            [(Machine::healthy().counts("TcpExt", "TCPAbortOnMemory", 1), Severity::Crit)],
        );
    }
}
