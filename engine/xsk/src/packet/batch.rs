//! A burst of packets.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};

use crate::ledger::Place;
use crate::packet::buffer::Buffer;
use crate::packet::pool::Pool;
use crate::packet::{NoRoom, Packet};

/// Packets in order, up to a number that is fixed when it is made: afterwards it allocates nothing.
/// It derefs to a slice. Dropping or clearing it frees the packets' frames, for less than one by
/// one.
#[derive(Debug)]
pub struct Batch<B: Buffer = Packet> {
    packets: Vec<B>,
    /// A vector may have more room than it was asked for.
    limit: usize,
}

impl<B: Buffer> Batch<B> {
    /// For up to `limit` packets.
    pub fn new(limit: usize) -> Self {
        Self { packets: Vec::with_capacity(limit), limit }
    }

    /// The number of packets that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.packets.len()
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Hands the packet back if there is no room.
    #[inline]
    pub fn push(&mut self, packet: B) -> Result<(), B> {
        if self.room() == 0 {
            return Err(packet);
        }
        self.packets.push(packet);
        Ok(())
    }

    /// Removes the last packet and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<B> {
        self.packets.pop()
    }

    /// Takes one out of the middle; the last takes its place.
    ///
    /// # Panics
    /// There is no packet of this index.
    pub fn swap_remove(&mut self, index: usize) -> B {
        self.packets.swap_remove(index)
    }

    /// Takes all, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = B> + '_ {
        self.packets.drain(..)
    }

    /// Frees packets for which `keep` is false.
    pub fn retain(&mut self, keep: impl FnMut(&B) -> bool) {
        self.packets.retain(keep);
    }

    /// Frees all packets.
    pub fn clear(&mut self) {
        B::free_all(&mut self.packets);
    }

    /// Adds one that there is room for, which the caller has looked at.
    #[inline]
    pub(crate) fn extend_one(&mut self, packet: B) {
        debug_assert!(self.room() > 0);
        self.packets.push(packet);
    }

    /// Adds packets that there is room for, which the caller has looked at. How many.
    #[inline]
    pub(crate) fn extend(&mut self, packets: impl ExactSizeIterator<Item = B>) -> usize {
        debug_assert!(self.room() >= packets.len());
        let before = self.packets.len();
        self.packets.extend(packets);
        self.packets.len() - before
    }

    /// Adds the packets that `fill` writes to the place it is given, of which it returns the number.
    ///
    /// # Safety
    /// `fill` has written so many packets, each of which has no other owner.
    #[inline]
    pub unsafe fn fill(&mut self, fill: impl FnOnce(&mut [MaybeUninit<B>]) -> usize) -> usize {
        let (before, room) = (self.packets.len(), self.room());
        let filled = fill(&mut self.packets.spare_capacity_mut()[..room]).min(room);
        // SAFETY: the vector has this room, and the caller vouches for what lies there.
        unsafe { self.packets.set_len(before + filled) };
        filled
    }

    /// Takes packets from the front, several at once.
    #[inline]
    pub fn take_front(&mut self) -> Front<'_, B> {
        Front { batch: self, gone: 0 }
    }

    /// Forgets the first packets, whose frames are somebody else's now.
    #[inline]
    pub fn forget_first(&mut self, count: usize) {
        forget_first(&mut self.packets, count);
    }
}

/// A batch from whose front packets are taken. What is left stays in it, in order.
pub struct Front<'a, B: Buffer> {
    batch: &'a mut Batch<B>,
    /// The number of those that are taken.
    gone: usize,
}

impl<B: Buffer> Front<'_, B> {
    /// The packets that are left.
    #[inline]
    pub fn left(&mut self) -> &mut [B] {
        &mut self.batch.packets[self.gone..]
    }

    /// Moves up to `count` of them to the end of another batch, as far as it has room. How many.
    #[inline]
    pub fn give(&mut self, count: usize, to: &mut Batch<B>) -> usize {
        let count = count.min(self.batch.packets.len() - self.gone).min(to.room());
        // SAFETY: so many packets lie from here on, and there is room for them; nobody looks at
        // them here any more: they are counted as gone, and dropping this forgets them. Two batches
        // do not share memory.
        unsafe {
            let from = self.batch.packets.as_ptr().add(self.gone);
            let end = to.packets.len();
            to.packets.as_mut_ptr().add(end).copy_from_nonoverlapping(from, count);
            to.packets.set_len(end + count);
        }
        self.gone += count;
        count
    }
}

impl<B: Buffer> Drop for Front<'_, B> {
    #[inline]
    fn drop(&mut self) {
        self.batch.forget_first(self.gone);
    }
}

impl Buffer for Packet {
    #[inline]
    fn data(&self) -> &[u8] {
        self.data()
    }

    #[inline]
    fn data_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.segments()
    }

    #[inline]
    fn frames(&self) -> usize {
        self.frames()
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut [u8] {
        self.buffer_mut()
    }

    #[inline]
    fn range(&self) -> Range<usize> {
        self.range()
    }

    #[inline]
    fn set_range(&mut self, range: Range<usize>) -> Result<(), NoRoom> {
        self.set_range(range)
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.append(bytes)
    }

    /// Those of one frame and of the first's pool, up to another, with one look at its list: nearly
    /// always all.
    #[inline]
    fn free_all(packets: &mut Vec<Self>) {
        free_all(packets);
    }
}

/// Frees packets. Those of one frame and of the first's pool, up to another, with one look at its
/// list: nearly always all.
fn free_all(packets: &mut Vec<Packet>) {
    let Some(first) = packets.first() else { return };
    let pool = first.handle();
    let listed = pool.inner().put_burst(packets);
    pool.inner().ledger().freed.add(listed as u64);
    pool.inner().let_go(listed as u64);
    // They are on the list.
    forget_first(packets, listed);
    packets.clear();
}

/// Forgets the first packets, whose frames are somebody else's now, without a look at each.
#[inline]
fn forget_first<B>(packets: &mut Vec<B>, count: usize) {
    let rest = packets.len().saturating_sub(count);
    let all = packets.as_mut_ptr();
    // SAFETY: the last `rest` packets are moved to the front, where nothing is dropped, and no more
    // than these are left: each has one owner.
    unsafe {
        if rest > 0 {
            all.copy_from(all.add(count), rest);
        }
        packets.set_len(rest);
    }
}

impl Pool {
    /// Adds up to `count` empty packets, as far as the batch has room and frames are free. Returns
    /// their number.
    pub fn allocate_burst(&self, into: &mut Batch, count: usize) -> usize {
        let inner = self.inner();
        // A batch of more than u32::MAX packets would not fit into any memory.
        let count = count.min(into.room()) as u32;
        if inner.free() < count {
            inner.take_returned();
        }
        let (headroom, stage) = (inner.headroom, inner.stage());
        let taken = inner.take_burst(count, Place::Held, stage);
        inner.ledger().allocated.add(taken.len() as u64);
        inner.hold(taken.len() as u64);
        into.extend(taken.map(|frame| Packet::new(self.pointer(), frame, headroom, 0)))
    }
}

impl<B: Buffer> Deref for Batch<B> {
    type Target = [B];

    #[inline]
    fn deref(&self) -> &[B] {
        &self.packets
    }
}

impl<B: Buffer> DerefMut for Batch<B> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [B] {
        &mut self.packets
    }
}

impl<B: Buffer> Drop for Batch<B> {
    fn drop(&mut self) {
        self.clear();
    }
}
