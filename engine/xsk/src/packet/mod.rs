//! Packets: frames that have an owner.

pub(crate) mod batch;
pub(crate) mod buffer;
pub(crate) mod pool;

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::Place;

use pool::{Inner, Pool, end_if_last};

/// Most frames of a packet that the kernel sends: those of an skb (`MAX_SKB_FRAGS`, net/xdp/xsk.c).
pub const MAX_FRAMES: usize = 17;

/// A packet in one frame, or several where it is longer than one.
///
/// It owns its frames. Dropping it puts them on their pool's list again; sending it gives them to
/// the kernel. So it cannot be lost,
/// ```compile_fail,E0599
/// # fn copy(packet: ringway_xsk::Packet) {
/// let twin = packet.clone();
/// # }
/// ```
/// nor sent twice, nor used after it was sent,
/// ```compile_fail,E0382
/// # fn twice(socket: &mut ringway_xsk::fake_kernel::Queue, packet: ringway_xsk::Packet) -> Result<(), ringway_xsk::Error> {
/// socket.send_one(packet)?;
/// socket.send_one(packet)?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0505
/// # fn after(socket: &mut ringway_xsk::fake_kernel::Queue, mut packet: ringway_xsk::Packet) -> Result<(), ringway_xsk::Error> {
/// let data = packet.data_mut();
/// socket.send_one(packet)?;
/// data[0] = 1;
/// # Ok(()) }
/// ```
/// and does not leave the thread of its pool:
/// ```compile_fail,E0277
/// # fn away(packet: ringway_xsk::Packet) {
/// std::thread::spawn(move || drop(packet));
/// # }
/// ```
///
/// It has two words, because bursts of packets are written and read again all the time.
pub struct Packet {
    pool: NonNull<Inner>,
    parts: Parts,
    _of_one_thread: PhantomData<*const Inner>,
}

/// A packet without its pool: the number of its first frame, with [`MANY`] if that has a [`Chain`],
/// and the packet's start and length in that frame. One word, written at once: stores are most of a
/// frame's cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts(u64);

/// More frames follow; no UMEM has so many that their numbers needed this bit ([`crate::Umem`] sees
/// to it).
const MANY: u32 = 1 << 31;

/// There is no room for so many bytes: in the frame, or in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {wanted} bytes, {room} are free here")]
pub struct NoRoom {
    /// Bytes that were asked for.
    pub wanted: usize,
    /// Bytes that are free there.
    pub room: usize,
}

/// The frames behind the first of several: its word of the links.
#[derive(Clone, Copy)]
struct Chain {
    /// The number of the second and one more.
    next: u32,
    /// The number of the last.
    last: u32,
}

impl Chain {
    fn pack(self) -> u64 {
        u64::from(self.next) | u64::from(self.last) << 32
    }

    fn unpack(word: u64) -> Self {
        // Cut into its two parts.
        Self { next: word as u32, last: (word >> 32) as u32 }
    }
}

/// The bytes in a frame behind the first, and the number of the next frame: its word of the links.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Its number and one more; 0: none. It is where a [`Chain`] has it.
    pub(crate) next: u32,
    pub(crate) offset: u16,
    pub(crate) len: u16,
}

impl Link {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.next) | u64::from(self.offset) << 32 | u64::from(self.len) << 48
    }

    pub(crate) fn unpack(word: u64) -> Self {
        // Cut into its three parts.
        Self { next: word as u32, offset: (word >> 32) as u16, len: (word >> 48) as u16 }
    }
}

impl Packet {
    /// Of a frame that is held and has no other owner; offset and length are within it.
    #[inline]
    pub(crate) fn new(pool: NonNull<Inner>, frame: u32, offset: u16, len: u16) -> Self {
        Self::of_parts(pool, Parts::new(frame, offset, len))
    }

    /// Of frames that are held and have no other owner.
    #[inline]
    pub(crate) fn of_parts(pool: NonNull<Inner>, parts: Parts) -> Self {
        Self { pool, parts, _of_one_thread: PhantomData }
    }

    pub(crate) fn parts(&self) -> Parts {
        self.parts
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: a pool does not end before the last of its packets.
        unsafe { self.pool.as_ref() }
    }

    #[inline]
    pub(crate) fn pool(&self) -> NonNull<Inner> {
        self.pool
    }

    /// The number of its first frame.
    #[inline]
    pub fn frame(&self) -> u32 {
        self.parts.frame()
    }

    /// The number of its frames.
    #[inline]
    pub fn frames(&self) -> usize {
        if self.is_single() { 1 } else { self.places().count() }
    }

    /// Whether it is in one frame, as nearly all are.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.parts.is_single()
    }

    /// Bytes of the packet, in all its frames.
    pub fn len(&self) -> usize {
        self.segments().map(<[u8]>::len).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes in the first frame: all, unless it has more frames.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the frame is this packet's alone, which is borrowed; offset and length are within
        // it.
        unsafe {
            slice::from_raw_parts(
                self.at(self.frame(), self.parts.offset()).as_ptr(),
                self.parts.len().into(),
            )
        }
    }

    /// Its bytes in the first frame, to be changed in place.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe {
            slice::from_raw_parts_mut(
                self.at(self.frame(), self.parts.offset()).as_ptr(),
                self.parts.len().into(),
            )
        }
    }

    /// Its bytes in each of its frames.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.places().map(|(frame, offset, len)| {
            // SAFETY: as in `data`, of this frame.
            unsafe { slice::from_raw_parts(self.at(frame, offset).as_ptr(), len.into()) }
        })
    }

    /// The whole first frame, with headroom, for builders; [`Packet::set_range`] sets the part of
    /// it that is the packet.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame is this packet's alone, which is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.at(self.frame(), 0).as_ptr(), self.chunk()) }
    }

    /// Sets the part of [`Packet::buffer_mut`] that is the packet.
    ///
    /// # Errors
    /// [`NoRoom`] if the frame has no such part.
    #[inline]
    pub fn set_range(&mut self, range: Range<usize>) -> Result<(), NoRoom> {
        if range.start > range.end || range.end > self.chunk() {
            return Err(NoRoom { wanted: range.end.max(range.start), room: self.chunk() });
        }
        // Within a frame of 4 096 bytes at most.
        self.parts.set_place(range.start as u16, range.len() as u16);
        Ok(())
    }

    /// Its place in its first frame.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.parts.offset().into()..usize::from(self.parts.offset()) + usize::from(self.parts.len())
    }

    /// Bytes free in front of it.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.parts.offset().into()
    }

    /// Bytes free behind it in its last frame.
    #[inline]
    pub fn tailroom(&self) -> usize {
        let (offset, len) = self.last_place();
        self.chunk() - usize::from(offset) - usize::from(len)
    }

    /// Begins `bytes` earlier: room for another header. The bytes there are arbitrary.
    ///
    /// # Errors
    /// [`NoRoom`] in front of it; nothing has changed then.
    #[inline]
    pub fn grow_front(&mut self, bytes: usize) -> Result<&mut [u8], NoRoom> {
        let start = self.headroom().checked_sub(bytes);
        let start = start.ok_or(NoRoom { wanted: bytes, room: self.headroom() })?;
        self.set_range(start..self.range().end)?;
        Ok(&mut self.data_mut()[..bytes])
    }

    /// Begins `bytes` later: without its outermost header.
    ///
    /// # Errors
    /// [`NoRoom`] if its first frame has fewer; nothing has changed then.
    #[inline]
    pub fn shrink_front(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let range = self.range();
        if bytes > range.len() {
            return Err(NoRoom { wanted: bytes, room: range.len() });
        }
        self.set_range(range.start + bytes..range.end)
    }

    /// Appends bytes, in further frames of the pool if the last is full.
    ///
    /// # Errors
    /// [`NoRoom`] if the pool has too few frames, or more than [`MAX_FRAMES`] were needed; nothing
    /// has changed then.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        if bytes.len() > self.tailroom() {
            return self.append_frames(bytes);
        }
        self.append_to_last(bytes);
        Ok(())
    }

    fn append_frames(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let in_frame = self.chunk() - usize::from(self.inner().headroom);
        let more = bytes.len().saturating_sub(self.tailroom()).div_ceil(in_frame);
        if more > self.inner().free() as usize {
            self.inner().take_returned();
        }
        let have = (self.inner().free() as usize).min(MAX_FRAMES.saturating_sub(self.frames()));
        if more > have {
            return Err(NoRoom { wanted: bytes.len(), room: self.tailroom() + have * in_frame });
        }
        let (now, mut later) = bytes.split_at(bytes.len().min(self.tailroom()));
        self.append_to_last(now);
        while !later.is_empty() {
            let (now, rest) = later.split_at(later.len().min(in_frame));
            // As many frames as are needed were free, and nobody else takes any.
            let Some(packet) = self.handle().allocate() else { break };
            self.attach(packet);
            self.append_to_last(now);
            later = rest;
        }
        Ok(())
    }

    /// A copy in frames of another pool (or of the same), so that it can be sent by that pool's
    /// queues. None if the other pool has too few frames.
    pub fn copy_to(&self, pool: &Pool) -> Option<Packet> {
        let mut copy = pool.allocate()?;
        // Where it began, so that it has the same headroom, unless frames are shorter there.
        let start = self.headroom().min(copy.chunk());
        copy.set_range(start..start).ok()?;
        self.segments().try_for_each(|bytes| copy.append(bytes)).ok()?;
        Some(copy)
    }

    /// Records that the application's stage `stage` has it now. A report of a leak names that
    /// stage.
    pub fn set_stage(&mut self, stage: u8) {
        let inner = self.inner();
        self.places().for_each(|(frame, ..)| inner.note(frame, Place::Held, stage));
    }

    /// The frame of another packet, which has no more than one, follows its own.
    pub(crate) fn attach(&mut self, other: Packet) {
        debug_assert!(other.is_single());
        let links = self.inner().links();
        let link = |frame: u32| &links[frame as usize];
        let (first, last) = (self.frame(), self.last());
        let (added, offset, len) = other.place();
        let chain = Chain { next: added + 1, last: added };
        link(added).store(Link { next: 0, offset, len }.pack(), Relaxed);
        if self.is_single() {
            link(first).store(chain.pack(), Relaxed);
        } else {
            let of_first = Chain::unpack(link(first).load(Relaxed));
            link(first).store(Chain { last: chain.last, ..of_first }.pack(), Relaxed);
            let of_last = Link::unpack(link(last).load(Relaxed));
            link(last).store(Link { next: chain.next, ..of_last }.pack(), Relaxed);
        }
        self.parts.set_many();
        // It has this owner now.
        std::mem::forget(other);
    }

    /// The number of its last frame.
    #[inline]
    fn last(&self) -> u32 {
        self.parts.last(self.inner().links())
    }

    #[inline]
    fn append_to_last(&mut self, bytes: &[u8]) {
        let (last, (offset, len)) = (self.last(), self.last_place());
        let place = self.at(last, offset + len);
        // SAFETY: not more than the tailroom, so within the last frame, which is this packet's
        // alone.
        unsafe { slice::from_raw_parts_mut(place.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
        // A frame has 4 096 bytes at most.
        let len = len + bytes.len() as u16;
        if self.is_single() {
            self.parts.set_place(offset, len);
        } else {
            let link = &self.inner().links()[last as usize];
            link.store(Link { len, ..Link::unpack(link.load(Relaxed)) }.pack(), Relaxed);
        }
    }

    #[inline]
    fn last_place(&self) -> (u16, u16) {
        if self.is_single() {
            return (self.parts.offset(), self.parts.len());
        }
        let link = Link::unpack(self.inner().links()[self.last() as usize].load(Relaxed));
        (link.offset, link.len)
    }

    /// Frame, offset and length of the first segment.
    #[inline]
    pub(crate) fn place(&self) -> (u32, u16, u16) {
        (self.frame(), self.parts.offset(), self.parts.len())
    }

    /// Frame, offset and length of each segment.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u32, u16, u16)> + use<'_> {
        let links = self.inner().links();
        let link = |frame: u32| links[frame as usize].load(Relaxed);
        let second = if self.is_single() { 0 } else { Chain::unpack(link(self.frame())).next };
        let mut next = second.checked_sub(1);
        let rest = std::iter::from_fn(move || {
            let frame = next?;
            let Link { next: behind, offset, len } = Link::unpack(link(frame));
            next = behind.checked_sub(1);
            Some((frame, offset, len))
        });
        std::iter::once(self.place()).chain(rest)
    }

    #[inline]
    pub(crate) fn is_single_of(&self, pool: &Inner) -> bool {
        self.is_single() && std::ptr::eq(self.pool.as_ptr(), pool)
    }

    #[inline]
    fn at(&self, frame: u32, offset: u16) -> NonNull<u8> {
        // SAFETY: offsets are within the frame.
        unsafe { self.inner().frame(frame).add(offset.into()) }
    }

    #[inline]
    fn chunk(&self) -> usize {
        1 << self.inner().shift
    }
}

impl Parts {
    #[inline]
    fn new(frame: u32, offset: u16, len: u16) -> Self {
        Self(u64::from(frame) | u64::from(offset) << 32 | u64::from(len) << 48)
    }

    #[inline]
    fn set_place(&mut self, offset: u16, len: u16) {
        *self = Self::new(self.0 as u32, offset, len);
    }

    #[inline]
    fn set_many(&mut self) {
        self.0 |= u64::from(MANY);
    }

    #[inline]
    fn is_single(self) -> bool {
        self.0 as u32 & MANY == 0
    }

    #[inline]
    pub(crate) fn frame(self) -> u32 {
        self.0 as u32 & !MANY
    }

    #[inline]
    fn offset(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline]
    fn len(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The number of its last frame, by the links of its UMEM.
    #[inline]
    pub(crate) fn last(self, links: &[AtomicU64]) -> u32 {
        let frame = self.frame();
        if self.is_single() {
            frame
        } else {
            Chain::unpack(links[frame as usize].load(Relaxed)).last
        }
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        let inner = self.inner();
        if self.is_single() {
            inner.put(self.frame());
            inner.ledger().freed.add(1);
            inner.let_go(1);
        } else {
            self.places().for_each(|(frame, ..)| {
                inner.put(frame);
                inner.ledger().freed.add(1);
                inner.let_go(1);
            });
        }
        // SAFETY: it has not ended, since this packet was held; nothing refers to it here any more.
        unsafe { end_if_last(self.pool) };
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (frame, frames, bytes) = (self.frame(), self.frames(), self.len());
        f.debug_struct("Packet")
            .field("frame", &frame)
            .field("frames", &frames)
            .field("bytes", &bytes)
            .finish()
    }
}
