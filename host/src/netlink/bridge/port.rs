//! Ports of bridges, with their VLANs.

use std::collections::HashMap;

use super::{IFINFOMSG, IFLA_IFNAME, set};
use crate::netlink::{Attribute, Message, Netlink, Request, attributes, string, u16_of, u32_of};
use crate::{Error, Result};

// linux/if_link.h
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_BRPORT_STATE: u16 = 1;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_PROXYARP: u16 = 10;
const IFLA_BRPORT_PROXYARP_WIFI: u16 = 12;
const IFLA_BRPORT_VLAN_TUNNEL: u16 = 29;
const IFLA_BRPORT_NEIGH_SUPPRESS: u16 = 32;
const IFLA_BRPORT_ISOLATED: u16 = 33;
const IFLA_BRPORT_BACKUP_PORT: u16 = 34;
const IFLA_BRPORT_LOCKED: u16 = 39;
const IFLA_BRPORT_NEIGH_VLAN_SUPPRESS: u16 = 43;
// linux/rtnetlink.h
const RTM_NEWVLAN: u16 = 112;
const RTM_GETVLAN: u16 = 114;
// linux/if_bridge.h
/// Length of struct br_vlan_msg: family, 3 reserved bytes, ifindex.
const BR_VLAN_MSG: usize = 8;
const BRIDGE_VLANDB_ENTRY: u16 = 1;
const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;
const BRIDGE_VLANDB_ENTRY_STATE: u16 = 3;
const BRIDGE_VLAN_INFO_PVID: u16 = 1 << 1;
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 1 << 2;

/// The spanning tree state of a port, which holds without a spanning tree, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// Nothing passes: the port is down or has no carrier, or somebody disabled it.
    Disabled,
    /// Nothing passes.
    Listening,
    /// Addresses are learnt and nothing passes.
    Learning,
    Forwarding,
    /// Nothing passes, for it would go in a circle; also every state that is not known here.
    Blocking,
}

/// VLANs of a port that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanRange {
    pub first: u16,
    /// The last one, inclusive.
    pub last: u16,
    /// Their frames leave the port without a tag.
    pub untagged: bool,
    /// Beside the port's own state, which must be forwarding too; see [`super::Bridge::mst`].
    pub state: PortState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgePort {
    pub ifindex: u32,
    pub name: String,
    pub bridge: u32,
    pub state: PortState,
    /// Source addresses of its frames are learnt.
    pub learning: bool,
    /// A frame may leave by the port that it came in by.
    pub hairpin: bool,
    /// No frames pass between isolated ports.
    pub isolated: bool,
    /// Only frames from addresses that are known behind it pass (802.1X).
    pub locked: bool,
    /// The bridge answers ARP and ND for stations behind it.
    pub proxy_arp: bool,
    pub proxy_arp_wifi: bool,
    /// ARP and ND are answered by the bridge and not forwarded here, of all VLANs or of some.
    pub neigh_suppress: bool,
    /// VLANs are mapped to tunnels.
    pub vlan_tunnel: bool,
    /// The port that takes over while this one has no carrier.
    pub backup_port: Option<u32>,
    /// VLAN of frames that come in untagged; 0: these are dropped where VLANs are filtered.
    pub pvid: u16,
    /// Sorted; empty where the kernel is built without VLAN filtering.
    pub vlans: Vec<VlanRange>,
}

/// The ports of this bridge, by index.
pub fn ports_of(bridge: u32) -> Result<Vec<BridgePort>> {
    let mut netlink = Netlink::open()?;
    let mut header = [0; IFINFOMSG];
    header[0] = libc::AF_BRIDGE as u8;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETLINK, flags, &header);
    let what = format!("reading the ports of bridge {bridge}");
    let mut ports = netlink.dump(&what, request, |message| read(message, bridge))?;
    let mut vlans = vlans(&mut netlink)?;
    for port in &mut ports {
        (port.pvid, port.vlans) = vlans.remove(&port.ifindex).unwrap_or_default();
        port.vlans.sort_by_key(|range| range.first);
    }
    ports.sort_by_key(|port| port.ifindex);
    Ok(ports)
}

/// RTM_NEWLINK of family AF_BRIDGE into a port of this bridge.
fn read(message: Message, bridge: u32) -> Option<BridgePort> {
    let header = message.body.get(..IFINFOMSG)?;
    if message.kind != libc::RTM_NEWLINK || i32::from(header[0]) != libc::AF_BRIDGE {
        return None;
    }
    let mut port = BridgePort {
        ifindex: u32_of(&header[4..])?,
        name: String::new(),
        bridge,
        state: PortState::Blocking,
        learning: false,
        hairpin: false,
        isolated: false,
        locked: false,
        proxy_arp: false,
        proxy_arp_wifi: false,
        neigh_suppress: false,
        vlan_tunnel: false,
        backup_port: None,
        pvid: 0,
        vlans: Vec::new(),
    };
    let (mut master, mut is_port) = (None, false);
    for attribute in attributes(&message.body[IFINFOMSG..]) {
        match attribute.kind {
            IFLA_IFNAME => port.name = string(attribute.data),
            IFLA_MASTER => master = u32_of(attribute.data),
            // Drivers with a switch of their own answer as well, without the state of a port.
            IFLA_PROTINFO => {
                let mut settings = attributes(attribute.data);
                is_port |= settings.any(|setting| setting.kind == IFLA_BRPORT_STATE);
                attributes(attribute.data).for_each(|setting| fill(&mut port, setting));
            }
            _ => {}
        }
    }
    (is_port && master == Some(bridge)).then_some(port)
}

fn fill(port: &mut BridgePort, Attribute { kind, data }: Attribute) {
    let flag = set(data);
    match kind {
        IFLA_BRPORT_STATE => port.state = state(data),
        IFLA_BRPORT_MODE => port.hairpin = flag,
        IFLA_BRPORT_LEARNING => port.learning = flag,
        IFLA_BRPORT_PROXYARP => port.proxy_arp = flag,
        IFLA_BRPORT_PROXYARP_WIFI => port.proxy_arp_wifi = flag,
        IFLA_BRPORT_VLAN_TUNNEL => port.vlan_tunnel = flag,
        IFLA_BRPORT_NEIGH_SUPPRESS | IFLA_BRPORT_NEIGH_VLAN_SUPPRESS => port.neigh_suppress |= flag,
        IFLA_BRPORT_ISOLATED => port.isolated = flag,
        IFLA_BRPORT_BACKUP_PORT => port.backup_port = u32_of(data),
        IFLA_BRPORT_LOCKED => port.locked = flag,
        _ => {}
    }
}

fn state(data: &[u8]) -> PortState {
    match data.first() {
        Some(0) => PortState::Disabled,
        Some(1) => PortState::Listening,
        Some(2) => PortState::Learning,
        Some(3) => PortState::Forwarding,
        _ => PortState::Blocking,
    }
}

/// The VLAN of untagged frames, and all VLANs.
type Vlans = (u16, Vec<VlanRange>);

/// Of every port, by index.
fn vlans(netlink: &mut Netlink) -> Result<HashMap<u32, Vlans>> {
    let mut header = [0; BR_VLAN_MSG];
    header[0] = libc::AF_BRIDGE as u8;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(RTM_GETVLAN, flags, &header);
    let found = match netlink.dump("reading the VLANs of bridge ports", request, read_vlans) {
        // A kernel whose bridges cannot filter.
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Vec::new()
        }
        found => found?,
    };
    let mut vlans: HashMap<u32, Vlans> = HashMap::new();
    // A port with many has several messages.
    for (ifindex, (pvid, ranges)) in found {
        let port = vlans.entry(ifindex).or_default();
        port.0 = port.0.max(pvid);
        port.1.extend(ranges);
    }
    Ok(vlans)
}

fn read_vlans(message: Message) -> Option<(u32, Vlans)> {
    let header = message.body.get(..BR_VLAN_MSG)?;
    if message.kind != RTM_NEWVLAN {
        return None;
    }
    let (mut pvid, mut ranges) = (0, Vec::new());
    let entries = attributes(&message.body[BR_VLAN_MSG..]);
    for entry in entries.filter(|attribute| attribute.kind == BRIDGE_VLANDB_ENTRY) {
        let find = |kind| Some(attributes(entry.data).find(|a| a.kind == kind)?.data);
        // struct bridge_vlan_info
        let info = find(BRIDGE_VLANDB_ENTRY_INFO)?;
        let (flags, first) = (u16_of(info)?, u16_of(info.get(2..)?)?);
        if flags & BRIDGE_VLAN_INFO_PVID != 0 {
            pvid = first;
        }
        ranges.push(VlanRange {
            first,
            last: find(BRIDGE_VLANDB_ENTRY_RANGE).and_then(u16_of).unwrap_or(first),
            untagged: flags & BRIDGE_VLAN_INFO_UNTAGGED != 0,
            state: find(BRIDGE_VLANDB_ENTRY_STATE).map_or(PortState::Forwarding, state),
        });
    }
    Some((u32_of(&header[4..])?, (pvid, ranges)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn port(master: u32, settings: Request) -> Option<BridgePort> {
        let header = [libc::AF_BRIDGE as u8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let bytes = Request::new(libc::RTM_NEWLINK, 0, &header)
            .attribute(IFLA_IFNAME, b"p1\0")
            .attribute(IFLA_MASTER, &master.to_ne_bytes())
            .nest(IFLA_PROTINFO, settings)
            .finish(1);
        read(messages(&bytes).next().unwrap(), 3)
    }

    #[test]
    fn settings_of_a_port() {
        let settings = || {
            Request::nested()
                .attribute(IFLA_BRPORT_STATE, &[3])
                .attribute(IFLA_BRPORT_LEARNING, &[1])
                .attribute(IFLA_BRPORT_MODE, &[0])
                .attribute(IFLA_BRPORT_ISOLATED, &[1])
                .attribute(IFLA_BRPORT_NEIGH_SUPPRESS, &[0])
                .attribute(IFLA_BRPORT_NEIGH_VLAN_SUPPRESS, &[1])
                .attribute(IFLA_BRPORT_BACKUP_PORT, &9u32.to_ne_bytes())
        };
        let read = port(3, settings()).unwrap();
        assert_eq!((read.ifindex, read.name.as_str(), read.bridge), (7, "p1", 3));
        assert_eq!((read.state, read.backup_port), (PortState::Forwarding, Some(9)));
        assert!(read.learning && read.isolated && read.neigh_suppress);
        assert!(!(read.hairpin || read.locked || read.proxy_arp || read.vlan_tunnel));
        assert_eq!(port(4, settings()), None, "another bridge's");
        let of_driver = Request::nested().attribute(IFLA_BRPORT_LEARNING, &[1]);
        assert_eq!(port(3, of_driver), None);
        for (byte, state) in [(0, PortState::Disabled), (4, PortState::Blocking)] {
            let settings = Request::nested().attribute(IFLA_BRPORT_STATE, &[byte]);
            assert_eq!(port(3, settings).unwrap().state, state);
        }
    }

    #[test]
    fn vlans_of_a_port() {
        let entry = |flags: u16, vid: u16| {
            let info: Vec<u8> = [flags, vid].iter().flat_map(|n| n.to_ne_bytes()).collect();
            Request::nested().attribute(BRIDGE_VLANDB_ENTRY_INFO, &info)
        };
        let range = entry(0, 10)
            .attribute(BRIDGE_VLANDB_ENTRY_RANGE, &20u16.to_ne_bytes())
            .attribute(BRIDGE_VLANDB_ENTRY_STATE, &[4]);
        let own = entry(BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED, 5)
            .attribute(BRIDGE_VLANDB_ENTRY_STATE, &[3]);
        let bytes = Request::new(RTM_NEWVLAN, 0, &[libc::AF_BRIDGE as u8, 0, 0, 0, 7, 0, 0, 0])
            .nest(BRIDGE_VLANDB_ENTRY, own)
            .nest(BRIDGE_VLANDB_ENTRY, range)
            .finish(1);
        let (ifindex, (pvid, ranges)) = read_vlans(messages(&bytes).next().unwrap()).unwrap();
        assert_eq!((ifindex, pvid), (7, 5));
        let expected = [(5, 5, true, PortState::Forwarding), (10, 20, false, PortState::Blocking)];
        let expected = expected.map(|(first, last, untagged, state)| VlanRange {
            first,
            last,
            untagged,
            state,
        });
        assert_eq!(ranges, expected);
    }
}
