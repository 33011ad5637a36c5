//! Which memory a card is near to.

use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// On machines with several sockets.
pub const RULE: Rule = Rule {
    number: 10,
    name: "numa-node",
    rule: "a card's NUMA node is known, and its interrupts come to processors of that node",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "Each access to memory of the other socket takes half as long again.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let nodes = facts.list("/sys/devices/system/node")?;
    let nodes = nodes.iter().filter(|name| name.starts_with("node")).count();
    let cards = facts.cards()?;
    if nodes == 0 {
        let why = "/sys/devices/system/node: not there: a kernel without NUMA, or not collected";
        return Err(Unknown(why.into()));
    }
    // With one node all memory is near.
    if nodes == 1 {
        return Ok(Vec::new());
    }
    Ok(each_interface(cards, |card| {
        let name = &card.link.name;
        let path = format!("/sys/class/net/{name}/device/numa_node");
        let node = facts.number(&path)?;
        if node < 0 {
            let seen = Outcome::info(name, "the firmware does not say which node it is near to");
            return Ok(seen
                .saw(path, node)
                .advice("look for a newer firmware; measure on both sockets"));
        }
        let list = facts.text(&format!("/sys/devices/system/node/node{node}/cpulist"))?;
        let near =
            crate::facts::cpu_list(list).ok_or_else(|| crate::facts::strange("cpulist", list))?;
        let irqs = facts.irqs(name)?;
        let far = irqs.iter().filter(|irq| irq.cpus.iter().all(|cpu| !near.contains(cpu)));
        let far: Vec<&crate::facts::Irq> = far.collect();
        if far.is_empty() {
            return Ok(Outcome::ok(name, format!("node {node}, and its interrupts, too")));
        }
        let mut outcome = Outcome::warn(
            name,
            format!("it is near node {node}, and {} interrupts are far", far.len()),
        );
        for irq in far {
            outcome = facts.moved(outcome, irq.number, list)?;
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
    fn two_sockets() {
        let two = Machine::healthy()
            .put("/sys/devices/system/node/node0/cpulist", "0-1")
            .put("/sys/devices/system/node/node1/cpulist", "2-3");
        assert_eq!(two.fixes(&RULE)[0], "echo 0-1 > /proc/irq/42/smp_affinity_list");
        assert_eq!(two.undos(&RULE)[0], "echo 2 > /proc/irq/42/smp_affinity_list");
        let unknown = two.clone().put("/sys/class/net/eth0/device/numa_node", "-1");
        table(&RULE, [(two, Severity::Warn), (unknown, Severity::Info)]);
    }
}
