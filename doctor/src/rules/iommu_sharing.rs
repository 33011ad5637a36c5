//! Devices that can only be given away together.

use crate::{Facts, Looked, Outcome, Profile, Rule};

/// All devices of a group, or none.
pub const RULE: Rule = Rule {
    number: 63,
    name: "iommu-sharing",
    rule: "a group with a device on vfio-pci has no device on a driver of the kernel",
    source: "kernel documentation, driver-api/vfio: groups; DPDK, Getting Started Guide for Linux",
    why: "vfio refuses the group while the kernel drives one of its devices.",
    profiles: &[Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn a_group_of_two() {
        let mixed =
            Machine::healthy().put("/sys/kernel/iommu_groups/1/devices/0000:01:00.1", "vfio-pci");
        table(&RULE, [(mixed, State::Warn)]);
    }
}
