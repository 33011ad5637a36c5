//! Neighbour discovery (RFC 4861): what its messages have behind the header of ICMPv6 ([`Icmpv6`]),
//! and their options. Whoever reads them checks that the hop limit is 255, the code 0 and the
//! checksum right (sections 6.1 and 7.1).

use core::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::{Header, Icmpv6, Layer, Mac, Malformed, U16, U32};

/// The word of a neighbour advertisement's header.
pub mod flags {
    /// The sender is a router.
    pub const ROUTER: u32 = 1 << 31;
    /// It was asked for.
    pub const SOLICITED: u32 = 1 << 30;
    /// The receiver must replace the address that it has cached.
    pub const OVERRIDE: u32 = 1 << 29;
}

/// A neighbour solicitation or advertisement; the view's payload is its options.
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
pub struct Neighbour {
    /// The address that is asked for, or that answers.
    pub target: [u8; 16],
}

impl Header for Neighbour {
    const LAYER: Layer = Layer::NeighbourDiscovery;
}

impl Neighbour {
    /// The group to which a solicitation for `target` is sent (RFC 4291, section 2.7.1).
    #[inline]
    pub const fn solicited_nodes(target: Ipv6Addr) -> Ipv6Addr {
        let [.., a, b, c] = target.octets();
        let last = (b as u16) << 8 | c as u16;
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, last)
    }
}

/// The word of a router advertisement's header.
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
pub struct Router {
    /// The hop limit for hosts; 0: unspecified.
    pub hop_limit: u8,
    /// Managed (0x80), other configuration (0x40), and later additions.
    pub flags: u8,
    /// Seconds for which it is a default router; 0: it is none.
    pub lifetime: U16,
}

impl Router {
    /// Of the header of a router advertisement.
    #[inline]
    pub fn of(header: &Icmpv6) -> Self {
        zerocopy::transmute!(header.word)
    }

    /// The header of a router advertisement.
    #[inline]
    pub fn header(self) -> Icmpv6 {
        let word: U32 = zerocopy::transmute!(self);
        Icmpv6::new(Icmpv6::ROUTER_ADVERTISEMENT, 0, word.get())
    }
}

/// The fields of a router advertisement behind its header; the view's payload is its options.
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
pub struct RouterTimes {
    /// Milliseconds for which a neighbour counts as reachable; 0: it does not say.
    pub reachable: U32,
    /// Milliseconds between solicitations; 0: it does not say.
    pub retransmit: U32,
}

impl Header for RouterTimes {
    const LAYER: Layer = Layer::NeighbourDiscovery;
}

/// The fields of a redirect behind its header; the view's payload is its options.
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
pub struct Redirect {
    /// The better first hop; where it is the destination, that is a neighbour.
    pub target: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

impl Header for Redirect {
    const LAYER: Layer = Layer::NeighbourDiscovery;
}

/// An option with an Ethernet address, ready to be put behind a message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LinkLayer {
    kind: u8,
    /// In units of eight bytes.
    len: u8,
    address: Mac,
}

impl LinkLayer {
    /// The sender's: goes with solicitations and router advertisements.
    #[inline]
    pub const fn source(address: Mac) -> Self {
        Self { kind: 1, len: 1, address }
    }

    /// The target's: goes with advertisements and redirects.
    #[inline]
    pub const fn target(address: Mac) -> Self {
        Self { kind: 2, len: 1, address }
    }
}

/// A prefix, as a router advertises it (RFC 4861, section 4.6.2).
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
pub struct Prefix {
    /// Option type: 3.
    pub kind: u8,
    /// 4, in units of eight bytes.
    pub len: u8,
    /// Bits of the prefix.
    pub prefix_len: u8,
    /// On-link (0x80), autonomous (0x40), and later additions.
    pub flags: u8,
    /// Seconds; all ones: for ever.
    pub valid: U32,
    /// Seconds; all ones: for ever.
    pub preferred: U32,
    /// Sent as 0, ignored when received.
    pub reserved: U32,
    /// The prefix; what is beyond its bits does not count.
    pub prefix: [u8; 16],
}

impl Prefix {
    /// On the link, for hosts to choose their addresses from, for ever.
    #[inline]
    pub const fn new(prefix: Ipv6Addr, prefix_len: u8) -> Self {
        Self {
            kind: 3,
            len: 4,
            prefix_len,
            flags: 0xc0,
            valid: U32::MAX_VALUE,
            preferred: U32::MAX_VALUE,
            reserved: U32::ZERO,
            prefix: prefix.octets(),
        }
    }
}

/// An option of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NdOption<'a> {
    /// The sender's Ethernet address.
    SourceLinkLayer(Mac),
    /// The target's Ethernet address.
    TargetLinkLayer(Mac),
    /// Prefix information.
    Prefix(&'a Prefix),
    /// The beginning of the packet that a redirect is about.
    Redirected(&'a [u8]),
    /// The link's MTU in bytes.
    Mtu(u32),
    /// Any other; `data` is what follows kind and length.
    Other {
        /// Option kind.
        kind: u8,
        /// The bytes behind kind and length.
        data: &'a [u8],
    },
}

/// Options one by one. After an error there are no more: a message with such an option is to be
/// ignored as a whole (RFC 4861, section 4.6).
#[derive(Clone, Debug)]
pub struct NdOptions<'a>(&'a [u8]);

impl<'a> NdOptions<'a> {
    /// The options in the payload of a message.
    pub fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// The next one and the bytes behind it; None where its length is wrong.
    fn split(&self) -> Option<(NdOption<'a>, &'a [u8])> {
        let [kind, units, ..] = *self.0 else { return None };
        let (option, rest) = self.0.split_at_checked(usize::from(units) * 8)?;
        // An option of length 0 is invalid.
        let data = option.get(2..)?;
        let option = match kind {
            1 => NdOption::SourceLinkLayer(Mac::read_from_bytes(data).ok()?),
            2 => NdOption::TargetLinkLayer(Mac::read_from_bytes(data).ok()?),
            3 => NdOption::Prefix(Prefix::ref_from_bytes(option).ok()?),
            4 => NdOption::Redirected(data.get(6..)?),
            5 => NdOption::Mtu(<[U32; 1]>::read_from_bytes(data.get(2..)?).ok()?[0].get()),
            kind => NdOption::Other { kind, data },
        };
        Some((option, rest))
    }
}

impl<'a> Iterator for NdOptions<'a> {
    type Item = Result<NdOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = self.split();
        self.0 = split.map_or(&[], |(_, rest)| rest);
        let malformed = Malformed { layer: Layer::NeighbourDiscovery, fault: Fault::OptionLength };
        Some(split.map(|(option, _)| option).ok_or(malformed))
    }
}
