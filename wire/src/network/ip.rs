//! A packet of either IP, up to what it carries.

use core::net::IpAddr;

use zerocopy::{ByteSlice, Ref, SplitByteSlice};

use crate::malformed::{Fault, Malformed};
use crate::network::ipv6::Fragment;
use crate::{Extensions, Header, Ipv4, Ipv6, Layer, Pseudo, View};

/// The header of a packet of either IP.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum IpHeader<B: ByteSlice> {
    V4(Ref<B, Ipv4>),
    V6(Ref<B, Ipv6>),
}

/// A packet of either IP.
#[derive(Debug)]
pub struct Ip<B: ByteSlice> {
    /// The fixed header.
    pub header: IpHeader<B>,
    /// The options of IPv4, the extension headers of IPv6 ([`Extensions`]).
    pub between: B,
    /// The protocol of the payload ([`crate::network::protocol`]); of a later fragment: that of its
    /// packet.
    pub protocol: u8,
    /// Its place as a fragment, unless it is a whole packet. Only a first fragment's payload begins
    /// with a header.
    pub fragment: Option<Fragment>,
    /// The bytes behind all headers of IP.
    pub payload: B,
}

impl<B: SplitByteSlice> Ip<B> {
    /// Reads header, options and extensions of the IP that the version field names.
    ///
    /// # Errors
    /// [`Malformed`], as [`Header::parse`] and [`Extensions`] have it.
    #[inline]
    pub fn parse(bytes: B) -> Result<Self, Malformed> {
        Self::split(bytes, false)
    }

    /// As [`Ip::parse`], of a packet whose end may be missing ([`Header::parse_partial`]).
    ///
    /// # Errors
    /// As [`Ip::parse`], but not for a length that is more than there is.
    #[inline]
    pub fn parse_partial(bytes: B) -> Result<Self, Malformed> {
        Self::split(bytes, true)
    }

    #[inline]
    fn split(bytes: B, partial: bool) -> Result<Self, Malformed> {
        match bytes.first().map(|first| first >> 4) {
            Some(6) if partial => Self::v6(Ipv6::parse_partial(bytes)?),
            Some(6) => Self::v6(Ipv6::parse(bytes)?),
            _ if partial => Ok(Self::v4(Ipv4::parse_partial(bytes)?)),
            _ => Ok(Self::v4(Ipv4::parse(bytes)?)),
        }
    }

    #[inline]
    fn v4(view: View<B, Ipv4>) -> Self {
        Self {
            protocol: view.header.protocol,
            fragment: view.header.fragment(),
            header: IpHeader::V4(view.header),
            between: view.options,
            payload: view.payload,
        }
    }

    #[inline]
    fn v6(view: View<B, Ipv6>) -> Result<Self, Malformed> {
        let mut extensions = Extensions::new(view.header.next_header, &view.payload);
        let mut fragment = None;
        for extension in &mut extensions {
            fragment = extension?.fragment().or(fragment).filter(|fragment| !fragment.is_whole());
        }
        let protocol = extensions.next_header();
        let len = view.payload.len() - extensions.rest().len();
        let truncated = |_| Malformed { layer: Layer::Ipv6Extension, fault: Fault::Truncated };
        let (between, payload) = view.payload.split_at(len).map_err(truncated)?;
        Ok(Self { header: IpHeader::V6(view.header), between, protocol, fragment, payload })
    }
}

impl<B: ByteSlice> Ip<B> {
    /// Bytes of header, options and extension headers: where in the packet the payload begins.
    #[inline]
    pub fn header_len(&self) -> usize {
        let fixed = match &self.header {
            IpHeader::V4(_) => size_of::<Ipv4>(),
            IpHeader::V6(_) => size_of::<Ipv6>(),
        };
        fixed + self.between.len()
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match &self.header {
            IpHeader::V4(header) => header.source.into(),
            IpHeader::V6(header) => header.source.into(),
        }
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match &self.header {
            IpHeader::V4(header) => header.destination.into(),
            IpHeader::V6(header) => header.destination.into(),
        }
    }

    /// TTL or hop limit.
    #[inline]
    pub fn ttl(&self) -> u8 {
        match &self.header {
            IpHeader::V4(header) => header.ttl,
            IpHeader::V6(header) => header.hop_limit,
        }
    }

    /// The addresses, for the checksum of what it carries.
    #[inline]
    pub fn pseudo(&self) -> Pseudo {
        match &self.header {
            IpHeader::V4(header) => header.pseudo(),
            IpHeader::V6(header) => header.pseudo(),
        }
    }
}
