//! Netlink messages and attributes (linux/netlink.h): host byte order, everything padded to four
//! bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 16;
const NLA_F_NESTED: u16 = 0x8000;
/// NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// `header` is the family's fixed part, such as struct ifinfomsg.
    pub fn new(kind: u16, flags: i32, header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
        bytes.extend_from_slice(header);
        let mut request = Self { bytes };
        request.pad();
        request
    }

    pub fn attribute(mut self, kind: u16, data: &[u8]) -> Self {
        let length = (data.len() + 4) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(data);
        self.pad();
        self
    }

    /// The start of what goes into [`Request::nest`].
    pub fn nested() -> Self {
        Self::new(0, 0, &[])
    }

    /// Adds the attributes of `inner` as one nested attribute.
    pub fn nest(self, kind: u16, inner: Self) -> Self {
        self.attribute(kind | NLA_F_NESTED, &inner.bytes[HEADER..])
    }

    pub fn address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    pub fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// One attribute; its flags are taken off its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub kind: u16,
    pub data: &'a [u8],
}

/// The messages of one datagram. Ends early at a length that does not fit.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_of(bytes.get(0..4)?)? as usize;
        let message = Message {
            kind: u16_of(bytes.get(4..6)?)?,
            flags: u16_of(bytes.get(6..8)?)?,
            sequence: u32_of(bytes.get(8..12)?)?,
            body: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes`. Ends early at a length that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = u16_of(bytes.get(0..2)?)? as usize;
        let kind = u16_of(bytes.get(2..4)?)? & !ATTRIBUTE_FLAGS;
        let data = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, data })
    })
}

/// The first two bytes, host order.
pub(crate) fn u16_of(data: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(..2)?.try_into().ok()?))
}

/// The first four bytes, host order.
pub(crate) fn u32_of(data: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(..4)?.try_into().ok()?))
}

/// The first eight bytes, host order.
pub(crate) fn u64_of(data: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(data.get(..8)?.try_into().ok()?))
}

/// A NUL-terminated string.
pub(crate) fn string(data: &[u8]) -> String {
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

/// An IPv4 or IPv6 address, told apart by length.
pub(crate) fn address(data: &[u8]) -> Option<IpAddr> {
    match data.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let bytes = Request::new(24, 0x301, &[1, 2, 3, 4, 5])
            .attribute(3, b"eth0\0")
            .address(1, v4)
            .finish(7);
        assert_eq!(bytes.len() % 4, 0);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (24, 0x301, 7));
        let read: Vec<_> = attributes(&message.body[8..]).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].kind, string(read[0].data).as_str()), (3, "eth0"));
        assert_eq!(address(read[1].data), Some(v4));
    }

    #[test]
    fn lies_about_length_end_the_reading() {
        assert_eq!(attributes(&[255, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(messages(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[1, 2, 3]).count(), 0);
    }
}
