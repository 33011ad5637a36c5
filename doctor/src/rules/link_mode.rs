//! Speed and duplex of cards.

use ringway_host::ethtool::LinkMode;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// What the two ends have agreed on.
pub const RULE: Rule = Rule {
    number: 6,
    name: "link-mode",
    rule: "full duplex, and the best speed that both ends can",
    source: "IEEE 802.3, auto-negotiation",
    why: "At half duplex frames collide; a gigabit link that fell back to 100 Mbit/s mostly has a bad cable.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?.into_iter().filter(|card| card.link.up && card.link.carrier);
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let mode: LinkMode = facts.ethtool(name, "link_mode")?;
        if mode.speed_mbit.is_none() && mode.full_duplex.is_none() {
            return Err(crate::Unknown(format!(
                "ethtool {name}: the driver does not know its speed; that of a virtual machine's card has none"
            )));
        }
        let slow = mode.speed_mbit.zip(mode.best_mbit).is_some_and(|(speed, best)| speed < best);
        let half = mode.full_duplex == Some(false);
        if !slow && !half {
            let speed = mode.speed_mbit.map_or("unknown".into(), |mbit| format!("{mbit} Mbit/s"));
            return Ok(Outcome::ok(name, format!("speed {speed}")));
        }
        let mbit = mode.speed_mbit.unwrap_or_default();
        let duplex = if half { "half" } else { "full" };
        let outcome = Outcome::warn(
            name,
            format!("{mbit} Mbit/s at {duplex} duplex, and both ends can do better"),
        )
        .saw(format!("ethtool {name}, speed and duplex"), format!("{mbit} {duplex}"))
        .saw(format!("ethtool {name}, best common mode"), mode.best_mbit.unwrap_or_default());
        if mode.autoneg {
            return Ok(
                outcome.advice("they negotiated that: change the cable, look at the switch's port")
            );
        }
        let now = format!("autoneg off speed {mbit} duplex {duplex}");
        Ok(outcome.ethtool("-s", name, "autoneg on", now))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn slow_and_half() {
        let mode = |speed, full, autoneg| {
            let mode = LinkMode {
                speed_mbit: Some(speed),
                full_duplex: Some(full),
                autoneg,
                best_mbit: Some(1000),
            };
            Machine::healthy().json("/ethtool/eth0/link_mode.json", mode)
        };
        let forced = mode(100, true, false);
        assert_eq!(forced.undos(&RULE), ["ethtool -s eth0 autoneg off speed 100 duplex full"]);
        assert!(mode(100, true, true).fixes(&RULE).is_empty());
        table(
            &RULE,
            [
                (forced, Severity::Warn),
                (mode(1000, false, true), Severity::Warn),
                (mode(1000, true, true), Severity::Ok),
            ],
        );
    }
}
