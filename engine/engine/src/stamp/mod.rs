//! The stamp of a packet that is counted when it comes back, at the beginning of the payload of
//! UDP, TCP or an echo request. In network byte order:
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                      magic: "RwGn"                            |
//! +-------------------------------+-------------------------------+
//! |            stream             |                               |
//! +-------------------------------+      sequence number          |
//! |                                                               |
//! +---------------------------------------------------------------+
//! |           time: nanoseconds since 1970, modulo 2^48           |
//! |                               +-------------------------------+
//! |                               |
//! +-------------------------------+
//! ```
//! 18 bytes, so that a UDP datagram over IPv4 in the shortest Ethernet frame (60 bytes and its
//! checksum) has room for it. The sequence number begins at 0, and at 100 million packets a second
//! it lasts a month; the time lasts three days, far longer than a packet.

mod sequence;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ringway_wire::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::sequence::{Arrival, Sequence, WINDOW};

/// A packet's sender, its number among the sender's packets, and its time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Stamp {
    magic: [u8; 4],
    stream: U16,
    sequence: [u8; 6],
    time: [u8; 6],
}

const MAGIC: [u8; 4] = *b"RwGn";
const BITS: u32 = 48;

impl Stamp {
    pub const BYTES: usize = size_of::<Self>();

    /// Keeps the lower 48 bits of sequence number and time (nanoseconds since 1970).
    #[inline]
    pub fn new(stream: u16, sequence: u64, time: u64) -> Self {
        let (sequence, time) = (lower(sequence), lower(time));
        Self { magic: MAGIC, stream: U16::new(stream), sequence, time }
    }

    /// Reads the stamp at the beginning of a payload; none if there is something else.
    #[inline]
    pub fn of(payload: &[u8]) -> Option<Self> {
        let (stamp, _) = Self::read_from_prefix(payload).ok()?;
        (stamp.magic == MAGIC).then_some(stamp)
    }

    /// The sender: each generator has a number of its own.
    #[inline]
    pub fn stream(&self) -> u16 {
        self.stream.get()
    }

    /// Its place among the stream's packets, from 0.
    #[inline]
    pub fn sequence(&self) -> u64 {
        whole(self.sequence)
    }

    /// Nanoseconds since it was sent until `now`; negative if the sender's clock is ahead.
    #[inline]
    pub fn age(&self, now: u64) -> i64 {
        // The sign of a number of 48 bits.
        const REST: u32 = 64 - BITS;
        (now.wrapping_sub(whole(self.time)) << REST) as i64 >> REST
    }
}

#[inline]
fn lower(number: u64) -> [u8; 6] {
    let [_, _, lower @ ..] = number.to_be_bytes();
    lower
}

#[inline]
fn whole([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// A clock that two workers, or two machines, can compare.
///
/// Nanoseconds since 1970: what the system's clock said at first, and steady time since. A step of
/// the system's clock is not noticed, so that it makes no latency.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    /// Sets it by the system's clock. Users of one clock share its error, too.
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Until the year 2554.
        Self { start: Instant::now(), start_ns: since.as_nanos() as u64 }
    }

    /// Nanoseconds since 1970.
    #[inline]
    pub fn now(&self) -> u64 {
        self.start_ns + self.start.elapsed().as_nanos() as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_documented() {
        let stamp = Stamp::new(0x0102, 0x0304_0506_0708, 0xffff_090a_0b0c_0d0e);
        let bytes =
            [b'R', b'w', b'G', b'n', 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].as_slice();
        assert_eq!((stamp.as_bytes(), Stamp::BYTES), (bytes, 18));
        assert_eq!(Stamp::of(bytes), Some(stamp));
        assert_eq!(Stamp::of(&bytes[..17]), None);
        assert_eq!(Stamp::of(&[0; 40]), None);
    }

    proptest! {
        #[test]
        fn what_was_put_in_comes_out(
            stream: u16,
            sequence in 0..1_u64 << 48,
            time: u64,
            age in -(1_i64 << 47)..1 << 47,
        ) {
            let stamp = Stamp::new(stream, sequence, time);
            prop_assert_eq!((stamp.stream(), stamp.sequence()), (stream, sequence));
            prop_assert_eq!(stamp.age(time.wrapping_add_signed(age)), age);
        }
    }
}
