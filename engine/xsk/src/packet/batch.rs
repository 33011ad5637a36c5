//! A burst of packets.

use std::ops::{Deref, DerefMut};

use crate::packet::Packet;
use crate::packet::pool::free_all;

/// Packets in order, up to a number that is fixed when it is made: afterwards it allocates nothing. Otherwise a slice of
/// them. Dropped or cleared, their frames are free again, for less than if each were dropped by itself.
#[derive(Debug)]
pub struct Batch {
    packets: Vec<Packet>,
    /// A vector may have more room than it was asked for.
    limit: usize,
}

impl Batch {
    /// For up to `limit` packets.
    pub fn new(limit: usize) -> Self {
        Self { packets: Vec::with_capacity(limit), limit }
    }

    /// How many more there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.packets.len()
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Hands it back where there is no room.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.room() == 0 {
            return Err(packet);
        }
        self.packets.push(packet);
        Ok(())
    }

    /// Takes the last.
    #[inline]
    pub fn pop(&mut self) -> Option<Packet> {
        self.packets.pop()
    }

    /// Takes one out of the middle; the last takes its place.
    ///
    /// # Panics
    /// Where there is none of this index.
    pub fn swap_remove(&mut self, index: usize) -> Packet {
        self.packets.swap_remove(index)
    }

    /// Takes all, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Packet> + '_ {
        self.packets.drain(..)
    }

    /// Frees those that are not to be kept.
    pub fn retain(&mut self, keep: impl FnMut(&Packet) -> bool) {
        self.packets.retain(keep);
    }

    /// Frees all.
    pub fn clear(&mut self) {
        free_all(&mut self.packets);
    }

    /// Adds one that there is room for, which the caller has looked at.
    #[inline]
    pub(crate) fn extend_one(&mut self, packet: Packet) {
        debug_assert!(self.room() > 0);
        self.packets.push(packet);
    }

    /// Adds packets that there is room for, which the caller has looked at. How many.
    #[inline]
    pub(crate) fn extend(&mut self, packets: impl ExactSizeIterator<Item = Packet>) -> usize {
        debug_assert!(self.room() >= packets.len());
        let before = self.packets.len();
        self.packets.extend(packets);
        self.packets.len() - before
    }

    /// As [`forget_first`].
    #[inline]
    pub(crate) fn forget_first(&mut self, count: usize) {
        forget_first(&mut self.packets, count);
    }
}

/// Forgets the first packets, whose frames are somebody else's now, without a look at each.
#[inline]
pub(crate) fn forget_first(packets: &mut Vec<Packet>, count: usize) {
    let rest = packets.len().saturating_sub(count);
    let all = packets.as_mut_ptr();
    // SAFETY: the last `rest` packets are moved to the front, where nothing is dropped, and no more than these are left: each has
    // one owner.
    unsafe {
        if rest > 0 {
            all.copy_from(all.add(count), rest);
        }
        packets.set_len(rest);
    }
}

impl Deref for Batch {
    type Target = [Packet];

    #[inline]
    fn deref(&self) -> &[Packet] {
        &self.packets
    }
}

impl DerefMut for Batch {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Packet] {
        &mut self.packets
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.clear();
    }
}
