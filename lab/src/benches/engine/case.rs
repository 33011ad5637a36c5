//! The cases.

use crate::harness::named_enum::named;

named! {
    /// One thing that is measured.
    pub enum Case {
        /// A worker by itself: packets out of the pool, written, their addresses swapped, freed.
        MemoryMacswap = "memory-macswap",
        /// From a veth to a sink.
        AfXdpReceive = "af_xdp-receive",
        /// From a source to a veth.
        AfXdpTransmit = "af_xdp-transmit",
        /// From a veth to another.
        AfXdpL2fwd = "af_xdp-l2fwd",
        /// An auction's requests, answered.
        Bid = "bid",
        /// Datagrams, sent back.
        UdpEcho = "udp-echo",
        /// [`Case::Bid`], where all is asked by one client.
        BidOneClient = "bid-one-client",
        /// [`Case::UdpEcho`], where all is sent by one client.
        UdpEchoOneClient = "udp-echo-one-client",
        /// Ethernet, IPv4 and UDP read.
        WireParse = "wire-parse",
        /// Ethernet, IPv4 and UDP written in front of a payload.
        WireBuild = "wire-build",
        /// A frame taken from its pool, and freed.
        FrameAllocFree = "frame-alloc-free",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Ringway,
    Peer,
}

impl Case {
    /// The peer beside which it is measured, if any.
    pub fn peer(self) -> Option<&'static str> {
        match self {
            Self::MemoryMacswap => Some("dpdk-testpmd net_null macswap"),
            Self::AfXdpReceive => Some("dpdk-testpmd net_af_xdp rxonly"),
            Self::AfXdpTransmit => Some("dpdk-testpmd net_af_xdp txonly"),
            Self::AfXdpL2fwd => Some("dpdk-testpmd net_af_xdp io"),
            Self::Bid | Self::UdpEcho | Self::BidOneClient | Self::UdpEchoOneClient => {
                Some("recvmmsg, sendmmsg, UDP_GRO, UDP_SEGMENT")
            }
            Self::WireParse | Self::WireBuild | Self::FrameAllocFree => None,
        }
    }

    /// Whether its peer is dpdk-testpmd.
    pub(super) fn needs_testpmd(self) -> bool {
        let af_xdp = matches!(self, Self::AfXdpReceive | Self::AfXdpTransmit | Self::AfXdpL2fwd);
        af_xdp || self == Self::MemoryMacswap
    }

    /// Whether packets are asked and answered, so that it counts how long that takes.
    pub(super) fn answers(self) -> bool {
        self.is_bid() || matches!(self, Self::UdpEcho | Self::UdpEchoOneClient)
    }

    /// Whether what is asked is bids.
    pub(super) fn is_bid(self) -> bool {
        matches!(self, Self::Bid | Self::BidOneClient)
    }

    /// How many send, in turn. The kernel puts together what one sends (GRO), as it may where a
    /// wire brings as much of one; what comes of many it cannot.
    pub(super) fn clients(self) -> u16 {
        if matches!(self, Self::BidOneClient | Self::UdpEchoOneClient) { 1 } else { 256 }
    }

    pub(super) fn goals(self) -> Goals {
        let none = Goals::default();
        match self {
            Self::MemoryMacswap => Goals { ratio: Some(1.0), ..none },
            Self::AfXdpReceive | Self::AfXdpTransmit | Self::AfXdpL2fwd => Goals {
                ratio: Some(0.98),
                user: Some(1.0 / 1.3),
                loss_ppm: (self != Self::AfXdpTransmit).then_some(1.0),
                ..none
            },
            Self::Bid | Self::UdpEcho | Self::BidOneClient | Self::UdpEchoOneClient => {
                Goals { ratio: Some(1.0), p99: Some(1.0), ..none }
            }
            Self::WireParse | Self::WireBuild => Goals { ns: Some(5.0), ..none },
            Self::FrameAllocFree => Goals { ns: Some(2.0), ..none },
        }
    }
}

/// Of a case, what there is to be reached.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Goals {
    /// Packets a second, of the peer's: at least.
    pub ratio: Option<f64>,
    /// User-mode time a packet, of the peer's: at most.
    pub user: Option<f64>,
    /// Packets lost at 90 % of the most, of a million: fewer.
    pub loss_ppm: Option<f64>,
    /// Time that 99 of 100 answers take at equal load, of the peer's: less.
    pub p99: Option<f64>,
    /// Nanoseconds at most.
    pub ns: Option<f64>,
}
