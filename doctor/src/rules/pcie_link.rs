//! The slot that a card is in.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// A slot with fewer lanes than the card, or an older one.
pub const RULE: Rule = Rule {
    number: 7,
    name: "pcie-link",
    rule: "a card's PCIe link has the width and speed that the card can",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "A slot half as wide carries half as much, and no counter of the network says so.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let pci = |bus: &str| bus.matches(':').count() == 2;
    let of_pci =
        |one: &&ringway_host::Interface| one.driver.as_ref().is_some_and(|driver| pci(&driver.bus));
    let cards = facts.cards()?.into_iter().filter(of_pci);
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let read = |key: &str| facts.text(&format!("/sys/class/net/{name}/device/{key}"));
        let (width, widest) = (read("current_link_width")?, read("max_link_width")?);
        let (speed, fastest) = (read("current_link_speed")?, read("max_link_speed")?);
        if width == widest && speed == fastest {
            return Ok(Outcome::ok(name, format!("{width} lanes at {speed}")));
        }
        Ok(Outcome::warn(name, format!("{width} lanes at {speed}; the card can {widest} at {fastest}"))
            .saw(format!("/sys/class/net/{name}/device/current_link_width"), width)
            .saw(format!("/sys/class/net/{name}/device/current_link_speed"), speed)
            .advice("take it out and put it in again, or into another slot; look at the firmware's settings"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn half_a_slot() {
        let width = "/sys/class/net/eth0/device/current_link_width";
        let rows = [
            (Machine::healthy().put(width, "4"), Severity::Warn),
            (Machine::healthy().remove(width), Severity::Unknown),
        ];
        table(&RULE, rows);
    }
}
