//! Pause frames: somebody asks to wait.

use std::collections::BTreeMap;

use ringway_host::ethtool::Pause;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// Drivers count them under names of their own.
pub const RULE: Rule = Rule {
    number: 8,
    name: "pause-frames",
    rule: "no pause frames are sent or received",
    source: "IEEE 802.3, annex 31B; a practice of many guides",
    why: "One slow receiver holds up a whole switch; without flow control its packets are lost instead.",
    profiles: &[],
    check,
};

type Counters = BTreeMap<String, u64>;

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let (before, after): (Counters, Counters) =
            facts.pair(&format!("/ethtool/{name}/statistics.json"))?;
        let of_pause = |name: &str| name.contains("pause") || name.contains("flow_control");
        let sum = |all: &Counters| {
            all.iter()
                .filter(|(name, _)| of_pause(name))
                .map(|(_, n)| *n)
                .fold(0, u64::saturating_add)
        };
        let frames = sum(&after).saturating_sub(sum(&before));
        if frames == 0 {
            return Ok(Outcome::ok(name, "no pause frames"));
        }
        let outcome = Outcome::warn(name, format!("{frames} pause frames"))
            .saw(format!("ethtool -S {name}, pause or flow_control"), frames)
            .advice("only if losing packets is better than waiting: then turn it off");
        let word = |on: bool| if on { "on" } else { "off" };
        match facts.ethtool::<Pause>(name, "pause") {
            Ok(Pause { rx, tx }) if rx || tx => Ok(outcome.ethtool(
                "-A",
                name,
                "rx off tx off",
                format!("rx {} tx {}", word(rx), word(tx)),
            )),
            _ => Ok(outcome),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn frames_and_the_way_back() {
        let path = "/ethtool/eth0/statistics.json";
        let paused = Machine::healthy()
            .put(path, r#"{"rx_pause_frames": 1}"#)
            .then(path, r#"{"rx_pause_frames": 9}"#)
            .json("/ethtool/eth0/pause.json", Pause { rx: true, tx: false });
        assert_eq!(paused.undos(&RULE), ["ethtool -A eth0 rx on tx off"]);
        table(&RULE, [(paused, Severity::Warn)]);
    }
}
