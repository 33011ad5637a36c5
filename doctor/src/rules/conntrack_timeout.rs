//! How long tracked connections are kept that nobody uses.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Five days, unless somebody says otherwise.
pub const RULE: Rule = Rule {
    number: 51,
    name: "conntrack-timeout",
    rule: "a table that fills up forgets established connections within a day",
    source: "heuristic of Ringway",
    why: "Connections whose ends have gone stay in the table for five days.",
    profiles: &[],
    check,
};

const TIMEOUT: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";

fn check(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let most = facts.sysctl("net/netfilter/nf_conntrack_max")?;
    let timeout = facts.sysctl(TIMEOUT)?;
    if timeout <= 86_400 || most == 0 || count * 2 < most {
        return Outcome::ok(MACHINE, format!("{timeout} s, and {count} of {most} connections"))
            .into();
    }
    let said =
        format!("{count} of {most} connections are tracked, and idle ones stay for {timeout} s");
    Outcome::warn(MACHINE, said)
        .saw(format!("/proc/sys/{TIMEOUT}"), timeout)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .change(facts.set(TIMEOUT, 3600)?)
        .advice("an hour is shorter than many keep-alives: connections that pause longer are then new ones to the firewall")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn only_where_the_table_fills() {
        let machine = |count: &str, timeout: &str| {
            Machine::healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", count)
                .put("/proc/sys/net/netfilter/nf_conntrack_max", "1000")
                .put(&format!("/proc/sys/{TIMEOUT}"), timeout)
        };
        let rows = [
            (machine("499", "432000"), State::Ok),
            (machine("500", "432000"), State::Warn),
            (machine("500", "3600"), State::Ok),
        ];
        table(&RULE, rows);
    }
}
