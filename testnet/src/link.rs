//! Links between namespaces: veth pairs and bridges.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringway_host::Mac;
use ringway_host::ethtool::{Ethtool, Offload};
use ringway_host::netlink::links::{self, Operstate};
use ringway_host::netlink::routes::{self, RouteKind};

use crate::{Namespace, Result, XdpReceive, attach_pass, enable_napi, wait_for};

/// One end of a veth pair, as wished.
#[derive(Debug, Clone)]
pub struct End {
    namespace: Namespace,
    name: String,
    mac: Option<Mac>,
    addresses: Vec<String>,
    master: Option<String>,
    xdp_receive: XdpReceive,
}

impl End {
    /// An interface `name` (at most 15 bytes) in `namespace`.
    pub fn new(namespace: &Namespace, name: &str) -> Self {
        Self {
            namespace: namespace.clone(),
            name: name.into(),
            mac: None,
            addresses: Vec::new(),
            master: None,
            xdp_receive: XdpReceive::No,
        }
    }

    /// Adds an IPv4 or IPv6 address with its prefix length: `10.0.0.1/24`, `fd00::1/64`.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Fixes the MAC address; otherwise a locally administered one is chosen that no other end of
    /// this process has.
    pub fn mac(mut self, mac: Mac) -> Self {
        self.mac = Some(mac);
        self
    }

    /// Makes it a port of a bridge in the same namespace.
    pub fn port_of(mut self, bridge: &str) -> Self {
        self.master = Some(bridge.into());
        self
    }

    /// Makes it ready for frames that XDP sends from the other end.
    pub fn xdp_receive(mut self, how: XdpReceive) -> Self {
        self.xdp_receive = how;
        self
    }
}

/// Options of both ends of a veth pair.
#[derive(Debug, Clone)]
pub struct VethOptions {
    /// Receive and transmit queues of each end. Default 1.
    pub queues: u32,
    /// Bytes of an IP packet. Default 1500.
    pub mtu: u32,
    /// Leave checksum, segmentation and receive offloads as the kernel sets them. Default false:
    /// all off, since native XDP on veth forgets that a frame's checksum is unfinished, and the
    /// receiver then drops it.
    pub offloads: bool,
}

impl Default for VethOptions {
    fn default() -> Self {
        Self { queues: 1, mtu: 1500, offloads: false }
    }
}

/// An interface that is up.
#[derive(Debug, Clone)]
pub struct Link {
    pub namespace: Namespace,
    pub name: String,
    pub mac: Mac,
    pub ifindex: u32,
}

/// Makes a veth pair, with addresses usable and carrier on both sides when it returns.
pub fn veth(a: &End, b: &End, options: &VethOptions) -> Result<(Link, Link)> {
    let (mac_a, mac_b) = (a.mac.unwrap_or_else(fresh_mac), b.mac.unwrap_or_else(fresh_mac));
    let common =
        format!("mtu {} numtxqueues {q} numrxqueues {q}", options.mtu, q = options.queues.max(1));
    a.namespace.ip(&format!(
        "link add name {} address {mac_a} {common} type veth peer name {} address {mac_b} {common} netns {}\n",
        a.name,
        b.name,
        b.namespace.name()
    ))?;
    for end in [a, b] {
        end.namespace.run(|| set_offloads(end, options))??;
        end.namespace.ip(&set_up(end))?;
    }
    Ok((wait_up(a)?, wait_up(b)?))
}

/// Makes a bridge, up, without spanning tree and multicast snooping. Ports join by
/// [`End::port_of`]. A bridge is up for traffic as soon as its first port is.
pub fn bridge(namespace: &Namespace, name: &str, addresses: &[&str]) -> Result<()> {
    let mut lines = format!(
        "link add name {name} address {} type bridge stp_state 0 mcast_snooping 0\n",
        fresh_mac()
    );
    for address in addresses {
        add_address(&mut lines, name, address);
    }
    let _ = writeln!(lines, "link set {name} up");
    namespace.ip(&lines)
}

fn set_offloads(end: &End, options: &VethOptions) -> Result<()> {
    let ethtool = Ethtool::open()?;
    if !options.offloads {
        for offload in [Offload::Tso, Offload::Gso, Offload::TxChecksum, Offload::Gro] {
            ethtool.set(&end.name, offload, false)?;
        }
    }
    match end.xdp_receive {
        XdpReceive::No => Ok(()),
        XdpReceive::Gro => enable_napi(&end.namespace, &end.name),
        XdpReceive::Pass => attach_pass(&end.namespace, &end.name),
    }
}

fn set_up(end: &End) -> String {
    let mut lines = String::new();
    if let Some(master) = &end.master {
        let _ = writeln!(lines, "link set {} master {master}", end.name);
    }
    for address in &end.addresses {
        add_address(&mut lines, &end.name, address);
    }
    let _ = writeln!(lines, "link set {} up", end.name);
    lines
}

fn add_address(lines: &mut String, interface: &str, address: &str) {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    let _ = writeln!(lines, "addr add {address} dev {interface}{nodad}");
}

/// The kernel switches carrier and queues on from a work queue, and IPv6 addresses too: what is
/// sent before is lost. It needs RTNL for that, which other tests hold for seconds.
fn wait_up(end: &End) -> Result<Link> {
    let what = format!("readiness of {} in {}", end.name, end.namespace.name());
    end.namespace.run(|| wait_for(what, Duration::from_secs(30), || ready(end)))?
}

fn ready(end: &End) -> Result<Link, String> {
    let link = links::by_name(&end.name).map_err(|e| e.to_string())?;
    if link.operstate != Operstate::Up {
        return Err(format!("its operational state is {:?}", link.operstate));
    }
    for address in end.addresses.iter().filter_map(|a| a.split('/').next()?.parse().ok()) {
        let path = routes::route_to(address).map_err(|e| e.to_string())?;
        if path.kind != RouteKind::Local {
            return Err(format!("its address {address} is not in use yet"));
        }
    }
    Ok(Link {
        namespace: end.namespace.clone(),
        name: end.name.clone(),
        mac: link.mac.unwrap_or_default(),
        ifindex: link.ifindex,
    })
}

/// A locally administered unicast address, 02:72:77:xx:xx:xx.
fn fresh_mac() -> Mac {
    static COUNTER: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = COUNTER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Mac([0x02, 0x72, 0x77, a, b, c])
}
