//! How long the lists are in which tracked connections are found.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Each connection is in the table twice, once for each direction.
pub const RULE: Rule = Rule {
    number: 50,
    name: "conntrack-buckets",
    rule: "two entries for each bucket of nf_conntrack_buckets, or fewer",
    source: "kernel documentation, networking/nf_conntrack-sysctl, nf_conntrack_buckets",
    why: "Every packet walks the list of its bucket.",
    profiles: &[],
    check,
};

const BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";

fn check(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let buckets = facts.sysctl(BUCKETS)?;
    if 2 * count <= 2 * buckets {
        return Outcome::ok(MACHINE, format!("{count} connections in {buckets} buckets")).into();
    }
    let per = 2.0 * count as f64 / buckets as f64;
    let said = format!("{count} connections are {per:.1} entries for each of {buckets} buckets");
    let outcome = Outcome::warn(MACHINE, said)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .saw(format!("/proc/sys/{BUCKETS}"), buckets)
        .advice("in the machine's first network namespace, of which it is");
    outcome.change(facts.set(BUCKETS, (count as u64).next_power_of_two())?).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn each_entry_counts_twice() {
        let count = |count: u32| {
            Machine::healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", &count.to_string())
                .put(&format!("/proc/sys/{BUCKETS}"), "1024")
        };
        assert_eq!(count(1025).fixes(&RULE), ["sysctl -w net.netfilter.nf_conntrack_buckets=2048"]);
        table(&RULE, [(count(1024), State::Ok), (count(1025), State::Warn)]);
    }
}
