//! Room in the table of neighbours.

use std::net::IpAddr;

use crate::{Facts, Looked, Outcome, Rule, Severity, each};

/// One table for each family and the whole machine.
pub const RULE: Rule = Rule {
    number: 57,
    name: "neighbour-table",
    rule: "neighbours are fewer than 80 % of gc_thresh3, and none is refused",
    source: "kernel documentation, networking/ip-sysctl, neigh/default/gc_thresh3",
    why: "What finds the table full cannot be sent at all: no buffer space available.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let neighbours = &facts.network()?.neighbours;
    let count = |v4: bool| {
        neighbours.iter().filter(|one| matches!(one.address, IpAddr::V4(_)) == v4).count()
    };
    let tables = [("ipv4", "arp_cache", count(true)), ("ipv6", "ndisc_cache", count(false))];
    // A machine without IPv6 has but one.
    let has_v6 = facts.text("/proc/sys/net/ipv6/neigh/default/gc_thresh3").is_ok();
    let tables = tables.into_iter().filter(|(family, ..)| *family == "ipv4" || has_v6);
    Ok(each(
        tables,
        |(family, ..)| (*family).to_owned(),
        |(family, cache, here)| {
            let fulls = table_fulls(facts, cache)?;
            let key = format!("net/{family}/neigh/default/gc_thresh3");
            // Of the first network namespace alone.
            let most = facts.sysctl(&key);
            let near = most.as_ref().is_ok_and(|most| *here as f64 > *most as f64 * 0.8);
            let severity = match (fulls > 0, near) {
                (true, _) => Severity::Crit,
                (false, true) => Severity::Warn,
                (false, false) => {
                    return most.map(|most| Outcome::ok(*family, format!("{here} of {most}")));
                }
            };
            let said =
                format!("{here} neighbours in this namespace, {fulls} refused for want of room");
            let outcome = Outcome::new(severity, *family, said)
                .saw(format!("/proc/net/stat/{cache} table_fulls"), fulls)
                .saw("ip neighbour, entries", here);
            match most {
                Ok(most) => Ok(outcome
                    .saw(format!("/proc/sys/{key}"), most)
                    .change(facts.set(&key, most * 4)?)),
                Err(_) => Ok(outcome.advice(format!(
                    "in the machine's first network namespace: raise {}",
                    key.replace('/', ".")
                ))),
            }
        },
    ))
}

/// Names on the first line, a line for each processor in hexadecimal.
fn table_fulls(facts: &Facts, cache: &str) -> Result<u64, crate::Unknown> {
    let path = format!("/proc/net/stat/{cache}");
    let (before, after) = facts.texts(&path)?;
    let sum = |text: &str| {
        let mut lines = text.lines();
        let at = lines.next()?.split_ascii_whitespace().position(|name| name == "table_fulls")?;
        let value =
            |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(at)?, 16).ok();
        Some(lines.filter_map(value).fold(0, u64::saturating_add))
    };
    let strange = || crate::facts::strange(&path, after);
    Ok(sum(after).ok_or_else(strange)?.saturating_sub(sum(before).ok_or_else(strange)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn nearly_full_and_refused() {
        let key = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
        // There is one neighbour.
        let full = Machine::healthy().put(key, "1");
        assert_eq!(full.fixes(&RULE), ["sysctl -w net.ipv4.neigh.default.gc_thresh3=4"]);
        let stat = |n: &str| format!("entries table_fulls\n00000001 0000000{n}\n00000001 00000000");
        let path = "/proc/net/stat/arp_cache";
        let refused = Machine::healthy().put(path, &stat("0")).then(path, &stat("a"));
        let elsewhere = Machine::healthy().remove(key);
        table(
            &RULE,
            [(full, Severity::Warn), (refused, Severity::Crit), (elsewhere, Severity::Unknown)],
        );
    }
}
