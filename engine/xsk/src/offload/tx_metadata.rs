//! What the kernel or the driver is to do to a packet when it is sent, said in front of it (Documentation/networking/xsk-tx-metadata.rst).
//!
//! ```text
//!           TX_METADATA bytes of the frame's headroom
//! +-------+-------------+-----------------+-----+-------+---------+
//! | flags | checksum at | (launch time)   | tag | asked | packet  |
//! |       | or stamp    |                 |     |       |         |
//! +-------+-------------+-----------------+-----+-------+---------+
//!   struct xsk_tx_metadata: the kernel's    ours
//! ```

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::packet::Packet;

/// Bytes in front of each packet that a UMEM with [`TxMetadata`] keeps free; a packet with less headroom cannot be sent.
pub const TX_METADATA: usize = 40;

/// What lies where in these bytes; what the kernel knows of them is struct xsk_tx_metadata (linux/if_xdp.h).
mod at {
    use std::ops::Range;

    pub const FLAGS: Range<usize> = 0..8;
    /// csum_start and csum_offset; once it was sent, tx_timestamp.
    pub const START: Range<usize> = 8..10;
    pub const OFFSET: Range<usize> = 10..12;
    pub const STAMP: Range<usize> = 8..16;
    pub const TAG: Range<usize> = 24..32;
    /// What was in STAMP when it was handed to the kernel.
    pub const ASKED: Range<usize> = 32..40;
}

/// Whether a [`Umem`](crate::Umem) has room for what is asked of who sends a packet. Linux 6.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TxMetadata {
    /// No: it costs nothing.
    #[default]
    None,
    /// [`Queue::send_with`](crate::Queue::send_with) may ask.
    Room,
    /// The same, and in copy mode the kernel computes checksums before the driver sees the packet: for tests, and for drivers that
    /// forget them.
    RoomAndKernelChecksums,
}

impl TxMetadata {
    pub(crate) fn to_word(self) -> u32 {
        self as u32
    }

    pub(crate) fn of_word(word: u32) -> Self {
        match word {
            0 => TxMetadata::None,
            1 => TxMetadata::Room,
            _ => TxMetadata::RoomAndKernelChecksums,
        }
    }

    /// Flags and length of struct xdp_umem_reg.
    pub(crate) fn registration(self) -> (u32, u32) {
        match self {
            TxMetadata::None => (0, 0),
            TxMetadata::Room => (libc::XDP_UMEM_TX_METADATA_LEN, TX_METADATA as u32),
            TxMetadata::RoomAndKernelChecksums => {
                let flags = libc::XDP_UMEM_TX_METADATA_LEN | libc::XDP_UMEM_TX_SW_CSUM;
                (flags, TX_METADATA as u32)
            }
        }
    }
}

/// A checksum that is missing from a packet: the Internet checksum (RFC 1071) of all from `start` to the packet's end.
///
/// The field holds the sum of the pseudo header meanwhile, not complemented, as a packet socket's checksum offload wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Bytes from the packet's begin to where summing begins: the UDP header, say.
    pub start: u16,
    /// Bytes from there to the field: 6 for UDP, 16 for TCP.
    pub offset: u16,
}

/// What is asked for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxRequest {
    /// To be filled in. It always is: by the driver, by the kernel, or here, as [`Granted`](crate::Granted) says.
    pub checksum: Option<Checksum>,
    /// When it was sent is told in [`Queue::sent`](crate::Queue::sent), beside this tag of yours.
    pub stamp: Option<u64>,
}

/// A packet with [`TxRequest::stamp`] that has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// As was asked.
    pub tag: u64,
    /// Nanoseconds. In copy mode of CLOCK_TAI, when the kernel was done with it; in zero-copy of the NIC's clock. None where the driver
    /// has not told.
    pub at_ns: Option<u64>,
}

/// Who computes checksums that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChecksumBy {
    /// [`Queue::send_with`](crate::Queue::send_with): neither kernel nor driver does.
    #[default]
    Us,
    /// The kernel, or the driver for it: copy mode.
    Kernel,
    /// The driver: zero-copy.
    Driver,
}

impl TxRequest {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.checksum.is_none() && self.stamp.is_none()
    }

    /// Whether the field lies in the packet's first frame. The kernel sends nothing more once it was asked otherwise.
    #[inline]
    pub(crate) fn fits(&self, packet: &Packet) -> bool {
        self.checksum.is_none_or(|Checksum { start, offset }| {
            usize::from(start) + usize::from(offset) + 2 <= packet.data().len()
        })
    }

    /// Writes it in front of the packet, which has room there.
    pub(crate) fn write(&self, packet: &mut Packet) {
        let begin = packet.headroom() - TX_METADATA;
        let Some(bytes) = packet.buffer_mut()[begin..].first_chunk_mut::<TX_METADATA>() else {
            return;
        };
        bytes.fill(0);
        let mut flags = 0;
        if let Some(Checksum { start, offset }) = self.checksum {
            flags |= libc::XDP_TXMD_FLAGS_CHECKSUM;
            bytes[at::START].copy_from_slice(&start.to_ne_bytes());
            bytes[at::OFFSET].copy_from_slice(&offset.to_ne_bytes());
        }
        if let Some(tag) = self.stamp {
            flags |= libc::XDP_TXMD_FLAGS_TIMESTAMP;
            bytes[at::TAG].copy_from_slice(&tag.to_ne_bytes());
            bytes.copy_within(at::STAMP, at::ASKED.start);
        }
        bytes[at::FLAGS].copy_from_slice(&u64::from(flags).to_ne_bytes());
    }
}

/// What lies in front of a packet that has come back.
fn read(metadata: &[u8]) -> Option<Sent> {
    let word =
        |at: std::ops::Range<usize>| Some(u64::from_ne_bytes(metadata.get(at)?.try_into().ok()?));
    let (stamp, asked) = (word(at::STAMP)?, word(at::ASKED)?);
    Some(Sent { tag: word(at::TAG)?, at_ns: (stamp != asked).then_some(stamp) })
}

/// Fills a checksum in that nobody else does.
pub(crate) fn fill_in(packet: &mut Packet, Checksum { start, offset }: Checksum) {
    let mut sum = Sum::default();
    let mut skip = usize::from(start);
    for segment in packet.segments() {
        let skipped = skip.min(segment.len());
        sum.add(&segment[skipped..]);
        skip -= skipped;
    }
    let field = usize::from(start) + usize::from(offset);
    if let Some(field) = packet.data_mut().get_mut(field..field + 2) {
        field.copy_from_slice(&sum.finish().to_be_bytes());
    }
}

/// Of 16-bit words, whatever lengths they come in.
#[derive(Default)]
struct Sum {
    sum: u64,
    /// A byte was left over: the next is the lower half of its word.
    odd: bool,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.sum += u64::from(*byte) << if self.odd { 0 } else { 8 };
            self.odd = !self.odd;
        }
    }

    /// Zero is written as its other form: in UDP it means that there is none (RFC 768).
    fn finish(self) -> u16 {
        let mut sum = self.sum;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // Below 2^16 now.
        match !(sum as u16) {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// Packets whose time is waited for, of one queue.
pub(crate) struct Stamps {
    /// A bit for each frame; none where the UMEM has no room for metadata.
    asked: Vec<u64>,
    waiting: u32,
    told: VecDeque<Sent>,
    /// Kept at most; the oldest go.
    limit: usize,
}

impl Stamps {
    /// Of a UMEM of so many frames, and a queue of so many slots.
    pub(crate) fn new(frames: u32, slots: u32) -> Self {
        let asked = vec![0; (frames as usize).div_ceil(64)];
        let limit = slots as usize;
        Self { asked, waiting: 0, told: VecDeque::with_capacity(limit), limit }
    }

    pub(crate) fn none() -> Self {
        Self::new(0, 0)
    }

    /// The time of the packet that begins in this frame is asked for.
    pub(crate) fn ask(&mut self, frame: u32) {
        if let Some(word) = self.asked.get_mut(frame as usize / 64) {
            let bit = 1 << (frame % 64);
            self.waiting += u32::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// Whether the time of the packet in this frame was asked for, which has come back.
    #[inline]
    pub(crate) fn asked(&mut self, frame: u32) -> bool {
        // Nearly always.
        if self.waiting == 0 {
            return false;
        }
        let (word, bit) = (&mut self.asked[frame as usize / 64], 1 << (frame % 64));
        let asked = *word & bit != 0;
        *word &= !bit;
        self.waiting -= u32::from(asked);
        asked
    }

    /// Notes what lies in front of the packet that was in this buffer.
    pub(crate) fn told(&mut self, front: &[u8]) {
        let metadata = front.len().checked_sub(TX_METADATA).map(|begin| &front[begin..]);
        if let Some(sent) = metadata.and_then(read) {
            if self.told.len() == self.limit {
                self.told.pop_front();
            }
            self.told.push_back(sent);
        }
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = Sent> {
        self.told.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Umem, UmemConfig};

    #[test]
    fn checksums() {
        // RFC 1071, section 3: words 0001 f203 f4f5 f6f7 sum up to ddf2.
        for (bytes, cut) in [
            ([0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0),
            ([0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 3),
        ] {
            let mut sum = Sum::default();
            let (one, other) = bytes.split_at(cut);
            sum.add(one);
            sum.add(other);
            assert_eq!(sum.finish(), !0xddf2);
        }
        let mut sum = Sum::default();
        sum.add(&[0xff, 0xff]);
        assert_eq!(sum.finish(), 0xffff);
    }

    #[test]
    fn times_are_told_once_and_of_whom_they_were_asked() {
        let pool =
            Umem::new(&UmemConfig { frames: 70, ..UmemConfig::default() }).unwrap().pool().unwrap();
        let mut packet = pool.allocate().unwrap();
        let checksum = Some(Checksum { start: 34, offset: 6 });
        TxRequest { checksum, stamp: Some(7) }.write(&mut packet);
        let mut stamps = Stamps::new(70, 2);
        stamps.ask(69);
        assert!(!stamps.asked(68) && stamps.asked(69) && !stamps.asked(69));
        let begin = packet.headroom();
        stamps.told(&packet.buffer_mut()[..begin]);
        let stamp = begin - TX_METADATA + at::STAMP.start;
        packet.buffer_mut()[stamp..stamp + 8].copy_from_slice(&5_u64.to_ne_bytes());
        stamps.told(&packet.buffer_mut()[..begin]);
        stamps.told(&packet.buffer_mut()[..3]);
        let told: Vec<_> = stamps.take().collect();
        assert_eq!(told, [Sent { tag: 7, at_ns: None }, Sent { tag: 7, at_ns: Some(5) }]);
        // Who does not look keeps the latest.
        (0..3).for_each(|_| stamps.told(&packet.buffer_mut()[..begin]));
        assert_eq!(stamps.take().count(), 2);
        // What was never asked for, since there is no room.
        let mut none = Stamps::none();
        none.ask(0);
        assert!(!none.asked(0));
    }
}
