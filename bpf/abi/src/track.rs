//! Records of tracked flows: two 64-bit words, packed as abi.h says.

use crate::raw::{
    RW_BUCKET_TRACKS, RW_TRACK_CLOSING, RW_TRACK_PROMOTED, RW_TRACK_SEEN_BITS, RW_TRACK_SLOT_BITS,
    RW_TRACK_SYN, RW_TRACK_UDP, rw_track,
};

/// An unpacked `rw_track`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrackedFlow {
    /// Slot of its service's ring.
    pub slot: u32,
    /// Its backend's reference.
    pub backend: u32,
    /// When its last packet was seen, on probation its first: seconds of CLOCK_MONOTONIC, 28 bits.
    pub seen: u32,
    /// It cannot be evicted by a new flow.
    pub promoted: bool,
    /// Nothing but SYNs yet.
    pub syn: bool,
    /// Its client has sent FIN or RST.
    pub closing: bool,
    /// UDP, else TCP.
    pub udp: bool,
}

impl TrackedFlow {
    /// Unpacks a record; `None`: it is free, or being written.
    pub fn unpack(track: &rw_track) -> Option<Self> {
        if track.who <= 1 {
            return None;
        }
        let state = (track.what >> 60) as u32;
        Some(Self {
            slot: (track.who & ((1 << RW_TRACK_SLOT_BITS) - 1)) as u32,
            backend: track.what as u32,
            seen: (track.what >> 32) as u32 & SEEN_MASK,
            promoted: state & RW_TRACK_PROMOTED != 0,
            syn: state & RW_TRACK_SYN != 0,
            closing: state & RW_TRACK_CLOSING != 0,
            udp: state & RW_TRACK_UDP != 0,
        })
    }

    /// Seconds since it was seen, at `now` in seconds; negative where another CPU's clock was
    /// ahead.
    pub fn age(&self, now: u32) -> i32 {
        const UNUSED: u32 = 32 - RW_TRACK_SEEN_BITS;
        (now.wrapping_sub(self.seen) << UNUSED) as i32 >> UNUSED
    }
}

const SEEN_MASK: u32 = (1 << RW_TRACK_SEEN_BITS) - 1;

/// Buckets for so many tracked flows: five places for eight, so that one of two buckets has room.
pub const fn track_buckets(flows: u32) -> u32 {
    let places = flows as u64 * 8 / 5;
    (places.div_ceil(RW_BUCKET_TRACKS as u64)) as u32
}

/// Tracked flows that so many buckets are made for.
pub const fn track_capacity(buckets: u32) -> u64 {
    buckets as u64 * RW_BUCKET_TRACKS as u64 * 5 / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_wrap_with_the_clock() {
        let what = 0x1234 | 0x0fff_ffff << 32 | 1 << 60;
        let flow = TrackedFlow::unpack(&rw_track { who: 0x2_0005, what }).unwrap();
        assert_eq!((flow.slot, flow.backend, flow.promoted, flow.udp), (5, 0x1234, true, false));
        let wanted = [0, 5, -1];
        assert_eq!([flow.age(0x1fff_ffff), flow.age(0x1000_0004), flow.age(0x0fff_fffe)], wanted);
        assert_eq!(TrackedFlow::unpack(&rw_track { who: 1, what }), None);
    }

    #[test]
    fn there_is_room_to_choose() {
        assert_eq!(track_buckets(1_048_576), 419_431);
        assert_eq!(track_buckets(10_000_000) as u64 * 64, 256_000_000);
        assert_eq!(track_capacity(track_buckets(10_000_000)), 10_000_000);
    }
}
