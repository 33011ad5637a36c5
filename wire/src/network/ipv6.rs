//! IPv6 (RFC 8200) and its extension headers.

use core::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::{BuildError, Builder, Header, Layer, Pseudo, U16, U32};

/// An IPv6 header without its extensions, which are part of the payload ([`crate::Extensions`]).
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
pub struct Ipv6 {
    /// 6 in the upper four bits, traffic class (8), flow label (20).
    pub version_class_label: U32,
    /// Bytes behind this header, extensions among them. Jumbograms (0, RFC 2675) are not known.
    pub payload_length: U16,
    /// The next header: an extension header or a protocol ([`crate::network::protocol`]).
    pub next_header: u8,
    /// The number of routers that it may still pass.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Header for Ipv6 {
    const LAYER: Layer = Layer::Ipv6;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        if self.version_class_label.get() >> 28 == 6 { Ok(()) } else { Err(Fault::Kind) }
    }

    #[inline]
    fn total_len(&self) -> Option<usize> {
        Some(size_of::<Self>() + usize::from(self.payload_length.get()))
    }
}

impl Ipv6 {
    /// A header with a hop limit of 64. [`Builder::ipv6`] fills in the length.
    #[inline]
    pub const fn new(next_header: u8, source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self {
            version_class_label: U32::new(6 << 28),
            payload_length: U16::new(0),
            next_header,
            hop_limit: 64,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// DSCP in the upper six bits, ECN in the lower two.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        (self.version_class_label.get() >> 20) as u8
    }

    /// Sets the traffic class.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        let others = self.version_class_label.get() & 0xf00f_ffff;
        self.version_class_label.set(others | u32::from(class) << 20);
    }

    /// The lower 20 bits of the first word.
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.version_class_label.get() & 0xf_ffff
    }

    /// Sets the flow label to the lower 20 bits of `label`.
    #[inline]
    pub fn set_flow_label(&mut self, label: u32) {
        self.version_class_label.set(self.version_class_label.get() & !0xf_ffff | label & 0xf_ffff);
    }

    /// The addresses, for the checksum of what it carries.
    #[inline]
    pub fn pseudo(&self) -> Pseudo {
        Pseudo::v6(self.source.into(), self.destination.into())
    }
}

/// The place of a fragment in its packet, in either IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// The same in all fragments of one packet; IPv4 has 16 bits of it.
    pub identification: u32,
    /// Its offset in its packet, in bytes: a multiple of eight.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
}

impl Fragment {
    /// Whether it is the only one of its packet (an "atomic fragment", RFC 6946).
    #[inline]
    pub const fn is_whole(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

impl Builder<'_> {
    /// Puts an IPv6 header in front, and fills in its length.
    ///
    /// # Errors
    /// [`BuildError`]: no room, or more than 65 535 bytes to carry.
    #[inline]
    pub fn ipv6(&mut self, mut header: Ipv6) -> Result<&mut Self, BuildError> {
        header.payload_length = self.length(Layer::Ipv6, 0)?;
        self.put(&header)
    }
}
