//! How long a card waits before it interrupts.

use ringway_host::ethtool::Coalescing;

use crate::{Facts, Looked, Outcome, Profile, Rule, each_interface};

/// Waiting gathers packets; it also delays them.
pub const RULE: Rule = Rule {
    number: 27,
    name: "coalescing",
    rule: "a card that interrupts more than 20 000 times a second waits 30 us; under the profile latency it does not wait",
    source: "kernel documentation, networking/scaling: interrupt coalescing; heuristic of Ringway for the rate",
    why: "Each interrupt costs a microsecond or two; each microsecond of waiting is one of delay.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let coalescing: Coalescing = facts.ethtool(name, "coalescing")?;
        let rate = facts.irqs(name)?.iter().map(|irq| irq.delta).sum::<u64>() as f64
            / facts.seconds.max(0.001);
        let latency = facts.profile == Some(Profile::Latency);
        let Coalescing { rx_usecs, adaptive_rx, .. } = coalescing;
        let outcome = match latency {
            true if rx_usecs > 3 || adaptive_rx => {
                Outcome::info(name, format!("it waits up to {rx_usecs} us"))
            }
            false if rx_usecs <= 3 && !adaptive_rx && rate > 20_000.0 => {
                Outcome::warn(name, format!("it interrupts {rate:.0} times a second"))
            }
            _ => {
                return Ok(Outcome::ok(
                    name,
                    format!("it waits {rx_usecs} us, {rate:.0} interrupts a second"),
                ));
            }
        };
        let adaptive = if adaptive_rx { "on" } else { "off" };
        let wanted = if latency { 0 } else { 30 };
        Ok(outcome
            .saw(format!("ethtool -c {name}, rx-usecs"), rx_usecs)
            .saw(format!("ethtool -c {name}, adaptive-rx"), adaptive)
            .ethtool(
                "-C",
                name,
                format!("adaptive-rx off rx-usecs {wanted}"),
                format!("adaptive-rx {adaptive} rx-usecs {rx_usecs}"),
            ))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn many_interrupts_or_long_waits() {
        let machine = |rx_usecs, count: u32| {
            let line = |count: u32| {
                format!("  CPU0\n 40: {count} PCI-MSIX-0000:01:00.0 0-edge eth0-TxRx-0")
            };
            let coalescing = Coalescing { rx_usecs, rx_frames: 0, adaptive_rx: false };
            Machine::healthy()
                .json("/ethtool/eth0/coalescing.json", coalescing)
                .put("/proc/interrupts", &line(0))
                .then("/proc/interrupts", &line(count))
        };
        assert_eq!(machine(1, 90_000).undos(&RULE), ["ethtool -C eth0 adaptive-rx off rx-usecs 1"]);
        let slow = machine(30, 10).profile(Profile::Latency);
        assert_eq!(slow.fixes(&RULE), ["ethtool -C eth0 adaptive-rx off rx-usecs 0"]);
        table(
            &RULE,
            [
                (machine(1, 90_000), Severity::Warn),
                (machine(1, 1000), Severity::Ok),
                (machine(30, 90_000), Severity::Ok),
                (slow, Severity::Info),
            ],
        );
    }
}
