//! Rules of nftables that a packet walks one by one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{Check, Facts, Looked, Outcome};

/// A rule costs every packet some nanoseconds; a set costs the same for one address as for a million.
pub const CHECK: Check = Check {
    number: 53,
    name: "long-chains",
    rule: "a packet walks fewer than 50 rules of one chain",
    source: "heuristic of Ringway; `ringway bench` has measured what rules cost",
    why: "Rules are walked one after another, by every packet.",
    profiles: &[],
    look,
};

const MANY: usize = 50;

fn look(facts: &Facts) -> Looked {
    let document: Value = facts.json("/tools/nft.json")?;
    let objects = document["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for rule in objects.iter().map(|object| &object["rule"]).filter(|rule| rule.is_object()) {
        let chain = ["family", "table", "chain"].map(|key| word(&rule[key])).join(" ");
        *rules.entry(chain).or_default() += 1;
    }
    let outcome = |(chain, count): (String, usize)| {
        if count < MANY {
            return Outcome::ok(chain, format!("{count} rules"));
        }
        let seen = Outcome::warn(&chain, format!("a packet walks up to {count} rules here"));
        seen.saw(format!("nft list chain {chain}, rules"), count).advice(
            "put addresses and ports into a set, and actions by address or port into a verdict map",
        )
    };
    Ok(rules.into_iter().map(outcome).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn rules_are_counted_by_chain() {
        let machine = |count: usize| {
            let rule = json!({"rule": {"family": "inet", "table": "t", "chain": "c", "expr": []}});
            let other = json!({"rule": {"family": "inet", "table": "t", "chain": "d", "expr": []}});
            let rules: Vec<Value> = (0..count).map(|_| rule.clone()).chain([other]).collect();
            Machine::healthy().json("/tools/nft.json", json!({"nftables": rules}))
        };
        assert_eq!(machine(50).outcomes(&CHECK)[0].subject, "inet t c");
        table(&CHECK, [(machine(49), State::Ok), (machine(50), State::Warn)]);
    }
}
