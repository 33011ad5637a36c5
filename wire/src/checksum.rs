//! The Internet checksum, whole (RFC 1071) and by difference (RFC 1624).

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{Immutable, IntoBytes};

use crate::U16;

/// A one's complement sum that is not finished. It adds words as they lie in memory, 32 bits at a
/// time: byte order and word size do not matter to such a sum (RFC 1071, section 2), so nothing is
/// swapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum behind a finished checksum, to be changed with [`Sum::without`] and [`Sum::with`].
    #[inline]
    pub fn of_checksum(checksum: U16) -> Self {
        Self(u64::from(!u16::from_ne_bytes(checksum.to_bytes())))
    }

    /// With these bytes. Only the last bytes added may be odd in number: they count as if a zero
    /// followed.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        // 2^32 words fit before anything is carried out of the 64 bits.
        let sum = words.iter().fold(self.0, |sum, word| sum.wrapping_add(word_of(*word)));
        let last = match *rest {
            [] => 0,
            [a] => word_of([a, 0, 0, 0]),
            [a, b] => word_of([a, b, 0, 0]),
            [a, b, c, ..] => word_of([a, b, c, 0]),
        };
        Self(sum.wrapping_add(last))
    }

    /// With bytes that lie at an odd place of what is summed up: behind an odd number of others
    /// (RFC 1071, section 2).
    #[inline]
    #[must_use]
    pub fn with_odd(self, bytes: &[u8]) -> Self {
        Self(self.0.wrapping_add(u64::from(Self::default().with(bytes).fold().swap_bytes())))
    }

    /// Without these bytes, which were added before; an even number of them, at an even place.
    #[inline]
    #[must_use]
    pub fn without(self, bytes: &[u8]) -> Self {
        Self(self.0.wrapping_add(u64::from(!Self::default().with(bytes).fold())))
    }

    /// The checksum, as it goes into a header whose checksum field was added as zero, or not at
    /// all.
    #[inline]
    pub fn finish(self) -> U16 {
        U16::from_bytes((!self.fold()).to_ne_bytes())
    }

    /// Whether the sum, over bytes with their checksum among them, is that of an undamaged packet.
    #[inline]
    pub fn is_right(self) -> bool {
        self.fold() == 0xffff
    }

    #[inline]
    fn fold(self) -> u16 {
        // Both halves added, in the upper one with the lower one's carry.
        let sum = self.0.wrapping_add(self.0.rotate_right(32)) >> 32;
        // As many bits as are left.
        let sum = sum as u32;
        (sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
    }
}

#[inline]
fn word_of(bytes: [u8; 4]) -> u64 {
    u64::from(u32::from_ne_bytes(bytes))
}

/// Mends a checksum after `old`, which it covers, became `new`: an even number of bytes at an even
/// place (RFC 1624, equation 3). A UDP checksum has rules of its own: [`crate::Udp::replace`].
#[inline]
pub fn replace<T: IntoBytes + Immutable + ?Sized>(checksum: &mut U16, old: &T, new: &T) {
    *checksum = Sum::of_checksum(*checksum).without(old.as_bytes()).with(new.as_bytes()).finish();
}

/// The pseudo-header that UDP, TCP and ICMPv6 add to their checksum: the addresses of the IP header
/// that carries them, the protocol and the length (RFC 768, RFC 8200 section 8.1). Protocol and
/// length are put in when a checksum is made or verified.
#[derive(Clone, Copy, Debug)]
pub struct Pseudo(Sum);

impl Pseudo {
    /// Between two IPv4 addresses.
    #[inline]
    pub fn v4(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self(Sum::default().with(&source.octets()).with(&destination.octets()))
    }

    /// Between two IPv6 addresses. Behind a routing header that is not used up, `destination` is
    /// the last one's.
    #[inline]
    pub fn v6(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self(Sum::default().with(&source.octets()).with(&destination.octets()))
    }

    /// Begins the sum over a header and its payload, of so many bytes together, with their protocol
    /// number.
    #[inline]
    pub fn sum(self, protocol: u8, len: usize) -> Sum {
        self.0.with(&[0, protocol]).with(&(len as u32).to_be_bytes())
    }
}
