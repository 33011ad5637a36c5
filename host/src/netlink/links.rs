//! Interfaces of the calling thread's network namespace, by RTM_GETLINK.

use std::os::fd::{AsRawFd, BorrowedFd};

pub use ringway_bpf_sys::XdpMode;
use serde::{Deserialize, Serialize};

use crate::netlink::{Attribute, Message, Netlink, Request, attributes, string, u32_of};
use crate::{Error, Mac, Result};

// linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_XDP: u16 = 43;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
/// RTEXT_FILTER_SKIP_STATS: counters are not asked for.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// RFC 2863 operational state, as in linux/if.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operstate {
    /// Not reported by the driver (loopback, for one); use `up` and `carrier`.
    Unknown,
    /// A component is missing.
    NotPresent,
    /// No carrier, or not up.
    Down,
    /// A lower layer is down.
    LowerLayerDown,
    Testing,
    /// Waiting for an external event.
    Dormant,
    /// Ready for packets.
    Up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xdp {
    /// Its id, as in `bpftool prog show id N`.
    pub program: u32,
    pub mode: XdpMode,
}

/// The tag of a VLAN device's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanTag {
    /// Ethertype: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub protocol: u16,
    pub id: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Index in its network namespace.
    pub ifindex: u32,
    pub name: String,
    /// `veth`, `bridge`, `bond`, `vlan`, ...; absent for hardware and loopback.
    pub kind: Option<String>,
    /// Ethernet address; absent for interfaces without (tun).
    pub mac: Option<Mac>,
    /// Its link layer: a number of linux/if_arp.h.
    #[serde(default)]
    pub hardware: u16,
    /// Its link-layer address, whatever that is: of an IPv4 tunnel its IPv4 address.
    #[serde(default)]
    pub address: Vec<u8>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Administratively up.
    pub up: bool,
    /// Whether there is a carrier.
    pub carrier: bool,
    pub operstate: Operstate,
    /// Receive queues it was made with; the driver may use fewer (see `ethtool::Channels`).
    pub rx_queues: u32,
    /// Transmit queues it was made with.
    pub tx_queues: u32,
    /// Index of the bridge or bond it belongs to.
    pub master: Option<u32>,
    /// Index of the veth peer, or of the interface below a VLAN or macvlan.
    pub lower: Option<u32>,
    /// Of a VLAN device.
    #[serde(default)]
    pub vlan: Option<VlanTag>,
    /// Of a TUN or TAP device: whether its reader gets a `virtio_net_hdr` before each packet, which
    /// says whether the checksum is unfinished.
    #[serde(default)]
    pub vnet_header: Option<bool>,
    /// Whether `lower` counts in another network namespace, so that it names nothing here.
    pub lower_elsewhere: bool,
    /// Attached XDP programs; more than one if native and generic are both there.
    pub xdp: Vec<Xdp>,
}

// linux/if_arp.h; of these libc has not all.
const ARPHRD_PPP: u16 = 512;
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_TUNNEL: u16 = 768;
const ARPHRD_TUNNEL6: u16 = 769;
const ARPHRD_SIT: u16 = 776;
const ARPHRD_NONE: u16 = 0xfffe;

impl Link {
    /// Whether its packets are IP packets and nothing else, without an Ethernet header: WireGuard,
    /// tun, PPP, and IP tunnels but GRE.
    pub fn is_layer3(&self) -> bool {
        let types =
            [ARPHRD_PPP, ARPHRD_RAWIP, ARPHRD_TUNNEL, ARPHRD_TUNNEL6, ARPHRD_SIT, ARPHRD_NONE];
        types.contains(&self.hardware)
    }

    /// Whether packets that come in here may be `upper`'s: the bridge or bond that this is a part
    /// of, or a device upon this one (VLAN, macvlan, tunnel). The other end of a veth pair is none.
    pub fn carries(&self, upper: &Link) -> bool {
        let upon = upper.kind.as_deref() != Some("veth")
            && !upper.lower_elsewhere
            && upper.lower == Some(self.ifindex);
        upon || self.master == Some(upper.ifindex)
    }
}

/// All interfaces, by index.
pub fn all() -> Result<Vec<Link>> {
    let request = || {
        request(libc::NLM_F_DUMP, 0)
            .attribute(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())
    };
    let mut links = Netlink::open()?.dump("listing interfaces", request, read)?;
    links.sort_by_key(|l| l.ifindex);
    Ok(links)
}

/// The interface of this name.
pub fn by_name(name: &str) -> Result<Link> {
    let mut terminated = name.as_bytes().to_vec();
    terminated.push(0);
    get(request(0, 0).attribute(IFLA_IFNAME, &terminated), name.to_owned())
}

/// The interface of this index.
pub fn by_index(ifindex: u32) -> Result<Link> {
    get(request(0, ifindex), ifindex.to_string())
}

/// Reads the kernel's answer about the interface of this index with `read`.
pub(crate) fn get_link<T>(ifindex: u32, read: impl Fn(Message) -> Option<T>) -> Result<T> {
    answered(request(0, ifindex), ifindex.to_string(), read)
}

/// Attaches an XDP program as `ip link set` does, or detaches the one there with `None`: for test
/// topologies, where it stands for somebody else's. Ringway's own are
/// [links](ringway_bpf_sys::XdpLink). Refuses to replace a program. It stays attached when the
/// caller ends. Needs CAP_NET_ADMIN.
pub fn set_xdp(ifindex: u32, program: Option<BorrowedFd>, mode: XdpMode) -> Result<()> {
    let mut flags = mode.flags();
    let fd = program.map_or(-1, |p| p.as_raw_fd());
    if program.is_some() {
        flags |= XDP_FLAGS_UPDATE_IF_NOEXIST;
    }
    let xdp = Request::nested()
        .attribute(IFLA_XDP_FD, &fd.to_ne_bytes())
        .attribute(IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    let request = Request::new(libc::RTM_SETLINK, flags, &header).nest(IFLA_XDP, xdp);
    let what = format!("attaching or detaching an XDP program on interface {ifindex}");
    Netlink::open()?.execute(&what, request)
}

fn get(request: Request, name: String) -> Result<Link> {
    answered(request, name, read)
}

fn answered<T>(request: Request, name: String, read: impl Fn(Message) -> Option<T>) -> Result<T> {
    let answer = Netlink::open()?.get(&format!("reading interface {name}"), request, read);
    match answer {
        Err(Error::Netlink { source, .. }) if missing(&source) => Err(Error::NoInterface { name }),
        other => other,
    }
}

/// ENODEV: none of this name; ERANGE and EINVAL: no interface can have this name or index.
fn missing(source: &std::io::Error) -> bool {
    matches!(source.raw_os_error(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL))
}

fn request(flags: i32, ifindex: u32) -> Request {
    // struct ifinfomsg: family, pad, type, index, flags, change.
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    Request::new(libc::RTM_GETLINK, libc::NLM_F_REQUEST | flags, &header)
}

/// RTM_NEWLINK (or RTM_DELLINK) into a link.
pub(crate) fn read(message: Message) -> Option<Link> {
    if !matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK) {
        return None;
    }
    let header = message.body.get(..16)?;
    let flags = u32_of(&header[8..])? as i32;
    let mut link = Link {
        ifindex: u32_of(&header[4..])?,
        name: String::new(),
        kind: None,
        mac: None,
        hardware: header[2..4].try_into().map_or(0, u16::from_ne_bytes),
        address: Vec::new(),
        mtu: 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        up: flags & libc::IFF_UP != 0,
        carrier: flags & libc::IFF_LOWER_UP != 0,
        operstate: Operstate::Unknown,
        rx_queues: 1,
        tx_queues: 1,
        master: None,
        lower: None,
        vlan: None,
        vnet_header: None,
        lower_elsewhere: false,
        xdp: Vec::new(),
    };
    for attribute in attributes(&message.body[16..]) {
        fill(&mut link, attribute);
    }
    (!link.name.is_empty()).then_some(link)
}

fn fill(link: &mut Link, Attribute { kind, data }: Attribute) {
    let number = || u32_of(data).unwrap_or(0);
    match kind {
        IFLA_IFNAME => link.name = string(data),
        IFLA_ADDRESS => {
            link.mac = data.try_into().ok().map(Mac);
            link.address = data.to_vec();
        }
        IFLA_MTU => link.mtu = number(),
        IFLA_LINK => link.lower = Some(number()).filter(|n| *n != 0),
        IFLA_LINK_NETNSID => link.lower_elsewhere = true,
        IFLA_MASTER => link.master = Some(number()),
        IFLA_OPERSTATE => link.operstate = operstate(data.first().copied().unwrap_or(0)),
        IFLA_CARRIER => link.carrier = data.first() == Some(&1),
        IFLA_NUM_RX_QUEUES => link.rx_queues = number(),
        IFLA_NUM_TX_QUEUES => link.tx_queues = number(),
        IFLA_LINKINFO => {
            let find = |kind| attributes(data).find(|info| info.kind == kind).map(|info| info.data);
            let details = find(IFLA_INFO_DATA).unwrap_or_default();
            link.kind = find(IFLA_INFO_KIND).map(string);
            // Each kind numbers its attributes otherwise.
            match link.kind.as_deref() {
                Some("vlan") => link.vlan = vlan(details),
                Some("tun") => link.vnet_header = vnet_header(details),
                _ => {}
            }
        }
        IFLA_XDP => link.xdp = xdp(data),
        _ => {}
    }
}

fn vlan(data: &[u8]) -> Option<VlanTag> {
    let find = |kind| {
        let data = attributes(data).find(|a| a.kind == kind)?.data;
        data.first_chunk::<2>().copied()
    };
    let protocol = find(IFLA_VLAN_PROTOCOL).map_or(0x8100, u16::from_be_bytes);
    Some(VlanTag { protocol, id: u16::from_ne_bytes(find(IFLA_VLAN_ID)?) })
}

fn vnet_header(data: &[u8]) -> Option<bool> {
    let found = attributes(data).find(|a| a.kind == IFLA_TUN_VNET_HDR)?;
    Some(*found.data.first()? != 0)
}

fn operstate(code: u8) -> Operstate {
    match code {
        1 => Operstate::NotPresent,
        2 => Operstate::Down,
        3 => Operstate::LowerLayerDown,
        4 => Operstate::Testing,
        5 => Operstate::Dormant,
        6 => Operstate::Up,
        _ => Operstate::Unknown,
    }
}

/// One program: IFLA_XDP_ATTACHED says the mode and IFLA_XDP_PROG_ID the id. Several: an id per
/// mode.
fn xdp(data: &[u8]) -> Vec<Xdp> {
    let mut programs = Vec::new();
    let mut single = (None, 0);
    for Attribute { kind, data } in attributes(data) {
        let mode = match kind {
            IFLA_XDP_DRV_PROG_ID => XdpMode::Native,
            IFLA_XDP_SKB_PROG_ID => XdpMode::Generic,
            IFLA_XDP_HW_PROG_ID => XdpMode::Hardware,
            IFLA_XDP_PROG_ID => {
                single.1 = u32_of(data).unwrap_or(0);
                continue;
            }
            IFLA_XDP_ATTACHED => {
                single.0 = match data.first() {
                    Some(1) => Some(XdpMode::Native),
                    Some(2) => Some(XdpMode::Generic),
                    Some(3) => Some(XdpMode::Hardware),
                    _ => None,
                };
                continue;
            }
            _ => continue,
        };
        programs.extend(u32_of(data).filter(|id| *id != 0).map(|program| Xdp { program, mode }));
    }
    if let (true, (Some(mode), program)) = (programs.is_empty(), single) {
        programs.push(Xdp { program, mode });
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn nested(pairs: &[(u16, &[u8])]) -> Vec<u8> {
        let whole = pairs.iter().fold(Request::new(0, 0, &[]), |r, (k, d)| r.attribute(*k, d));
        whole.finish(0)[16..].to_vec()
    }

    #[test]
    fn reads_a_veth_with_xdp() {
        let mut header = [0; 16];
        header[4] = 7;
        header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
        let info = nested(&[(IFLA_INFO_KIND, b"veth\0")]);
        let programs = nested(&[(IFLA_XDP_ATTACHED, &[1]), (IFLA_XDP_PROG_ID, &[42, 0, 0, 0])]);
        let bytes = Request::new(libc::RTM_NEWLINK, 0, &header)
            .attribute(IFLA_IFNAME, b"eth0\0")
            .attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9])
            .attribute(IFLA_MTU, &1500u32.to_ne_bytes())
            .attribute(IFLA_OPERSTATE, &[6])
            .attribute(IFLA_LINKINFO | 0x8000, &info)
            .attribute(IFLA_XDP | 0x8000, &programs)
            .finish(1);
        let link = read(messages(&bytes).next().unwrap()).unwrap();
        assert_eq!((link.ifindex, link.name.as_str(), link.mtu), (7, "eth0", 1500));
        assert_eq!(link.kind.as_deref(), Some("veth"));
        assert_eq!(link.mac, Some(Mac([2, 0, 0, 0, 0, 9])));
        assert!(link.up && link.operstate == Operstate::Up);
        assert_eq!(link.xdp, [Xdp { program: 42, mode: XdpMode::Native }]);
    }

    #[test]
    fn attributes_of_a_kind_are_read_as_that_kind() {
        let of = |kind: &[u8], details: &[u8]| {
            let info = nested(&[(IFLA_INFO_KIND, kind), (IFLA_INFO_DATA, details)]);
            let bytes = Request::new(libc::RTM_NEWLINK, 0, &[0; 16])
                .attribute(IFLA_IFNAME, b"one\0")
                .attribute(IFLA_LINKINFO, &info)
                .finish(1);
            let link = read(messages(&bytes).next().unwrap()).unwrap();
            (link.vlan, link.vnet_header)
        };
        // Both have an attribute 5.
        let vlan = nested(&[(IFLA_VLAN_ID, &[7, 0]), (IFLA_VLAN_PROTOCOL, &[0x81, 0])]);
        let tag = VlanTag { protocol: 0x8100, id: u16::from_ne_bytes([7, 0]) };
        assert_eq!(of(b"vlan\0", &vlan), (Some(tag), None));
        for (byte, header) in [(0, false), (1, true)] {
            let tap = nested(&[(IFLA_TUN_VNET_HDR, &[byte])]);
            assert_eq!(of(b"tun\0", &tap), (None, Some(header)));
            assert_eq!(of(b"veth\0", &tap), (None, None));
        }
    }

    #[test]
    fn both_modes_are_told_apart() {
        let data = nested(&[
            (IFLA_XDP_ATTACHED, &[4]),
            (IFLA_XDP_DRV_PROG_ID, &[1, 0, 0, 0]),
            (IFLA_XDP_SKB_PROG_ID, &[2, 0, 0, 0]),
        ]);
        let modes: Vec<_> = xdp(&data).into_iter().map(|x| (x.program, x.mode)).collect();
        assert_eq!(modes, [(1, XdpMode::Native), (2, XdpMode::Generic)]);
        assert!(xdp(&nested(&[(IFLA_XDP_ATTACHED, &[0])])).is_empty());
    }

    #[test]
    fn loopback_is_always_there() {
        let lo = by_name("lo").unwrap();
        assert!(lo.loopback && lo.ifindex == 1);
        assert_eq!(by_index(1).unwrap().name, "lo");
        assert!(all().unwrap().iter().any(|l| l.name == "lo"));
    }

    #[test]
    fn missing_interfaces_are_named() {
        for name in ["nosuch0", "a-name-that-is-far-too-long", ""] {
            let error = by_name(name).unwrap_err();
            assert!(matches!(error, Error::NoInterface { .. }), "{error}");
        }
        assert!(matches!(by_index(999_999), Err(Error::NoInterface { .. })));
    }
}
