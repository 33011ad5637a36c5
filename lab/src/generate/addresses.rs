//! Addresses and ports that take turns, as they are written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Consecutive addresses of one family, up to 2^32 of them: `10.0.0.1`, `10.0.0.0/24` (all of it),
/// `fd00::1-fd00::9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    first: IpAddr,
    count: u64,
}

/// Consecutive ports: `9`, `1024-65535`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    first: u16,
    count: u64,
}

/// Why a text is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: {why}; {remedy}")]
pub struct SpanError {
    text: String,
    why: &'static str,
    remedy: &'static str,
}

const MOST: u64 = 1 << 32;
const WRITE: &str = "write ADDRESS, ADDRESS/BITS or FIRST-LAST";
const WRITE_PORTS: &str = "write PORT or FIRST-LAST";

impl From<IpAddr> for Addresses {
    fn from(first: IpAddr) -> Self {
        Self { first, count: 1 }
    }
}

impl FromStr for Addresses {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let wrong = |why, remedy| SpanError { text: text.into(), why, remedy };
        let address =
            |text: &str| text.parse::<IpAddr>().map_err(|_| wrong("it is no IP address", WRITE));
        let (first, last): (u128, u128) = if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (address(first)?, address(last)?);
            if first.is_ipv4() != last.is_ipv4() {
                return Err(wrong("its ends are of two families", "give both as IPv4 or as IPv6"));
            }
            (number(first), number(last))
        } else if let Some((first, len)) = text.split_once('/') {
            let first = address(first)?;
            let bits = if first.is_ipv4() { 32 } else { 128 };
            let len: u32 = len.parse().ok().filter(|len| *len <= bits).ok_or_else(|| {
                wrong(
                    "its prefix length cannot be",
                    "write 0 to 32 behind IPv4, to 128 behind IPv6",
                )
            })?;
            let host = u128::MAX.checked_shr(128 - (bits - len)).unwrap_or(0);
            (number(first) & !host, number(first) | host)
        } else {
            let first = number(address(text)?);
            (first, first)
        };
        let family: IpAddr = address(text.split(['-', '/']).next().unwrap_or_default())?;
        let count = last
            .checked_sub(first)
            .ok_or_else(|| wrong("it ends before it begins", "write the lower address first"))?;
        let count = u64::try_from(count).ok().and_then(|count| count.checked_add(1));
        let count = count.filter(|count| *count <= MOST).ok_or_else(|| {
            wrong("it is more than 2^32 addresses", "write a prefix of 96 bits or more")
        })?;
        Ok(Self { first: of_number(first, family), count })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn of_number(number: u128, family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
    }
}

impl Addresses {
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// How many, at least 1.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// In network byte order, of IPv4 the last four bytes; below the count.
    #[inline]
    pub(crate) fn nth(&self, n: u64) -> [u8; 16] {
        (number(self.first) + u128::from(n)).to_be_bytes()
    }
}

impl From<u16> for Numbers {
    fn from(first: u16) -> Self {
        Self { first, count: 1 }
    }
}

impl FromStr for Numbers {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let wrong = |why, remedy| SpanError { text: text.into(), why, remedy };
        let port = |text: &str| {
            text.parse::<u16>().map_err(|_| wrong("it is no port, 0 to 65535", WRITE_PORTS))
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        match last.checked_sub(first) {
            Some(more) => Ok(Self { first, count: u64::from(more) + 1 }),
            None => Err(wrong("it ends before it begins", "write the lower port first")),
        }
    }
}

impl Numbers {
    pub fn first(&self) -> u16 {
        self.first
    }

    /// How many, at least 1.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// In network byte order; below the count.
    #[inline]
    pub(crate) fn nth(&self, n: u64) -> [u8; 2] {
        (self.first + n as u16).to_be_bytes()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = of_number(u128::from_be_bytes(self.nth(self.count - 1)), self.first);
        if self.count == 1 { self.first.fmt(f) } else { write!(f, "{}-{last}", self.first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written() {
        for (text, shown, count) in [
            ("10.0.0.1", "10.0.0.1", 1),
            ("10.0.0.77/24", "10.0.0.0-10.0.0.255", 256),
            ("10.0.0.1/32", "10.0.0.1", 1),
            ("0.0.0.0/0", "0.0.0.0-255.255.255.255", 1 << 32),
            ("10.0.0.250-10.0.1.5", "10.0.0.250-10.0.1.5", 12),
            ("fd00::1", "fd00::1", 1),
            ("fd00::/96", "fd00::-fd00::ffff:ffff", 1 << 32),
            ("fd00::1-fd00::ffff", "fd00::1-fd00::ffff", 65535),
        ] {
            let addresses: Addresses = text.parse().unwrap();
            assert_eq!((addresses.to_string().as_str(), addresses.count()), (shown, count));
        }
        let ports: Numbers = "1024-1030".parse().unwrap();
        assert_eq!((ports.first(), ports.count(), ports.nth(6)), (1024, 7, [4, 6]));
        assert_eq!("0-65535".parse::<Numbers>().unwrap().count(), 65536);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        for (text, why) in [
            ("", "no IP address"),
            ("10.0.0", "no IP address"),
            ("10.0.0.1-fd00::1", "two families"),
            ("10.0.0.9-10.0.0.1", "ends before it begins"),
            ("10.0.0.0/33", "prefix length"),
            ("fd00::/x", "prefix length"),
            ("fd00::/64", "96 bits or more"),
        ] {
            let error = text.parse::<Addresses>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("; "), "{error}");
        }
        for (text, why) in [("70000", "no port"), ("9-1", "ends before"), ("x", "no port")] {
            let error = text.parse::<Numbers>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
