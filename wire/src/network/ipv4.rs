//! IPv4 (RFC 791).

use core::net::Ipv4Addr;

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::network::ipv6::Fragment;
use crate::{BuildError, Builder, Header, HeaderOptions, Layer, Pseudo, Sum, U16, View, checksum};

/// An IPv4 header without its options.
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
pub struct Ipv4 {
    /// 4 in the upper half; in the lower the header's length in units of four bytes, 5 to 15.
    pub version_ihl: u8,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Bytes of header, options and payload.
    pub total_length: U16,
    /// The same in all fragments of one packet.
    pub identification: U16,
    /// Three flags, then the fragment's offset in units of eight bytes.
    pub flags_offset: U16,
    /// The number of routers that it may still pass.
    pub ttl: u8,
    /// The protocol of the payload ([`crate::network::protocol`]).
    pub protocol: u8,
    /// Over header and options.
    pub checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

impl Header for Ipv4 {
    const LAYER: Layer = Layer::Ipv4;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        if self.version_ihl >> 4 == 4 { Ok(()) } else { Err(Fault::Kind) }
    }

    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    #[inline]
    fn total_len(&self) -> Option<usize> {
        Some(self.total_length.get().into())
    }
}

impl Ipv4 {
    /// Do not fragment.
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// More fragments follow.
    pub const MORE_FRAGMENTS: u16 = 0x2000;

    /// A header with a TTL of 64 that may not be fragmented. [`Builder::ipv4`] fills in lengths and
    /// checksum.
    #[inline]
    pub const fn new(protocol: u8, source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self {
            version_ihl: 0x45,
            traffic_class: 0,
            total_length: U16::new(20),
            identification: U16::new(0),
            flags_offset: U16::new(Self::DONT_FRAGMENT),
            ttl: 64,
            protocol,
            checksum: U16::new(0),
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Whether it may not be fragmented.
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & Self::DONT_FRAGMENT != 0
    }

    /// Whether other fragments follow this one.
    #[inline]
    pub const fn more_fragments(&self) -> bool {
        self.flags_offset.get() & Self::MORE_FRAGMENTS != 0
    }

    /// Where the fragment begins in its packet, in bytes: a multiple of eight.
    #[inline]
    pub const fn fragment_offset(&self) -> usize {
        (self.flags_offset.get() as usize & 0x1fff) * 8
    }

    /// Its place as a fragment, unless it is a whole packet.
    #[inline]
    pub fn fragment(&self) -> Option<Fragment> {
        (self.flags_offset.get() & 0x3fff != 0).then(|| Fragment {
            identification: self.identification.get().into(),
            offset: self.fragment_offset(),
            more: self.more_fragments(),
        })
    }

    /// The addresses, for the checksum of what it carries.
    #[inline]
    pub fn pseudo(&self) -> Pseudo {
        Pseudo::v4(self.source.into(), self.destination.into())
    }

    /// One router passed: the checksum stays right. False, and nothing changed, where the packet
    /// may go no further.
    #[inline]
    pub fn decrement_ttl(&mut self) -> bool {
        if self.ttl <= 1 {
            return false;
        }
        let old = [self.ttl, self.protocol];
        self.ttl -= 1;
        checksum::replace(&mut self.checksum, &old, &[self.ttl, self.protocol]);
        true
    }
}

impl<B: ByteSlice> View<B, Ipv4> {
    /// Whether the header's checksum is right.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        Sum::default().with(self.header.as_bytes()).with(&self.options).is_right()
    }

    /// The options, one by one.
    pub fn each_option(&self) -> HeaderOptions<'_> {
        HeaderOptions::new(Layer::Ipv4, &self.options)
    }
}

impl Builder<'_> {
    /// Puts an IPv4 header with these options in front, and fills in lengths and checksum.
    ///
    /// # Errors
    /// [`BuildError`]: no room; options of more than 40 bytes or not a multiple of four; a packet
    /// of over 65 535 bytes.
    #[inline]
    pub fn ipv4(&mut self, mut header: Ipv4, options: &[u8]) -> Result<&mut Self, BuildError> {
        let header_len = size_of::<Ipv4>() + checked_options(Layer::Ipv4, options)?;
        header.version_ihl = 0x40 | (header_len / 4) as u8;
        header.total_length = self.length(Layer::Ipv4, header_len)?;
        header.checksum.set(0);
        header.checksum = Sum::default().with(header.as_bytes()).with(options).finish();
        self.put(options)?.put(&header)
    }
}

/// The length of options that may stand in an IPv4 or TCP header.
#[inline]
pub(crate) fn checked_options(layer: Layer, options: &[u8]) -> Result<usize, BuildError> {
    let len = options.len();
    if len > 40 || !len.is_multiple_of(4) {
        return Err(BuildError::Options { layer, len });
    }
    Ok(len)
}
