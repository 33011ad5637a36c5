//! Links that come and go, and queues that hang.

use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// While nobody changed anything.
pub const RULE: Rule = Rule {
    number: 9,
    name: "link-flaps",
    rule: "carrier_changes and tx_timeout do not grow",
    source: "Linux, Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-queues",
    why: "While the link is away, or a queue hangs until the driver resets it, nothing passes.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let mut found = each_interface(interfaces, |one| {
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
    });
    let gone = |name: String| {
        Outcome::info(&name, format!("{name} went away while it was looked at, or was renamed"))
            .saw("ip -s link show, of the first look alone", &name)
    };
    match facts.gone() {
        Ok(names) => found.extend(names.into_iter().map(gone)),
        Err(why) => found.push(Outcome::unknown("interfaces that went away", why)),
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn carriers_and_queues() {
        let then = |key: &str, text: &str| {
            Machine::healthy().then(&format!("/sys/class/net/eth0/{key}"), text)
        };
        let vanished = Machine::healthy().both_stats("eth7", "eth0");
        let said = vanished.outcomes(&RULE).pop().unwrap();
        assert!(said.subject == "eth7" && said.found.starts_with("eth7 went away"), "{said:?}");
        let elsewhere = Machine::healthy().miss("/sys/class/net", "of another namespace");
        let rows = [
            (then("carrier_changes", "4"), Severity::Warn),
            (then("queues/tx-1/tx_timeout", "1"), Severity::Warn),
            (vanished, Severity::Info),
            (elsewhere, Severity::Unknown),
        ];
        table(&RULE, rows);
    }
}
