//! Whether devices can be given to programs, and safely.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

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
        for (device, driver) in bound {
            outcome = outcome
                .saw(format!("/sys/bus/pci/devices/{device}/driver"), driver)
                .advice(format!("unbind all of the group, if none is needed: echo {device} > /sys/bus/pci/devices/{device}/driver/unbind"));
        }
        found.push(outcome);
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
    check: noiommu,
};

const PATH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

fn noiommu(facts: &Facts) -> Looked {
    match facts.text(PATH)? {
        "N" | "0" => Outcome::ok(MACHINE, "off").into(),
        on => Outcome::warn(MACHINE, "devices can be given away without an IOMMU")
            .saw(PATH, on)
            .write(PATH, "N", on)
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn no_groups() {
        let none = Machine::healthy().remove("/sys/kernel/iommu_groups");
        table(&IOMMU, [(none, Severity::Warn)]);
    }

    #[test]
    fn a_group_of_two() {
        let mixed =
            Machine::healthy().put("/sys/kernel/iommu_groups/1/devices/0000:01:00.1", "vfio-pci");
        table(&IOMMU_SHARING, [(mixed, Severity::Warn)]);
    }

    #[test]
    fn on_and_not_loaded() {
        let on = Machine::healthy().put(PATH, "Y");
        assert_eq!(on.undos(&NOIOMMU), [format!("echo Y > {PATH}")]);
        table(
            &NOIOMMU,
            [(on, Severity::Warn), (Machine::healthy().remove(PATH), Severity::Unknown)],
        );
    }
}
