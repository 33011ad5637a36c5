//! ARP between Ethernet and IPv4 (RFC 826).

use core::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::{Header, Layer, Mac, U16, ethertype};

/// An ARP message, of Ethernet and IPv4 addresses only: any other is [`Fault::Kind`].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Arp {
    /// Hardware type; 1: Ethernet.
    pub hardware: U16,
    /// EtherType of the protocol; 0x0800: IPv4.
    pub protocol: U16,
    /// Bytes of a hardware address: 6.
    pub hardware_len: u8,
    /// Bytes of a protocol address: 4.
    pub protocol_len: u8,
    /// [`Arp::REQUEST`] or [`Arp::REPLY`].
    pub operation: U16,
    /// The sender's MAC address.
    pub sender_mac: Mac,
    /// The sender's address; unspecified in a probe (RFC 5227).
    pub sender: [u8; 4],
    /// In a reply the receiver's; in a request nothing.
    pub target_mac: Mac,
    /// The address that is asked for, or that is answered.
    pub target: [u8; 4],
}

impl Header for Arp {
    const LAYER: Layer = Layer::Arp;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        let kind = (self.hardware.get(), self.protocol.get(), self.hardware_len, self.protocol_len);
        if kind == (1, ethertype::IPV4, 6, 4) { Ok(()) } else { Err(Fault::Kind) }
    }
}

impl Arp {
    /// Who has `target`?
    pub const REQUEST: u16 = 1;
    /// The sender's address is at the sender's MAC.
    pub const REPLY: u16 = 2;

    /// Who has `target`? Asked by `sender`; where both are the same it is an announcement (RFC
    /// 5227, section 3).
    #[inline]
    pub const fn request(sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self {
            hardware: U16::new(1),
            protocol: U16::new(ethertype::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(Self::REQUEST),
            sender_mac,
            sender: sender.octets(),
            target_mac: Mac([0; 6]),
            target: target.octets(),
        }
    }

    /// The reply to this request, if `mac` has the address that it looks for.
    #[inline]
    pub const fn reply(&self, mac: Mac) -> Self {
        Self {
            operation: U16::new(Self::REPLY),
            sender_mac: mac,
            sender: self.target,
            target_mac: self.sender_mac,
            target: self.sender,
            ..*self
        }
    }
}
