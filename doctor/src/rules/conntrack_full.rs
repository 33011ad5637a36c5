//! Room in the table of tracked connections.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, State};

/// A full table drops packets of new connections.
pub const RULE: Rule = Rule {
    number: 49,
    name: "conntrack-full",
    rule: "nf_conntrack_count is below 90 % of nf_conntrack_max",
    source: "netdata, alarm netfilter_conntrack_full (90 % and 95 %)",
    why: "When the table is full, packets of new connections are dropped, whoever they are for.",
    profiles: &[],
    check,
};

const MAX: &str = "net/netfilter/nf_conntrack_max";

fn check(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let most = facts.sysctl(MAX)?;
    // 0 is no limit.
    let state = match count as f64 / most as f64 {
        share if most > 0 && share > 0.95 => State::Crit,
        share if most > 0 && share > 0.9 => State::Warn,
        _ => return Outcome::ok(MACHINE, format!("{count} of {most} connections")).into(),
    };
    let outcome =
        Outcome::new(state, MACHINE, format!("{count} of {most} connections are tracked"))
            .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
            .saw(format!("/proc/sys/{MAX}"), most)
            .advice("about 320 bytes each; check conntrack-buckets afterwards");
    outcome.change(facts.set(MAX, (most * 2).max(262_144))?).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn ninety_and_ninety_five() {
        let count = |count: u32| {
            Machine::healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", &count.to_string())
                .put(&format!("/proc/sys/{MAX}"), "1000")
        };
        assert_eq!(count(951).undos(&RULE), ["sysctl -w net.netfilter.nf_conntrack_max=1000"]);
        table(
            &RULE,
            [(count(900), State::Ok), (count(901), State::Warn), (count(951), State::Crit)],
        );
    }
}
