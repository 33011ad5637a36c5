//! Devices, memory and processors of programs that bypass the kernel.

use std::net::IpAddr;

use ringway_host::Interface;

use super::sysctls::{Bound, Value, of_rule, rows};
use crate::facts::cpu_list;
use crate::gather::{POLLERS, PROCESSES, Process, SESSION};
use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Severity, Unknown, each, each_interface};

pub const HUGE_PAGES: Rule = Rule {
    number: 61,
    name: "huge-pages",
    rule: "huge pages are free on every node that has a card",
    source: "DPDK, Getting Started Guide for Linux: use of hugepages",
    why: "Without them DPDK does not start; on the wrong node each access is to far memory.",
    profiles: &[Profile::Bypass],
    check: huge_pages,
};

fn huge_pages(facts: &Facts) -> Looked {
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
        .write(&path, now + 512, now)
        .advice("for good, and for pages of 1 GiB: hugepagesz=1G hugepages=N on the kernel's command line"))
}

pub const IOMMU: Rule = Rule {
    number: 62,
    name: "iommu",
    rule: "there are IOMMU groups",
    source: "DPDK, Getting Started Guide for Linux: Linux drivers; kernel documentation, driver-api/vfio",
    why: "Without an IOMMU a device that a program drives can write to any memory of the machine.",
    profiles: &[Profile::Bypass],
    check: iommu,
};

fn iommu(facts: &Facts) -> Looked {
    let cmdline = facts.text("/proc/cmdline")?;
    let groups = facts.list("/sys/kernel/iommu_groups")?;
    if !groups.is_empty() {
        return Outcome::ok(MACHINE, format!("{} groups", groups.len())).into();
    }
    Outcome::warn(MACHINE, "there are no IOMMU groups: vfio-pci cannot be used safely")
        .saw("/sys/kernel/iommu_groups", "empty")
        .saw("/proc/cmdline", cmdline)
        .advice("turn it on in the firmware (VT-d, AMD-Vi), write intel_iommu=on iommu=pt on the kernel's command line")
        .into()
}

pub const IOMMU_SHARING: Rule = Rule {
    number: 63,
    name: "iommu-sharing",
    rule: "a group with a device on vfio-pci has no device on a driver of the kernel",
    source: "kernel documentation, driver-api/vfio: groups; DPDK, Getting Started Guide for Linux",
    why: "vfio refuses the group while the kernel drives one of its devices.",
    profiles: &[Profile::Bypass],
    check: iommu_sharing,
};

fn iommu_sharing(facts: &Facts) -> Looked {
    // On a machine of which nothing is known there is nothing to be seen either.
    facts.text("/proc/cmdline")?;
    let mut found = Vec::new();
    for group in facts.list("/sys/kernel/iommu_groups")? {
        let directory = format!("/sys/kernel/iommu_groups/{group}/devices");
        let mut drivers = Vec::new();
        for device in facts.list(&directory)? {
            let driver = facts.text(&format!("{directory}/{device}"))?;
            drivers.push((device, driver));
        }
        // Bridges may stay with pcieport.
        let kernel = |driver: &str| !matches!(driver, "" | "vfio-pci" | "pcieport" | "pci-stub");
        let vfio = drivers.iter().any(|(_, driver)| *driver == "vfio-pci");
        let mut bound = drivers.iter().filter(|(_, driver)| kernel(driver)).peekable();
        if !vfio || bound.peek().is_none() {
            continue;
        }
        let mut outcome = Outcome::warn(
            format!("group {group}"),
            "some of its devices are the kernel's, some are vfio's",
        );
        let mut unbind = Vec::new();
        for (device, driver) in bound {
            let path = format!("/sys/bus/pci/devices/{device}/driver");
            unbind.push(Fix::write(format!("{path}/unbind"), device));
            outcome = outcome.saw(path, driver);
        }
        let words = "if none of the group is needed, unbind all:";
        found.push(outcome.advice(Fix::Sequence(unbind).after(words)));
    }
    Ok(found)
}

pub const NOIOMMU: Rule = Rule {
    number: 66,
    name: "noiommu",
    rule: "vfio's enable_unsafe_noiommu_mode is off",
    source: "kernel, drivers/vfio/Kconfig: VFIO_NOIOMMU; DPDK, Getting Started Guide for Linux",
    why: "A program that drives a device can write to any memory of the machine; the kernel is tainted.",
    profiles: &[Profile::Bypass],
    check: |facts| {
        let texts = ["off", "devices can be given away without an IOMMU"];
        let bound = (UNSAFE_NOIOMMU, Bound::Not("Y"), Severity::Warn);
        rows(facts, &[of_rule(bound, texts, Value::Word("N"))])
    },
};

const UNSAFE_NOIOMMU: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

pub const WAY_IN: Rule = Rule {
    number: 64,
    name: "way-in",
    rule: "an interface by which a route or this session comes is not given to a program that bypasses the kernel",
    source: "heuristic of Ringway, which refuses it, too",
    why: "After that nobody reaches the machine any more, and nobody can take it back.",
    profiles: &[Profile::Bypass],
    check: way_in,
};

fn way_in(facts: &Facts) -> Looked {
    let session: Result<Option<IpAddr>, Unknown> = facts.json(SESSION);
    let (network, cards) = (facts.network()?, facts.cards()?);
    // With another card beside it there is one to give away.
    let spare = cards.len() > 1;
    let one = |card: &Interface, name: &str| {
        let of = |address: &IpAddr| {
            network.addresses_of(card.link.ifindex).any(|own| own.address == *address)
        };
        if session.clone()?.is_some_and(|address| of(&address)) {
            return Ok(Outcome::info(name, "this session comes by it: leave it to the kernel")
                .saw("SSH_CONNECTION, the server's address is of", name)
                .advice("give away another card, or manage the machine by its console"));
        }
        let route = network.routes.iter().find(|route| {
            route.ifindex == Some(card.link.ifindex)
                && (route.gateway.is_some() || route.prefix == 0)
        });
        let Some(route) = route.filter(|_| !spare) else {
            return Ok(Outcome::ok(
                name,
                match route {
                    Some(_) => "a route leads by it: leave it, take another",
                    None => "no route leads by it to a router, nor this session",
                },
            ));
        };
        let to = format!("{}/{}", route.destination, route.prefix);
        Ok(Outcome::info(
            name,
            format!("the only card, and the route to {to} leads by it: leave it to the kernel"),
        )
        .saw(format!("ip route show {to}"), name)
        .advice("add a card, or manage the machine by its console"))
    };
    Ok(each_interface(cards, one))
}

pub const BIFURCATED: Rule = Rule {
    number: 65,
    name: "bifurcated",
    rule: "cards of bifurcated drivers (mlx4, mlx5, mana) stay bound to them",
    source: "DPDK, Getting Started Guide for Linux: bifurcated driver",
    why: "Unbound from the kernel they are lost to DPDK, too.",
    profiles: &[Profile::Bypass],
    check: bifurcated,
};

const VENDORS: [(&str, &[&str]); 3] =
    [("mlx5", &["mlx5_core"]), ("mlx4", &["mlx4_core", "mlx4_en"]), ("mana", &["mana"])];

fn bifurcated(facts: &Facts) -> Looked {
    facts.network()?;
    let devices = facts.list("/sys/bus/pci/devices")?;
    Ok(each(devices, Clone::clone, |device| {
        let directory = format!("/sys/bus/pci/devices/{device}");
        let driver = facts.text(&format!("{directory}/driver"))?;
        let own = VENDORS.iter().any(|(_, drivers)| drivers.contains(&driver));
        if own && facts.text(&format!("{directory}/driver_override"))? == "vfio-pci" {
            return Ok(Outcome::crit(
                device,
                format!("{driver} serves DPDK as it is, and the next boot binds vfio-pci"),
            )
            .write(&format!("{directory}/driver_override"), "", "vfio-pci"));
        }
        Ok(Outcome::ok(
            device,
            if own {
                "its driver stays in the kernel: never unbind it"
            } else {
                "of another driver"
            },
        ))
    }))
}

pub const VFIO_BINDING: Rule = Rule {
    number: 67,
    name: "vfio-binding",
    rule: "a card with a driver_override is on that driver",
    source: "Linux, Documentation/ABI/testing/sysfs-bus-pci, driver_override",
    why: "The program that bypasses the kernel finds no card when it is started next.",
    profiles: &[],
    check: vfio_binding,
};

fn vfio_binding(facts: &Facts) -> Looked {
    facts.network()?;
    let devices = facts.list("/sys/bus/pci/devices")?;
    Ok(each(devices, Clone::clone, |device| {
        let directory = format!("/sys/bus/pci/devices/{device}");
        let driver = facts.text(&format!("{directory}/driver"))?;
        let wanted = facts.text(&format!("{directory}/driver_override"))?;
        if matches!(wanted, "(null)" | "") || wanted == driver {
            return Ok(Outcome::ok(device, format!("on {driver}")));
        }
        let now = if driver.is_empty() { "no driver" } else { driver };
        let seen = Outcome::crit(device, format!("it is on {now}, and {wanted} is wanted"))
            .saw(format!("{directory}/driver_override"), wanted)
            .saw(format!("{directory}/driver"), now)
            .advice(
                "so that it stays: driverctl set-override, and the module in /etc/modules-load.d",
            );
        let leave = || Fix::write(format!("{directory}/driver/unbind"), device);
        let bind = |from: &str, to: &str| {
            let bind = Fix::write(format!("/sys/bus/pci/drivers/{to}/bind"), device);
            if from.is_empty() { bind } else { Fix::Sequence(vec![leave(), bind]) }
        };
        let undo = if driver.is_empty() { leave() } else { bind(wanted, driver) };
        Ok(seen.fix(bind(driver, wanted), undo))
    }))
}

pub const ISOLATED_CORES: Rule = Rule {
    number: 68,
    name: "isolated-cores",
    rule: "polling cores are isolated, and no interrupt comes to them",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "A program or an interrupt that takes a polling core for a millisecond makes a queue overflow.",
    profiles: &[Profile::Bypass],
    check: isolated_cores,
};

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

fn isolated_cores(facts: &Facts) -> Looked {
    let text = facts.text(ISOLATED)?;
    let isolated = cpu_list(text).ok_or_else(|| Unknown(format!("{ISOLATED} holds {text:?}")))?;
    let interrupts = match isolated.is_empty() {
        true => Outcome::info(MACHINE, "no processor is isolated")
            .saw(ISOLATED, "empty")
            .advice("isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST on the kernel's command line"),
        false => interrupted(facts, text, &isolated)?,
    };
    let mut found = vec![interrupts];
    match facts.json::<Vec<Process>>(PROCESSES) {
        Err(why) => found.push(Outcome::unknown("threads that poll", why)),
        Ok(all) => {
            let polls = |one: &&Process| POLLERS.iter().any(|start| one.name.starts_with(start));
            let pollers = all.iter().filter(polls);
            found.extend(each(pollers, thread, |one| poller(one, text, &isolated)));
        }
    }
    Ok(found)
}

fn thread(one: &&Process) -> String {
    format!("thread {} ({})", one.name, one.pid)
}

fn interrupted(facts: &Facts, text: &str, isolated: &[u32]) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::warn(MACHINE, "interrupts of cards come to isolated processors")
        .saw(ISOLATED, text);
    let others: Vec<String> =
        facts.cpus()?.iter().filter(|cpu| !isolated.contains(cpu)).map(u32::to_string).collect();
    for card in facts.cards()? {
        for irq in facts.irqs(&card.link.name)? {
            if irq.cpus.iter().any(|cpu| isolated.contains(cpu)) {
                outcome = facts.moved(outcome, irq.number, &others.join(","))?;
            }
        }
    }
    if outcome.changes.is_empty() {
        let said = format!("{text}, and no interrupt of a card comes there");
        return Ok(Outcome::ok(MACHINE, said));
    }
    Ok(outcome)
}

/// Known by the names that DPDK, VPP and `ringway engine` give their threads.
fn poller(one: &Process, text: &str, isolated: &[u32]) -> Result<Outcome, Unknown> {
    let Some(list) = &one.cpus else {
        return Err(Unknown(format!("/proc/{}/status: where it may run is not told", one.pid)));
    };
    let cpus =
        cpu_list(list).ok_or_else(|| Unknown(format!("processors {list:?} of {}", one.pid)))?;
    if !cpus.is_empty() && cpus.iter().all(|cpu| isolated.contains(cpu)) {
        return Ok(Outcome::ok(thread(&one), format!("it polls on {list}, isolated")));
    }
    Ok(Outcome::info(
        thread(&one),
        format!("it polls, and may run on {list}: not all of them are isolated"),
    )
    .saw(format!("/proc/{}/status, Cpus_allowed_list", one.pid), list)
    .saw(ISOLATED, text)
    .advice("isolate its processors, and pin it to them (of Ringway: --cpus; of DPDK: --lcores)"))
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::routes::{Route, RouteKind};

    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn none_free_on_the_cards_node() {
        let path = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        let none = healthy().put(&format!("{path}/free_hugepages"), "0");
        assert_eq!(none.fixes(&HUGE_PAGES), [format!("echo 1024 > {path}/nr_hugepages")]);
        table(&HUGE_PAGES, [(none, Warn)]);
    }

    #[test]
    fn no_groups() {
        let none = healthy().remove("/sys/kernel/iommu_groups");
        table(&IOMMU, [(none, Warn)]);
    }

    #[test]
    fn a_group_of_two() {
        let mixed = healthy().put("/sys/kernel/iommu_groups/1/devices/0000:01:00.1", "vfio-pci");
        table(&IOMMU_SHARING, [(mixed, Warn)]);
    }

    #[test]
    fn on_and_not_loaded() {
        let on = healthy().put(UNSAFE_NOIOMMU, "Y");
        assert_eq!(on.undos(&NOIOMMU), [format!("echo Y > {UNSAFE_NOIOMMU}")]);
        table(&NOIOMMU, [(on, Warn), (healthy().remove(UNSAFE_NOIOMMU), Unknown)]);
    }

    #[test]
    fn the_only_card_and_that_of_the_session() {
        let route = Route {
            destination: [0, 0, 0, 0].into(),
            prefix: 0,
            table: 254,
            kind: RouteKind::Unicast,
            ifindex: Some(2),
            gateway: Some([192, 0, 2, 254].into()),
            source: None,
            mtu: None,
            priority: 0,
        };
        let only = healthy().network(|network| network.routes.push(route));
        let two = only.clone().interface(1, 9, "eth1", |_| ());
        let session = two.clone().json(SESSION, "192.0.2.1");
        assert_eq!(session.outcomes(&WAY_IN)[0].subject, "eth0");
        let rows = [
            (only, Info),
            (two.clone(), Severity::Ok),
            (session, Info),
            (two.remove(SESSION), Unknown),
        ];
        table(&WAY_IN, rows);
    }

    #[test]
    fn one_that_shall_be_unbound() {
        let directory = "/sys/bus/pci/devices/0000:01:00.0";
        let own = healthy().put(&format!("{directory}/driver"), "mlx5_core");
        let lost = own.clone().put(&format!("{directory}/driver_override"), "vfio-pci");
        table(&BIFURCATED, [(own, Severity::Ok), (lost, Crit)]);
    }

    #[test]
    fn wanted_elsewhere() {
        let path = "/sys/bus/pci/devices/0000:01:00.0/driver_override";
        let wanted = healthy().put(path, "vfio-pci");
        let fix = wanted.fixes(&VFIO_BINDING);
        let words = "echo 0000:01:00.0 > /sys/bus/pci/drivers/vfio-pci/bind";
        assert!(fix[0].ends_with(words), "{fix:?}");
        let rows = [(wanted, Crit), (healthy().put(path, "ixgbe"), Severity::Ok)];
        table(&VFIO_BINDING, rows);
    }

    #[test]
    fn none_and_disturbed() {
        let path = "/sys/devices/system/cpu/isolated";
        let disturbed = healthy().put(path, "2-3");
        let wanted = "echo 0,1 > /proc/irq/42/smp_affinity_list";
        assert_eq!(disturbed.fixes(&ISOLATED_CORES)[0], wanted);
        assert_eq!(disturbed.worst(&ISOLATED_CORES), Warn);
        assert_eq!(healthy().put(path, "").worst(&ISOLATED_CORES), Info);
        assert_eq!(healthy().put(path, "7").worst(&ISOLATED_CORES), Severity::Ok);
        assert_eq!(Machine::unknown().worst(&ISOLATED_CORES), Unknown);
        let poller = |cpus: Option<&str>| {
            let set = |one: &mut Process| one.cpus = cpus.map(str::to_owned);
            healthy().put(path, "7").process("lcore-worker-7", set)
        };
        for (cpus, severity) in [(Some("7"), Severity::Ok), (Some("0-7"), Info), (None, Unknown)] {
            assert_eq!(poller(cpus).worst(&ISOLATED_CORES), severity, "{cpus:?}");
        }
        let blind = healthy().put(path, "7").remove(PROCESSES);
        assert_eq!(blind.worst(&ISOLATED_CORES), Unknown);
    }
}
