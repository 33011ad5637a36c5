//! Devices, by sysfs and ethtool.

use std::collections::BTreeSet;
use std::fs;

use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::links;
use ringway_host::{Error, Source};

use super::file;
use crate::Sample;

const NET: &str = "/sys/class/net";
/// Files of an interface.
const FILES: [&str; 9] = [
    "gro_flush_timeout",
    "napi_defer_hard_irqs",
    "threaded",
    "xdp_zc_max_segs",
    "device/numa_node",
    "device/current_link_speed",
    "device/current_link_width",
    "device/max_link_speed",
    "device/max_link_width",
];
/// Files of a queue.
const QUEUE: [&str; 3] = ["rps_cpus", "rps_flow_cnt", "xps_cpus"];

/// Of the interfaces of this network namespace.
pub fn of_namespace(sample: &mut Sample, names: &[String]) {
    if sysfs_is_of_here(sample) {
        names.iter().for_each(|name| sysfs(sample, name));
    }
    settings(sample, names);
}

/// A sysfs shows the interfaces of the namespace that it was mounted in.
fn sysfs_is_of_here(sample: &mut Sample) -> bool {
    let index =
        |name: String| Some((Source::Live.read(&format!("{NET}/{name}/ifindex")).ok()?, name));
    let shown = Source::Live.list(NET).unwrap_or_default().into_iter().filter_map(index);
    let here = links::all().unwrap_or_default().into_iter();
    let here = here.map(|link| (link.ifindex.to_string(), link.name));
    let same = shown.collect::<BTreeSet<_>>() == here.collect::<BTreeSet<_>>();
    if !same {
        let why = "the sysfs mounted here shows another network namespace; `ip netns exec NAME` mounts the right one";
        sample.miss(NET, why);
    }
    same
}

fn sysfs(sample: &mut Sample, name: &str) {
    for key in FILES {
        let path = format!("{NET}/{name}/{key}");
        // A link that is down does not tell its speed: EINVAL.
        file(sample, &path);
    }
    for queue in Source::Live.list(&format!("{NET}/{name}/queues")).unwrap_or_default() {
        // A device with one queue has no xps_cpus to speak of: ENOENT.
        for key in QUEUE.iter().filter(|key| key.starts_with('r') == queue.starts_with("rx")) {
            file(sample, &format!("{NET}/{name}/queues/{queue}/{key}"));
        }
    }
    // Those of a virtio device are its PCI device's, one above.
    let own = format!("{NET}/{name}/device/msi_irqs");
    let above = format!("{NET}/{name}/device/../msi_irqs");
    let is_virtio = fs::read_link(format!("{NET}/{name}/device"))
        .is_ok_and(|to| to.file_name().is_some_and(|n| n.to_string_lossy().starts_with("virtio")));
    let irqs = if is_virtio { above } else { own.clone() };
    for irq in Source::Live.list(&irqs).unwrap_or_default() {
        sample.put(format!("{own}/{irq}"), "");
    }
}

fn settings(sample: &mut Sample, names: &[String]) {
    let ethtool = match Ethtool::open() {
        Ok(ethtool) => ethtool,
        Err(error) => return sample.miss("/ethtool", error),
    };
    for name in names {
        let put = |sample: &mut Sample, what: &str, json: Result<Option<String>, Error>| {
            let path = format!("/ethtool/{name}/{what}.json");
            match json {
                Ok(Some(json)) => sample.put(path, json),
                Ok(None) => sample.miss(path, "the driver does not tell"),
                Err(error) => sample.miss(path, error),
            }
        };
        put(sample, "rings", ethtool.rings(name).map(json));
        put(sample, "coalescing", ethtool.coalescing(name).map(json));
        put(sample, "pause", ethtool.pause(name).map(json));
        put(sample, "link_mode", ethtool.link_mode(name).map(json));
        put(sample, "indirection", ethtool.indirection(name).map(json));
    }
}

fn json<T: serde::Serialize>(answer: Option<T>) -> Option<String> {
    answer.and_then(|answer| serde_json::to_string_pretty(&answer).ok())
}

/// Counters under drivers' own names.
pub fn statistics(sample: &mut Sample) {
    let (Ok(ethtool), Ok(links)) = (Ethtool::open(), links::all()) else {
        return sample.miss("/ethtool", "interfaces cannot be listed");
    };
    for link in links.iter().filter(|link| !link.loopback) {
        let path = format!("/ethtool/{}/statistics.json", link.name);
        sample.put_json(&path, ethtool.statistics(&link.name));
    }
    if !sysfs_is_of_here(sample) {
        return;
    }
    for link in links {
        let directory = format!("{NET}/{}", link.name);
        file(sample, &format!("{directory}/carrier_changes"));
        for queue in (0..link.tx_queues).map(|n| format!("{directory}/queues/tx-{n}/tx_timeout")) {
            file(sample, &queue);
        }
    }
}

/// Processors, huge pages, IOMMU groups, interrupts: of the machine, not of a namespace.
pub fn of_machine(sample: &mut Sample) {
    let list = |directory: &str| Source::Live.list(directory).unwrap_or_default();
    let is_number = |name: &String| name.parse::<u32>().is_ok();
    for irq in list("/proc/irq").into_iter().filter(is_number) {
        file(sample, &format!("/proc/irq/{irq}/smp_affinity_list"));
        file(sample, &format!("/proc/irq/{irq}/effective_affinity_list"));
    }
    let is_cpu = |name: &String| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    for cpu in list("/sys/devices/system/cpu").into_iter().filter(is_cpu) {
        file(sample, &format!("/sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor"));
    }
    let nodes =
        list("/sys/devices/system/node").into_iter().filter(|name| name.starts_with("node"));
    let nodes = nodes.map(|node| format!("/sys/devices/system/node/{node}"));
    for node in nodes {
        file(sample, &format!("{node}/cpulist"));
        pages(sample, &format!("{node}/hugepages"));
    }
    pages(sample, "/sys/kernel/mm/hugepages");
    for group in list("/sys/kernel/iommu_groups") {
        let devices = list(&format!("/sys/kernel/iommu_groups/{group}/devices"));
        for device in devices {
            let link = fs::read_link(format!("/sys/bus/pci/devices/{device}/driver"));
            let driver =
                link.ok().and_then(|to| Some(to.file_name()?.to_string_lossy().into_owned()));
            sample.put(
                format!("/sys/kernel/iommu_groups/{group}/devices/{device}"),
                driver.unwrap_or_default(),
            );
        }
    }
    for device in list("/sys/bus/pci/devices") {
        let at = format!("/sys/bus/pci/devices/{device}");
        // Network controllers.
        let class = Source::Live.read(&format!("{at}/class")).unwrap_or_default();
        if class.starts_with("0x02") {
            file(sample, &format!("{at}/driver_override"));
            let link = fs::read_link(format!("{at}/driver")).unwrap_or_default();
            let driver = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
            sample.put(format!("{at}/driver"), driver);
        }
    }
    btf(sample);
}

/// Megabytes that nobody reads: that it is there is the fact.
pub fn btf(sample: &mut Sample) {
    if Source::Live.exists("/sys/kernel/btf/vmlinux") {
        sample.put("/sys/kernel/btf/vmlinux", "");
    }
}

fn pages(sample: &mut Sample, directory: &str) {
    for pool in Source::Live.list(directory).unwrap_or_default() {
        for key in ["nr_hugepages", "free_hugepages"] {
            file(sample, &format!("{directory}/{pool}/{key}"));
        }
    }
}
