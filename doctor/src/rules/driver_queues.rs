//! Drivers that want queues to spare for XDP.

use ringway_host::ethtool::Channels;

use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, each_interface};

/// XDP sends by queues of its own.
pub const RULE: Rule = Rule {
    number: 76,
    name: "driver-queues",
    rule: "ena: half of the queues at most are in use; virtio_net: as many are to spare as there are processors",
    source: "Linux, drivers/net/ethernet/amazon/ena: ena_xdp_legal_queue_count; drivers/net/virtio_net.c: virtnet_xdp_set",
    why: "The driver refuses native XDP, or all processors share one queue under a lock.",
    profiles: &[Profile::Balancer, Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?.len() as u32;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let driver = card.driver.as_ref().map_or("", |driver| driver.name.as_str());
        let Some(Channels { rx, max_tx, .. }) = card.channels else {
            return Ok(Outcome::ok(name, "it has one queue, as far as its driver tells"));
        };
        if !facts.gets_native(card) {
            return Ok(Outcome::ok(
                name,
                "no program goes into the driver, or one is in it already",
            ));
        }
        let most = match driver {
            "ena" => max_tx / 2,
            "virtio_net" => max_tx.saturating_sub(cpus),
            _ => {
                return Ok(Outcome::ok(name, format!("driver {driver} is not known to be choosy")));
            }
        };
        if rx <= most {
            return Ok(Outcome::ok(name, format!("{rx} of {max_tx} queues are in use")));
        }
        let seen = Outcome::warn(
            name,
            format!("{rx} of {max_tx} queues are in use: too few are left for XDP"),
        )
        .saw(format!("ethtool -l {name}"), format!("{rx} of {max_tx}"));
        let set = |queues: u32| Fix::ethtool("-L", name, format!("combined {queues}"));
        if most == 0 {
            return Ok(seen.advice("give the machine more queues (virtio: twice its processors)"));
        }
        Ok(seen.fix(set(most), set(rx)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn each_drivers_own_rule() {
        let card = |driver: &str, rx: u32| {
            Machine::healthy().network(|network| {
                let card = &mut network.interfaces[1];
                card.driver.as_mut().unwrap().name = driver.into();
                card.channels.as_mut().unwrap().rx = rx;
            })
        };
        assert_eq!(card("ena", 8).fixes(&RULE), ["ethtool -L eth0 combined 4"]);
        table(
            &RULE,
            [
                (card("ena", 4), Severity::Ok),
                (card("ena", 5), Severity::Warn),
                (card("virtio_net", 4), Severity::Ok),
                (card("virtio_net", 5), Severity::Warn),
                (card("ixgbe", 8), Severity::Ok),
            ],
        );
    }
}
