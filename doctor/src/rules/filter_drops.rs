//! Packets that rules of nftables drop.

use std::collections::BTreeMap;

use ringway_host::firewall::Place;
use serde_json::Value;

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown};

/// Such drops are mostly intended: the finding helps in a search for lost packets.
pub const RULE: Rule = Rule {
    number: 83,
    name: "filter-drops",
    rule: "no rule of nftables drops or rejects packets meanwhile",
    source: "heuristic of Ringway; manual page nft(8): counter, handle",
    why: "What a rule drops is in no counter of an interface or a protocol, and looks like a packet that never came.",
    profiles: &[],
    check,
};

const RULES: &str = "/tools/nft.json";
/// Rules that a finding names.
const NAMED: usize = 8;
/// As many as this may seem lost because counters are read one after the other.
const FEW: u64 = 10;

fn check(facts: &Facts) -> Looked {
    let (before, after): (Value, Value) = facts.pair(RULES)?;
    let (before, after) = (Verdicts::of(&before), Verdicts::of(&after));
    let mut grown: Vec<(&Dropping, u64)> = Vec::new();
    for (place, now) in &after.counted {
        // One that was not there before has counted all of it meanwhile.
        let by = now.saturating_sub(before.counted.get(place).copied().unwrap_or(0));
        if by > 0 {
            grown.push((place, by));
        }
    }
    let counted = grown.iter().fold(0_u64, |sum, (_, by)| sum.saturating_add(*by));
    let mut found = vec![by_counters(facts, after.counted.len(), counted, grown)];
    if !after.uncounted.is_empty() {
        let all = uncounted(facts, &after.uncounted, counted);
        found.push(all.unwrap_or_else(|why| Outcome::unknown("rules without a counter", why)));
    }
    Ok(found)
}

fn by_counters(facts: &Facts, rules: usize, sum: u64, mut grown: Vec<(&Dropping, u64)>) -> Outcome {
    let Some((most, _)) = grown.iter().max_by_key(|(_, by)| *by) else {
        return Outcome::ok(MACHINE, format!("{rules} rules that drop count nothing"));
    };
    let advice = format!(
        "right if these are the packets it is there for; if not, take the rule away: {}",
        most.place.delete()
    );
    grown.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
    let said = format!(
        "{} of the rules of nftables dropped or rejected {sum} packets in {:.0} s",
        grown.len(),
        facts.seconds
    );
    let mut outcome = Outcome::info(MACHINE, said);
    for (rule, by) in grown.iter().take(NAMED) {
        let Dropping { place: Place { family, table, chain, handle }, verdict, comment } = rule;
        let handle = handle.unwrap_or_default();
        let rule = format!(
            "nft -a list chain {family} {table} {chain}, handle {handle}, {verdict}{comment}"
        );
        outcome = outcome.counted(rule, by);
    }
    outcome.advice(advice)
}

/// Rules without a counter give themselves away by what IP received and nobody got.
fn uncounted(facts: &Facts, places: &[String], counted: u64) -> Result<Outcome, Unknown> {
    const SUBJECT: &str = "rules without a counter";
    let [received, lost] = lost_in_ip(facts)?;
    // Some of these may be of other hooks: then the figure is too small, and never too large.
    let lost = lost.saturating_sub(counted);
    let shown = places.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    // IP without a loss does not clear other hooks: of output, of a bridge, of a device.
    if lost < FEW || lost * 100 < received {
        let why = format!(
            "{} rules and policies drop without a counter ({shown}); what they drop only `ringway doctor --path \
             INTERFACE` counts, as root: NETFILTER_DROP",
            places.len()
        );
        return Err(Unknown(why));
    }
    let said = format!(
        "{lost} of {received} packets that IP received went nowhere, and no counter says why; {} rules and policies \
         drop without one",
        places.len()
    );
    Ok(Outcome::info(SUBJECT, said)
        .counted("/proc/net/snmp Ip, received and neither delivered, passed on nor counted as lost", lost)
        .saw("nft list ruleset, drops without a counter", shown)
        .advice(
            "`ringway doctor --path INTERFACE`, as root, counts what nftables drops (NETFILTER_DROP); a counter in the \
             rule does, too: nft replace rule FAMILY TABLE CHAIN handle NUMBER ... counter drop, of a policy a last rule that \
             is `counter drop`",
        ))
}

/// Packets that IPv4 received, and those of them of which no counter tells what became of them.
fn lost_in_ip(facts: &Facts) -> Result<[u64; 2], Unknown> {
    const BECAME: [(&str, &str); 9] = [
        ("Ip", "InDelivers"),
        ("Ip", "ForwDatagrams"),
        ("Ip", "InHdrErrors"),
        ("Ip", "InAddrErrors"),
        ("Ip", "InDiscards"),
        // Fragments that were reassembled are delivered once.
        ("Ip", "ReasmReqds"),
        ("IpExt", "InNoRoutes"),
        ("IpExt", "InTruncatedPkts"),
        ("TcpExt", "IPReversePathFilter"),
    ];
    let received = facts.counter("Ip", "InReceives")?.delta;
    let became = BECAME.iter().map(|(group, name)| Ok(facts.counter(group, name)?.delta));
    let became: u64 = became.sum::<Result<u64, Unknown>>()?;
    Ok([received, received.saturating_sub(became)])
}

/// A rule that drops and counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Dropping {
    place: Place,
    verdict: &'static str,
    /// As the rule has it, behind a comma.
    comment: String,
}

#[derive(Debug, Default)]
struct Verdicts {
    /// Packets that a rule dropped.
    counted: BTreeMap<Dropping, u64>,
    /// Rules and policies of which nobody knows.
    uncounted: Vec<String>,
}

impl Verdicts {
    /// Of libnftables' JSON (libnftables-json(5)).
    fn of(document: &Value) -> Self {
        let mut found = Self::default();
        for object in document["nftables"].as_array().into_iter().flatten() {
            let (chain, rule) = (&object["chain"], &object["rule"]);
            if chain["policy"] == "drop" {
                found.uncounted.push(format!("policy of {}", chain_of(chain, "name", None)));
            }
            let expression = rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default();
            let Some(at) = expression.iter().position(|one| verdict(one).is_some()) else {
                continue;
            };
            let place = chain_of(rule, "chain", rule["handle"].as_u64().or(Some(0)));
            let comment = rule["comment"].as_str();
            let comment = comment.map_or_else(String::new, |said| format!(", {said:?}"));
            match (verdict(&expression[at]), packets(&expression[..at])) {
                (Some(verdict), Some(packets)) => {
                    found.counted.insert(Dropping { place, verdict, comment }, packets);
                }
                _ => found.uncounted.push(place.to_string()),
            }
        }
        found
    }
}

fn chain_of(object: &Value, name: &str, handle: Option<u64>) -> Place {
    let word = |key: &str| object[key].as_str().unwrap_or("?").to_owned();
    Place { family: word("family"), table: word("table"), chain: word(name), handle }
}

fn verdict(expression: &Value) -> Option<&'static str> {
    let is = |name: &str| expression.get(name).is_some();
    ["drop", "reject"].into_iter().find(|name| is(name))
}

/// Of a counter that nothing but a log follows: it counts those that came as far as the verdict.
fn packets(before: &[Value]) -> Option<u64> {
    let last = before.iter().rev().find(|one| one.get("log").is_none())?;
    last["counter"]["packets"].as_u64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Severity::{self, Info, Unknown};
    use crate::testing::{Machine, healthy, table};

    fn rules(expr: &Value) -> String {
        json!({"nftables": [
            {"chain": {"family": "ip", "table": "t", "name": "c", "hook": "input", "policy": "accept"}},
            {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 7, "expr": expr}},
        ]})
        .to_string()
    }

    fn machine(before: &Value, after: &Value) -> Machine {
        healthy().put(RULES, &rules(before)).then(RULES, &rules(after))
    }

    #[test]
    fn what_rules_count() {
        let matches = json!({"match": {"op": "==", "left": {}, "right": 80}});
        let counter = |n: u64| json!({"counter": {"packets": n, "bytes": 0}});
        let drop = |n| json!([matches, counter(n), {"log": null}, {"drop": null}]);
        let counted = machine(&drop(5), &drop(12));
        let seen = counted.outcomes(&RULE)[0].evidence[0].clone();
        assert!(seen.source.starts_with("nft -a list chain ip t c, handle 7, drop"), "{seen:?}");
        assert_eq!(seen.value, "7");
        let reject = |n| json!([counter(n), {"reject": {"type": "tcp reset"}}]);
        // The counter counts what a match then lets by, and says nothing of what is dropped.
        let early = |n| json!([counter(n), matches, {"drop": null}]);
        let bare = json!([matches, {"drop": null}]);
        let silent = machine(&bare, &bare);
        let lost = |n| silent.clone().counts("Ip", "InReceives", n);
        assert!(lost(30).outcomes(&RULE)[1].found.contains("30 of 30 packets"));
        // Packets that a rule's counter has counted are accounted for.
        let both = |n| {
            let rules = json!({"nftables": [
                {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 7, "expr": drop(n), "comment": "web"}},
                {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 8, "expr": bare}},
            ]});
            rules.to_string()
        };
        let both = healthy().put(RULES, &both(0)).then(RULES, &both(3810));
        let both = both.counts("Ip", "InReceives", 4030).counts("Ip", "InDelivers", 200);
        let found = both.outcomes(&RULE);
        assert!(found[1].severity == Unknown, "{:?}", found[1]);
        assert!(found[0].evidence[0].source.contains("drop, \"web\""), "{:?}", found[0]);
        let told = lost(30).counts("Ip", "InDelivers", 10).counts("IpExt", "InNoRoutes", 15);
        let accept = |n| json!([counter(n), {"accept": null}]);
        let rows = [
            (counted, Info),
            (machine(&drop(5), &drop(5)), Severity::Ok),
            (machine(&reject(0), &reject(1)), Info),
            (machine(&accept(0), &accept(9)), Severity::Ok),
            (machine(&early(0), &early(9)), Unknown),
            (silent.clone(), Unknown),
            (lost(9), Unknown),
            (lost(30), Info),
            (told, Unknown),
        ];
        table(&RULE, rows);
    }

    #[test]
    fn a_policy_drops_without_a_counter() {
        let policy = |policy: &str| {
            let chain = json!({"family": "inet", "table": "t", "name": "c", "policy": policy});
            healthy().json(RULES, json!({"nftables": [{"chain": chain}]}))
        };
        assert_eq!(policy("accept").worst(&RULE), Severity::Ok);
        let found = policy("drop").counts("Ip", "InReceives", 50).outcomes(&RULE);
        assert_eq!(found[1].severity, Info);
        assert_eq!(found[1].evidence[1].value, "policy of inet t c");
    }
}
