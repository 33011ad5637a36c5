use core::fmt;
use core::net::Ipv6Addr;
use core::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An Ethernet address, in the order in which its bytes go over the wire.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Where a multicast IPv6 packet is sent to (RFC 2464, section 7).
    #[inline]
    pub const fn of_multicast(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Whether it is a group's, or everybody's.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether all bytes are zero, as on loopback or an unresolved neighbour.
    #[inline]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six bytes of two hexadecimal digits with colons between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address; write six bytes as in 02:00:00:00:00:01")
    }
}

impl core::error::Error for ParseMacError {}

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let digits = |part: &&str| part.len() == 2 && !part.starts_with('+');
            let part = parts.next().filter(digits).ok_or(ParseMacError)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(bytes)) }
    }
}

/// As text, in documents.
#[cfg(feature = "serde")]
mod text {
    use core::fmt;

    use serde::de::{Deserialize, Deserializer, Error, Visitor};
    use serde::{Serialize, Serializer};

    use super::Mac;

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Mac;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a MAC address")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Mac, E> {
            text.parse().map_err(|error| E::custom(format_args!("{text:?} is {error}")))
        }
    }

    impl Serialize for Mac {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Mac {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Text)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn text_and_back() {
        let mac = Mac([2, 0, 0xab, 0, 0, 1]);
        assert_eq!(mac.to_string(), "02:00:ab:00:00:01");
        assert_eq!("02:00:AB:00:00:01".parse(), Ok(mac));
        for wrong in [
            "",
            "02:00:ab:00:00",
            "02:00:ab:00:00:01:02",
            "2:0:ab:0:0:1",
            "02-00-ab-00-00-01",
            "+2:00:ab:00:00:01",
        ] {
            assert_eq!(wrong.parse::<Mac>(), Err(ParseMacError), "{wrong}");
        }
    }

    #[test]
    fn groups() {
        let all_nodes = Mac::of_multicast("ff02::1:ff12:3456".parse().unwrap());
        assert_eq!(all_nodes.to_string(), "33:33:ff:12:34:56");
        assert!(all_nodes.is_multicast() && Mac::BROADCAST.is_multicast());
        assert!(!Mac([2, 0, 0, 0, 0, 1]).is_multicast());
    }
}
