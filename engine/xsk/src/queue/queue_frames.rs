//! The frames of a pool that a queue has. They move from place to place here and are counted.

use crate::ledger::Place;
use crate::packet::pool::Pool;
use crate::packet::{MAX_FRAMES, Packet};
use crate::queue::{Descriptor, SHORTEST, Tally, Use};

pub(crate) struct QueueFrames {
    pub(crate) pool: Pool,
    pub(crate) number: u8,
    pub(crate) tally: Tally,
    pub(crate) usage: Use,
    /// Whether the kernel has let go of all that it had, once the queue is closed.
    pub(crate) closed: bool,
}

impl Drop for QueueFrames {
    fn drop(&mut self) {
        if self.closed {
            self.pool.inner().close_queue(self.number);
        }
    }
}

impl QueueFrames {
    /// Takes back the frame at an address, if it can be that the kernel gives it back.
    #[inline]
    pub(crate) fn redeem(&self, address: u64, place: Place) -> Option<u32> {
        let inner = self.pool.inner();
        inner.kernel.redeem(address >> inner.shift, place, self.number)
    }

    /// Fill to held.
    #[inline]
    pub(crate) fn accept(&self, descriptor: Descriptor) -> Option<Packet> {
        let inner = self.pool.inner();
        let (chunk, offset) = (1_u64 << inner.shift, descriptor.address & ((1 << inner.shift) - 1));
        let fits = offset + u64::from(descriptor.len) <= chunk;
        let frame = if fits { self.redeem(descriptor.address, Place::Fill) } else { None };
        let Some(frame) = frame else {
            self.tally.rx_unbelievable.add(1);
            return None;
        };
        inner.note(frame, Place::Held, inner.stage());
        // Neither is above 4 096.
        Some(Packet::new(self.pool.pointer(), frame, offset as u16, descriptor.len as u16))
    }

    #[inline]
    pub(crate) fn count_received(&self, frames: u64, packets: u64) {
        self.pool.inner().ledger().received.add(frames);
        self.pool.inner().hold(frames);
        self.tally.received_frames.add(frames);
        self.tally.received_packets.add(packets);
    }

    #[inline]
    pub(crate) fn sendable(&self, packet: &Packet) -> bool {
        let frames = packet.frames();
        let sendable = packet.pool() == self.pool.pointer()
            && packet.data().len() >= SHORTEST
            && (frames == 1 || self.usage.several_frames && frames <= MAX_FRAMES);
        if !sendable {
            self.tally.unsendable_packets.add(1);
        }
        sendable
    }

    /// Held to tx. The packet is to be forgotten.
    #[inline]
    pub(crate) fn hand_over(&self, packet: &Packet, mut push: impl FnMut(Descriptor)) {
        if packet.is_single() {
            return push(self.to_be_sent(packet.place(), 0));
        }
        let mut left = packet.frames();
        for place in packet.places() {
            left -= 1;
            push(self.to_be_sent(place, if left > 0 { Descriptor::CONTINUED } else { 0 }));
        }
    }

    /// A frame, held to tx.
    #[inline]
    fn to_be_sent(&self, (frame, offset, len): (u32, u16, u16), options: u32) -> Descriptor {
        let inner = self.pool.inner();
        inner.kernel.lend(frame, Place::Tx, self.number);
        inner.note(frame, Place::Tx, self.number);
        Descriptor { address: inner.address(frame) + u64::from(offset), len: len.into(), options }
    }

    #[inline]
    pub(crate) fn count_sent(&self, frames: u64, packets: u64, handed_back: u64) {
        self.pool.inner().ledger().sent.add(frames);
        self.pool.inner().let_go(frames);
        self.tally.sent_frames.add(frames);
        self.tally.sent_packets.add(packets);
        self.tally.tx_full_packets.add(handed_back);
    }
}

/// A packet of several frames on its way in.
pub(crate) enum Reassembly {
    Nothing,
    Packet(Packet),
    /// It cannot be had; the rest of it is dropped.
    Broken,
}

impl Reassembly {
    /// The next frame of a packet; the packet, if it was the last.
    #[inline]
    pub(crate) fn join(
        &mut self,
        frame: Option<Packet>,
        continued: bool,
        tally: &Tally,
    ) -> Option<Packet> {
        match (&mut *self, frame) {
            // Nearly always.
            (Reassembly::Nothing, Some(packet)) if !continued => return Some(packet),
            (Reassembly::Nothing, Some(packet)) => *self = Reassembly::Packet(packet),
            (Reassembly::Packet(reassembly), Some(frame)) if reassembly.frames() < MAX_FRAMES => {
                reassembly.attach(frame)
            }
            // A frame that was not to be believed, too many of them, or what follows one of these.
            (_, _) => *self = Reassembly::Broken,
        }
        if continued {
            return None;
        }
        match std::mem::replace(self, Reassembly::Nothing) {
            Reassembly::Packet(packet) => Some(packet),
            Reassembly::Nothing => None,
            Reassembly::Broken => {
                tally.broken_packets.add(1);
                None
            }
        }
    }
}
