//! The ways a packet may take through the gateway.

pub(crate) mod frame;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_abi::{Reason, Verdict};
use serde::{Serialize, Serializer};

use crate::harness::named_enum::named;

use frame::{ACK, SYN};

named! {
    /// One way through the packet path.
    pub enum PacketPath {
        /// To an address that is no service's: the kernel's.
        Pass = "pass",
        /// To a service without a healthy backend, `when_none_healthy = "drop"`.
        Drop = "drop",
        /// To a service with `forward = "dsr-l2"`.
        DsrL2 = "dsr-l2",
        /// To a service with `forward = "dsr-ipip"`, in a tunnel of the same IP version.
        DsrIpip = "dsr-ipip",
        /// As `dsr-ipip`, while every slot of the ring is changing: each flow has a record.
        DsrChanging = "dsr-changing",
        /// To a service with `forward = "dsr-gue"`, in a tunnel of the same IP version.
        DsrGue = "dsr-gue",
        /// To a service with `forward = "nat"`, each packet of a flow that is open.
        Nat = "nat",
        /// The answer to such a packet, from its backend.
        NatReply = "nat-reply",
        /// To the same service, each packet a SYN that opens a flow.
        NewFlow = "new-flow",
        /// The same while no port is free: each takes the place of a half-open flow.
        FullPool = "full-pool",
        /// To a nat service with `syn = "challenge"`, each packet a SYN with options that is answered.
        SynChallenge = "syn-challenge",
        /// The same with `syn = "proxy"`.
        SynProxy = "syn-proxy",
    }
}

/// Ports of all backends together that [`PacketPath::FullPool`] has.
pub(super) const POOL: u32 = 102_400;

/// The expected end of each packet.
pub(super) struct Course {
    /// `forward` of the service.
    pub(super) forward: &'static str,
    /// Flags of the TCP segment.
    pub(super) tcp_flags: u8,
    /// How each packet must be counted.
    pub(super) ends: (Verdict, Reason),
}

impl PacketPath {
    pub(super) fn course(self) -> Course {
        let (forward, tcp_flags, ends) = match self {
            Self::Pass => ("nat", ACK, (Verdict::Pass, Reason::NoService)),
            Self::Drop => ("nat", SYN, (Verdict::Drop, Reason::NoBackend)),
            Self::DsrL2 => ("dsr-l2", ACK, (Verdict::Tx, Reason::DsrL2)),
            Self::DsrIpip | Self::DsrChanging => ("dsr-ipip", ACK, (Verdict::Tx, Reason::DsrIpip)),
            Self::DsrGue => ("dsr-gue", ACK, (Verdict::Tx, Reason::DsrGue)),
            Self::Nat => ("nat", ACK, (Verdict::Tx, Reason::NatForward)),
            Self::NatReply => ("nat", ACK, (Verdict::Tx, Reason::NatReply)),
            Self::NewFlow | Self::FullPool => ("nat", SYN, (Verdict::Tx, Reason::NatForward)),
            Self::SynChallenge => ("nat", SYN, (Verdict::Tx, Reason::SynChallenged)),
            Self::SynProxy => ("nat", SYN, (Verdict::Tx, Reason::SynAnswered)),
        };
        Course { forward, tcp_flags, ends }
    }

    /// `syn` of the service, where the gateway answers SYNs.
    pub(in crate::benches) fn syn(self) -> Option<&'static str> {
        match self {
            Self::SynChallenge => Some("challenge"),
            Self::SynProxy => Some("proxy"),
            _ => None,
        }
    }

    /// Whether the gateway keeps a record of each flow.
    pub(super) fn keeps_flows(self) -> bool {
        use PacketPath::{DsrChanging, FullPool, Nat, NatReply, NewFlow};
        matches!(self, DsrChanging | Nat | NatReply | NewFlow | FullPool)
    }

    /// Of a thousand packets so many at least open a flow. From a full pool the oldest flows go
    /// first, most of them: some live when their turn comes again.
    pub(super) fn opens_per_mille(self) -> u64 {
        match self {
            Self::NewFlow => 999,
            Self::FullPool => 950,
            _ => 0,
        }
    }

    /// Fewer flows are none of this path: their SYNs would find them open.
    pub(super) fn least_flows(self) -> u32 {
        if self == Self::FullPool { 4 * POOL } else { 1 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ip {
    V4,
    V6,
}

impl Ip {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// 4 or 6.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

impl Serialize for Ip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

/// Where the flows of IPv6 come from; those of IPv4 all come from 10/8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::benches) enum Clients {
    /// Hosts of one /64.
    #[default]
    OneNetwork,
    /// Each from a /48 of its own.
    Networks,
}

impl Clients {
    /// The source address of a flow, as feed.bpf.c makes it. Some flows have one address, and
    /// another port.
    pub(in crate::benches) fn address(self, ip: Ip, flow: u32) -> IpAddr {
        let scattered = flow.wrapping_mul(0x85eb_ca6b);
        let host = (scattered ^ (scattered >> 15)) >> 8;
        match (ip, frame::client(ip, self)) {
            (Ip::V4, _) | (_, IpAddr::V4(_)) => Ipv4Addr::from_bits(10 << 24 | host).into(),
            (Ip::V6, IpAddr::V6(client)) => {
                let shift = if self == Self::Networks { 80 } else { 0 };
                Ipv6Addr::from_bits(client.to_bits() | u128::from(host) << shift).into()
            }
        }
    }
}
