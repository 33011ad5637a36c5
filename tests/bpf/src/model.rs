//! The choices of the packet path, implemented a second time.

use std::net::{IpAddr, SocketAddr};

use ringway_abi::raw::RW_RING_SLOTS;

/// Every node's: square roots of the primes from 3 on.
const RING_KEYS: [u64; 5] = [
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
];

/// The ring slot of a packet. Two nodes must agree on it, whatever their seed, whatever their
/// version: changing it moves every flow of a running cluster.
pub fn ring_slot(proto: u8, src: SocketAddr, dst: SocketAddr) -> usize {
    // Ports as they stand in the packet.
    let ports = u64::from(src.port().to_be()) << 32 | u64::from(dst.port().to_be()) << 16;
    let ([s0, s1], [d0, d1]) = (words(src.ip()), words(dst.ip()));
    let mut h = [s0, s1, d0, d1, ports | u64::from(proto)]
        .into_iter()
        .zip(RING_KEYS)
        .fold(0, |sum: u64, (word, key)| sum.wrapping_add(word.wrapping_mul(key)));
    h = (h ^ h >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^= h >> 32;
    (((h >> 32) * u64::from(RW_RING_SLOTS)) >> 32) as usize
}

/// An address as two words: 32-bit words as they lie in memory, the first one upper.
fn words(ip: IpAddr) -> [u64; 2] {
    let octets = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let word =
        |at: usize| u64::from(u32::from_ne_bytes(octets[at..at + 4].try_into().expect("4 bytes")));
    [word(0) << 32 | word(4), word(8) << 32 | word(12)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::FAMILIES;
    use crate::frame::TCP;

    /// Clients that count up, as in real life, spread evenly: chi-square over 64 bins of slots.
    #[test]
    fn slots_are_spread_evenly() {
        for family in FAMILIES {
            let mut bins = [0u32; 64];
            let flows = 65_536;
            for n in 0..flows {
                let src =
                    SocketAddr::new(family.nth_client((n / 256) as u16), 1024 + (n % 256) as u16);
                let slot = ring_slot(TCP, src, SocketAddr::new(family.vip(), 80));
                bins[slot * 64 / RW_RING_SLOTS as usize] += 1;
            }
            let expected = f64::from(flows) / 64.0;
            let chi: f64 = bins.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
            // 63 degrees of freedom: above 110 once in 5 000.
            assert!(chi < 110.0, "{family:?}: chi-square {chi}, {bins:?}");
        }
    }
}
