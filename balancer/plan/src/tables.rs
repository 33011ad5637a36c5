//! The tables the packet path reads, as plain values: what `plan` computes and
//! `ringway-kernel` writes. Nothing here knows about maps or system calls.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ringway_abi::{BackendRef, ShieldMode};

pub use ringway_config::{Forward, Limits, PortRange, Protocol, RateLimit};

pub use crate::slots::Slots;

/// Address, ports and protocol that a client addresses: the identity of a service entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    /// The address clients connect to.
    pub address: IpAddr,
    /// The port clients connect to, host byte order; the first of a range's.
    pub port: u16,
    /// The last port of a range, else as `port`. From 1 to 65535 is every port.
    pub last_port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl ServiceKey {
    /// The key of one port.
    pub fn new(address: IpAddr, port: u16, protocol: Protocol) -> ServiceKey {
        ServiceKey { address, port, last_port: port, protocol }
    }

    /// The service's port range.
    pub fn ports(&self) -> PortRange {
        PortRange { first: self.port, last: self.last_port }
    }

    /// Address and ports, as in a URL: `[2001:db8::1]:8000-8100`.
    pub fn endpoint(&self) -> String {
        match self.address {
            IpAddr::V4(address) => format!("{address}:{}", self.ports()),
            IpAddr::V6(address) => format!("[{address}]:{}", self.ports()),
        }
    }
}

/// One service entry. A `[[service]]` with two protocols gives two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRow {
    /// Stable identifier, index into the kernel's tables; below `RW_MAX_SERVICES`.
    pub id: u16,
    /// Its address, ports and protocol.
    pub key: ServiceKey,
    /// The service's name in the configuration.
    pub name: String,
    /// Ring that chooses among its members: a [`RingRow::id`]. Services with equal members share
    /// one.
    pub ring: u32,
    /// Its backends' references by member number, those that get no new flows included. At most
    /// `RW_MAX_MEMBERS`.
    pub members: Vec<u32>,
    /// The client's address alone chooses the slot (`affinity = "source"`).
    pub affinity_source: bool,
    /// How packets reach the backends.
    pub forward: Forward,
    /// nat that keeps the client's source address (`source = "client"`).
    pub source_client: bool,
    /// Answer ARP and neighbour solicitations for the address (`announce = "arp"`).
    pub announce: bool,
    /// Reset TCP when no backend is healthy (`when_none_healthy = "reset"`); otherwise drop.
    pub reset_when_none: bool,
    /// The shield's mode for its packets; `None`: that of all.
    pub shield: Option<ShieldMode>,
    /// `None`: it has no limits.
    pub policy: Option<ServicePolicy>,
}

/// What the shield makes of packets to a service that has limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePolicy {
    /// The service's own, or the node's.
    pub mode: ShieldMode,
    /// In force unless the service is armed.
    pub limits: Limits,
    /// In force while automatic mitigation has armed the service.
    pub armed: Limits,
    /// Up to which packets of an established nat flow pass whatever the limits say.
    pub flow: RateLimit,
    /// The same of a source that was learnt.
    pub learnt: RateLimit,
    /// Sources that prove themselves are learnt: under nat.
    pub learns: bool,
    /// And those of answered datagrams, for this service alone.
    pub learns_udp: bool,
    /// Lengths of the prefixes that are a source: IPv4, at most 32, and IPv6, at most 128.
    pub source_prefix: (u8, u8),
    /// What becomes of SYNs of sources that are not learnt.
    pub syn: SynPolicy,
}

/// Whether SYNs are answered in front of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynPolicy {
    /// By what.
    pub answer: SynAnswer,
    /// Not only while automatic mitigation has armed the service.
    pub always: bool,
    /// What an answer with a cookie offers.
    pub offer: SynOffer,
}

/// What answers a service's SYNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynAnswer {
    /// The backend: they are forwarded.
    #[default]
    Forward,
    /// A challenge.
    Challenge,
    /// A cookie; who brings it back is connected by the gateway.
    Proxy,
    /// A cookie that the backend knows as well.
    Backend,
}

impl SynAnswer {
    /// Its name in output: that of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            SynAnswer::Forward => "off",
            SynAnswer::Challenge => "challenge",
            SynAnswer::Proxy => "proxy",
            SynAnswer::Backend => "backend",
        }
    }
}

/// What every backend of a service takes, or one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOffer {
    /// Bytes of a segment; 0: unknown.
    pub mss: u16,
    /// Time stamps (RFC 7323).
    pub stamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Where packets to a backend leave: resolved from the kernel's routes and neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface slot.
    pub iface: u32,
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// MTU of the way out, bytes of layer 3.
    pub mtu: u16,
}

/// One backend of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRow {
    /// Stable index into the kernel's table; below `RW_MAX_BACKENDS`.
    pub index: u32,
    /// From 1, raised each time the index is given to another backend; 0: never used.
    pub generation: u16,
    /// Service it belongs to ([`ServiceRow::id`]).
    pub service: u16,
    /// The backend's own address.
    pub address: IpAddr,
    /// The backend's own port, host byte order; 0: the one the client asked for.
    pub port: u16,
    /// Same as the service's.
    pub protocol: Protocol,
    /// Relative weight, 0..=1000; 0: no new flows.
    pub weight: u16,
    /// Healthy, unchecked, or used by `when_none_healthy = "all"`: its flows live.
    pub up: bool,
    /// TCP that is not up: its established flows go on (`on_down = "keep"`).
    pub kept: bool,
    /// Way out, when known. None also while no source address for nat or the tunnel is known,
    /// and under dsr-l2 when the way leads by a router.
    pub next_hop: Option<NextHop>,
    /// Source addresses for nat: a range of [`Tables::nat_addresses`] (first, count).
    pub nat: (u32, u32),
    /// Content of the outer header, under a tunnel whose source address is known.
    pub tunnel: Option<Tunnel>,
    /// A client's SYN offers at most this MSS, bytes; 0: as it came.
    pub mss: u16,
}

/// The outer header of a tunnel to a backend, whose address is the outer destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source address, of the backend's family.
    pub source: IpAddr,
    /// dsr-gue: outer UDP destination port, host byte order; else 0.
    pub port: u16,
}

impl BackendRow {
    /// The reference that members and flow records hold. Never 0.
    pub fn reference(&self) -> u32 {
        BackendRef { index: self.index, generation: self.generation }.pack()
    }

    /// Whether the flows it has go on.
    pub fn flows_live(&self) -> bool {
        self.up || self.kept
    }

    /// Whether new flows are given to it.
    pub fn takes_new(&self) -> bool {
        self.up && self.weight > 0 && self.next_hop.is_some()
    }

    /// Address and port together.
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// One Maglev ring: which member of a service has a slot. What an id stands for does not change;
/// a ring that changes is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingRow {
    /// Identifier, index into the outer maps; below `RW_MAX_RINGS`.
    pub id: u32,
    /// Content of each slot. Shared between plans while nothing changes.
    pub slots: Slots,
    /// Owners of slots that have changed.
    pub pairs: Arc<[Pair]>,
}

/// Owners of a slot that has changed: members' numbers, or `RW_NO_MEMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// Gets new flows.
    pub current: u16,
    /// Has flows without a record. The same as `current`: only records can lead elsewhere.
    pub former: u16,
    /// Since when: seconds of CLOCK_MONOTONIC.
    pub since: u32,
}

/// Everything the packet path should know, computed from configuration and health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Services, by ascending id.
    pub services: Vec<ServiceRow>,
    /// Backends, by ascending index.
    pub backends: Vec<BackendRow>,
    /// Rings, by ascending id.
    pub rings: Vec<RingRow>,
    /// Source addresses of nat, at most `RW_MAX_NAT_ADDRS`. Flow records hold positions in this
    /// list, so an address keeps its place; some may serve old flows alone.
    pub nat_addresses: Vec<IpAddr>,
    /// nat pool: first port and number of ports, host byte order.
    pub nat_ports: (u16, u16),
    /// Addresses of the node, which are no clients of dsr services; empty when it has none such.
    pub own_addresses: BTreeSet<IpAddr>,
    /// Idle timeouts in seconds.
    pub timeouts: Timeouts,
    /// New records a second that one source prefix (/24, /64) may open; 0: any number.
    pub track_quota: u32,
}

/// Idle timeouts of tracked flows, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, handshake not finished.
    pub syn: u32,
    /// TCP, established.
    pub established: u32,
    /// TCP, one side has sent FIN.
    pub closing: u32,
    /// TCP, both have, or RST.
    pub closed: u32,
    /// UDP, no answer yet.
    pub udp_new: u32,
    /// UDP, answered.
    pub udp: u32,
}
