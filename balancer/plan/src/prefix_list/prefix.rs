//! A network: an address and the number of its leading bits that count.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(addr: IpAddr) -> Family {
        if addr.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Bits of an address.
    pub const fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// An IPv4 or IPv6 prefix. Bits behind its length are zero, and it is never IPv4-mapped. The order
/// is by family, then by address, then the shorter one first: a prefix stands right before those
/// that it contains.
///
/// ```
/// # use ringway_plan::prefix_list::Prefix;
/// let prefix: Prefix = "192.0.2.0/24".parse()?;
/// assert!(prefix.contains("192.0.2.9".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// The prefix of `len` bits that begins at `addr`. Fails when `addr` is not its first address
    /// or is IPv4-mapped, or when its family has no such length.
    pub fn new(addr: IpAddr, len: u8) -> Result<Prefix, PrefixError> {
        let family = Family::of(addr);
        if len > family.bits() {
            return Err(PrefixError::Length { most: family.bits() });
        }
        if matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            return Err(PrefixError::Mapped);
        }
        let network = Prefix::of_bits(family, aligned(addr) & mask(len), len);
        if network.addr != addr {
            return Err(PrefixError::HostBits { network, host: addr });
        }
        Ok(network)
    }

    /// The prefix of `len` bits that begins at left-aligned `bits`.
    pub(super) fn of_bits(family: Family, bits: u128, len: u8) -> Prefix {
        let addr = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        Prefix { addr, len }
    }

    /// Its first address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Leading bits that its addresses share: 0 to 32 or 128.
    pub fn length(&self) -> u8 {
        self.len
    }

    /// Its family.
    pub fn family(&self) -> Family {
        Family::of(self.addr)
    }

    /// Whether an address is in it.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.family() == Family::of(addr) && (aligned(addr) ^ self.bits()) & mask(self.len) == 0
    }

    /// The prefixes that cover it, the widest first; the last is itself.
    pub fn around(self) -> impl Iterator<Item = Prefix> {
        (0..=self.len).map(move |len| Prefix::of_bits(self.family(), self.bits() & mask(len), len))
    }

    /// Whether every address of another prefix is in it.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }

    /// The bits of its first address, left-aligned.
    pub(super) fn bits(&self) -> u128 {
        aligned(self.addr)
    }
}

/// The bits of an address as the leading ones of 128.
pub(super) fn aligned(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The leading `len` of 128 bits.
pub(super) fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// An address and a length, `192.0.2.0/24`, or one address alone.
    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let addr: IpAddr = address.parse().map_err(|_| PrefixError::of_address(address))?;
        let most = Family::of(addr).bits();
        let len = length.map_or(Some(most), number).ok_or(PrefixError::Length { most })?;
        Prefix::new(addr, len)
    }
}

/// A decimal number without sign and leading zeros.
fn number(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

/// Why a text or an address is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// What stands before the `/` is no address.
    #[error("no IPv4 or IPv6 address: write a prefix as 192.0.2.0/24 or 2001:db8::/32")]
    Address,
    /// An IPv4 address has an octet such as `010`, which some programs read as octal.
    #[error("an octet begins with 0, which can mean octal: write it as a decimal number")]
    LeadingZero,
    /// An IPv6 address has a zone id, `%eth0`.
    #[error("packets carry no zone id: write the address without `%` and what follows")]
    Zone,
    /// The length is no number, or too high a one.
    #[error("the length of the prefix is no number from 0 to {most}")]
    Length {
        /// The longest of the family.
        most: u8,
    },
    /// The address has bits behind the length.
    #[error(
        "the address has bits behind the length: write {network}, or {host} for one address alone"
    )]
    HostBits {
        /// The network that has the address.
        network: Prefix,
        /// The address.
        host: IpAddr,
    },
    /// The address is an IPv4-mapped IPv6 address, which no packet has.
    #[error("an IPv4-mapped IPv6 address: write the IPv4 prefix")]
    Mapped,
}

impl PrefixError {
    /// Why a text is no address.
    fn of_address(text: &str) -> PrefixError {
        let octet = |part: &str| part.len() > 1 && part.bytes().all(|byte| byte.is_ascii_digit());
        match text.split_once('%') {
            Some((address, _)) if address.parse::<Ipv6Addr>().is_ok() => PrefixError::Zone,
            _ if text.split('.').count() == 4
                && text.split('.').any(|part| part.starts_with('0') && octet(part)) =>
            {
                PrefixError::LeadingZero
            }
            _ => PrefixError::Address,
        }
    }
}
