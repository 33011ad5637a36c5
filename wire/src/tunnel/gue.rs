//! Generic UDP encapsulation (draft-ietf-intarea-gue-09), variants 0 and 1: an IP packet in UDP.

use zerocopy::{
    ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, SplitByteSlice, Unaligned,
};

use crate::malformed::{Fault, Malformed};
use crate::{Header, Layer, U16, View};

/// A header of variant 0; its optional fields are the view's options. Variant 1 has no header
/// ([`Gue::open`]).
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
pub struct Gue {
    /// Variant (2 bits), control (1 bit), length of the optional fields in units of four bytes (5
    /// bits).
    pub variant_control_len: u8,
    /// The protocol of the payload ([`crate::network::protocol`]), or, with control, a control
    /// message's type.
    pub protocol: u8,
    /// Flags of the optional fields that are there.
    pub flags: U16,
}

/// The content of a UDP datagram of GUE.
#[derive(Debug)]
pub enum Opened<B: ByteSlice> {
    /// Variant 0: a header, then what it says.
    Header(View<B, Gue>),
    /// Variant 1: an IP packet, whose version tells which.
    Ip(B),
}

impl Header for Gue {
    const LAYER: Layer = Layer::Gue;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        if self.variant_control_len >> 6 == 0 { Ok(()) } else { Err(Fault::Kind) }
    }

    #[inline]
    fn header_len(&self) -> usize {
        size_of::<Self>() + usize::from(self.variant_control_len & 0x1f) * 4
    }
}

impl Gue {
    /// The UDP port that was assigned to it.
    pub const PORT: u16 = 6080;

    /// A data header without optional fields.
    #[inline]
    pub const fn new(protocol: u8) -> Self {
        Self { variant_control_len: 0, protocol, flags: U16::ZERO }
    }

    /// Whether it is a control message instead of a packet.
    #[inline]
    pub const fn is_control(&self) -> bool {
        self.variant_control_len & 0x20 != 0
    }

    /// Reads the payload of a UDP datagram, of either variant: the first bits of an IP packet are
    /// those of variant 1.
    ///
    /// # Errors
    /// [`Malformed`] as [`Header::parse`] has it, and for other variants.
    #[inline]
    pub fn open<B: SplitByteSlice>(payload: B) -> Result<Opened<B>, Malformed> {
        match payload.first().map(|first| first >> 4) {
            Some(4 | 6) => Ok(Opened::Ip(payload)),
            _ => Ok(Opened::Header(Self::parse(payload)?)),
        }
    }
}
