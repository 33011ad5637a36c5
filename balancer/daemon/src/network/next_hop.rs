//! The way to each backend, from the kernel's routes and neighbours.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ringway_api::documents::status;
use ringway_api::error::Error;
use ringway_config::{Faces, Node};
use ringway_host::Mac;
use ringway_host::ethtool::{Ethtool, Offload};
use ringway_host::netlink::bridge;
use ringway_host::netlink::links::{self, Link};
use ringway_host::netlink::neighbours::{self, Neighbour, NeighbourState};
use ringway_host::netlink::routes::{self, Path, RouteKind};
use ringway_kernel::{Interface, InterfaceState, Vlan};

use crate::network::interface_slots::InterfaceSlots;

/// A way out that packets can take now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Interface slot.
    pub slot: u32,
    pub interface: String,
    /// MAC address of the next hop; zero where the interface has no Ethernet header.
    pub mac: Mac,
    /// Layer 3 bytes that fit.
    pub mtu: u16,
    /// The address the kernel would send from.
    pub source: Option<IpAddr>,
    /// The router in between, if the address is not on the link itself.
    pub router: Option<IpAddr>,
}

impl Hop {
    /// As `ringway status` shows it.
    pub fn shown(&self) -> status::NextHop {
        status::NextHop { interface: self.interface.clone(), mac: self.mac, mtu_bytes: self.mtu }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// Not looked for yet.
    #[error("the way to it has not been looked up yet")]
    NotYet,
    /// No route, or a table could not be read.
    #[error("{0}")]
    NoRoute(String),
    /// The address is the node's own.
    #[error("is an address of this node; a backend must be another machine")]
    Local,
    /// The route leaves by an interface that is not ours.
    #[error("is reached by way of {interface}, which is not among [node] interfaces")]
    OtherInterface { interface: String },
    /// The route leaves by an interface that faces clients.
    #[error(
        "is reached by way of {interface}, which faces clients only: drop `faces` there in [node] \
         interfaces, or mend the route"
    )]
    FacesClients { interface: String },
    /// The bridge does not know where the next hop is.
    #[error("bridge {bridge} has not learnt behind which port {next_hop} ({mac}) is")]
    UnknownPort { next_hop: IpAddr, mac: Mac, bridge: String },
    /// Another machine's MAC address is not the backend's.
    #[error("is reached by way of router {router}: dsr-l2 needs it on a link of this node")]
    Router { router: IpAddr },
    /// The next hop has no MAC address yet.
    #[error("next hop {next_hop} on {interface} has not answered {}, so its MAC address is not known", asked_by(*next_hop))]
    Unresolved { next_hop: IpAddr, interface: String },
}

/// Protocol that asks for a neighbour.
pub fn asked_by(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ARP" } else { "ND" }
}

/// The ways to all backends, and whom the kernel was asked to keep resolved for them.
#[derive(Debug, Default)]
pub struct Ways {
    /// Keyed by backend address.
    pub ways: HashMap<IpAddr, Result<Hop, NoWay>>,
    /// Interface index and address of every next hop, and whether the kernel keeps it resolved.
    pub kept: BTreeMap<(u32, IpAddr), ringway_host::Result<()>>,
    /// MAC addresses of the next hops.
    pub macs: KnownMacs,
}

/// MAC addresses by interface index and address of the next hop.
pub type KnownMacs = HashMap<(u32, IpAddr), KnownMac>;

/// A next hop's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMac {
    mac: Mac,
    /// Since when the kernel does not know it, if it does not.
    missing_since: Option<Instant>,
}

impl KnownMac {
    /// The kernel does not know it any more, and asks.
    pub fn is_missing(&self) -> bool {
        self.missing_since.is_some()
    }
}

/// The kernel asks three times, a second apart, unless somebody has set that otherwise; an answer
/// that has not come by now does not come.
const MISSING: Duration = Duration::from_secs(10);

/// Looks up the way to each address and has the kernel keep its next hop resolved. Acts in the
/// calling thread's network namespace; some system calls per address. `before`: what the last look
/// found, which holds until the kernel's questions for a MAC address have failed.
///
/// # Errors
/// The kernel's tables could not be read: then nothing is known of any way.
pub fn resolve(
    addresses: &[IpAddr],
    interfaces: &[Interface],
    before: &KnownMacs,
) -> ringway_host::Result<Ways> {
    let kernel = Kernel::read(interfaces, before)?;
    let mut found = Ways::default();
    for address in addresses {
        let way = kernel.out(*address)?.and_then(|(out, path)| {
            if !out.is_layer3() {
                let next_hop = (path.ifindex, path.next_hop());
                found.kept.entry(next_hop).or_insert_with(|| kernel.keep(next_hop));
                found.macs.extend(kernel.mac(next_hop).map(|mac| (next_hop, mac)));
            }
            kernel.resolve(&out, &path)
        });
        found.ways.insert(*address, way);
    }
    Ok(found)
}

/// How packets to an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out<'a> {
    /// By one of our interfaces.
    Interface(&'a Interface),
    /// By a bridge some of whose ports are ours: by the port that leads to the next hop's MAC
    /// address, past the bridge.
    Bridge(&'a Link),
}

impl Out<'_> {
    /// The device is the next hop: there are no neighbours.
    fn is_layer3(&self) -> bool {
        matches!(self, Out::Interface(interface) if interface.layer3)
    }
}

/// The kernel's network, read once per look-up.
struct Kernel<'a> {
    interfaces: &'a [Interface],
    before: &'a KnownMacs,
    links: Vec<Link>,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
    /// Forwarding tables of the bridges that our interfaces are ports of.
    ports: HashMap<u32, HashMap<Mac, u32>>,
}

impl<'a> Kernel<'a> {
    fn read(
        interfaces: &'a [Interface],
        before: &'a KnownMacs,
    ) -> ringway_host::Result<Kernel<'a>> {
        let (links, neighbours) = (links::all()?, neighbours::all()?);
        let ours = |link: &&Link| interfaces.iter().any(|i| i.ifindex == link.ifindex);
        let bridges: BTreeSet<u32> =
            links.iter().filter(ours).filter_map(|link| link.master).collect();
        let ports = bridges.into_iter().map(|bridge| Ok((bridge, bridge::ports(bridge)?)));
        Ok(Kernel {
            interfaces,
            before,
            neighbours: neighbours.into_iter().map(|n| ((n.ifindex, n.address), n)).collect(),
            ports: ports.collect::<ringway_host::Result<_>>()?,
            links,
        })
    }

    /// Where the kernel would send it, if that is a way we can take. That it could not be asked is
    /// no answer.
    fn out(&self, address: IpAddr) -> ringway_host::Result<Result<(Out<'_>, Path), NoWay>> {
        match routes::route_to(address) {
            Ok(path) => Ok(self.out_by(path)),
            Err(error @ ringway_host::Error::NoRoute { .. }) => {
                let ours = |link: &&Link| self.interfaces.iter().any(|i| i.ifindex == link.ifindex);
                let down = self.links.iter().filter(ours).find(|link| !link.up);
                Ok(Err(NoWay::NoRoute(match down {
                    Some(link) => format!("no route to {address} while {} is down", link.name),
                    None => error.to_string(),
                })))
            }
            Err(error) => Err(error),
        }
    }

    fn out_by(&self, path: Path) -> Result<(Out<'_>, Path), NoWay> {
        if path.kind == RouteKind::Local {
            return Err(NoWay::Local);
        }
        if let Some(interface) = self.interfaces.iter().find(|i| i.ifindex == path.ifindex) {
            return Ok((Out::Interface(interface), path));
        }
        let link = self.links.iter().find(|link| link.ifindex == path.ifindex);
        match link.filter(|link| self.ports.contains_key(&link.ifindex)) {
            Some(bridge) => Ok((Out::Bridge(bridge), path)),
            None => {
                let unnamed = || format!("interface {}", path.ifindex);
                let interface = link.map_or_else(unnamed, |link| link.name.clone());
                Err(NoWay::OtherInterface { interface })
            }
        }
    }

    fn resolve(&self, out: &Out<'_>, path: &Path) -> Result<Hop, NoWay> {
        let (interface, mac) = match out {
            Out::Interface(interface) if interface.layer3 => (*interface, Mac([0; 6])),
            _ => self.neighbour(out, path)?,
        };
        if interface.faces == Faces::Clients {
            return Err(NoWay::FacesClients { interface: interface.name.clone() });
        }
        let mtu = path.mtu.map_or(interface.mtu, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        Ok(Hop {
            slot: interface.slot,
            interface: interface.name.clone(),
            mac,
            mtu: mtu.min(interface.mtu),
            source: path.source,
            router: path.gateway,
        })
    }

    /// The interface by which packets leave, and to whom.
    fn neighbour<'k>(&'k self, out: &Out<'k>, path: &Path) -> Result<(&'k Interface, Mac), NoWay> {
        let next_hop = path.next_hop();
        let name = match out {
            Out::Interface(interface) => &interface.name,
            Out::Bridge(bridge) => &bridge.name,
        };
        let unresolved = || NoWay::Unresolved { next_hop, interface: name.clone() };
        let mac = self.mac((path.ifindex, next_hop)).ok_or_else(unresolved)?.mac;
        let interface = match out {
            Out::Interface(interface) => *interface,
            Out::Bridge(bridge) => self.port(bridge, mac, next_hop)?,
        };
        Ok((interface, mac))
    }

    /// Has the kernel keep a next hop resolved.
    fn keep(&self, next_hop: (u32, IpAddr)) -> ringway_host::Result<()> {
        let neighbour = self.neighbours.get(&next_hop);
        match neighbour.is_some_and(|n| n.managed || n.state == NeighbourState::Permanent) {
            true => Ok(()),
            false => neighbours::keep(next_hop.0, next_hop.1),
        }
    }

    /// The MAC address of a next hop: as the kernel knows it, or as it was, unless the kernel has
    /// asked in vain or the link is down.
    fn mac(&self, next_hop: (u32, IpAddr)) -> Option<KnownMac> {
        let neighbour = self.neighbours.get(&next_hop);
        if let Some(mac) = neighbour.and_then(Neighbour::usable) {
            return Some(KnownMac { mac, missing_since: None });
        }
        let known = self.before.get(&next_hop)?;
        let since = known.missing_since.unwrap_or_else(Instant::now);
        let failed = neighbour.is_some_and(|n| n.state == NeighbourState::Failed);
        let link = self.links.iter().find(|link| link.ifindex == next_hop.0);
        let connected = link.is_some_and(|link| link.up && link.carrier);
        let holds = !failed && connected && since.elapsed() < MISSING;
        holds.then_some(KnownMac { mac: known.mac, missing_since: Some(since) })
    }

    /// The interface of ours behind which the bridge has learnt the MAC address.
    fn port(&self, bridge: &Link, mac: Mac, next_hop: IpAddr) -> Result<&Interface, NoWay> {
        let bridge_name = bridge.name.clone();
        let Some(port) = self.ports.get(&bridge.ifindex).and_then(|ports| ports.get(&mac)) else {
            return Err(NoWay::UnknownPort { next_hop, mac, bridge: bridge_name });
        };
        let interface = self.interfaces.iter().find(|interface| interface.ifindex == *port);
        interface.ok_or_else(|| {
            let link = self.links.iter().find(|link| link.ifindex == *port);
            let name = link.map_or_else(|| format!("port {port}"), |link| link.name.clone());
            NoWay::OtherInterface { interface: format!("{name} of bridge {bridge_name}") }
        })
    }
}

fn noted<T: Default>(found: ringway_host::Result<T>) -> T {
    found.unwrap_or_else(|error| {
        tracing::warn!(%error, "the ways to the backends may be incomplete");
        T::default()
    })
}

/// Has the kernel ask the next hop to a backend again: its MAC address may have changed unsaid.
///
/// # Errors
/// There is no route to it, or the kernel refuses.
pub fn doubt(backend: IpAddr) -> ringway_host::Result<()> {
    let path = routes::route_to(backend)?;
    neighbours::doubt(path.ifindex, path.next_hop())
}

/// The interfaces of `[node] interfaces` as the packet path must know them; those of `held` keep
/// their slots.
///
/// # Errors
/// One does not exist or is not an Ethernet interface.
pub fn interfaces(
    node: &Node,
    held: &[InterfaceState],
) -> Result<(InterfaceSlots, Vec<Interface>), Error> {
    let all = links::all().map_err(|error| Error::failed(error.to_string(), ""))?;
    let index_of = |name: &str| Some(all.iter().find(|link| link.name == name)?.ifindex);
    let slots = InterfaceSlots::assign(node, held, index_of);
    let described = slots.iter().map(|(name, slot, faces)| interface(slot, name, faces, &all));
    let mut interfaces = described.collect::<Result<Vec<_>, _>>()?;
    find_vlans(&mut interfaces, &all);
    find_raw(&mut interfaces, &all).map_err(|error| Error::failed(error.to_string(), ""))?;
    Ok((slots, interfaces))
}

/// Notes which of them send checksums as they are, finished or not.
fn find_raw(interfaces: &mut [Interface], all: &[Link]) -> ringway_host::Result<()> {
    let ethtool = Ethtool::open()?;
    for interface in interfaces {
        let Some(link) = all.iter().find(|link| link.ifindex == interface.ifindex) else {
            continue;
        };
        let offload = ethtool.get(&link.name, Offload::TxChecksum);
        interface.raw = is_raw(link, offload.ok());
    }
    Ok(())
}

/// Whether nobody looks at the mark of an unfinished checksum as the device sends: true of a tap
/// alone, whose reader asked neither for unfinished checksums (`tx_checksum`) nor for the mark.
/// NICs go by the mark even with tx-checksumming off (virtio_net, igb): what is finished
/// beforehand, they finish a second time.
fn is_raw(link: &Link, tx_checksum: Option<bool>) -> bool {
    let tap = link.kind.as_deref() == Some("tun");
    tap && link.vnet_header == Some(false) && tx_checksum == Some(false)
}

/// How the interfaces are now.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    /// Those that exist, under the names of the configuration.
    pub interfaces: Vec<Interface>,
    /// Names of those of them that are down.
    pub down: Vec<String>,
    /// Names of those that are up and have no carrier: the cable, the switch or the far end is
    /// away.
    pub no_carrier: Vec<String>,
    /// Those that are called otherwise now: name in the configuration, and what they are called.
    pub renamed: Vec<(String, String)>,
}

impl Existing {
    /// Whether packets can neither come in nor go out by the interface of this name.
    pub fn is_cut_off(&self, name: &str) -> bool {
        self.down.iter().chain(&self.no_carrier).any(|one| one == name)
    }
}

/// Looks for the interfaces. One that we are on (`known`: index by slot) is the same whatever it is
/// called now; any other is who has its name.
///
/// # Errors
/// The kernel does not tell: then nothing is known about any.
pub fn existing(
    slots: &InterfaceSlots,
    known: &HashMap<u32, u32>,
) -> ringway_host::Result<Existing> {
    let all = links::all()?;
    let mut found = find(slots, known, &all);
    find_raw(&mut found.interfaces, &all)?;
    Ok(found)
}

fn find(slots: &InterfaceSlots, known: &HashMap<u32, u32>, all: &[Link]) -> Existing {
    let mut found = Existing::default();
    for (name, slot, faces) in slots.iter() {
        let same =
            known.get(&slot).and_then(|index| all.iter().find(|link| link.ifindex == *index));
        let Some(link) = same.or_else(|| all.iter().find(|link| link.name == name)) else {
            continue;
        };
        let Ok(described) = describe(slot, name, faces, link, all) else { continue };
        found.interfaces.push(described);
        match (link.up, link.carrier) {
            (false, _) => found.down.push(name.to_owned()),
            (true, false) => found.no_carrier.push(name.to_owned()),
            (true, true) => {}
        }
        if link.name != name {
            found.renamed.push((name.to_owned(), link.name.clone()));
        }
    }
    find_vlans(&mut found.interfaces, all);
    found
}

/// Two tags, as many as the packet path takes off.
const MAX_TAGS: usize = 2;

/// VLAN devices upon another of the interfaces: their frames are met there, with their tags.
fn find_vlans(interfaces: &mut [Interface], all: &[Link]) {
    let slots: HashMap<u32, u32> = interfaces.iter().map(|i| (i.ifindex, i.slot)).collect();
    for interface in interfaces {
        let (mut at, mut tags) = (interface.ifindex, Vec::new());
        while let Some(link) = all.iter().find(|link| link.ifindex == at)
            && let (Some(tag), Some(lower), false) = (link.vlan, link.lower, link.lower_elsewhere)
            && tags.len() <= MAX_TAGS
        {
            tags.insert(0, (tag.protocol, tag.id));
            at = lower;
        }
        let fits = (1..=MAX_TAGS).contains(&tags.len());
        interface.vlan =
            slots.get(&at).filter(|_| fits).map(|device| Vlan { device: *device, tags });
    }
}

/// Devices that native XDP can neither run on nor redirect into, by what makes them. A program on
/// one is in the generic path, whatever the other interfaces do.
const STACKED: [&str; 11] = [
    "bridge",
    "vlan",
    "macvlan",
    "macsec",
    "team",
    "vxlan",
    "geneve",
    "gretap",
    "ip6gretap",
    "ip6erspan",
    "dummy",
];

/// Whether native XDP can neither run on this device nor redirect into it, and generic XDP can.
pub fn is_stacked(link: &Link) -> bool {
    link.kind.as_deref().is_some_and(|kind| STACKED.contains(&kind))
}

/// Those among the interfaces that native XDP can neither run on nor redirect into, with what they
/// are: "bridge", "vlan" (without the device below it), "wireguard", ...
pub fn stacked(interfaces: &[Interface]) -> HashMap<u32, String> {
    let all = noted(links::all());
    let kind = |interface: &Interface| {
        let link = all.iter().find(|link| link.ifindex == interface.ifindex)?;
        let kind = link.kind.clone().unwrap_or_else(|| "layer-3 device".into());
        let stacked = interface.layer3 || is_stacked(link);
        (stacked && interface.vlan.is_none()).then_some((interface.slot, kind))
    };
    interfaces.iter().filter_map(kind).collect()
}

/// The first of them that generic XDP can redirect into, for which `auto` is generic everywhere:
/// its name and what it is.
pub fn obstacle(interfaces: &[Interface], stacked: &HashMap<u32, String>) -> Option<String> {
    let found = |one: &Interface| {
        let kind = stacked.get(&one.slot).filter(|_| !one.layer3)?;
        Some(format!("{}, a {kind}", one.name))
    };
    interfaces.iter().find_map(found)
}

fn interface(slot: u32, name: &str, faces: Faces, all: &[Link]) -> Result<Interface, Error> {
    let link = all.iter().find(|link| link.name == name);
    describe(slot, name, faces, link.ok_or_else(|| unfit(name, "does not exist"))?, all)
}

fn unfit(name: &str, what: &str) -> Error {
    Error::configuration(
        format!("interface {name} {what}"),
        "`ip link` lists the interfaces; mend [node] interfaces",
    )
}

fn describe(
    slot: u32,
    name: &str,
    faces: Faces,
    link: &Link,
    all: &[Link],
) -> Result<Interface, Error> {
    let layer3 = link.is_layer3();
    let mac = match link.mac {
        None if layer3 => layer3_address(link),
        mac => {
            mac.ok_or_else(|| unfit(name, "is neither Ethernet nor a device of bare IP packets"))?
        }
    };
    let master = link.master.and_then(|master| all.iter().find(|link| link.ifindex == master));
    let second = master.or_else(|| all.iter().find(|upon| is_vrrp(upon, link)));
    Ok(Interface {
        slot,
        name: name.to_owned(),
        ifindex: link.ifindex,
        mac: mac.0,
        alt_mac: second.and_then(|second| second.mac).map(|mac| mac.0),
        mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
        redirect: link.kind.as_deref() == Some("veth"),
        layer3,
        local: matches!(link.kind.as_deref(), Some("veth" | "tun")),
        raw: false,
        vlan: None,
        faces,
    })
}

/// Whether this is a macvlan upon `below` with the MAC address of a virtual router (RFC 9568
/// section 7.3), as keepalived makes one (`use_vmac`).
pub(crate) fn is_vrrp(link: &Link, below: &Link) -> bool {
    let ours = link.lower == Some(below.ifindex) && !link.lower_elsewhere && link.up;
    ours && link.mac.is_some_and(|mac| matches!(mac.0, [0, 0, 0x5e, 0, 1 | 2, _]))
}

/// What the kernel compares with the destination of an Ethernet header that we put before a packet:
/// six bytes, whatever the address is (net/ethernet/eth.c: eth_type_trans).
fn layer3_address(link: &Link) -> Mac {
    let mut bytes = [0; 6];
    bytes.iter_mut().zip(&link.address).for_each(|(to, from)| *to = *from);
    Mac(bytes)
}

#[cfg(test)]
mod tests;
