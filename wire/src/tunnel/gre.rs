//! GRE (RFC 2784, RFC 2890): any protocol in IP.

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::{Header, Layer, U16, U32, View};

/// A GRE header; checksum, key and sequence number, where there are any, are the view's options.
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
pub struct Gre {
    /// Flags of the fields that are there, and version 0. Routing and version 1 (PPTP) are
    /// [`Fault::Kind`].
    pub flags: U16,
    /// EtherType of the payload ([`crate::ethertype`]).
    pub ethertype: U16,
}

impl Header for Gre {
    const LAYER: Layer = Layer::Gre;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        // RFC 2784, section 2.3: any of bits 1 to 5 is RFC 1701's; of these RFC 2890 gave two back.
        if self.flags.get() & 0x4c07 == 0 { Ok(()) } else { Err(Fault::Kind) }
    }

    #[inline]
    fn header_len(&self) -> usize {
        let fields = self.flags.get() & (Self::CHECKSUM | Self::KEY | Self::SEQUENCE);
        size_of::<Self>() + fields.count_ones() as usize * 4
    }
}

impl Gre {
    /// There is a checksum, and two reserved bytes.
    pub const CHECKSUM: u16 = 0x8000;
    /// There is a key.
    pub const KEY: u16 = 0x2000;
    /// There is a sequence number.
    pub const SEQUENCE: u16 = 0x1000;

    /// A header without other fields.
    #[inline]
    pub const fn new(ethertype: u16) -> Self {
        Self { flags: U16::ZERO, ethertype: U16::new(ethertype) }
    }
}

impl<B: ByteSlice> View<B, Gre> {
    /// The tunnel's key.
    #[inline]
    pub fn key(&self) -> Option<u32> {
        self.field(Gre::KEY)
    }

    /// The packet's sequence number.
    #[inline]
    pub fn sequence(&self) -> Option<u32> {
        self.field(Gre::SEQUENCE)
    }

    /// Fields follow each other in the order of their flags, highest first.
    fn field(&self, flag: u16) -> Option<u32> {
        let flags = self.header.flags.get();
        let before =
            (flags & !(flag | (flag - 1)) & (Gre::CHECKSUM | Gre::KEY)).count_ones() as usize;
        let bytes = self.options.get(before * 4..)?;
        (flags & flag != 0)
            .then(|| U32::read_from_prefix(bytes).ok())
            .flatten()
            .map(|(v, _)| v.get())
    }
}
