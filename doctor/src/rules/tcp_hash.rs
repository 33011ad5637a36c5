//! Whose table TCP connections are in.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// A network namespace may have a table of its own.
pub const RULE: Rule = Rule {
    number: 48,
    name: "tcp-hash",
    rule: "tcp_ehash_entries is not negative",
    source: "kernel documentation, networking/ip-sysctl, tcp_ehash_entries",
    why: "The table is shared with the machine's first network namespace: what is measured here depends on what runs there.",
    // Elsewhere it is as it should be.
    profiles: &[Profile::Throughput, Profile::Latency],
    check,
};

const KEY: &str = "net/ipv4/tcp_ehash_entries";

fn check(facts: &Facts) -> Looked {
    let entries = facts.sysctl(KEY)?;
    if entries >= 0 {
        return Outcome::ok(MACHINE, format!("a table of {entries} entries of its own")).into();
    }
    let said = format!(
        "its connections are in the first network namespace's table of {} entries",
        entries.unsigned_abs()
    );
    Outcome::info(MACHINE, said)
        .saw(format!("/proc/sys/{KEY}"), entries)
        .advice(
            "all is well unless you measure. This namespace keeps what it was made with. For one with a table of its own, \
             on the host: `sysctl -w net.ipv4.tcp_child_ehash_entries=262144`, then `ip netns add NAME`; its \
             tcp_max_tw_buckets begins at half of that, its tcp_max_syn_backlog at 1/128",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn shared_is_negative() {
        let shared = Machine::healthy().put(&format!("/proc/sys/{KEY}"), "-262144");
        table(&RULE, [(shared, Severity::Info)]);
    }
}
