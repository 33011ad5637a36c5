//! Packets that an interface received or should send, and dropped.

use ringway_host::netlink::counters::Stats;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// Some are dropped on purpose: by XDP programs, for protocols that nobody speaks here.
pub const RULE: Rule = Rule {
    number: 3,
    name: "dropped",
    rule: "fewer than 2 % of more than 10 000 packets are dropped",
    source: "netdata, alarms inbound_packets_dropped_ratio and outbound_packets_dropped_ratio",
    why: "Somebody's packets do not arrive, though they came as far as this host.",
    profiles: &[],
    check,
};

const MANY: u64 = 10_000;

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let delta = |of: fn(&Stats) -> u64| Ok(facts.device_counter(name, of)?.delta);
        let rx = (delta(|stats| stats.rx_packets)?, delta(|stats| stats.rx_dropped)?);
        let tx = (delta(|stats| stats.tx_packets)?, delta(|stats| stats.tx_dropped)?);
        let mut outcome = Outcome::warn(name, "more than 2 % of its packets are dropped");
        for (way, (packets, dropped)) in [("received", rx), ("sent", tx)] {
            let all = packets + dropped;
            if all > MANY && dropped * 50 >= all {
                outcome = outcome.saw(
                    format!("ip -s link show {name}, dropped, {way}"),
                    format!("{dropped} of {all}"),
                );
            }
        }
        if outcome.evidence.is_empty() {
            return Ok(Outcome::ok(
                name,
                format!("{} of {} received, {} of {} sent", rx.1, rx.0, tx.1, tx.0),
            ));
        }
        Ok(outcome.advice("`perf trace -e skb:kfree_skb` or dropwatch names the reason; an XDP program that drops is one, too"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn two_in_a_hundred_of_many() {
        let dropped = |packets, dropped| {
            Machine::healthy().stats("veth0", |stats| {
                (stats.tx_packets, stats.tx_dropped) = (packets, dropped);
            })
        };
        // A driver that was loaded anew counts from nought.
        let mut anew = dropped(19_600, 400);
        let large = anew.collection.after.files()["/netlink/stats.json"].clone();
        anew.collection.before.put("/netlink/stats.json", large);
        let anew = anew.stats("veth0", |stats| (stats.tx_packets, stats.tx_dropped) = (5, 0));
        table(
            &RULE,
            [
                (anew, Severity::Ok),
                (dropped(19_600, 400), Severity::Warn),
                (dropped(19_700, 300), Severity::Ok),
                (dropped(5000, 4000), Severity::Ok),
            ],
        );
    }
}
