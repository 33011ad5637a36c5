//! Linux bridges of the calling thread's network namespace: settings, ports, forwarding tables, and
//! how they change.

mod fdb;
mod monitor;
mod port;

use std::time::Duration;

pub use fdb::{FdbEntry, FdbKind, fdb, ports, touch, touch_all};
pub use monitor::{BridgeChange, BridgeMonitor};
pub use port::{BridgePort, PortState, VlanRange, ports_of};

use crate::Result;
use crate::netlink::{Message, attributes, links, string, u16_of, u32_of};

// linux/if_link.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_BR_FORWARD_DELAY: u16 = 1;
const IFLA_BR_AGEING_TIME: u16 = 4;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_PROTOCOL: u16 = 8;
const IFLA_BR_TOPOLOGY_CHANGE: u16 = 14;
const IFLA_BR_NF_CALL_IPTABLES: u16 = 36;
const IFLA_BR_NF_CALL_IP6TABLES: u16 = 37;
const IFLA_BR_NF_CALL_ARPTABLES: u16 = 38;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_BR_MULTI_BOOLOPT: u16 = 46;
/// linux/if_bridge.h: a bit of struct br_boolopt_multi.
const BR_BOOLOPT_MST_ENABLE: u32 = 2;
/// Length of struct ifinfomsg.
const IFINFOMSG: usize = 16;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// The daemon that runs the spanning tree protocol, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stp {
    Off,
    Kernel,
    /// A program such as mstpd.
    User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    pub ifindex: u32,
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// A learnt entry is removed after this time without a frame from it. Zero: nothing is learnt.
    pub ageing: Duration,
    /// During a topology change, entries live only this long.
    pub forward_delay: Duration,
    pub stp: Stp,
    /// A topology change is being announced (spanning tree in the kernel).
    pub topology_change: bool,
    /// Spanning tree states are set for groups of VLANs (MST); see [`VlanRange::state`].
    pub mst: bool,
    pub vlan_filtering: bool,
    /// Ethertype of the VLAN tags that the bridge filters: 0x8100 or 0x88a8.
    pub vlan_protocol: u16,
    /// VLAN of untagged frames at a new port; 0: none.
    pub default_pvid: u16,
    /// IPv4 packets that it forwards traverse iptables and nftables (br_netfilter). A sysctl can
    /// switch that on for all bridges.
    pub nf_call_iptables: bool,
    pub nf_call_ip6tables: bool,
    pub nf_call_arptables: bool,
}

/// The bridge of this index; `None`: the interface is no bridge.
pub fn bridge(ifindex: u32) -> Result<Option<Bridge>> {
    // Every interface has a name: a message without one is malformed.
    links::get_link(ifindex, |message| Some(read(message)))
}

fn read(message: Message) -> Option<Bridge> {
    let header = message.body.get(..IFINFOMSG)?;
    let mut bridge = Bridge {
        ifindex: u32_of(&header[4..])?,
        name: String::new(),
        up: u32_of(&header[8..])? as i32 & libc::IFF_UP != 0,
        ageing: Duration::ZERO,
        forward_delay: Duration::ZERO,
        stp: Stp::Off,
        topology_change: false,
        mst: false,
        vlan_filtering: false,
        vlan_protocol: ETHERTYPE_VLAN,
        default_pvid: 0,
        nf_call_iptables: false,
        nf_call_ip6tables: false,
        nf_call_arptables: false,
    };
    let mut is_bridge = false;
    for attribute in attributes(&message.body[IFINFOMSG..]) {
        match attribute.kind {
            IFLA_IFNAME => bridge.name = string(attribute.data),
            IFLA_LINKINFO => {
                let find = |kind| attributes(attribute.data).find(|info| info.kind == kind);
                is_bridge = find(IFLA_INFO_KIND).is_some_and(|kind| string(kind.data) == "bridge");
                fill(&mut bridge, find(IFLA_INFO_DATA).map_or(&[], |data| data.data));
            }
            _ => {}
        }
    }
    is_bridge.then_some(bridge)
}

fn fill(bridge: &mut Bridge, settings: &[u8]) {
    for attribute in attributes(settings) {
        let data = attribute.data;
        let (number, flag) = (u32_of(data).unwrap_or(0), set(data));
        match attribute.kind {
            IFLA_BR_FORWARD_DELAY => bridge.forward_delay = clock(number),
            IFLA_BR_AGEING_TIME => bridge.ageing = clock(number),
            IFLA_BR_STP_STATE => {
                bridge.stp = match number {
                    0 => Stp::Off,
                    1 => Stp::Kernel,
                    _ => Stp::User,
                }
            }
            IFLA_BR_VLAN_FILTERING => bridge.vlan_filtering = flag,
            IFLA_BR_VLAN_PROTOCOL => {
                bridge.vlan_protocol =
                    data.first_chunk().map_or(ETHERTYPE_VLAN, |bytes| u16::from_be_bytes(*bytes));
            }
            IFLA_BR_TOPOLOGY_CHANGE => bridge.topology_change = flag,
            IFLA_BR_NF_CALL_IPTABLES => bridge.nf_call_iptables = flag,
            IFLA_BR_NF_CALL_IP6TABLES => bridge.nf_call_ip6tables = flag,
            IFLA_BR_NF_CALL_ARPTABLES => bridge.nf_call_arptables = flag,
            IFLA_BR_VLAN_DEFAULT_PVID => bridge.default_pvid = u16_of(data).unwrap_or(0),
            IFLA_BR_MULTI_BOOLOPT => bridge.mst = number & 1 << BR_BOOLOPT_MST_ENABLE != 0,
            _ => {}
        }
    }
}

/// A flag of one byte.
fn set(data: &[u8]) -> bool {
    data.first().is_some_and(|byte| *byte != 0)
}

/// A time in clock_t: USER_HZ is 100 on every architecture but Alpha and IA-64.
fn clock(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Request, messages};

    fn link(kind: &[u8], settings: Request) -> Option<Bridge> {
        let mut header = [0; IFINFOMSG];
        header[4] = 7;
        header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
        let info = Request::nested().attribute(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, settings);
        let bytes = Request::new(libc::RTM_NEWLINK, 0, &header)
            .attribute(IFLA_IFNAME, b"br0\0")
            .nest(IFLA_LINKINFO, info)
            .finish(1);
        read(messages(&bytes).next().unwrap())
    }

    #[test]
    fn settings_of_a_bridge() {
        let multi: Vec<u8> = [0b100u32, 0b111].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let settings = || {
            Request::nested()
                .attribute(IFLA_BR_AGEING_TIME, &30_000u32.to_ne_bytes())
                .attribute(IFLA_BR_FORWARD_DELAY, &1_500u32.to_ne_bytes())
                .attribute(IFLA_BR_STP_STATE, &2u32.to_ne_bytes())
                .attribute(IFLA_BR_VLAN_FILTERING, &[1])
                .attribute(IFLA_BR_VLAN_PROTOCOL, &[0x88, 0xa8])
                .attribute(IFLA_BR_NF_CALL_IP6TABLES, &[1])
                .attribute(IFLA_BR_VLAN_DEFAULT_PVID, &9u16.to_ne_bytes())
                .attribute(IFLA_BR_MULTI_BOOLOPT, &multi)
        };
        let bridge = link(b"bridge\0", settings()).unwrap();
        assert_eq!((bridge.ifindex, bridge.name.as_str(), bridge.up), (7, "br0", true));
        assert_eq!(bridge.ageing, Duration::from_secs(300));
        assert_eq!(bridge.forward_delay, Duration::from_secs(15));
        assert_eq!((bridge.stp, bridge.mst), (Stp::User, true));
        assert!(bridge.vlan_filtering && !bridge.topology_change);
        assert_eq!((bridge.vlan_protocol, bridge.default_pvid), (0x88a8, 9));
        assert!(bridge.nf_call_ip6tables && !bridge.nf_call_iptables);
        // A bond has attributes of the same numbers.
        assert_eq!(link(b"bond\0", settings()), None);
    }
}
