//! Interrupts of cards: where they come, and how often.

use std::collections::BTreeMap;

use ringway_host::ethtool::Coalescing;

use crate::gather::Process;
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Unknown, each_interface};

pub const NUMA_NODE: Rule = Rule {
    number: 10,
    name: "numa-node",
    rule: "a card's NUMA node is known, and its interrupts come to processors of that node",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "Each access to memory of the other socket takes half as long again.",
    profiles: &[],
    check: numa_node,
};

fn numa_node(facts: &Facts) -> Looked {
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
    Ok(each_interface(cards, |_, name| {
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

pub const IRQ_SHARING: Rule = Rule {
    number: 12,
    name: "irq-sharing",
    rule: "each queue of a card interrupts a processor of its own, as long as there are some",
    source: "kernel documentation, networking/scaling, RSS IRQ configuration",
    why: "Two queues on one processor are no faster than one.",
    profiles: &[],
    check: irq_sharing,
};

fn irq_sharing(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?;
    facts.texts("/proc/interrupts")?;
    Ok(each_interface(cards, |_, name| {
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

pub const IRQ_ON_FIRST: Rule = Rule {
    number: 13,
    name: "irq-on-first",
    rule: "a card's queues do not all interrupt processor 0",
    source: "a practice of many guides; kernel documentation, core-api/irq/irq-affinity",
    why: "Processor 0 gets timers and devices as well; the others wait.",
    profiles: &[],
    check: irq_on_first,
};

fn irq_on_first(facts: &Facts) -> Looked {
    let cards = facts.cards()?;
    let cpus = facts.cpus()?;
    facts.texts("/proc/interrupts")?;
    Ok(each_interface(cards, |_, name| {
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

pub const IRQBALANCE: Rule = Rule {
    number: 14,
    name: "irqbalance",
    rule: "irqbalance does not run where interrupts are pinned by hand",
    source: "kernel documentation, networking/scaling, RSS IRQ configuration",
    why: "Within ten seconds it moves interrupts to where it thinks best, onto polling cores, too.",
    profiles: &[],
    check: irqbalance,
};

fn irqbalance(facts: &Facts) -> Looked {
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

pub const THREADED_NAPI: Rule = Rule {
    number: 22,
    name: "threaded-napi",
    rule: "threads of threaded NAPI are pinned",
    source: "kernel documentation, networking/napi, threaded NAPI",
    why: "A thread that wanders takes its cache with it each time, and meets programs on their processors.",
    profiles: &[],
    check: threaded_napi,
};

fn threaded_napi(facts: &Facts) -> Looked {
    Ok(each_interface(facts.interfaces()?, |_, name| {
        let path = format!("/sys/class/net/{name}/threaded");
        if facts.number(&path)? == 0 {
            return Ok(Outcome::ok(name, "polled in softirqs"));
        }
        let processes: Vec<Process> = facts.json(crate::gather::PROCESSES)?;
        let cpus = facts.cpus()?;
        // Names of threads are cut off after 15 bytes.
        let start: String = format!("napi/{name}-").chars().take(15).collect();
        let free = processes.iter().filter(|one| one.name.starts_with(&start)).filter(|one| {
            one.cpus.as_deref().and_then(crate::facts::cpu_list).is_some_and(|list| list.len() > 1)
        });
        let free: Vec<&Process> = free.collect();
        if free.is_empty() {
            return Ok(Outcome::ok(name, "its threads are pinned"));
        }
        let mut outcome =
            Outcome::info(name, format!("{} of its NAPI threads may run anywhere", free.len()))
                .saw(path, 1);
        for (process, cpu) in free.iter().zip(cpus.iter().cycle()) {
            let now = process.cpus.as_deref().unwrap_or_default();
            let pid = process.pid.to_string();
            let pin = |list: &str| Fix::command(["taskset", "-pc", list, &pid]);
            outcome = outcome
                .saw(
                    format!("/proc/{}/status, Cpus_allowed_list of {}", process.pid, process.name),
                    now,
                )
                .fix(pin(&cpu.to_string()), pin(now));
        }
        Ok(outcome)
    }))
}

pub const COALESCING: Rule = Rule {
    number: 27,
    name: "coalescing",
    rule: "a card that interrupts more than 20 000 times a second waits 30 us; under the profile latency it does not wait",
    source: "kernel documentation, networking/scaling: interrupt coalescing; heuristic of Ringway for the rate",
    why: "Each interrupt costs a microsecond or two; each microsecond of waiting is one of delay.",
    profiles: &[],
    check: coalescing,
};

fn coalescing(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |_, name| {
        let coalescing: Coalescing = facts.ethtool(name, "coalescing")?;
        let rate = facts.irqs(name)?.iter().map(|irq| irq.delta).sum::<u64>() as f64
            / facts.seconds.max(0.001);
        let latency = facts.profile == Some(Profile::Latency);
        let Coalescing { rx_usecs, adaptive_rx, .. } = coalescing;
        let outcome = match latency {
            true if rx_usecs > 3 || adaptive_rx => {
                Outcome::info(name, format!("it waits up to {rx_usecs} us"))
            }
            false if rx_usecs <= 3 && !adaptive_rx && rate > 20_000.0 => {
                Outcome::warn(name, format!("it interrupts {rate:.0} times a second"))
            }
            _ => {
                return Ok(Outcome::ok(
                    name,
                    format!("it waits {rx_usecs} us, {rate:.0} interrupts a second"),
                ));
            }
        };
        let adaptive = if adaptive_rx { "on" } else { "off" };
        let wanted = if latency { 0 } else { 30 };
        Ok(outcome
            .saw(format!("ethtool -c {name}, rx-usecs"), rx_usecs)
            .saw(format!("ethtool -c {name}, adaptive-rx"), adaptive)
            .ethtool(
                "-C",
                name,
                format!("adaptive-rx off rx-usecs {wanted}"),
                format!("adaptive-rx {adaptive} rx-usecs {rx_usecs}"),
            ))
    }))
}

pub const NAPI_DEFER: Rule = Rule {
    number: 28,
    name: "napi-defer",
    rule: "gro_flush_timeout and napi_defer_hard_irqs are set both, or none",
    source: "kernel documentation, networking/napi, software IRQ coalescing",
    why: "With one alone interrupts come as before, or packets wait for nothing.",
    profiles: &[],
    check: napi_defer,
};

fn napi_defer(facts: &Facts) -> Looked {
    Ok(each_interface(facts.interfaces()?, |_, name| {
        let flush = format!("/sys/class/net/{name}/gro_flush_timeout");
        let defer = format!("/sys/class/net/{name}/napi_defer_hard_irqs");
        let (timeout, count) = (facts.number(&flush)?, facts.number(&defer)?);
        let outcome = Outcome::warn(name, "one of two settings that only work together is set")
            .saw(&flush, timeout)
            .saw(&defer, count);
        match (timeout, count) {
            (0, 1..) => Ok(outcome.fix(Fix::write(&flush, 20_000), Fix::write(&flush, 0))),
            (1.., 0) => Ok(outcome.fix(Fix::write(&defer, 2), Fix::write(&defer, 0))),
            _ => Ok(Outcome::ok(name, format!("{timeout} ns, {count} times"))),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Info, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn two_sockets() {
        let two = healthy()
            .put("/sys/devices/system/node/node0/cpulist", "0-1")
            .put("/sys/devices/system/node/node1/cpulist", "2-3");
        assert_eq!(two.fixes(&NUMA_NODE)[0], "echo 0-1 > /proc/irq/42/smp_affinity_list");
        assert_eq!(two.undos(&NUMA_NODE)[0], "echo 2 > /proc/irq/42/smp_affinity_list");
        let unknown = two.clone().put("/sys/class/net/eth0/device/numa_node", "-1");
        table(&NUMA_NODE, [(two, Warn), (unknown, Info)]);
    }

    #[test]
    fn two_on_one() {
        let on = |machine: Machine, irq: u32, cpu: &str| {
            let machine = machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), cpu);
            machine.put(&format!("/proc/irq/{irq}/smp_affinity_list"), cpu)
        };
        let shared = on(healthy(), 41, "0");
        assert_eq!(shared.fixes(&IRQ_SHARING), ["echo 1 > /proc/irq/41/smp_affinity_list"]);
        assert_eq!(shared.undos(&IRQ_SHARING), ["echo 0 > /proc/irq/41/smp_affinity_list"]);
        table(&IRQ_SHARING, [(shared, Warn)]);
    }

    #[test]
    fn all_four() {
        let first = (40..44).fold(healthy(), |machine, irq| {
            let machine = machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0");
            machine.put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-3")
        });
        assert_eq!(first.fixes(&IRQ_ON_FIRST)[0], "echo 1 > /proc/irq/40/smp_affinity_list");
        assert_eq!(first.undos(&IRQ_ON_FIRST)[0], "echo 0-3 > /proc/irq/40/smp_affinity_list");
        table(&IRQ_ON_FIRST, [(first, Warn)]);
    }

    #[test]
    fn while_it_runs() {
        let runs = |arguments: &str| {
            let set = |one: &mut Process| one.arguments = Some(arguments.into());
            healthy().process("irqbalance", set)
        };
        let free = (40..44).fold(runs("irqbalance"), |machine, irq| {
            machine.put(&format!("/proc/irq/{irq}/effective_affinity_list"), "0-3")
        });
        let banned = "irqbalance --banirq=40 --banirq=41 -i 42 --banirq 43";
        let rows = [
            (runs("irqbalance"), Info),
            (runs("irqbalance --banirq=40"), Info),
            (runs(banned), Severity::Ok),
            (free, Severity::Ok),
        ];
        table(&IRQBALANCE, rows);
    }

    #[test]
    fn threads_that_wander() {
        let thread = |cpus: &str| {
            let machine = healthy().put("/sys/class/net/eth0/threaded", "1");
            machine.process("napi/eth0-8193", |one| one.cpus = Some(cpus.into()))
        };
        assert_eq!(thread("0-3").undos(&THREADED_NAPI), ["taskset -pc 0-3 9"]);
        table(&THREADED_NAPI, [(thread("0-3"), Info), (thread("2"), Severity::Ok)]);
    }

    #[test]
    fn many_interrupts_or_long_waits() {
        let machine = |rx_usecs, count: u32| {
            let line = |count: u32| {
                format!("  CPU0\n 40: {count} PCI-MSIX-0000:01:00.0 0-edge eth0-TxRx-0")
            };
            let coalescing = Coalescing { rx_usecs, rx_frames: 0, adaptive_rx: false };
            healthy()
                .json("/ethtool/eth0/coalescing.json", coalescing)
                .put("/proc/interrupts", &line(0))
                .then("/proc/interrupts", &line(count))
        };
        let wanted = ["ethtool -C eth0 adaptive-rx off rx-usecs 1"];
        assert_eq!(machine(1, 90_000).undos(&COALESCING), wanted);
        let slow = machine(30, 10).profile(Profile::Latency);
        assert_eq!(slow.fixes(&COALESCING), ["ethtool -C eth0 adaptive-rx off rx-usecs 0"]);
        let rows = [
            (machine(1, 90_000), Warn),
            (machine(1, 1000), Severity::Ok),
            (machine(30, 90_000), Severity::Ok),
            (slow, Info),
        ];
        table(&COALESCING, rows);
    }

    #[test]
    fn one_of_two() {
        let flush = "/sys/class/net/veth0/gro_flush_timeout";
        let defer = "/sys/class/net/veth0/napi_defer_hard_irqs";
        let one = healthy().put(flush, "20000").put(defer, "0");
        assert_eq!(one.fixes(&NAPI_DEFER), [format!("echo 2 > {defer}")]);
        let both = one.clone().put(defer, "2");
        table(&NAPI_DEFER, [(one, Warn), (both, Severity::Ok)]);
    }
}
