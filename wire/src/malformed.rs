//! Faults of a packet. A value has two bytes, made to be counted by.

use core::fmt;

/// The kind of header that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Layer {
    Ethernet,
    Vlan,
    Arp,
    Ipv4,
    Ipv6,
    Ipv6Extension,
    Icmp,
    Icmpv6,
    NeighbourDiscovery,
    Udp,
    Tcp,
    Vxlan,
    Gue,
    Gre,
}

/// The fault of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes end within the header or its options.
    Truncated,
    /// Version or kind is not one that the type stands for.
    Kind,
    /// The header's length is less than that of its fixed part.
    HeaderLength,
    /// The total length is less than that of the header, or more than there is.
    TotalLength,
    /// An option's length is less than its own header, is not what its kind has, or leads beyond
    /// the options.
    OptionLength,
}

/// A packet that cannot be what its headers say it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Malformed {
    /// The header that is malformed.
    pub layer: Layer,
    /// The fault.
    pub fault: Fault,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension",
            Self::Icmp => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::NeighbourDiscovery => "neighbour discovery",
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Vxlan => "VXLAN",
            Self::Gue => "GUE",
            Self::Gre => "GRE",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Truncated => "the packet ends within it",
            Self::Kind => "its version or kind is not a known one",
            Self::HeaderLength => "its length is less than its fixed part",
            Self::TotalLength => {
                "the length of the packet is less than the header or more than there is"
            }
            Self::OptionLength => "the length of an option is wrong or leads beyond the options",
        })
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed {} header: {}", self.layer, self.fault)
    }
}

impl core::error::Error for Malformed {}
