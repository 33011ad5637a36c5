//! Processors that poll and nothing else.

use crate::check::MACHINE;
use crate::facts::cpu_list;
use crate::{Check, Facts, Looked, Outcome, Profile, Unknown};

/// A polling core never waits, so whatever else runs there takes from it.
pub const CHECK: Check = Check {
    number: 68,
    name: "isolated-cores",
    rule: "polling cores are isolated, and no interrupt comes to them",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "A program or an interrupt that takes a polling core for a millisecond makes a queue overflow.",
    profiles: &[Profile::Bypass],
    look,
};

fn look(facts: &Facts) -> Looked {
    let path = "/sys/devices/system/cpu/isolated";
    let text = facts.text(path)?;
    let isolated = cpu_list(text).ok_or_else(|| Unknown(format!("{path} holds {text:?}")))?;
    if isolated.is_empty() {
        return Outcome::info(MACHINE, "no processor is isolated")
            .saw(path, "empty")
            .advice("isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST on the kernel's command line")
            .into();
    }
    let mut outcome =
        Outcome::warn(MACHINE, "interrupts of cards come to isolated processors").saw(path, text);
    for card in facts.cards()? {
        for irq in facts.irqs(&card.link.name)? {
            if irq.cpus.iter().any(|cpu| isolated.contains(cpu)) {
                let others: Vec<String> = facts
                    .cpus()?
                    .iter()
                    .filter(|cpu| !isolated.contains(cpu))
                    .map(u32::to_string)
                    .collect();
                outcome = facts.moved(outcome, irq.number, &others.join(","))?;
            }
        }
    }
    if outcome.changes.is_empty() {
        return Outcome::ok(MACHINE, format!("{text}, and no interrupt of a card comes there"))
            .into();
    }
    outcome.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::Machine;

    #[test]
    fn none_and_disturbed() {
        let path = "/sys/devices/system/cpu/isolated";
        let disturbed = Machine::healthy().put(path, "2-3");
        assert_eq!(disturbed.fixes(&CHECK)[0], "echo 0,1 > /proc/irq/42/smp_affinity_list");
        assert_eq!(disturbed.worst(&CHECK), State::Warn);
        assert_eq!(Machine::healthy().put(path, "").worst(&CHECK), State::Info);
        assert_eq!(Machine::healthy().put(path, "7").worst(&CHECK), State::Ok);
        assert_eq!(Machine::unknown().worst(&CHECK), State::Unknown);
    }
}
