//! Cards that are expected on one driver and are on another.

use crate::{Facts, Fix, Looked, Outcome, Rule, each};

/// A kernel update, or a new module, can change who comes first.
pub const RULE: Rule = Rule {
    number: 67,
    name: "vfio-binding",
    rule: "a card with a driver_override is on that driver",
    source: "Linux, Documentation/ABI/testing/sysfs-bus-pci, driver_override",
    why: "The program that bypasses the kernel finds no card when it is started next.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn wanted_elsewhere() {
        let path = "/sys/bus/pci/devices/0000:01:00.0/driver_override";
        let wanted = Machine::healthy().put(path, "vfio-pci");
        let fix = wanted.fixes(&RULE);
        assert!(
            fix[0].ends_with("echo 0000:01:00.0 > /sys/bus/pci/drivers/vfio-pci/bind"),
            "{fix:?}"
        );
        table(
            &RULE,
            [(wanted, Severity::Crit), (Machine::healthy().put(path, "ixgbe"), Severity::Ok)],
        );
    }
}
