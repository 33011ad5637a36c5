//! ICMP for IPv6 (RFC 4443). Neighbour discovery, which is part of it, is in
//! [`crate::network::nd`].

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{self, Pseudo};
use crate::network::protocol;
use crate::{BuildError, Builder, Header, Layer, U16, U32, View};

/// The first eight bytes of an ICMPv6 message, which all types in use have.
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
pub struct Icmpv6 {
    /// Its type; an error's is below 128.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Over the pseudo header and all of the message.
    pub checksum: U16,
    /// The type's own fields: identifier and sequence number of an echo, MTU, pointer, flags.
    pub word: U32,
}

impl Header for Icmpv6 {
    const LAYER: Layer = Layer::Icmpv6;
}

impl Icmpv6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Code of [`Icmpv6::UNREACHABLE`]: no such port.
    pub const PORT_UNREACHABLE: u8 = 4;
    /// Too big; the word is the MTU.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Hop limit used up.
    pub const TIME_EXCEEDED: u8 = 3;
    /// A header makes no sense; the word says at which byte.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Asks for an answer.
    pub const ECHO_REQUEST: u8 = 128;
    /// Answers an echo request.
    pub const ECHO_REPLY: u8 = 129;

    /// A message. [`Builder::icmpv6`] fills in the checksum.
    #[inline]
    pub const fn new(kind: u8, code: u8, word: u32) -> Self {
        Self { kind, code, checksum: U16::new(0), word: U32::new(word) }
    }

    /// Hosts ask for routers; options follow ([`crate::network::nd`]).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// A router tells of itself; the word is [`crate::network::nd::Router`],
    /// [`crate::network::nd::RouterTimes`] and options follow.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Asks who has an address; [`crate::network::nd::Neighbour`] and options follow.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Says who has an address; the word is [`crate::network::nd::flags`],
    /// [`crate::network::nd::Neighbour`] and options follow.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Another router is nearer; [`crate::network::nd::Redirect`] and options follow.
    pub const REDIRECT: u8 = 137;

    /// Makes an echo request.
    #[inline]
    pub const fn echo_request(identifier: u16, sequence: u16) -> Self {
        Self::new(Self::ECHO_REQUEST, 0, (identifier as u32) << 16 | sequence as u32)
    }

    /// Identifier and sequence number of an echo.
    #[inline]
    pub const fn echo(&self) -> (u16, u16) {
        ((self.word.get() >> 16) as u16, self.word.get() as u16)
    }

    /// Whether it is an error, which carries the beginning of the packet that it is about.
    #[inline]
    pub const fn is_error(&self) -> bool {
        self.kind < 128
    }

    /// Makes it another type and code; the checksum stays right.
    #[inline]
    pub fn set_kind(&mut self, kind: u8, code: u8) {
        checksum::replace(&mut self.checksum, &[self.kind, self.code], &[kind, code]);
        (self.kind, self.code) = (kind, code);
    }
}

impl<B: ByteSlice> View<B, Icmpv6> {
    /// Whether the message's checksum is right, between these addresses.
    #[inline]
    pub fn checksum_is_right(&self, pseudo: Pseudo) -> bool {
        self.sum(pseudo.sum(protocol::ICMPV6, self.len())).is_right()
    }
}

impl Builder<'_> {
    /// Puts an ICMPv6 header in front, and fills in its checksum.
    ///
    /// # Errors
    /// [`BuildError`]: no room.
    #[inline]
    pub fn icmpv6(&mut self, mut header: Icmpv6, pseudo: Pseudo) -> Result<&mut Self, BuildError> {
        header.checksum = U16::ZERO;
        let own = pseudo.sum(protocol::ICMPV6, size_of::<Icmpv6>() + self.len());
        header.checksum = own.with(header.as_bytes()).with(self.packet()).finish();
        self.put(&header)
    }
}
