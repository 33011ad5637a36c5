//! Links that come and go, and queues that hang.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use crate::{Check, Facts, Looked, Outcome, Unknown, each};

/// While nobody changed anything.
pub const CHECK: Check = Check {
    number: 9,
    name: "link-flaps",
    rule: "carrier_changes and tx_timeout do not grow",
    source: "Linux, Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-queues",
    why: "While the link is away, or a queue hangs until the driver resets it, nothing passes.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let mut found =
        each(
            interfaces,
            |one| one.link.name.clone(),
            |one| {
                let name = &one.link.name;
                let directory = format!("/sys/class/net/{name}");
                let changes = facts.counted(&format!("{directory}/carrier_changes"))?;
                let queues = facts.tx_queues(name)?;
                let timeout = |queue: &String| {
                    Ok::<u64, Unknown>(
                        facts.counted(&format!("{directory}/queues/{queue}/tx_timeout"))?.delta,
                    )
                };
                let timeouts = queues.iter().map(timeout).sum::<Result<u64, Unknown>>()?;
                if changes.delta + timeouts == 0 {
                    return Ok(Outcome::ok(name, "steady"));
                }
                let said = format!(
                    "its carrier changed {} times, and queues hung {timeouts} times",
                    changes.delta
                );
                Ok(Outcome::warn(name, said)
            .counted(format!("{directory}/carrier_changes"), changes.delta)
            .saw(format!("{directory}/queues/tx-*/tx_timeout"), timeouts)
            .advice("cable, transceiver, the switch's port; then the card's firmware and driver"))
            },
        );
    found.extend(gone(facts)?);
    Ok(found)
}

/// Interfaces that were there at the first look alone: of these no other rule says anything.
fn gone(facts: &Facts) -> Result<Vec<Outcome>, Unknown> {
    type Named = BTreeMap<String, IgnoredAny>;
    let (before, after) = facts.pair::<Named>("/netlink/stats.json")?;
    let gone = before.into_keys().filter(|name| !after.contains_key(name));
    Ok(gone.map(|name| Outcome::info(name, "it went away while it was looked at")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn carriers_and_queues() {
        let then = |key: &str, text: &str| {
            Machine::healthy().then(&format!("/sys/class/net/eth0/{key}"), text)
        };
        let elsewhere = Machine::healthy().miss("/sys/class/net", "of another namespace");
        let gone = Machine::healthy().then("/netlink/stats.json", "{}");
        assert!(gone.outcomes(&CHECK).iter().any(|one| one.found.contains("went away")));
        let rows = [
            (then("carrier_changes", "4"), State::Warn),
            (then("queues/tx-1/tx_timeout", "1"), State::Warn),
            (elsewhere, State::Unknown),
        ];
        table(&CHECK, rows);
    }
}
