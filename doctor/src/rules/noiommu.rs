//! vfio without an IOMMU.

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule};

/// It says itself that it is unsafe.
pub const RULE: Rule = Rule {
    number: 66,
    name: "noiommu",
    rule: "vfio's enable_unsafe_noiommu_mode is off",
    source: "kernel, drivers/vfio/Kconfig: VFIO_NOIOMMU; DPDK, Getting Started Guide for Linux",
    why: "A program that drives a device can write to any memory of the machine; the kernel is tainted.",
    profiles: &[Profile::Bypass],
    check,
};

const PATH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

fn check(facts: &Facts) -> Looked {
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
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn on_and_not_loaded() {
        let on = Machine::healthy().put(PATH, "Y");
        assert_eq!(on.undos(&RULE), [format!("echo Y > {PATH}")]);
        table(&RULE, [(on, State::Warn), (Machine::healthy().remove(PATH), State::Unknown)]);
    }
}
