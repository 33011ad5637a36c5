//! What the packet path should choose, written down a second time.

use std::net::{IpAddr, SocketAddr};

use ringway_abi::raw::RW_RING_SLOTS;

/// "RINGWAY": every node starts the ring's hash from it.
const RING_SEED: u64 = 0x52_494e_4757_4159;

/// The ring slot of a packet. Two nodes must agree on it, whatever their seed, whatever their
/// version: changing it moves every flow of a running cluster.
pub fn ring_slot(proto: u8, src: SocketAddr, dst: SocketAddr) -> usize {
    let mut h = RING_SEED;
    for word in words(src.ip()).into_iter().chain(words(dst.ip())) {
        h = mix(h, word);
    }
    // Ports as they stand in the packet.
    let ports = u64::from(src.port().to_be()) << 32 | u64::from(dst.port().to_be()) << 16;
    h = mix(h, ports | u64::from(proto));
    h = h.wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^= h >> 29;
    (((h >> 32) * u64::from(RW_RING_SLOTS)) >> 32) as usize
}

fn mix(h: u64, word: u64) -> u64 {
    let h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^ h >> 32
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
