//! Descriptor rings of cards that overflow while they could be larger.

use ringway_host::ethtool::Rings;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// A ring holds what comes while the processor is elsewhere.
pub const RULE: Rule = Rule {
    number: 1,
    name: "nic-rings",
    rule: "a card that misses packets has its receive ring at 2048, or half of what it can",
    source: "a practice of many guides, confirmed by the card's own counters",
    why: "A burst that does not fit into the ring is lost; a larger ring absorbs it, and adds delay.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let lost = facts.missed(name)?;
        let rings: Rings = match facts.ethtool(name, "rings") {
            // Then it is no matter.
            Err(_) if lost.delta == 0 => return Ok(Outcome::ok(name, "no packet was missed")),
            rings => rings?,
        };
        let wanted = rings.rx.max(2048.min(rings.max_rx / 2));
        if lost.delta == 0 || rings.rx >= rings.max_rx || wanted == rings.rx {
            return Ok(Outcome::ok(
                name,
                format!("{} of {} descriptors, {} missed", rings.rx, rings.max_rx, lost.delta),
            ));
        }
        let said = format!(
            "{} packets were missed with {} of {} descriptors",
            lost.delta, rings.rx, rings.max_rx
        );
        Ok(Outcome::warn(name, said)
            .counted(format!("ip -s -s link show {name}, missed and fifo"), lost.delta)
            .saw(format!("ethtool -g {name}, RX"), rings.rx)
            .ethtool("-G", name, format!("rx {wanted}"), format!("rx {}", rings.rx)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn only_with_losses() {
        let lossy = |rx: u32| {
            let rings = Rings { rx, tx: 512, max_rx: 4096, max_tx: 4096 };
            let machine = Machine::healthy().json("/ethtool/eth0/rings.json", rings);
            machine.stats("eth0", |stats| stats.rx_missed_errors = 7)
        };
        assert_eq!(lossy(512).fixes(&RULE), ["ethtool -G eth0 rx 2048"]);
        assert_eq!(lossy(512).undos(&RULE), ["ethtool -G eth0 rx 512"]);
        let silent = lossy(512).remove("/ethtool/eth0/rings.json");
        table(
            &RULE,
            [
                (lossy(512), Severity::Warn),
                (lossy(2048), Severity::Ok),
                (silent, Severity::Unknown),
            ],
        );
    }
}
