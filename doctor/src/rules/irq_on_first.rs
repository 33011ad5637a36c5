//! All queues of a card on processor 0.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// Where everything else is, too.
pub const RULE: Rule = Rule {
    number: 13,
    name: "irq-on-first",
    rule: "a card's queues do not all interrupt processor 0",
    source: "a practice of many guides; kernel documentation, core-api/irq/irq-affinity",
    why: "Processor 0 gets timers and devices as well; the others wait.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?;
    facts.texts("/proc/interrupts")?;
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let irqs = facts.irqs(name)?;
        if cpus.len() < 2 || irqs.iter().any(|irq| irq.cpus != [0]) {
            return Ok(Outcome::ok(name, format!("{} queues interrupt", irqs.len())));
        }
        let mut outcome =
            Outcome::warn(name, format!("all {} queues interrupt processor 0", irqs.len()));
        for (irq, cpu) in irqs.iter().zip(cpus.iter().cycle().skip(1)) {
            outcome = facts.moved(outcome, irq.number, &cpu.to_string())?;
        }
        Ok(outcome)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn all_four() {
        let first = (40..44).fold(Machine::healthy(), |machine, irq| {
            let machine = machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0");
            machine.put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-3")
        });
        assert_eq!(first.fixes(&RULE)[0], "echo 1 > /proc/irq/40/smp_affinity_list");
        assert_eq!(first.undos(&RULE)[0], "echo 0-3 > /proc/irq/40/smp_affinity_list");
        table(&RULE, [(first, Severity::Warn)]);
    }
}
