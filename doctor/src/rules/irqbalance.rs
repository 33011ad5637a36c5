//! irqbalance beside interrupts that were pinned.

use crate::check::MACHINE;
use crate::gather::Process;
use crate::{Check, Facts, Looked, Outcome, Profile};

/// It moves what somebody else has put in its place.
pub const CHECK: Check = Check {
    number: 14,
    name: "irqbalance",
    rule: "irqbalance does not run where interrupts are pinned by hand",
    source: "kernel documentation, networking/scaling, RSS IRQ configuration",
    why: "Within ten seconds it moves interrupts to where it thinks best, onto polling cores, too.",
    profiles: &[Profile::Latency, Profile::Bypass],
    look,
};

fn look(facts: &Facts) -> Looked {
    let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
    let Some(found) = processes.iter().find(|one| one.name == "irqbalance") else {
        return Outcome::ok(MACHINE, "it does not run").into();
    };
    Outcome::info(MACHINE, "irqbalance runs, and moves interrupts")
        .saw("process irqbalance, pid", found.pid)
        .fix("systemctl stop irqbalance", "systemctl start irqbalance")
        .advice(
            "or have it leave some alone: IRQBALANCE_ARGS=--banirq=N in /etc/default/irqbalance",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn while_it_runs() {
        let process =
            Process { pid: 7, name: "irqbalance".into(), files: Some(1), limit: None, cpus: None };
        let runs = Machine::healthy().json(crate::gather::PROCESSES, [process]);
        table(&CHECK, [(runs, State::Info)]);
    }
}
