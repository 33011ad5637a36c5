//! Rules about what drivers do when a program comes: whether they take it at all, at what cost, and how
//! many queues it wants.

use ringway_config::{Config, XdpMode};
use ringway_host::ethtool::Channels;
use ringway_host::links::Link;

use super::facts::Facts;
use super::interfaces::{attached, generic};
use super::{Report, State};
use crate::next_hop::is_stacked;

/// Drivers with native XDP that make their queues anew when the first program comes and when the last
/// one goes, most of them with the link down meanwhile. That a program is swapped they do not notice.
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
pub fn look(config: &Config, facts: &Facts, link: &Link, report: &mut Report) {
    if is_stacked(link) || link.is_layer3() || facts.tagged_on(config, link).is_some() {
        return;
    }
    if link.kind.as_deref() == Some("bond") {
        bond(config, facts, link, report);
    }
    let Some(driver) = facts.drivers.get(&link.name) else { return };
    if generic(config, facts, link) {
        return report.ok("link-reset", &link.name, "generic mode is nothing to the driver");
    }
    reset(facts, link, driver, report);
    queues(facts, link, driver, report);
}

/// Whether the driver has native XDP; `None` where the kernel cannot tell without trying.
pub fn has_native(facts: &Facts, link: &Link) -> Option<bool> {
    facts.features.get(&link.name).map(|features| features.native())
}

fn bond(config: &Config, facts: &Facts, link: &Link, report: &mut Report) {
    let parts = facts.links.iter().filter(|part| part.master == Some(link.ifindex));
    let parts: Vec<String> = parts
        .map(|part| match facts.drivers.get(&part.name) {
            Some(driver) => format!("{} ({driver})", part.name),
            None => part.name.clone(),
        })
        .collect();
    let of = if parts.is_empty() { "no device".into() } else { parts.join(", ") };
    if *config.node.xdp_mode == XdpMode::Generic {
        return report.ok(
            "bond",
            &link.name,
            format!("of {of}; generic mode asks nothing of them"),
        );
    }
    let (state, reason) = match has_native(facts, link) {
        Some(true) => return report.ok("bond", &link.name, format!("of {of}: native on all")),
        Some(false) => (
            State::Warn,
            format!(
                "of {of}: one of them, or the way it spreads packets, does not allow native XDP"
            ),
        ),
        None => {
            (State::Unknown, format!("of {of}: whether all of them take native XDP is not told"))
        }
    };
    let fix = format!(
        "grep -E \"Bonding Mode|Hash Policy\" /proc/net/bonding/{} (native: balance-rr, active-backup, \
         balance-xor and 802.3ad, but not with hash policy vlan+srcmac); or write xdp_mode = \"generic\"",
        link.name
    );
    report.push("bond", &link.name, state, reason, fix);
}

fn reset(facts: &Facts, link: &Link, driver: &str, report: &mut Report) {
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
    report.push("link-reset", &link.name, State::Warn, reason, fix);
}

/// Some drivers want a transmit queue of its own for every processor.
fn queues(facts: &Facts, link: &Link, driver: &str, report: &mut Report) {
    let Some(Channels { rx, max_tx, .. }) = facts.channels.get(&link.name).copied() else { return };
    if attached(facts, link).is_some() {
        return;
    }
    let (enough, most, otherwise) = match driver {
        // drivers/net/virtio_net.c: virtnet_xdp_set
        "virtio_net" => (
            rx + facts.cpus <= max_tx,
            max_tx.saturating_sub(facts.cpus),
            "processors share them then, under a lock: slower",
        ),
        // drivers/net/ethernet/amazon/ena: ena_xdp_legal_queue_count
        "ena" => (2 * rx <= max_tx, max_tx / 2, "the driver refuses native XDP then"),
        _ => return,
    };
    if enough {
        let reason = format!("{rx} of {max_tx} queues in use: enough are left for XDP");
        return report.ok("queues", &link.name, reason);
    }
    let reason = format!(
        "{rx} of {max_tx} queues in use, on {} processors: too few are left for XDP to send by; {otherwise}",
        facts.cpus
    );
    let fix = match most {
        0 => "give the machine more queues (virtio: queues = twice its processors)".to_owned(),
        most => format!("ethtool -L {} combined {most}", link.name),
    };
    report.push("queues", &link.name, State::Warn, reason, fix);
}
