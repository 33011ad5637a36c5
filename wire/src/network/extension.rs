//! The extension headers of IPv6 (RFC 8200, section 4; RFC 6564), AH among them (RFC 4302).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::{Fault, Layer, Malformed};
use crate::network::ipv6::Fragment;
use crate::network::protocol;
use crate::{BuildError, Builder, U16, U32};

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// The extension header's own number ([`protocol`]).
    pub kind: u8,
    /// Protocol number of the header behind it.
    pub next_header: u8,
    /// All of it, beginning with `next_header`; at least eight bytes, a multiple of four.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Its fields, where it is a fragment header.
    pub fn fragment(&self) -> Option<Fragment> {
        let header = FragmentHeader::read_from_bytes(self.bytes).ok()?;
        (self.kind == protocol::FRAGMENT).then(|| header.fragment())
    }
}

/// The extension headers one by one, up to the first header that is none. After an error there are
/// no more.
///
/// Behind the header of a fragment that is not the first come the middle of a payload, and no more
/// extensions.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    next_header: u8,
    rest: &'a [u8],
    ended: bool,
}

impl<'a> Extensions<'a> {
    /// The extension headers in the payload of an IPv6 header with this `next_header`.
    #[inline]
    pub fn new(next_header: u8, payload: &'a [u8]) -> Self {
        Self { next_header, rest: payload, ended: false }
    }

    /// The header behind those that were iterated over: after the last one, the protocol.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.next_header
    }

    /// The bytes behind those that were iterated over.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn split(&self) -> Option<(Extension<'a>, &'a [u8])> {
        let kind = self.next_header;
        let [next_header, len, ..] = *self.rest else { return None };
        let len = match kind {
            protocol::FRAGMENT => 8,
            // In units of four bytes, less two (RFC 4302, section 2.2); a multiple of eight is not
            // asked for.
            protocol::AH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        Some((Extension { kind, next_header, bytes }, rest))
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || !is_extension(self.next_header) {
            return None;
        }
        let Some((extension, rest)) = self.split() else {
            self.ended = true;
            return Some(Err(Malformed { layer: Layer::Ipv6Extension, fault: Fault::Truncated }));
        };
        self.next_header = extension.next_header;
        self.rest = rest;
        self.ended = extension.fragment().is_some_and(|fragment| fragment.offset != 0);
        Some(Ok(extension))
    }
}

/// Whether a protocol number is an extension header that can be stepped over. ESP cannot: what is
/// behind is encrypted.
#[inline]
pub const fn is_extension(number: u8) -> bool {
    use protocol::{AH, DESTINATION, FRAGMENT, HIP, HOP_BY_HOP, MOBILITY, ROUTING, SHIM6};
    matches!(number, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION | AH | MOBILITY | HIP | SHIM6)
}

/// A fragment header (RFC 8200, section 4.5).
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
pub struct FragmentHeader {
    /// The header behind this one in the whole packet.
    pub next_header: u8,
    /// Sent as 0, ignored when received.
    pub reserved: u8,
    /// The offset in units of eight bytes (13 bits), two reserved bits, "more fragments".
    pub offset_more: U16,
    /// The same in all fragments of one packet.
    pub identification: U32,
}

impl FragmentHeader {
    /// Uses the bits of `offset` that fit: a multiple of eight below 65 536.
    #[inline]
    pub const fn new(next_header: u8, fragment: Fragment) -> Self {
        let offset_more = (fragment.offset & 0xfff8) as u16 | fragment.more as u16;
        Self {
            next_header,
            reserved: 0,
            offset_more: U16::new(offset_more),
            identification: U32::new(fragment.identification),
        }
    }

    /// The offset in bytes, the flag and the identification.
    #[inline]
    pub const fn fragment(&self) -> Fragment {
        Fragment {
            identification: self.identification.get(),
            offset: (self.offset_more.get() & 0xfff8) as usize,
            more: self.offset_more.get() & 1 != 0,
        }
    }
}

impl Builder<'_> {
    /// Puts a hop-by-hop, destination options or routing header in front: what follows, its length,
    /// then `body`.
    ///
    /// # Errors
    /// [`BuildError`]: no room, or a body that is not of 6, 14, ... 2 046 bytes.
    pub fn extension(&mut self, next_header: u8, body: &[u8]) -> Result<&mut Self, BuildError> {
        let len = body.len();
        let wrong = BuildError::Options { layer: Layer::Ipv6Extension, len };
        let units = u8::try_from(len / 8).map_err(|_| wrong)?;
        if len % 8 != 6 {
            return Err(wrong);
        }
        self.put(body)?.put(&[next_header, units])
    }
}
