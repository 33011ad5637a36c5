//! Packets: frames that have an owner.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::Place;
use crate::parcel::Parts;
use crate::pool::{Inner, Pool, end_if_last};

/// The most frames of a packet that the kernel sends: those of an skb (`MAX_SKB_FRAGS`, net/xdp/xsk.c).
pub const MAX_FRAMES: usize = 17;

/// A packet in one frame, or several where it is longer than one.
///
/// It owns its frames. Dropped, they are on their pool's list again; sent, they are the kernel's. So it cannot be lost,
/// ```compile_fail,E0599
/// # fn copy(packet: ringway_xsk::Packet) {
/// let twin = packet.clone();
/// # }
/// ```
/// nor sent twice, nor used after it was sent,
/// ```compile_fail,E0382
/// # fn twice(socket: &mut ringway_xsk::fake::Queue, packet: ringway_xsk::Packet) -> Result<(), ringway_xsk::Error> {
/// socket.send_one(packet)?;
/// socket.send_one(packet)?;
/// # Ok(()) }
/// ```
/// ```compile_fail,E0505
/// # fn after(socket: &mut ringway_xsk::fake::Queue, mut packet: ringway_xsk::Packet) -> Result<(), ringway_xsk::Error> {
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
pub struct Packet {
    pool: NonNull<Inner>,
    first: u32,
    /// Of several frames, the last; else the first.
    last: u32,
    offset: u16,
    len: u16,
    /// Frames behind the first.
    rest: u16,
    _of_one_thread: PhantomData<*const Inner>,
}

/// There is no room for so many bytes: in the frame, or in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {wanted} bytes, {room} are free here")]
pub struct NoRoom {
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes that are free there.
    pub room: usize,
}

/// What a frame behind the first holds, and the number of the next: a word of the books.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Its number and one more; 0: none.
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
        let (first, last) = (frame, frame);
        Self { pool, first, last, offset, len, rest: 0, _of_one_thread: PhantomData }
    }

    /// Of frames that are held and have no other owner.
    pub(crate) fn of_parts(pool: NonNull<Inner>, parts: Parts) -> Self {
        let Parts { first, last, offset, len, rest } = parts;
        Self { pool, first, last, offset, len, rest, _of_one_thread: PhantomData }
    }

    pub(crate) fn parts(&self) -> Parts {
        let Self { first, last, offset, len, rest, .. } = *self;
        Parts { first, last, offset, len, rest }
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
        self.first
    }

    /// How many frames it has.
    #[inline]
    pub fn frames(&self) -> usize {
        usize::from(self.rest) + 1
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
        // SAFETY: the frame is this packet's alone, which is borrowed; offset and length are within it.
        unsafe { slice::from_raw_parts(self.at(self.first, self.offset).as_ptr(), self.len.into()) }
    }

    /// Its bytes in the first frame, to be changed where they lie.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe {
            slice::from_raw_parts_mut(self.at(self.first, self.offset).as_ptr(), self.len.into())
        }
    }

    /// Its bytes in each of its frames.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.places().map(|(frame, offset, len)| {
            // SAFETY: as in `data`, of this frame.
            unsafe { slice::from_raw_parts(self.at(frame, offset).as_ptr(), len.into()) }
        })
    }

    /// The whole first frame, headroom and all, for builders; [`Packet::set_range`] says which part of it is the packet.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame is this packet's alone, which is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.at(self.first, 0).as_ptr(), self.chunk()) }
    }

    /// Which part of [`Packet::buffer_mut`] the packet is.
    ///
    /// # Errors
    /// [`NoRoom`] where the frame has no such part.
    #[inline]
    pub fn set_range(&mut self, range: Range<usize>) -> Result<(), NoRoom> {
        if range.start > range.end || range.end > self.chunk() {
            return Err(NoRoom { wanted: range.end.max(range.start), room: self.chunk() });
        }
        // Within a frame of 4 096 bytes at most.
        (self.offset, self.len) = (range.start as u16, range.len() as u16);
        Ok(())
    }

    /// Where in its first frame it is.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.offset.into()..usize::from(self.offset) + usize::from(self.len)
    }

    /// Bytes free in front of it.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.offset.into()
    }

    /// Bytes free behind it in its last frame.
    #[inline]
    pub fn tailroom(&self) -> usize {
        let (offset, len) = self.last_place();
        self.chunk() - usize::from(offset) - usize::from(len)
    }

    /// Begins `bytes` earlier: room for another header, holding whatever lay there.
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
    /// [`NoRoom`] where its first frame has fewer; nothing has changed then.
    #[inline]
    pub fn shrink_front(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let range = self.range();
        if bytes > range.len() {
            return Err(NoRoom { wanted: bytes, room: range.len() });
        }
        self.set_range(range.start + bytes..range.end)
    }

    /// Appends, in further frames of the pool where the last is full.
    ///
    /// # Errors
    /// [`NoRoom`] where the pool has too few, or more than [`MAX_FRAMES`] were needed; nothing has changed then.
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

    /// A copy in frames of another pool (or of the same), so that it can be sent where those belong. None where the
    /// other pool has too few.
    pub fn copy_to(&self, pool: &Pool) -> Option<Packet> {
        let mut copy = pool.allocate()?;
        // Where it began, so that it has the same headroom, unless frames are shorter there.
        let start = self.headroom().min(copy.chunk());
        copy.set_range(start..start).ok()?;
        self.segments().try_for_each(|bytes| copy.append(bytes)).ok()?;
        Some(copy)
    }

    /// Says that the application's stage `stage` has it now: where it is looked for when it is never let go.
    pub fn set_stage(&mut self, stage: u8) {
        let inner = self.inner();
        self.places().for_each(|(frame, ..)| inner.note(frame, Place::Held, stage));
    }

    /// Another packet's frames follow its own.
    pub(crate) fn attach(&mut self, other: Packet) {
        let links = self.inner().links();
        let of_last =
            Link { next: other.first + 1, ..Link::unpack(links[self.last as usize].load(Relaxed)) };
        let of_other = Link {
            offset: other.offset,
            len: other.len,
            ..Link::unpack(links[other.first as usize].load(Relaxed))
        };
        links[self.last as usize].store(of_last.pack(), Relaxed);
        links[other.first as usize].store(of_other.pack(), Relaxed);
        self.last = other.last;
        self.rest += other.rest + 1;
        // Its frames have this owner now.
        std::mem::forget(other);
    }

    #[inline]
    fn append_to_last(&mut self, bytes: &[u8]) {
        let (offset, len) = self.last_place();
        let place = self.at(self.last, offset + len);
        // SAFETY: not more than the tailroom, so within the last frame, which is this packet's alone.
        unsafe { slice::from_raw_parts_mut(place.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
        // A frame has 4 096 bytes at most.
        let len = len + bytes.len() as u16;
        if self.rest == 0 {
            self.len = len;
        } else {
            let link = &self.inner().links()[self.last as usize];
            link.store(Link { len, ..Link::unpack(link.load(Relaxed)) }.pack(), Relaxed);
        }
    }

    #[inline]
    fn last_place(&self) -> (u16, u16) {
        if self.rest == 0 {
            return (self.offset, self.len);
        }
        let link = Link::unpack(self.inner().links()[self.last as usize].load(Relaxed));
        (link.offset, link.len)
    }

    /// Frame, offset and length of each segment.
    #[inline]
    pub(crate) fn places(&self) -> impl Iterator<Item = (u32, u16, u16)> + use<'_> {
        let inner = self.inner();
        let follow = move |(frame, ..): (u32, u16, u16)| {
            // A packet that has more frames has a link to them.
            let next = Link::unpack(inner.links()[frame as usize].load(Relaxed)).next - 1;
            let link = Link::unpack(inner.links()[next as usize].load(Relaxed));
            (next, link.offset, link.len)
        };
        let mut next = Some((self.first, self.offset, self.len));
        let mut rest = self.rest;
        std::iter::from_fn(move || {
            let this = next.take()?;
            if rest > 0 {
                rest -= 1;
                next = Some(follow(this));
            }
            Some(this)
        })
    }

    #[inline]
    pub(crate) fn is_single_of(&self, pool: &Inner) -> bool {
        self.rest == 0 && std::ptr::eq(self.pool.as_ptr(), pool)
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

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        let inner = self.inner();
        if self.rest == 0 {
            inner.put(self.first);
        } else {
            self.places().for_each(|(frame, ..)| inner.put(frame));
        }
        inner.ledger().freed.add(u64::from(self.rest) + 1);
        // SAFETY: it has not ended, since this packet was held; nothing refers to it here any more.
        unsafe { end_if_last(self.pool) };
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (frame, frames, bytes) = (self.first, self.frames(), self.len());
        f.debug_struct("Packet")
            .field("frame", &frame)
            .field("frames", &frames)
            .field("bytes", &bytes)
            .finish()
    }
}
