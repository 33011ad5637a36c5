//! Rules about NICs below interfaces of `[node] interfaces`: what they join comes joined.

use ringway_config::Config;
use ringway_doctor::{Outcome, Report};
use ringway_host::Fix;
use ringway_host::netlink::links::Link;

use super::interfaces::generic;
use super::machine_state::MachineState;
use crate::network::next_hop::is_stacked;

/// Devices upon devices that are followed: the kernel's limit (net/core/dev.c, MAX_NEST_DEV).
const MAX_DEPTH: usize = 8;

/// Every NIC. One of ours is not among them: with a program on it the kernel joins nothing there
/// (net/core/dev.c, netif_elide_gro).
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let nics = state.links.iter().filter(|link| link.kind.is_none() && !is_ours(config, link));
    for nic in nics {
        if let Some(upper) = upper_of_ours(config, state, nic, MAX_DEPTH) {
            joins(state, nic, upper, report);
        }
    }
}

fn is_ours(config: &Config, link: &Link) -> bool {
    config.node.interfaces.iter().any(|name| **name == link.name)
}

/// The interface of ours further up that gets the NIC's packets behind GRO.
fn upper_of_ours<'a>(
    config: &Config,
    state: &'a MachineState,
    lower: &Link,
    depth: usize,
) -> Option<&'a Link> {
    let meets = |upper: &Link| {
        let here = is_ours(config, upper) && state.tagged_on(config, upper).is_none();
        here && (is_stacked(upper) || generic(config, state, upper))
    };
    let next = depth.checked_sub(1)?;
    state.links.iter().filter(|upper| lower.carries(upper)).find_map(|upper| {
        if meets(upper) { Some(upper) } else { upper_of_ours(config, state, upper, next) }
    })
}

fn joins(state: &MachineState, nic: &Link, upper: &Link, report: &mut Report) {
    let (nic, above) = (&nic.name, &upper.name);
    let off = Fix::ethtool("-K", nic, "gro off");
    match state.offloads.get(nic).map(|offloads| offloads.gro) {
        Some(false) => {
            report.ok("gro", nic, format!("off: packets come to {above} as they were sent"));
        }
        Some(true) => {
            let reason = format!(
                "GRO on {nic} joins packets before Ringway sees them on {above}: those that are longer than \
                 the MTU then are refused (sent-too-big), and TCP stalls"
            );
            report.push(
                "gro",
                Outcome::warn(nic, reason)
                    .advice(Fix::Sequence([off].into_iter().chain(or_name(nic, upper)).collect())),
            );
        }
        None => {
            let reason = format!(
                "whether {nic} joins packets before Ringway sees them on {above} cannot be read"
            );
            report.push("gro", Outcome::unknown(nic, reason).advice(off));
        }
    }
}

/// Other interfaces that would do.
fn or_name(nic: &str, upper: &Link) -> Option<Fix> {
    let above = &upper.name;
    match upper.kind.as_deref() {
        Some("bridge") => {
            Some(format!("or name the ports of {above} in [node] interfaces instead").into())
        }
        Some("vlan") => Some(format!("or name {nic} beside {above} in [node] interfaces").into()),
        _ => None,
    }
}
