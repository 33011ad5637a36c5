//! The way to each backend, from the kernel's routes and neighbours.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ringway_config::Located;
use ringway_host::Mac;
use ringway_host::links::{self, Link};
use ringway_host::neighbours::{self, Neighbour, NeighbourState};
use ringway_host::routes::{self, Path, RouteKind};
use ringway_kernel::Interface;

use crate::problem::Error;
use crate::status;

/// A way out that packets can take now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Interface slot: position in `[node] interfaces`.
    pub slot: u32,
    /// The interface's name.
    pub interface: String,
    /// MAC address of the next hop.
    pub mac: Mac,
    /// Layer 3 bytes that fit.
    pub mtu: u16,
    /// The address the kernel would send from.
    pub source: Option<IpAddr>,
}

impl Hop {
    /// As `ringway status` shows it.
    pub fn shown(&self) -> status::NextHop {
        status::NextHop {
            interface: self.interface.clone(),
            mac: self.mac.to_string(),
            mtu_bytes: self.mtu,
        }
    }
}

/// Why there is none.
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
    OtherInterface {
        /// The interface.
        interface: String,
    },
    /// The next hop has no MAC address yet.
    #[error("next hop {next_hop} on {interface} has not told its MAC address")]
    Unresolved {
        /// Who is asked.
        next_hop: IpAddr,
        /// Where.
        interface: String,
    },
}

/// The ways to all backends, and whom the kernel was asked to keep resolved for them.
#[derive(Debug, Default)]
pub struct Ways {
    /// By backend address.
    pub ways: HashMap<IpAddr, Result<Hop, NoWay>>,
    /// Interface index and address of every next hop.
    pub kept: BTreeSet<(u32, IpAddr)>,
}

/// Looks up the way to each address and has the kernel keep its next hop resolved. Acts in the
/// calling thread's network namespace; some system calls per address.
pub fn look(addresses: &[IpAddr], interfaces: &[Interface]) -> Ways {
    let neighbours = match neighbours::all() {
        Ok(all) => all.into_iter().map(|n| ((n.ifindex, n.address), n)).collect(),
        Err(error) => {
            tracing::warn!(%error, "neighbours not read");
            HashMap::new()
        }
    };
    let mut found = Ways::default();
    for address in addresses {
        let way = route(*address, interfaces).and_then(|(interface, path)| {
            let key = (interface.ifindex, path.next_hop());
            found.kept.insert(key);
            resolve(interface, &path, neighbours.get(&key))
        });
        found.ways.insert(*address, way);
    }
    found
}

/// Where the kernel would send it, if that is one of our interfaces.
pub fn route(address: IpAddr, interfaces: &[Interface]) -> Result<(&Interface, Path), NoWay> {
    let path = routes::route_to(address).map_err(|error| NoWay::NoRoute(error.to_string()))?;
    if path.kind == RouteKind::Local {
        return Err(NoWay::Local);
    }
    match interfaces.iter().find(|interface| interface.ifindex == path.ifindex) {
        Some(interface) => Ok((interface, path)),
        None => {
            let interface = links::by_index(path.ifindex)
                .map_or_else(|_| format!("interface {}", path.ifindex), |link| link.name);
            Err(NoWay::OtherInterface { interface })
        }
    }
}

fn resolve(
    interface: &Interface,
    path: &Path,
    neighbour: Option<&Neighbour>,
) -> Result<Hop, NoWay> {
    let next_hop = path.next_hop();
    let cared_for = neighbour.is_some_and(|n| n.managed || n.state == NeighbourState::Permanent);
    if !cared_for && let Err(error) = neighbours::keep(interface.ifindex, next_hop) {
        tracing::warn!(%error, "next hop not kept resolved");
    }
    let unresolved = || NoWay::Unresolved { next_hop, interface: interface.name.clone() };
    let mac = neighbour.and_then(Neighbour::usable).ok_or_else(unresolved)?;
    let mtu = path.mtu.map_or(interface.mtu, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
    Ok(Hop {
        slot: interface.slot,
        interface: interface.name.clone(),
        mac,
        mtu: mtu.min(interface.mtu),
        source: path.source,
    })
}

/// Lets next hops age like any other neighbour.
pub fn release<'a>(kept: impl Iterator<Item = &'a (u32, IpAddr)>) {
    for (ifindex, address) in kept {
        if let Err(error) = neighbours::release(*ifindex, *address) {
            tracing::warn!(%error, "neighbour not released");
        }
    }
}

/// The interfaces of `[node] interfaces` as the packet path must know them.
///
/// # Errors
/// One does not exist or is not an Ethernet interface.
pub fn interfaces(names: &[Located<String>]) -> Result<Vec<Interface>, Error> {
    let all = links::all().map_err(|error| Error::failed(error.to_string(), ""))?;
    names.iter().enumerate().map(|(slot, name)| interface(slot, name, &all)).collect()
}

/// Those of them that exist.
pub fn existing(names: &[Located<String>]) -> Vec<Interface> {
    let all = links::all().unwrap_or_default();
    names.iter().enumerate().filter_map(|(slot, name)| interface(slot, name, &all).ok()).collect()
}

fn interface(slot: usize, name: &str, all: &[Link]) -> Result<Interface, Error> {
    let missing = |what: &str| {
        Error::configuration(
            format!("interface {name} {what}"),
            "`ip link` lists the interfaces; mend [node] interfaces",
        )
    };
    let link =
        all.iter().find(|link| link.name == name).ok_or_else(|| missing("does not exist"))?;
    let mac = link.mac.ok_or_else(|| missing("is not an Ethernet interface"))?;
    let master = link.master.and_then(|master| all.iter().find(|link| link.ifindex == master));
    Ok(Interface {
        // Validation allows no more than RW_MAX_IFACES.
        slot: slot as u32,
        name: name.to_owned(),
        ifindex: link.ifindex,
        mac: mac.0,
        alt_mac: master.and_then(|master| master.mac).map(|mac| mac.0),
        mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
    })
}
