//! Takes a node's packet path away, and proves it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ringway_api::client::node_list::{hidden_daemon, place_of};
use ringway_api::client::node_selector::{self, NodeSelector};
use ringway_api::documents::forward::ForwardStatus;
use ringway_api::error::Error;
use ringway_api::node::netns_hint::{self, Place};
use ringway_api::node::{leftovers, service_manager};
use ringway_host::Mac;
use ringway_host::netlink::neighbours::{self, Neighbour};
use ringway_host::netlink::{links, routes};
use ringway_kernel::{DEFAULT_BPFFS, Detached, Pins, View};
use serde::Serialize;

/// How long the kernel may take to free programs and maps that nobody holds any more.
const PATIENCE: Duration = Duration::from_secs(2);

/// Things removed, and things left.
#[derive(Clone, Debug, Serialize)]
pub struct DetachOutcome {
    /// `ringway.detach/1`.
    pub schema: &'static str,
    pub node: String,
    pub removed: Vec<String>,
    /// Whether it was verified that nothing is left.
    pub verified: bool,
    pub left: Vec<String>,
}

impl DetachOutcome {
    fn of(node: &str) -> DetachOutcome {
        DetachOutcome {
            schema: "ringway.detach/1",
            node: node.to_owned(),
            removed: Vec::new(),
            verified: false,
            left: Vec::new(),
        }
    }
}

/// Detaches a node. With `verify` looks afterwards for anything of it that is left.
///
/// # Errors
/// A daemon runs, or the kernel refuses. That nothing is loaded is no error, unless it was named.
pub fn run(selector: &NodeSelector<'_>, verify: bool) -> Result<DetachOutcome, Error> {
    refuse_blindly(selector, verify)?;
    let target = match selector.find() {
        Ok(target) => target,
        Err(error) if error.kind == ringway_api::error::Kind::Unhealthy => {
            let mut outcome = DetachOutcome { verified: verify, ..DetachOutcome::of("") };
            remove_rules(&mut outcome);
            return Ok(outcome);
        }
        Err(error) => return Err(error),
    };
    let mut outcome = DetachOutcome::of(&target.node);
    // The tables are needed to know which neighbour entries to release.
    let view = View::open(Path::new(DEFAULT_BPFFS), &outcome.node).ok();
    target.is_meant()?;
    let hops = view.as_ref().map(next_hops).unwrap_or_default();
    let solicited = view.as_ref().map(leftovers::of_tables).unwrap_or_default();
    let unseen = view.as_ref().map(unseen_interfaces).unwrap_or_default();
    let forwards = view.as_ref().and_then(only_forwards);
    // An open view would hold on to the maps.
    drop(view);
    let detached = match ringway_kernel::detach(Path::new(DEFAULT_BPFFS), &outcome.node) {
        Ok(detached) => detached,
        Err(ringway_kernel::Error::NotLoaded { known, .. }) if selector.node.is_some() => {
            remove_rules(&mut outcome);
            return Err(unknown(&target.node, &known, place_of));
        }
        Err(ringway_kernel::Error::NotLoaded { known, .. }) => {
            if hidden_daemon(&target.node).is_some() {
                return Err(node_selector::not_here(&target.node, &known));
            }
            Detached::default()
        }
        Err(ringway_kernel::Error::Busy { node, pid }) => return Err(busy(&node, pid, forwards)),
        Err(error) => return Err(Error::failed(error.to_string(), "")),
    };
    let interfaces = detached.interfaces.iter();
    outcome.removed.extend(interfaces.map(|name| format!("program on {name}")));
    if !detached.maps.is_empty() {
        outcome.removed.push(format!("{} maps and their pins", detached.maps.len()));
    }
    for hop in &hops {
        match neighbours::release(hop.ifindex, hop.address) {
            Ok(()) => outcome.removed.push(format!("managed neighbour {}", hop.address)),
            Err(error) => outcome.left.push(error.to_string()),
        }
    }
    let (given_up, failed) = leftovers::give_up(&solicited);
    outcome.removed.extend(given_up);
    outcome.left.extend(failed.iter().map(ToString::to_string));
    remove_rules(&mut outcome);
    if verify {
        outcome.verified = true;
        outcome.left.extend(left(&outcome.node, &detached, &hops));
        outcome.left.extend(unseen.into_iter().map(|name| {
            format!(
                "perhaps managed neighbours on {name}, which is in another network namespace: not \
                 released, not verified (there: ip neighbour show | grep managed)"
            )
        }));
    }
    Ok(outcome)
}

/// Nothing may be said to be gone where nothing can be seen.
fn refuse_blindly(selector: &NodeSelector<'_>, verify: bool) -> Result<(), Error> {
    let verify = if verify { " --verify" } else { "" };
    let command = format!("ringway detach{}{verify}", selector.options());
    match netns_hint::hidden("what is loaded", &command) {
        Some((what, remedy)) => Err(Error::failed(format!("{what}; nothing was removed"), remedy)),
        None => Ok(()),
    }
}

/// Removes the probe tunnel's rules of a killed daemon; the rest went with it.
fn remove_rules(outcome: &mut DetachOutcome) {
    match leftovers::remove_stale() {
        Ok(0) => {}
        Ok(rules) => outcome.removed.push(format!("{rules} routing rules of health checks")),
        Err(error) => outcome.left.push(error.to_string()),
    }
}

fn unknown(node: &str, known: &[String], place: impl Fn(&str) -> Place) -> Error {
    let remedy = match known {
        [] => "no node is loaded on this machine: there is nothing to remove".into(),
        names => format!("loaded are: {}", node_selector::each_of(names, place)),
    };
    Error::failed(format!("node {node} is not loaded"), remedy)
}

/// `forwards`: what the kernel does while nothing is forwarded past it, on a node without services.
fn busy(node: &str, pid: u64, forwards: Option<&str>) -> Error {
    let (who, stop) = match pid {
        0 => ("its daemon".to_owned(), "systemctl stop ringway".to_owned()),
        pid => (format!("its daemon (process {pid})"), service_manager::stop(pid)),
    };
    let until = forwards.unwrap_or("packets flow until you detach");
    Error::failed(
        format!("node {node} was not detached: {who} still runs"),
        format!("stop it first ({stop}), then detach; {until}"),
    )
}

/// What the kernel does then, on a node that forwards between interfaces and has no service.
fn only_forwards(view: &View) -> Option<&'static str> {
    let state = view.forward_state().ok().flatten()?;
    let none = view.services().is_ok_and(|services| services.is_empty());
    none.then(|| ForwardStatus::of_pins(state).kernel_does())
}

/// Neighbours that are kept resolved for this node's backends.
fn next_hops(view: &View) -> Vec<Neighbour> {
    let interfaces = view.interfaces().unwrap_or_default();
    let services = view.services().unwrap_or_default();
    let backends = || services.iter().flat_map(|service| &service.backends);
    let path = |address: IpAddr| routes::route_to(address).ok();
    let wanted: BTreeSet<IpAddr> =
        backends().filter_map(|backend| Some(path(backend.address.ip())?.next_hop())).collect();
    let macs: BTreeSet<Mac> =
        backends().filter_map(|backend| Some(Mac(backend.next_hop?.mac))).collect();
    // Backends behind a bridge are neighbours of the bridge, not of its ports.
    let ports: BTreeSet<u32> = interfaces.iter().map(|interface| interface.ifindex).collect();
    let links = links::all().unwrap_or_default();
    let bridges = links.iter().filter(|link| ports.contains(&link.ifindex));
    let bridges: BTreeSet<u32> = bridges.filter_map(|link| link.master).collect();
    let ours = |neighbour: &Neighbour| {
        (ports.contains(&neighbour.ifindex) || bridges.contains(&neighbour.ifindex))
            && (wanted.contains(&neighbour.address)
                || neighbour.mac.is_some_and(|mac| macs.contains(&mac)))
    };
    let mut all = neighbours::all().unwrap_or_default();
    all.retain(|neighbour| neighbour.managed && ours(neighbour));
    all
}

/// Interfaces that exist, but cannot be seen from here.
fn unseen_interfaces(view: &View) -> Vec<String> {
    let states = view.interfaces().unwrap_or_default();
    let unseen = states.into_iter().filter(|state| state.mode.is_none());
    unseen.filter_map(|state| state.name).collect()
}

fn left(node: &str, detached: &Detached, hops: &[Neighbour]) -> Vec<String> {
    let mut left = detached.leftovers(PATIENCE);
    if let Ok(pins) = Pins::new(DEFAULT_BPFFS, node)
        && pins.dir().exists()
    {
        left.push(format!("pins in {}", pins.dir().display()));
    }
    for name in &detached.interfaces {
        let programs = links::by_name(name).map(|link| link.xdp).unwrap_or_default();
        let ours = programs.iter().filter(|xdp| detached.programs.contains(&xdp.program));
        left.extend(ours.map(|xdp| format!("program {} on {name}", xdp.program)));
    }
    for hop in hops {
        if let Ok(Some(now)) = neighbours::get(hop.ifindex, hop.address)
            && now.managed
        {
            left.push(format!("managed neighbour {}", hop.address));
        }
    }
    let rules = leftovers::stale().unwrap_or_default();
    left.extend(rules.iter().map(|rule| {
        format!("routing rule of mark {:#x}/{:#x} (ip rule show)", rule.mark, rule.mask)
    }));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_there_is_told_with_those_that_are() {
        let known = ["gw1".to_owned(), "gw2".to_owned()];
        let error = unknown("gw9", &known, |_| Place::Here);
        let want = ("node gw9 is not loaded", "loaded are: gw1, gw2");
        assert_eq!((error.what.as_str(), error.remedy.to_string().as_str()), want);
    }
}
