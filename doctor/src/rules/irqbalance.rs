//! irqbalance beside interrupts that were pinned.

use crate::gather::Process;
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Rule};

/// It moves what somebody else has put in its place.
pub const RULE: Rule = Rule {
    number: 14,
    name: "irqbalance",
    rule: "irqbalance does not run where interrupts are pinned by hand",
    source: "kernel documentation, networking/scaling, RSS IRQ configuration",
    why: "Within ten seconds it moves interrupts to where it thinks best, onto polling cores, too.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
    let Some(found) = processes.iter().find(|one| one.name == "irqbalance") else {
        return Outcome::ok(MACHINE, "it does not run").into();
    };
    let banned = banned(found.arguments.as_deref().unwrap_or_default());
    let cpus = facts.cpus()?.len();
    let mut pinned = Vec::new();
    for card in facts.cards()? {
        // A card without lines of its own has none to pin.
        let irqs = facts.irqs(&card.link.name).unwrap_or_default();
        pinned.extend(irqs.into_iter().filter(|irq| irq.cpus.len() < cpus).map(|irq| irq.number));
    }
    pinned.retain(|irq| !banned.contains(irq));
    if pinned.is_empty() {
        return Outcome::ok(MACHINE, "it runs, and leaves interrupts that are pinned alone").into();
    }
    let list = |each: fn(&u32) -> String| pinned.iter().map(each).collect::<Vec<_>>().join(" ");
    let ban = list(|irq| format!("--banirq={irq}"));
    let systemctl = |what| Fix::command(["systemctl", what, "irqbalance"]);
    // It pins them itself, too, and nothing tells its hand from another's.
    Outcome::info(
        MACHINE,
        "irqbalance runs, and moves interrupts of cards that are pinned, unless it pinned them",
    )
    .saw("process irqbalance, pid", found.pid)
    .saw("interrupts of cards that may not come everywhere", list(u32::to_string))
    .fix(systemctl("stop"), systemctl("start"))
    .advice(format!(
        "or have it leave them alone: IRQBALANCE_ARGS=\"{ban}\" in /etc/default/irqbalance"
    ))
    .into()
}

/// `--banirq=40 --banirq 41 -i 42`
fn banned(arguments: &str) -> Vec<u32> {
    let mut words = arguments.split([' ', '=']);
    let mut banned = Vec::new();
    while let Some(word) = words.next() {
        if ["--banirq", "-i"].contains(&word) {
            banned.extend(words.next().and_then(|irq| irq.parse::<u32>().ok()));
        }
    }
    banned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn while_it_runs() {
        let runs = |arguments: &str| {
            let process = Process {
                pid: 7,
                name: "irqbalance".into(),
                files: Some(1),
                limit: None,
                cpus: None,
                arguments: Some(arguments.into()),
            };
            Machine::healthy().json(crate::gather::PROCESSES, [process])
        };
        let free = (40..44).fold(runs("irqbalance"), |machine, irq| {
            machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0-3")
        });
        let banned = "irqbalance --banirq=40 --banirq=41 -i 42 --banirq 43";
        let rows = [
            (runs("irqbalance"), Severity::Info),
            (runs("irqbalance --banirq=40"), Severity::Info),
            (runs(banned), Severity::Ok),
            (free, Severity::Ok),
        ];
        table(&RULE, rows);
    }
}
