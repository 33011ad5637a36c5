//! ICMP for IPv4 (RFC 792).

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BuildError, Builder, Header, Layer, Sum, U16, View};

/// The first eight bytes of an ICMP message, which all its types have.
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
pub struct Icmp {
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Over all of the message.
    pub checksum: U16,
    /// The type's own fields: identifier and sequence number of an echo; two zeroes, or zero and
    /// an MTU, of an error.
    pub words: [U16; 2],
}

impl Header for Icmp {
    const LAYER: Layer = Layer::Icmp;
}

impl Icmp {
    /// Answers an echo request.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Code of [`Icmp::UNREACHABLE`]: no such port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// Code of [`Icmp::UNREACHABLE`]: too big, and may not be fragmented; the second word is the
    /// MTU (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Another router is nearer.
    pub const REDIRECT: u8 = 5;
    /// Asks for an answer.
    pub const ECHO_REQUEST: u8 = 8;
    /// The time to live reached 0.
    pub const TIME_EXCEEDED: u8 = 11;
    /// A header makes no sense.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// A message. [`Builder::icmp`] fills in the checksum.
    #[inline]
    pub const fn new(kind: u8, code: u8, words: [u16; 2]) -> Self {
        let words = [U16::new(words[0]), U16::new(words[1])];
        Self { kind, code, checksum: U16::new(0), words }
    }

    /// Makes an echo request.
    #[inline]
    pub const fn echo_request(identifier: u16, sequence: u16) -> Self {
        Self::new(Self::ECHO_REQUEST, 0, [identifier, sequence])
    }

    /// Whether it is an error, which carries the beginning of the packet that it is about.
    #[inline]
    pub const fn is_error(&self) -> bool {
        matches!(
            self.kind,
            Self::UNREACHABLE | Self::REDIRECT | Self::TIME_EXCEEDED | Self::PARAMETER_PROBLEM
        )
    }

    /// Makes it another type and code; the checksum stays right.
    #[inline]
    pub fn set_kind(&mut self, kind: u8, code: u8) {
        crate::checksum::replace(&mut self.checksum, &[self.kind, self.code], &[kind, code]);
        (self.kind, self.code) = (kind, code);
    }
}

impl<B: ByteSlice> View<B, Icmp> {
    /// Whether the message's checksum is right.
    #[inline]
    pub fn checksum_is_right(&self) -> bool {
        self.sum(Sum::default()).is_right()
    }
}

impl Builder<'_> {
    /// Puts an ICMP header in front, and fills in its checksum.
    ///
    /// # Errors
    /// [`BuildError`]: no room.
    #[inline]
    pub fn icmp(&mut self, mut header: Icmp) -> Result<&mut Self, BuildError> {
        header.checksum.set(0);
        header.checksum = Sum::default().with(header.as_bytes()).with(self.packet()).finish();
        self.put(&header)
    }
}
