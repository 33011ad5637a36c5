//! Addresses as the packet path holds them: four words in network byte order, IPv4 mapped into
//! IPv6 (RFC 4291 section 2.5.5.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::raw::rw_address;

/// The words that the packet path holds for an address; their bytes in memory are the address
/// as on the wire.
pub fn addr_to_words(address: IpAddr) -> [u32; 4] {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    zerocopy::transmute!(octets)
}

/// The address that four words stand for: IPv4 when it is IPv4-mapped, else IPv6.
pub fn addr_from_words(words: [u32; 4]) -> IpAddr {
    let octets: [u8; 16] = zerocopy::transmute!(words);
    let v6 = Ipv6Addr::from(octets);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), |v4: Ipv4Addr| IpAddr::V4(v4))
}

impl From<IpAddr> for rw_address {
    fn from(address: IpAddr) -> Self {
        Self { addr: addr_to_words(address) }
    }
}

impl From<rw_address> for IpAddr {
    fn from(address: rw_address) -> Self {
        addr_from_words(address.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v4_is_mapped_and_in_network_order() {
        let words = addr_to_words("203.0.113.10".parse().unwrap());
        assert_eq!(words, [0, 0, u32::to_be(0xffff), u32::from_ne_bytes([203, 0, 113, 10])]);
        assert_eq!(addr_from_words(words).to_string(), "203.0.113.10");
    }

    #[test]
    fn v6_round_trips() {
        for text in ["2001:db8::1", "::", "::1", "fe80::1:2:3:4"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(IpAddr::from(rw_address::from(address)), address);
        }
        let words = addr_to_words("2001:db8::1".parse().unwrap());
        assert_eq!(words[0].to_ne_bytes(), [0x20, 0x01, 0x0d, 0xb8]);
    }
}
