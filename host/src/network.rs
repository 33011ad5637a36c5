//! Everything netlink and ethtool know about this network namespace, as one value that can be
//! stored.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ethtool::{Channels, Driver, Ethtool, Offloads};
use crate::netlink::addresses::{self, Address};
use crate::netlink::links::{self, Link, Operstate};
use crate::netlink::neighbours::{self, Neighbour};
use crate::netlink::routes::{self, Route};
use crate::{Error, Result};

/// An interface with what its driver says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    #[serde(flatten)]
    pub link: Link,
    /// Its driver; absent where the kernel does not name one.
    pub driver: Option<Driver>,
    /// Queue counts; absent where the driver cannot say.
    pub channels: Option<Channels>,
    pub offloads: Offloads,
    /// Whether a default route leads out by it, of either family and in any table.
    pub carries_default_route: bool,
}

impl Interface {
    /// Whether packets can go in and out: up with a carrier.
    pub fn usable(&self) -> bool {
        let ready = matches!(self.link.operstate, Operstate::Up | Operstate::Unknown);
        self.link.up && self.link.carrier && ready
    }
}

/// A network namespace at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Network {
    /// Sorted by index.
    pub interfaces: Vec<Interface>,
    pub addresses: Vec<Address>,
    /// Routes of all tables.
    pub routes: Vec<Route>,
    pub neighbours: Vec<Neighbour>,
}

impl Network {
    /// Reads the calling thread's network namespace. Interfaces that vanish meanwhile are left out.
    pub fn read() -> Result<Self> {
        let routes = routes::all()?;
        let default = routes::default_interfaces(&routes);
        let ethtool = Ethtool::open()?;
        let mut interfaces = Vec::new();
        for link in links::all()? {
            let carries = default.contains(&link.ifindex);
            match interface(&ethtool, link, carries) {
                Err(Error::NoInterface { .. }) => {}
                interface => interfaces.push(interface?),
            }
        }
        let (addresses, neighbours) = (addresses::all()?, neighbours::all()?);
        Ok(Self { interfaces, addresses, routes, neighbours })
    }

    /// The interface of this name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.link.name == name)
    }

    /// The interface of this index.
    pub fn interface_by_index(&self, ifindex: u32) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.link.ifindex == ifindex)
    }

    /// The addresses of one interface.
    pub fn addresses_of(&self, ifindex: u32) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |a| a.ifindex == ifindex)
    }

    /// The entry of exactly this address.
    pub fn holder(&self, address: IpAddr) -> Option<&Address> {
        self.addresses.iter().find(|a| a.address == address)
    }

    /// The veth peer, if it is in this namespace.
    pub fn peer(&self, interface: &Interface) -> Option<&Interface> {
        let link = &interface.link;
        let here = link.kind.as_deref() == Some("veth") && !link.lower_elsewhere;
        link.lower.filter(|_| here).and_then(|ifindex| self.interface_by_index(ifindex))
    }
}

/// One interface of the calling thread's network namespace, read now.
pub fn interface_by_name(name: &str) -> Result<Interface> {
    let default = routes::default_interfaces(&routes::all()?);
    let link = links::by_name(name)?;
    let carries = default.contains(&link.ifindex);
    interface(&Ethtool::open()?, link, carries)
}

fn interface(ethtool: &Ethtool, link: Link, carries_default_route: bool) -> Result<Interface> {
    Ok(Interface {
        driver: ethtool.driver(&link.name)?,
        channels: ethtool.channels(&link.name)?,
        offloads: ethtool.offloads(&link.name)?,
        carries_default_route,
        link,
    })
}
