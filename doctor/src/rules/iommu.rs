//! Whether devices can be given to programs safely.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// vfio-pci wants IOMMU groups.
pub const RULE: Rule = Rule {
    number: 62,
    name: "iommu",
    rule: "there are IOMMU groups",
    source: "DPDK, Getting Started Guide for Linux: Linux drivers; kernel documentation, driver-api/vfio",
    why: "Without an IOMMU a device that a program drives can write to any memory of the machine.",
    profiles: &[Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn no_groups() {
        let none = Machine::healthy().remove("/sys/kernel/iommu_groups");
        table(&RULE, [(none, State::Warn)]);
    }
}
