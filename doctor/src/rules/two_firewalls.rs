//! iptables-legacy and nftables at once.

use serde_json::Value;

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule};

/// Both work, and neither shows the other's rules.
pub const RULE: Rule = Rule {
    number: 54,
    name: "two-firewalls",
    rule: "rules are in nftables or in iptables-legacy, not in both",
    source: "heuristic of Ringway; manual page xtables-nft(8)",
    why: "A packet passes through both, and who lists the rules of one does not see why the other drops it.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let tables =
        |path| facts.text(path).map(|text| text.split_ascii_whitespace().collect::<Vec<_>>());
    // Where the modules are not loaded, or this is not root, the files are not there.
    let legacy =
        [tables("/proc/net/ip_tables_names")?, tables("/proc/net/ip6_tables_names")?].concat();
    let document: Value = facts.json("/tools/nft.json")?;
    let objects = document["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules = objects.iter().filter(|object| object["rule"].is_object()).count();
    if legacy.is_empty() || rules == 0 {
        return Outcome::ok(MACHINE, "one of them at most").into();
    }
    Outcome::warn(
        MACHINE,
        format!("nftables has {rules} rules, and iptables-legacy has tables, too"),
    )
    .saw("/proc/net/ip_tables_names", legacy.join(" "))
    .saw("nft list ruleset, rules", rules)
    .advice("iptables-legacy-save | iptables-nft-restore, then empty the old tables")
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn both_at_once() {
        let rule = r#"{"nftables":[{"rule":{"family":"ip"}}]}"#;
        let nft = Machine::healthy().put("/tools/nft.json", rule);
        let both = nft.clone().put("/proc/net/ip_tables_names", "filter\nnat");
        table(&RULE, [(nft, Severity::Ok), (both, Severity::Warn)]);
    }
}
