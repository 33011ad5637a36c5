//! What drivers count as lost under names of their own.

use std::collections::BTreeMap;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// Names differ from driver to driver; these parts of names are common.
pub const RULE: Rule = Rule {
    number: 5,
    name: "driver-counters",
    rule: "no counter of `ethtool -S` whose name speaks of loss grows",
    source: "heuristic of Ringway",
    why: "Cards and drivers lose packets in places that the common counters do not show.",
    profiles: &[],
    check,
};

const WORDS: [&str; 9] =
    ["drop", "miss", "nobuf", "no_buf", "out_of_buf", "no_dma", "discard", "err", "exceeded"];
/// What some names mean.
const MEANINGS: [(&str, &str); 7] = [
    (
        "rx_out_of_buffer",
        "the queue had no descriptor (mlx5): larger rings, or a processor that fetches faster",
    ),
    ("rx_no_dma_resources", "the queue had no descriptor (ixgbe): larger rings"),
    ("rx_discards_phy", "the card's own buffer was full (mlx5): pause frames, or less traffic"),
    ("bw_in_allowance_exceeded", "the cloud's limit for this machine (ena)"),
    ("pps_allowance_exceeded", "the cloud's limit for this machine (ena)"),
    ("xdp_tx_errors", "XDP_TX found no room; on veth its peer does not poll (see veth-peer)"),
    (
        "xdp_xmit_errors",
        "redirected frames found no room; on veth its peer does not poll (see veth-peer)",
    ),
];

type Counters = BTreeMap<String, u64>;

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let path = format!("/ethtool/{name}/statistics.json");
        let (before, after): (Counters, Counters) = facts.pair(&path)?;
        let mut outcome = Outcome::warn(name, "its driver counts losses");
        let lossy = |name: &str| WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word));
        let grown = after.iter().filter_map(|(counter, now)| {
            let was = before.get(counter).filter(|was| now > *was)?;
            lossy(counter).then_some((counter, now - was))
        });
        for (counter, by) in grown {
            outcome = outcome.saw(format!("ethtool -S {name}, {counter}"), by);
            let meaning = MEANINGS.iter().find(|(part, _)| counter.contains(part));
            if let Some((_, meaning)) = meaning {
                outcome = outcome.advice(*meaning);
            }
        }
        if outcome.evidence.is_empty() {
            return Ok(Outcome::ok(name, format!("{} counters, no loss", after.len())));
        }
        Ok(outcome)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn names_that_speak_of_loss() {
        let grows = |counter: &str| {
            let path = "/ethtool/veth0/statistics.json";
            Machine::healthy()
                .put(path, &format!("{{\"{counter}\": 1}}"))
                .then(path, &format!("{{\"{counter}\": 3}}"))
        };
        let rows = [
            (grows("rx_queue_0_drops"), Severity::Warn),
            (grows("rx_out_of_buffer"), Severity::Warn),
            (grows("rx_queue_0_xdp_packets"), Severity::Ok),
        ];
        table(&RULE, rows);
        let told = grows("rx_queue_0_xdp_tx_errors").outcomes(&RULE);
        assert!(
            told.iter()
                .any(|one| one.advice.as_ref().is_some_and(|text| text.contains("veth-peer")))
        );
    }
}
