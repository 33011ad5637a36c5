//! Cards with fewer queues than processors, that spread nothing in software.

use super::rps::{self, Queue};
use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// RPS hands packets of one queue to several processors.
pub const RULE: Rule = Rule {
    number: 17,
    name: "rps-missing",
    rule: "a card with fewer queues than processors has rps_cpus set, if its processors are worn out",
    source: "kernel documentation, networking/scaling, RPS: suggested configuration",
    why: "Processors without a queue get no packet, while those with one do all the work.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?;
    let worn = facts.busy()?.iter().any(|one| one.softirq > 90.0);
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let queues = rps::queues(facts, name)?;
        let spread = queues.iter().any(Queue::is_on);
        if spread || !worn || queues.len() >= cpus.len() {
            return Ok(Outcome::ok(
                name,
                format!("{} queues, {} processors", queues.len(), cpus.len()),
            ));
        }
        let seen =
            Outcome::warn(name, format!("{} queues feed {} processors", queues.len(), cpus.len()));
        // Not those that the interrupts come to: they have enough to do.
        let taken: Vec<u32> = facts.irqs(name)?.iter().flat_map(|irq| irq.cpus.clone()).collect();
        let free: Vec<u32> = cpus.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
        let mask = rps::mask(if free.is_empty() { &cpus } else { &free });
        let change = |outcome: Outcome, queue: &Queue| {
            outcome.saw(&queue.path, &queue.mask).write(&queue.path, &mask, &queue.mask)
        };
        Ok(queues.iter().fold(seen, change))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_queue_for_four() {
        let stat = "cpu0 0 0 0 10 0 0 1000 0\ncpu1 0 0 0 1000 0 0 0 0";
        let one = (1..4).fold(Machine::healthy(), |machine, queue| {
            machine.remove(&format!("/sys/class/net/eth0/queues/rx-{queue}"))
        });
        let worn = one.clone().put("/proc/stat", "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0");
        let worn = worn.then("/proc/stat", stat);
        // All four have interrupts, so all four share.
        assert_eq!(worn.fixes(&RULE), ["echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus"]);
        table(&RULE, [(one, Severity::Ok), (worn, Severity::Warn)]);
    }
}
