//! Rules of nftables that a packet walks one by one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{Facts, Looked, Outcome, Rule, Unknown};

/// A rule costs every packet some nanoseconds; a set costs the same for one address as for a
/// million.
pub const RULE: Rule = Rule {
    number: 53,
    name: "long-chains",
    rule: "a packet walks fewer than 50 rules at a hook, those of chains that are jumped to among them",
    source: "heuristic of Ringway; `ringway-lab bench kernel-path` has measured what rules cost",
    why: "Rules are walked one after another, by every packet.",
    profiles: &[],
    check,
};

const MANY: usize = 50;
const LEGACY: &str = "/proc/net/ip_tables_names";

fn check(facts: &Facts) -> Looked {
    let document: Value = facts.json("/tools/nft.json")?;
    let ruleset = Ruleset::of(&document);
    let mut seen = BTreeMap::new();
    let mut hooks: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    let mut found = Vec::new();
    for (chain, hook) in &ruleset.hooks {
        let count = ruleset.walked(chain, &mut seen);
        found.push(outcome(
            &chain.join(" "),
            count,
            &format!("nft list chain {}", chain.join(" ")),
        ));
        // inet is both.
        let families = match chain[0].as_str() {
            "inet" => vec!["ip", "ip6"],
            other => vec![other],
        };
        for family in families {
            hooks.entry((family.into(), hook.clone())).or_default().push(count);
        }
    }
    for ((family, hook), counts) in hooks {
        let sum = counts.iter().fold(0_usize, |sum, count| sum.saturating_add(*count));
        // One that is long by itself has been told.
        if counts.len() > 1 && sum >= MANY && counts.iter().all(|count| *count < MANY) {
            found.push(outcome(
                &format!("{family} hook {hook}"),
                sum,
                "nft list ruleset, its chains together",
            ));
        }
    }
    found.extend(legacy(facts));
    Ok(found)
}

fn outcome(subject: &str, count: usize, seen: &str) -> Outcome {
    if count < MANY {
        return Outcome::ok(subject, format!("{count} rules at most"));
    }
    Outcome::warn(subject, format!("a packet walks up to {count} rules here"))
        .saw(format!("{seen}, rules walked at most"), count)
        .advice(
            "put addresses and ports into a set, and actions by address or port into a verdict map",
        )
}

/// Rules of the old iptables are not told by nft.
fn legacy(facts: &Facts) -> Option<Outcome> {
    let why = match facts.text(LEGACY) {
        Ok("") => return None,
        Ok(tables) => {
            let tables = tables.split_ascii_whitespace().collect::<Vec<_>>().join(", ");
            Unknown(format!(
                "rules of its tables {tables} are not counted: iptables-legacy-save shows them"
            ))
        }
        Err(why) => why,
    };
    Some(Outcome::unknown("iptables-legacy", why))
}

/// Family, table, name.
type Chain = [String; 3];

#[derive(Default)]
struct Ruleset {
    /// Where packets enter, and at which hook.
    hooks: BTreeMap<Chain, String>,
    /// For each rule the chains that it may lead to.
    rules: BTreeMap<Chain, Vec<Vec<Chain>>>,
}

impl Ruleset {
    /// Of libnftables' JSON (libnftables-json(5)).
    fn of(document: &Value) -> Self {
        let mut ruleset = Self::default();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for object in document["nftables"].as_array().into_iter().flatten() {
            let (chain, rule) = (&object["chain"], &object["rule"]);
            if let Some(hook) = chain["hook"].as_str() {
                let name = ["family", "table", "name"].map(|key| word(&chain[key]));
                ruleset.hooks.insert(name, hook.to_owned());
            }
            if rule.is_object() {
                let [family, table, name] =
                    ["family", "table", "chain"].map(|key| word(&rule[key]));
                let mut targets = Vec::new();
                leads_to(&rule["expr"], &mut targets);
                let there = |target: String| [family.clone(), table.clone(), target];
                let targets = targets.into_iter().map(there).collect();
                ruleset
                    .rules
                    .entry([family.clone(), table.clone(), name])
                    .or_default()
                    .push(targets);
            }
        }
        ruleset
    }

    /// Rules that a packet walks at most. What leads back to itself, which the kernel refuses,
    /// counts once.
    fn walked(&self, chain: &Chain, seen: &mut BTreeMap<Chain, usize>) -> usize {
        if let Some(count) = seen.get(chain) {
            return *count;
        }
        seen.insert(chain.clone(), 0);
        let mut sum = 0_usize;
        for targets in self.rules.get(chain).into_iter().flatten() {
            let longest = targets.iter().map(|target| self.walked(target, seen)).max();
            sum = sum.saturating_add(1).saturating_add(longest.unwrap_or(0));
        }
        seen.insert(chain.clone(), sum);
        sum
    }
}

/// Targets of jump and goto anywhere in an expression: in verdict maps, too.
fn leads_to(expression: &Value, targets: &mut Vec<String>) {
    match expression {
        Value::Array(parts) => parts.iter().for_each(|part| leads_to(part, targets)),
        Value::Object(parts) => {
            for (key, part) in parts {
                match (key.as_str(), part["target"].as_str()) {
                    ("jump" | "goto", Some(target)) => targets.push(target.to_owned()),
                    _ => leads_to(part, targets),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Severity::{self, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    fn chain(name: &str, hook: Option<&str>) -> Value {
        json!({"chain": {"family": "inet", "table": "t", "name": name, "hook": hook}})
    }

    fn rules(chain: &str, count: usize, expr: &Value) -> Vec<Value> {
        let rule = json!({"rule": {"family": "inet", "table": "t", "chain": chain, "expr": expr}});
        vec![rule; count]
    }

    fn machine(parts: &[Vec<Value>]) -> Machine {
        healthy().json("/tools/nft.json", json!({"nftables": parts.concat()}))
    }

    #[test]
    fn rules_are_counted_by_hook_and_through_jumps() {
        let one =
            |count| machine(&[vec![chain("c", Some("input"))], rules("c", count, &json!([]))]);
        assert_eq!(one(50).outcomes(&RULE)[0].subject, "inet t c");
        let map = json!([{"vmap": {"key": {}, "data": {"set": [["a", {"jump": {"target": "d"}}], ["b", {"drop": null}]]}}}]);
        let jumps = |count| {
            let first = rules("c", 10, &json!([]));
            let chains = vec![chain("c", Some("input")), chain("d", None)];
            machine(&[chains, first, rules("c", 1, &map), rules("d", count, &json!([]))])
        };
        let circle = json!([{"goto": {"target": "c"}}]);
        let circle = machine(&[vec![chain("c", Some("input"))], rules("c", 49, &circle)]);
        let two = |count| {
            let chains = vec![chain("c", Some("input")), chain("d", Some("input"))];
            machine(&[chains, rules("c", 25, &json!([])), rules("d", count, &json!([]))])
        };
        let warned: Vec<_> =
            two(25).outcomes(&RULE).into_iter().map(|one| (one.subject, one.severity)).collect();
        assert!(warned.contains(&("ip6 hook input".into(), Warn)), "{warned:?}");
        let unhooked = machine(&[vec![chain("d", None)], rules("d", 90, &json!([]))]);
        let legacy = healthy().put(LEGACY, "filter\nnat\n");
        let rows = [
            (one(49), Severity::Ok),
            (one(50), Warn),
            (jumps(38), Severity::Ok),
            (jumps(39), Warn),
            (circle, Severity::Ok),
            (two(24), Severity::Ok),
            (unhooked, Severity::Ok),
            (legacy, Unknown),
        ];
        table(&RULE, rows);
    }
}
