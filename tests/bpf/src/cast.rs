//! The hosts of every test: addresses and MACs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame::{TCP, UDP};

pub type Mac = [u8; 6];

/// Interface slot 0, where clients are.
pub const FRONT: u32 = 0;
/// Interface slot 1, where most backends are.
pub const BACK: u32 = 1;

pub const FRONT_MAC: Mac = [2, 0, 0, 0, 0, 0xf0];
/// Its bridge's, ours as well.
pub const FRONT_ALT_MAC: Mac = [2, 0, 0, 0, 0, 0xfa];
pub const BACK_MAC: Mac = [2, 0, 0, 0, 0, 0xb0];
/// Where clients' frames come from.
pub const CLIENT_MAC: Mac = [2, 0, 0, 0, 0, 0xc1];
/// Another router of the clients'.
pub const OTHER_CLIENT_MAC: Mac = [2, 0, 0, 0, 0, 0xc2];
/// Somebody else on the link.
pub const STRANGER_MAC: Mac = [2, 0, 0, 0, 0, 0xee];
pub const BROADCAST_MAC: Mac = [0xff; 6];

/// MAC of a backend's next hop.
pub const fn backend_mac(n: u8) -> Mac {
    [2, 0, 0, 0, 1, n]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// TCP and UDP of both families.
pub const TRANSPORTS: [(Family, u8); 4] =
    [(Family::V4, TCP), (Family::V4, UDP), (Family::V6, TCP), (Family::V6, UDP)];

impl Family {
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn pick(self, v4: [u8; 4], v6: &[u16; 8]) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(v4).into(),
            Self::V6 => Ipv6Addr::from(*v6).into(),
        }
    }

    pub fn vip(self) -> IpAddr {
        self.pick([203, 0, 113, 10], &[0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x10])
    }

    /// A second service address, which the gateway itself announces.
    pub fn announced(self) -> IpAddr {
        self.pick([203, 0, 113, 11], &[0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 0x11])
    }

    /// An address of nobody we know.
    pub fn elsewhere(self) -> IpAddr {
        self.pick([192, 0, 2, 1], &[0x2001, 0xdb8, 0xe, 0, 0, 0, 0, 1])
    }

    pub fn client(self) -> IpAddr {
        self.nth_client(7)
    }

    /// One of 65 536 clients.
    pub fn nth_client(self, n: u16) -> IpAddr {
        let [high, low] = n.to_be_bytes();
        self.pick([198, 51, high, low], &[0x2001, 0xdb8, 0xc, 0, 0, 0, 0, n])
    }

    pub fn backend(self, n: u8) -> IpAddr {
        self.pick([10, 0, 0, n + 2], &[0x2001, 0xdb8, 0xb, 0, 0, 0, 0, u16::from(n) + 2])
    }

    pub fn nat(self) -> IpAddr {
        self.pick([10, 0, 0, 1], &[0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 1])
    }

    /// Bytes of a header without options.
    pub const fn header_len(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// The number of a packet of this family in another (RFC 2003, RFC 2473).
    pub const fn in_ip(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 41,
        }
    }

    /// The number of ICMP in this family.
    pub const fn icmp(self) -> u8 {
        match self {
            Self::V4 => 1,
            Self::V6 => 58,
        }
    }
}
