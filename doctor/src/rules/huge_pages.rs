//! Huge pages for programs that bypass the kernel.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Unknown};

/// DPDK and large UMEMs want them.
pub const RULE: Rule = Rule {
    number: 61,
    name: "huge-pages",
    rule: "huge pages are free on every node that has a card",
    source: "DPDK, Getting Started Guide for Linux: use of hugepages",
    why: "Without them DPDK does not start; on the wrong node each access is to far memory.",
    profiles: &[Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
    let mut nodes = Vec::new();
    for card in facts.cards()? {
        let path = format!("/sys/class/net/{}/device/numa_node", card.link.name);
        // Virtual devices have none; -1 is nobody's. Where there is one node it is that.
        let node = match facts.number(&path) {
            Err(_) if facts.list("/sys/devices/system/node")?.len() < 2 => 0,
            found => found?.max(0),
        };
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes.iter().map(|node| of_node(facts, *node)).collect()
}

fn of_node(facts: &Facts, node: i64) -> Result<Outcome, Unknown> {
    let mut directory = format!("/sys/devices/system/node/node{node}/hugepages");
    if facts.list(&directory)?.is_empty() {
        directory = "/sys/kernel/mm/hugepages".into();
    }
    let pools = facts.list(&directory)?;
    if pools.is_empty() {
        return Err(Unknown(format!("{directory}: this kernel has no huge pages")));
    }
    let mut free = 0;
    for pool in &pools {
        free += facts.number(&format!("{directory}/{pool}/free_hugepages"))?;
    }
    if free > 0 {
        return Ok(Outcome::ok(MACHINE, format!("{free} huge pages are free on node {node}")));
    }
    let path = format!("{directory}/hugepages-2048kB/nr_hugepages");
    let now = facts.number(&path)?;
    // One GiB is what most examples of DPDK ask for.
    Ok(Outcome::warn(MACHINE, format!("no huge page is free on node {node}"))
        .saw(&path, now)
        .write(&path, now + 512, now)
        .advice("for good, and for pages of 1 GiB: hugepagesz=1G hugepages=N on the kernel's command line"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn none_free_on_the_cards_node() {
        let path = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        let none = Machine::healthy().put(&format!("{path}/free_hugepages"), "0");
        assert_eq!(none.fixes(&RULE), [format!("echo 1024 > {path}/nr_hugepages")]);
        table(&RULE, [(none, Severity::Warn)]);
    }
}
