//! Ethernet II (IEEE 802.3, RFC 894), without preamble and FCS.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BuildError, Builder, Header, Layer, Mac, U16};

/// Numbers of the protocols behind an Ethernet header or a VLAN tag.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A provider's tag, outside of another (IEEE 802.1ad).
    pub const PROVIDER_VLAN: u16 = 0x88a8;
}

/// The shortest frame that Ethernet allows, in bytes without FCS.
pub const MIN_FRAME: usize = 60;

/// An Ethernet header.
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
pub struct Ethernet {
    /// Destination address.
    pub destination: Mac,
    /// Source address.
    pub source: Mac,
    /// The protocol that follows ([`ethertype`]); below 0x600 a length (IEEE 802.3).
    pub ethertype: U16,
}

impl Header for Ethernet {
    const LAYER: Layer = Layer::Ethernet;
}

impl Ethernet {
    /// A header with these addresses; `ethertype` in the machine's byte order.
    #[inline]
    pub const fn new(destination: Mac, source: Mac, ethertype: u16) -> Self {
        Self { destination, source, ethertype: U16::new(ethertype) }
    }

    /// Turns the frame round: it goes back to its sender.
    #[inline]
    pub fn swap(&mut self) {
        core::mem::swap(&mut self.destination, &mut self.source);
    }
}

impl Builder<'_> {
    /// Puts an Ethernet header in front.
    ///
    /// # Errors
    /// [`BuildError::Headroom`].
    #[inline]
    pub fn ethernet(&mut self, header: Ethernet) -> Result<&mut Self, BuildError> {
        let room = self.front(size_of::<Ethernet>())?;
        // Field by field: 14 bytes at once are assembled on the stack, and reading them back there
        // stalls the CPU.
        if let Ok(to) = Ethernet::mut_from_bytes(room) {
            to.destination = header.destination;
            to.source = header.source;
            to.ethertype = header.ethertype;
        }
        Ok(self)
    }
}
