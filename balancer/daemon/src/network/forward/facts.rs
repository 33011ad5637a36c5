//! The state of the machine that forwarding depends on, read at once.

use std::collections::HashMap;

use ringway_config::{ForwardMode, InterfaceForward};
use ringway_host::bypassed::{self, Bypassed, KernelPath};
use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::bridge::{self, Bridge, BridgePort};
use ringway_host::netlink::links::{self, Link};
use ringway_host::netlink::routes::{self, Route};
use ringway_host::{Host, Result};

/// The machine, as seen from the calling thread's network namespace.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub links: Vec<Link>,
    /// Bridges that interfaces of `[forward]` are ports of, by index, with all their ports.
    pub bridges: HashMap<u32, (Bridge, Vec<BridgePort>)>,
    /// How the kernel's IPv4 takes what comes in, by interface name.
    pub routing: HashMap<String, Routing>,
    /// IPv4 destinations that are this host's own, in route mode.
    pub local_v4: Vec<Route>,
    /// Interfaces whose devices take VLAN tags out of frames; absent where that cannot be read.
    pub takes_tags: HashMap<String, bool>,
    /// What forwarded packets would no longer meet.
    pub bypassed: Vec<Bypassed>,
}

/// The kernel's settings of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    pub forwards_v4: bool,
    pub forwards_v6: bool,
    /// 0: sources are not checked, 1: strictly, 2: loosely (RFC 3704).
    pub rp_filter: i64,
}

impl Facts {
    /// # Errors
    /// The kernel does not tell: unknown is not none.
    pub fn read(forward: &InterfaceForward) -> Result<Facts> {
        let links = links::all()?;
        let named = |link: &&Link| forward.interfaces.iter().any(|name| **name == link.name);
        let own: Vec<Link> = links.iter().filter(named).cloned().collect();
        let indexes: Vec<u32> = own.iter().map(|link| link.ifindex).collect();
        let path = KernelPath::read(&indexes)?;
        let mut facts = Facts { links, ..Facts::default() };
        let ethtool = Ethtool::open()?;
        facts.takes_tags = own
            .iter()
            .filter_map(|l| Some((l.name.clone(), ethtool.offloads(&l.name).ok()?.rx_vlan)))
            .collect();
        match forward.mode {
            ForwardMode::Bridge => facts.read_bridges(&own, &path)?,
            ForwardMode::Route => {
                facts.read_routing(&own)?;
                facts.local_v4 = routes::local_v4()?;
                facts.bypassed = bypassed::for_route(&path, &indexes);
            }
        }
        Ok(facts)
    }

    fn read_bridges(&mut self, own: &[Link], path: &KernelPath) -> Result<()> {
        for master in own.iter().filter_map(|link| link.master) {
            if self.bridges.contains_key(&master) {
                continue;
            }
            if let Some(bridge) = bridge::bridge(master)? {
                let ports = bridge::ports_of(master)?;
                let named = |port: &&BridgePort| own.iter().any(|l| l.ifindex == port.ifindex);
                let named: Vec<BridgePort> = ports.iter().filter(named).cloned().collect();
                self.bypassed.extend(bypassed::for_bridge(path, &bridge, &named));
                self.bridges.insert(master, (bridge, ports));
            }
        }
        Ok(())
    }

    fn read_routing(&mut self, own: &[Link]) -> Result<()> {
        let host = Host::live();
        let is_set = |key: String| host.sysctl(&key).map(|v| v.is_some_and(|v| v.trim() != "0"));
        for Link { name, .. } in own {
            let routing = Routing {
                forwards_v4: is_set(format!("net/ipv4/conf/{name}/forwarding"))?,
                forwards_v6: host.forwards_v6()?,
                rp_filter: host.rp_filter(name)?,
            };
            self.routing.insert(name.clone(), routing);
        }
        Ok(())
    }

    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }
}
