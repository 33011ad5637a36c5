//! A queue whose processor is worn out, while there could be more queues.

use crate::facts::Irq;
use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// The smallest number of queues that does not overflow is the best.
pub const RULE: Rule = Rule {
    number: 11,
    name: "queue-count",
    rule: "no queue's processor spends 90 % in softirqs while the card has queues to spare",
    source: "kernel documentation, networking/scaling, RSS",
    why: "One processor cannot do more; another queue brings another processor.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let busy = facts.busy()?;
    let cpus = facts.cpus()?.len() as u32;
    let worn: Vec<u32> = busy.iter().filter(|one| one.softirq > 90.0).map(|one| one.cpu).collect();
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let Some(channels) = card.channels else {
            return Ok(Outcome::ok(name, "it has one queue, as far as its driver tells"));
        };
        let irqs = facts.irqs(name)?;
        let on_worn = |irq: &&Irq| irq.delta > 0 && irq.cpus.iter().any(|cpu| worn.contains(cpu));
        let queues: Vec<&Irq> = irqs.iter().filter(on_worn).collect();
        let most = channels.max_rx.min(cpus);
        if queues.is_empty() || channels.rx >= most {
            return Ok(Outcome::ok(name, format!("{} of {} queues", channels.rx, channels.max_rx)));
        }
        let wanted = channels.rx.saturating_mul(2).min(most);
        let said = format!(
            "{} of its {} queues have worn out their processors",
            queues.len(),
            channels.rx
        );
        Ok(Outcome::warn(name, said)
            .saw("/proc/stat, softirq above 90 % on processors", format!("{worn:?}"))
            .saw(
                format!("ethtool -l {name}, in use of"),
                format!("{} of {}", channels.rx, channels.max_rx),
            )
            .ethtool("-L", name, format!("combined {wanted}"), format!("combined {}", channels.rx)))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn with_queues_to_spare() {
        let stat = "cpu0 0 0 0 100 0 0 1000 0\ncpu1 0 0 0 900 0 0 0 0\ncpu2 0 0 0 9 0 0 0 0\ncpu3 0 0 0 9 0 0 0 0";
        let zero = "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\ncpu3 0 0 0 0 0 0 0 0";
        let worn = Machine::healthy().put("/proc/stat", zero).then("/proc/stat", stat);
        let few = worn.clone().network(|network| {
            let channels = network.interfaces[1].channels.as_mut().unwrap();
            (channels.rx, channels.tx) = (1, 1);
        });
        assert_eq!(few.fixes(&RULE), ["ethtool -L eth0 combined 2"]);
        // Four processors have four queues already.
        table(&RULE, [(worn, Severity::Ok), (few, Severity::Warn)]);
    }
}
