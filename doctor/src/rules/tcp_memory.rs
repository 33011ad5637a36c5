//! Memory of all TCP sockets together.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, State};

/// Under pressure sockets get less buffer; at the end nothing.
pub const RULE: Rule = Rule {
    number: 40,
    name: "tcp-memory",
    rule: "TCP uses less than tcp_mem's pressure mark, and 90 % of its limit",
    source: "netdata, alarm tcp_memory; kernel documentation, networking/ip-sysctl, tcp_mem",
    why: "Above the mark windows shrink and connections slow down; at the limit they are broken off.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_mem";

fn check(facts: &Facts) -> Looked {
    let used = facts.sockstat("TCP", "mem")? as i64;
    let [low, pressure, limit] = facts.sysctls(KEY)?;
    let state = match used {
        _ if used as f64 > limit as f64 * 0.9 => State::Crit,
        _ if used > pressure => State::Warn,
        _ => return Outcome::ok(MACHINE, format!("{used} of {limit} pages")).into(),
    };
    let said =
        format!("TCP uses {used} pages: pressure begins at {pressure}, the limit is {limit}");
    Outcome::new(state, MACHINE, said)
        .saw("/proc/net/sockstat TCP mem", used)
        .saw(format!("/proc/sys/{KEY}"), format!("{low} {pressure} {limit}"))
        .change(facts.set(KEY, format!("{} {} {}", low * 2, pressure * 2, limit * 2))?)
        .advice("if memory is short, smaller buffers instead: tcp_rmem and tcp_wmem")
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
            &RULE,
            [
                (uses(150_000), State::Ok),
                (uses(150_001), State::Warn),
                (uses(180_001), State::Crit),
            ],
        );
    }
}
