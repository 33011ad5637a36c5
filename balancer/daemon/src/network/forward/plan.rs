//! What the packet path is to be told of each interface; pure.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ringway_config::{ForwardMode, InterfaceForward};
use ringway_host::Fix;
use ringway_host::netlink::bridge::{Bridge, BridgePort, FdbEntry, PortState};
use ringway_host::netlink::links::Link;
use ringway_host::netlink::routes::Route;
use ringway_kernel::forward::{Port, PortVlans, ReversePath};

use super::facts::{Facts, Routing};

const LONGEST_REFRESH: Duration = Duration::from_secs(30);

/// How interfaces forward now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The bridge whose ports they are.
    pub bridge: Option<Bridge>,
    /// In the order of the configuration.
    pub ports: Vec<PlannedPort>,
    /// While there is one, nothing is forwarded.
    pub obstacles: Vec<Obstacle>,
    /// This host's IPv4 addresses; `None`: whole networks are.
    pub own: Option<Vec<Ipv4Addr>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPort {
    pub slot: u32,
    pub name: String,
    /// `None`: it is not there.
    pub ifindex: Option<u32>,
    pub port: Port,
    /// The bridge learns at it, so that its stations age.
    pub learns: bool,
    /// Why it does not forward.
    pub trouble: Option<Obstacle>,
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub found: String,
    pub fix: Fix,
    /// The configuration has to change, or this machine's: no start with it.
    pub forbids_start: bool,
}

impl PlannedPort {
    /// It does not forward for now.
    pub fn leave(&mut self, found: &str) {
        (self.port, self.trouble) = (Port::default(), Some(Obstacle::passing(found, "")));
    }
}

impl Obstacle {
    fn lasting(found: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { found: found.into(), fix: fix.into(), forbids_start: true }
    }

    fn passing(found: impl Into<String>, fix: impl Into<Fix>) -> Self {
        Self { found: found.into(), fix: fix.into(), forbids_start: false }
    }
}

impl Plan {
    /// Interfaces that forward: index and slot.
    pub fn ways(&self) -> Vec<(u32, u32)> {
        let forwards = self.ports.iter().filter(|port| port.port.forwards);
        forwards.filter_map(|port| Some((port.ifindex?, port.slot))).collect()
    }

    /// Stations may be elsewhere than under the former plan, or in other VLANs.
    pub fn is_another_topology(&self, former: &Plan) -> bool {
        let of_bridge = |plan: &Plan| {
            let bridge = plan.bridge.as_ref();
            bridge.map(|bridge| (bridge.ifindex, bridge.vlan_filtering, bridge.vlan_protocol))
        };
        let of_ports = |plan: &Plan| -> Vec<(Option<u32>, bool)> {
            plan.ports.iter().map(|port| (port.ifindex, port.port.forwards)).collect()
        };
        let changes =
            |plan: &Plan| plan.bridge.as_ref().is_some_and(|bridge| bridge.topology_change);
        of_bridge(former) != of_bridge(self)
            || of_ports(former) != of_ports(self)
            || (changes(self) && !changes(former))
    }

    /// The kernel would forget this entry, which is refreshed for that. One without a VLAN, of before
    /// the bridge began to tell VLANs apart, would mean every VLAN to the kernel.
    pub fn ages(&self, entry: &FdbEntry) -> bool {
        let filters = self.bridge.as_ref().is_some_and(|bridge| bridge.vlan_filtering);
        let learns = |port: &PlannedPort| port.learns && port.ifindex == Some(entry.port);
        (entry.vlan != 0 || !filters) && self.ports.iter().any(learns)
    }
}

/// How often entries that were used are refreshed.
pub fn refresh_period(bridge: &Bridge) -> Duration {
    (bridge.ageing / 4).clamp(Duration::from_secs(1), LONGEST_REFRESH)
}

/// `slots`: interfaces of `[forward]`, with their slots.
pub fn plan(forward: &InterfaceForward, slots: &[(u32, String)], facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let bridge = match forward.mode {
        ForwardMode::Bridge => first_bridge(slots, facts),
        ForwardMode::Route => None,
    };
    if let Some((bridge, _)) = bridge.filter(|(bridge, _)| bridge.mst) {
        plan.obstacles.push(Obstacle::lasting(
            format!("bridge {} has a spanning tree of its own for each VLAN (MST)", bridge.name),
            format!("ip link set {} type bridge mst_enabled 0", bridge.name),
        ));
    }
    if !forward.bypass_firewall {
        plan.obstacles.extend(facts.bypassed.iter().map(|bypassed| {
            let found = format!("forwarded packets would not meet {}", bypassed.what);
            let meant = format!("or, if that is meant, {}", forward.to_bypass());
            let fix = Fix::Sequence(vec![bypassed.fix.clone(), Fix::from(meant)]);
            Obstacle::lasting(found, fix)
        }));
    }
    plan.ports = slots
        .iter()
        .map(|(slot, name)| {
            let link = facts.link(name);
            let judged = match (link, forward.mode) {
                (None, _) => {
                    Err(Obstacle::passing("it is not there", Fix::command(["ip", "link"])))
                }
                (Some(link), ForwardMode::Bridge) => bridge_port(link, bridge, facts, forward),
                (Some(link), ForwardMode::Route) => {
                    let routing = facts.routing.get(name).copied().unwrap_or_default();
                    route_port(link, routing, facts, forward)
                }
            };
            let (port, trouble) = match judged {
                Ok(port) => (port, None),
                Err(trouble) => (Port::default(), Some(trouble)),
            };
            let (name, ifindex) = (name.clone(), link.map(|link| link.ifindex));
            let own = bridge.map(|(_, ports)| ports.iter());
            let own = own.and_then(|mut ports| ports.find(|port| Some(port.ifindex) == ifindex));
            let learns = own.is_some_and(|port| port.learning);
            PlannedPort { slot: *slot, name, ifindex, port, learns, trouble }
        })
        .collect();
    plan.bridge = bridge.map(|(bridge, _)| bridge.clone());
    plan.own = own_addresses(&facts.local_v4);
    plan
}

/// Those of 127.0.0.0/8 never come by an interface.
fn own_addresses(routes: &[Route]) -> Option<Vec<Ipv4Addr>> {
    let addresses = routes.iter().filter_map(|route| match route.destination {
        IpAddr::V4(address) if !address.is_loopback() => Some((address, route.prefix)),
        _ => None,
    });
    addresses.map(|(address, prefix)| (prefix == 32).then_some(address)).collect()
}

type WithPorts = (Bridge, Vec<BridgePort>);

fn first_bridge<'f>(slots: &[(u32, String)], facts: &'f Facts) -> Option<&'f WithPorts> {
    let mut masters = slots.iter().filter_map(|(_, name)| facts.link(name)?.master);
    masters.find_map(|master| facts.bridges.get(&master))
}

fn bridge_port(
    link: &Link,
    bridge: Option<&WithPorts>,
    facts: &Facts,
    forward: &InterfaceForward,
) -> Result<Port, Obstacle> {
    let name = &link.name;
    let own = link.master.and_then(|master| facts.bridges.get(&master));
    let (Some((bridge, ports)), Some((of, _))) = (bridge, own) else {
        return Err(no_port(link, facts, forward));
    };
    if of.ifindex != bridge.ifindex {
        return Err(Obstacle::lasting(
            format!("it is a port of {}, and others are of {}", of.name, bridge.name),
            "name the ports of one bridge; another one takes a node of its own",
        ));
    }
    if link.vlan.is_some() {
        return Err(Obstacle::lasting(
            "it is a VLAN device, whose frames come by the device below it",
            "name a port without VLAN, or have the bridge filter VLANs",
        ));
    }
    keeps_tags(link, facts)?;
    // The kernel gives their frames to them, before the bridge.
    let upon = facts.links.iter().filter(|l| l.vlan.is_some() && l.lower == Some(link.ifindex));
    let upon: Vec<&str> = upon.map(|link| link.name.as_str()).collect();
    if !upon.is_empty() {
        return Err(Obstacle::lasting(
            format!(
                "it has VLAN devices ({}), whose frames the bridge does not get",
                upon.join(", ")
            ),
            "have the bridge filter VLANs in place of them, or leave this interface out",
        ));
    }
    let port = ports.iter().find(|port| port.ifindex == link.ifindex);
    // Between two readings.
    let port = port.ok_or_else(|| Obstacle::passing("it has just become a port", ""))?;
    unusual(port)?;
    if port.state != PortState::Forwarding {
        return Err(Obstacle::passing(
            format!("its state in {} is {}", bridge.name, state_name(port.state)),
            Fix::command(["bridge", "-d", "link", "show", "dev", name]),
        ));
    }
    if bridge.vlan_filtering && link.kind.is_some() {
        return Err(Obstacle::passing(
            format!(
                "{} filters VLANs, and the tags of a local sender's frames cannot be seen",
                bridge.name
            ),
            format!("ip link set {} type bridge vlan_filtering 0", bridge.name),
        ));
    }
    let vlans = bridge.vlan_filtering.then(|| PortVlans {
        protocol: bridge.vlan_protocol,
        pvid: port.pvid,
        members: members(port),
    });
    Ok(Port { forwards: true, isolated: port.isolated, vlans, ..Port::default() })
}

/// It is no port of a bridge.
fn no_port(link: &Link, facts: &Facts, forward: &InterfaceForward) -> Obstacle {
    let (name, route) = (&link.name, forward.to_route());
    let is_bridge = |link: &&Link| link.kind.as_deref() == Some("bridge");
    let names =
        |links: &[&Link]| links.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(", ");
    if is_bridge(&link) {
        let ports: Vec<&Link> =
            facts.links.iter().filter(|port| port.master == Some(link.ifindex)).collect();
        let fix = match ports.as_slice() {
            [] => "give it ports, and name these".to_owned(),
            ports => format!("name those of its ports that packets go between: {}", names(ports)),
        };
        return Obstacle::lasting("it is a bridge, and ports of one are forwarded between", fix);
    }
    let bridges: Vec<&Link> = facts.links.iter().filter(is_bridge).collect();
    let fix = match bridges.as_slice() {
        [] => Fix::from(format!(
            "make a bridge first (ip-link(8)), or, to forward by routes, {route}"
        )),
        [one] => Fix::Sequence(vec![
            Fix::command(["ip", "link", "set", name, "master", &one.name]),
            Fix::from(format!("or, to forward by routes, {route}")),
        ]),
        several => Fix::from(format!(
            "make it a port of one of {}, or, to forward by routes, {route}",
            names(several)
        )),
    };
    Obstacle::lasting("it is no port of a bridge, and bridge mode forwards beside one", fix)
}

/// A frame without its tag looks like one of another VLAN.
fn keeps_tags(link: &Link, facts: &Facts) -> Result<(), Obstacle> {
    // veth and tap: the sender's stack keeps them beside the frame (docs/forward.md).
    if link.kind.is_some() || facts.takes_tags.get(&link.name) == Some(&false) {
        return Ok(());
    }
    let fix = Fix::ethtool("-K", &link.name, "rxvlan off");
    Err(Obstacle::lasting("its device takes VLAN tags off before XDP sees them, or may do so", fix))
}

/// Those whose state lets them forward.
fn members(port: &BridgePort) -> Vec<(u16, u16, bool)> {
    let forwards = port.vlans.iter().filter(|range| range.state == PortState::Forwarding);
    forwards.map(|range| (range.first, range.last, range.untagged)).collect()
}

/// Settings by which the bridge does more than send frames on.
fn unusual(port: &BridgePort) -> Result<(), Obstacle> {
    let settings = [
        ("proxy_arp", port.proxy_arp),
        ("proxy_arp_wifi", port.proxy_arp_wifi),
        ("neigh_suppress", port.neigh_suppress),
        ("vlan_tunnel", port.vlan_tunnel),
    ];
    match settings.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((setting, _)) => Err(Obstacle::passing(
            format!("it has {setting}, so the bridge does more than send frames on"),
            Fix::command(["bridge", "link", "set", "dev", &port.name, setting, "off"]),
        )),
    }
}

fn state_name(state: PortState) -> &'static str {
    match state {
        PortState::Disabled => "disabled (down, or no carrier)",
        PortState::Listening => "listening",
        PortState::Learning => "learning",
        PortState::Forwarding => "forwarding",
        PortState::Blocking => "blocking (spanning tree)",
    }
}

fn route_port(
    link: &Link,
    routing: Routing,
    facts: &Facts,
    forward: &InterfaceForward,
) -> Result<Port, Obstacle> {
    let name = &link.name;
    keeps_tags(link, facts)?;
    if link.is_layer3() {
        return Err(Obstacle::lasting(
            "it has no Ethernet header",
            "leave it out: the kernel routes to it and from it",
        ));
    }
    if link.master.is_some() {
        return Err(Obstacle::lasting(
            "it is part of another interface (bridge, bond, VRF), which has its packets",
            Fix::Sequence(vec![
                Fix::command(["ip", "link", "set", name, "nomaster"]),
                Fix::from(format!("or, for a bridge's ports, {}", forward.to_bridge())),
            ]),
        ));
    }
    if !routing.forwards_v4 && !routing.forwards_v6 {
        return Err(Obstacle::passing(
            "the kernel does not forward what comes in by it",
            Fix::sysctl("net.ipv4.ip_forward", 1),
        ));
    }
    if !link.up || !link.carrier {
        return Err(Obstacle::passing(
            "it is down, or has no carrier",
            Fix::command(["ip", "link", "set", name, "up"]),
        ));
    }
    let reverse_path = match routing.rp_filter {
        0 => ReversePath::Off,
        1 => ReversePath::Strict,
        _ => ReversePath::Loose,
    };
    Ok(Port { forwards: true, reverse_path, ..Port::default() })
}

#[cfg(test)]
pub(super) mod tests;
