//! Connections that no process has any more.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, State};

/// The kernel finishes what a program has closed; of these there may be so many.
pub const RULE: Rule = Rule {
    number: 41,
    name: "orphans",
    rule: "orphaned connections are fewer than 25 % of tcp_max_orphans",
    source: "netdata, alarm tcp_orphans (25 % and 50 %)",
    why: "When there are too many the kernel resets them, and what they had still to send is lost.",
    profiles: &[],
    check,
};

const KEY: &str = "net/ipv4/tcp_max_orphans";

fn check(facts: &Facts) -> Looked {
    let orphans = facts.sockstat("TCP", "orphan")?;
    let most = facts.sysctl(KEY)?;
    let state = match orphans as f64 / most as f64 {
        share if share > 0.5 => State::Crit,
        share if share > 0.25 => State::Warn,
        _ => return Outcome::ok(MACHINE, format!("{orphans} of {most}")).into(),
    };
    Outcome::new(state, MACHINE, format!("{orphans} orphaned connections, {most} may be"))
        .saw("/proc/net/sockstat TCP orphan", orphans)
        .saw(format!("/proc/sys/{KEY}"), most)
        .change(facts.set(KEY, most * 2)?)
        .advice("each costs up to 64 KiB; a lower net.ipv4.tcp_fin_timeout ends them sooner")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn a_quarter_and_a_half() {
        let orphans = |count: u32| {
            let text = format!("TCP: inuse 1 orphan {count} tw 0 alloc 4 mem 1");
            Machine::healthy()
                .put("/proc/net/sockstat", &text)
                .put(&format!("/proc/sys/{KEY}"), "1000")
        };
        table(
            &RULE,
            [(orphans(250), State::Ok), (orphans(251), State::Warn), (orphans(501), State::Crit)],
        );
    }
}
