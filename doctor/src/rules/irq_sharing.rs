//! Two queues of a card that interrupt one processor.

use std::collections::BTreeMap;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// While another has none.
pub const RULE: Rule = Rule {
    number: 12,
    name: "irq-sharing",
    rule: "each queue of a card interrupts a processor of its own, as long as there are some",
    source: "kernel documentation, networking/scaling, RSS IRQ configuration",
    why: "Two queues on one processor are no faster than one.",
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
        let mut by_cpu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for irq in irqs.iter().filter(|irq| irq.cpus.len() == 1) {
            by_cpu.entry(irq.cpus[0]).or_default().push(irq.number);
        }
        let idle: Vec<&u32> = cpus.iter().filter(|cpu| !by_cpu.contains_key(cpu)).collect();
        let shared = by_cpu.iter().find(|(_, numbers)| numbers.len() > 1);
        // One RX and one TX interrupt of the same queue (virtio) belong together.
        let paired = irqs.iter().any(|irq| irq.name.contains("output"));
        let (Some((cpu, numbers)), false, false) = (shared, idle.is_empty(), paired) else {
            return Ok(Outcome::ok(name, format!("{} queues interrupt", irqs.len())));
        };
        let said = format!(
            "{} of its queues interrupt processor {cpu}, others interrupt none",
            numbers.len()
        );
        let mut outcome = Outcome::warn(name, said);
        for (number, cpu) in numbers.iter().skip(1).zip(idle) {
            outcome = facts.moved(outcome, *number, &cpu.to_string())?;
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
    fn two_on_one() {
        let on = |machine: Machine, irq: u32, cpu: &str| {
            let machine = machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), cpu);
            machine.put(&format!("/proc/irq/{irq}/smp_affinity_list"), cpu)
        };
        let shared = on(Machine::healthy(), 41, "0");
        assert_eq!(shared.fixes(&RULE), ["echo 1 > /proc/irq/41/smp_affinity_list"]);
        assert_eq!(shared.undos(&RULE), ["echo 0 > /proc/irq/41/smp_affinity_list"]);
        table(&RULE, [(shared, Severity::Warn)]);
    }
}
