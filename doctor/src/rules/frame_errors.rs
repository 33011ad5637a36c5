//! Frames that arrived damaged.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// A cable, a connector, a transceiver; or frames longer than the interface takes.
pub const RULE: Rule = Rule {
    number: 4,
    name: "frame-errors",
    rule: "CRC, frame and length errors do not grow",
    source: "kernel documentation, networking/statistics",
    why: "Damaged frames are lost, and TCP slows down for each.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let (before, after) = facts.device(name)?;
        let mut outcome = Outcome::warn(name, "frames arrive damaged");
        for (what, count) in [
            ("crc", after.rx_crc_errors - before.rx_crc_errors),
            ("frame", after.rx_frame_errors - before.rx_frame_errors),
            ("length", after.rx_length_errors - before.rx_length_errors),
        ] {
            if count > 0 {
                outcome = outcome.saw(format!("ip -s -s link show {name}, {what}"), count);
            }
        }
        if outcome.evidence.is_empty() {
            return Ok(Outcome::ok(name, "no damaged frame"));
        }
        Ok(outcome.advice("crc and frame: change the cable, then the transceiver; length: compare the MTUs of both ends"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn each_kind() {
        let crc = Machine::healthy().stats("eth0", |stats| stats.rx_crc_errors = 1);
        let length = Machine::healthy().stats("eth0", |stats| stats.rx_length_errors = 1);
        table(&RULE, [(crc, Severity::Warn), (length, Severity::Warn)]);
    }
}
