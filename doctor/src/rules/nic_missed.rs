//! Packets that a card had no room for.

use crate::{Facts, Looked, Outcome, Rule, Severity, each_interface};

/// They never reach the kernel.
pub const RULE: Rule = Rule {
    number: 2,
    name: "nic-missed",
    rule: "rx_missed_errors and rx_fifo_errors do not grow",
    source: "netdata, alarm net_fifo; kernel documentation, networking/statistics",
    why: "The processor does not fetch packets as fast as they come: nobody above the card knows of them.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let lost = facts.missed(name)?;
        let packets = facts.device_counter(name, |stats| stats.rx_packets)?;
        if lost.delta == 0 {
            return Ok(Outcome::ok(name, format!("none missed of {}", packets.delta)));
        }
        let of = packets.delta + lost.delta;
        // One in a thousand is felt.
        let severity = if lost.delta * 1000 > of { Severity::Crit } else { Severity::Warn };
        Ok(Outcome::new(severity, name, format!("{} of {of} packets were missed", lost.delta))
            .counted(format!("ip -s -s link show {name}, missed and fifo"), lost.delta)
            .advice("see the checks nic-rings (larger rings) and queue-count (more queues)"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    #[test]
    fn few_and_many() {
        let missed =
            |count| Machine::healthy().stats("eth0", |stats| stats.rx_missed_errors = count);
        table(&RULE, [(missed(1), Severity::Warn), (missed(300), Severity::Crit)]);
    }
}
