//! Drivers that stay in the kernel beside DPDK.

use crate::{Facts, Looked, Outcome, Profile, Rule, each};

/// Their DPDK driver works through the kernel's.
pub const RULE: Rule = Rule {
    number: 65,
    name: "bifurcated",
    rule: "cards of bifurcated drivers (mlx4, mlx5, mana) stay bound to them",
    source: "DPDK, Getting Started Guide for Linux: bifurcated driver",
    why: "Unbound from the kernel they are lost to DPDK, too.",
    profiles: &[Profile::Bypass],
    check,
};

const VENDORS: [(&str, &[&str]); 3] =
    [("mlx5", &["mlx5_core"]), ("mlx4", &["mlx4_core", "mlx4_en"]), ("mana", &["mana"])];

fn check(facts: &Facts) -> Looked {
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
            .saw(format!("{directory}/driver_override"), "vfio-pci")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn one_that_shall_be_unbound() {
        let directory = "/sys/bus/pci/devices/0000:01:00.0";
        let own = Machine::healthy().put(&format!("{directory}/driver"), "mlx5_core");
        let lost = own.clone().put(&format!("{directory}/driver_override"), "vfio-pci");
        table(&RULE, [(own, Severity::Ok), (lost, Severity::Crit)]);
    }
}
