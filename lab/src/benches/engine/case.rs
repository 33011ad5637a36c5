//! What is measured.

use crate::Error;
use crate::harness::named::named;

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// A worker by itself: packets out of the pool, written, their addresses swapped, freed.
    MemoryMacswap,
    /// From a veth to a sink.
    AfXdpReceive,
    /// From a source to a veth.
    AfXdpTransmit,
    /// From a veth to another.
    AfXdpL2fwd,
    /// An auction's requests, answered.
    Bid,
    /// Datagrams, sent back.
    UdpEcho,
    /// [`Case::Bid`], where all is asked by one client.
    BidOneClient,
    /// [`Case::UdpEcho`], where all is sent by one client.
    UdpEchoOneClient,
    /// Ethernet, IPv4 and UDP read.
    WireParse,
    /// Ethernet, IPv4 and UDP written in front of a payload.
    WireBuild,
    /// A frame taken from its pool, and freed.
    FrameAllocFree,
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Ringway,
    Peer,
}

impl Case {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 11] = [
        Self::MemoryMacswap,
        Self::AfXdpReceive,
        Self::AfXdpTransmit,
        Self::AfXdpL2fwd,
        Self::Bid,
        Self::UdpEcho,
        Self::BidOneClient,
        Self::UdpEchoOneClient,
        Self::WireParse,
        Self::WireBuild,
        Self::FrameAllocFree,
    ];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryMacswap => "memory-macswap",
            Self::AfXdpReceive => "af_xdp-receive",
            Self::AfXdpTransmit => "af_xdp-transmit",
            Self::AfXdpL2fwd => "af_xdp-l2fwd",
            Self::Bid => "bid",
            Self::UdpEcho => "udp-echo",
            Self::BidOneClient => "bid-one-client",
            Self::UdpEchoOneClient => "udp-echo-one-client",
            Self::WireParse => "wire-parse",
            Self::WireBuild => "wire-build",
            Self::FrameAllocFree => "frame-alloc-free",
        }
    }

    /// What it is measured beside, if anything.
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
        self.peer().is_some_and(|peer| peer.starts_with("dpdk-testpmd"))
    }

    /// Whether packets are asked and answered, so that it counts how long that takes.
    pub(super) fn answers(self) -> bool {
        self.is_bid() || matches!(self, Self::UdpEcho | Self::UdpEchoOneClient)
    }

    /// Whether what is asked is bids.
    pub(super) fn is_bid(self) -> bool {
        matches!(self, Self::Bid | Self::BidOneClient)
    }

    /// How many send, in turn. The kernel puts together what one sends (GRO), as it may where a wire brings as much of one; what
    /// comes of many it cannot.
    pub(super) fn clients(self) -> u16 {
        if matches!(self, Self::BidOneClient | Self::UdpEchoOneClient) { 1 } else { 256 }
    }

    /// What is to be reached.
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
    /// Nanoseconds: fewer.
    pub ns: Option<f64>,
}

named!(Case, Error::NoSuchCase);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for case in Case::ALL {
            assert_eq!(case.name().parse::<Case>().unwrap(), case);
        }
        let error = "bids".parse::<Case>().unwrap_err().to_string();
        assert!(error.contains("bids") && error.contains("udp-echo"), "{error}");
    }
}
