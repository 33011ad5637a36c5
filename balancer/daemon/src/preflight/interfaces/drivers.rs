//! Rules about what drivers do when a program comes: whether they take it at all, and at what cost.

use ringway_config::Config;
use ringway_doctor::{Outcome, Report};
use ringway_host::netlink::links::Link;

use crate::network::next_hop::is_stacked;
use crate::preflight::interfaces::{attached, generic};
use crate::preflight::machine_state::MachineState;

/// Drivers with native XDP that make their queues anew when the first program comes and when the
/// last one goes, most of them with the link down meanwhile. That a program is swapped they do not
/// notice.
const RESETTING: [&str; 16] = [
    "bnxt_en",
    "ena",
    "fm10k",
    "hinic3",
    "i40e",
    "iavf",
    "ice",
    "idpf",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx4_en",
    "mlx5_core",
    "nfp",
    "qede",
];

/// An interface of `[node] interfaces`.
pub fn check(config: &Config, facts: &MachineState, link: &Link, report: &mut Report) {
    if is_stacked(link) || link.is_layer3() || facts.tagged_on(config, link).is_some() {
        return;
    }
    let Some(driver) = facts.drivers.get(&link.name) else { return };
    if generic(config, facts, link) {
        return report.ok("link-reset", &link.name, "generic mode is nothing to the driver");
    }
    reset(facts, link, driver, report);
}

/// Whether the driver has native XDP; `None` where the kernel cannot tell without trying.
pub fn has_native(facts: &MachineState, link: &Link) -> Option<bool> {
    facts.features.get(&link.name).map(|features| features.native())
}

fn reset(facts: &MachineState, link: &Link, driver: &str, report: &mut Report) {
    if attached(facts, link).is_some() {
        let reason = "attached already: programs are swapped without the driver's noticing";
        return report.ok("link-reset", &link.name, reason);
    }
    if !RESETTING.contains(&driver) || has_native(facts, link) == Some(false) {
        let reason = format!("driver {driver} is not known to stop for a program");
        return report.ok("link-reset", &link.name, reason);
    }
    let reason = format!(
        "driver {driver} makes its queues anew when the first program comes and when the last one goes: \
         up to some seconds without a packet, and the switch may see the link go down"
    );
    let fix = "start (and `ringway detach`) when that does no harm; a restart of the daemon swaps the \
               program and does none; or write xdp_mode = \"generic\" under [node]";
    report.push("link-reset", Outcome::warn(&link.name, reason).advice(fix));
}
