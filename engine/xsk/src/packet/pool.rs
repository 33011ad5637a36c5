//! A worker's frames: a list of the free ones, last in, first out, so that the next frame is still
//! in the CPU's cache.
//!
//! A pool belongs to one thread, and nothing in it is locked or atomic read-modify-write. Handles
//! to it and packets of it may be dropped in any order: it goes with the last of them.
//!
//! Its list is in memory of this process alone. The shared memory is written here, and never read.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::{Account, Counts, Ledger, Place, Record, Returns};
use crate::packet::{Link, Packet};
use crate::umem::inheritance::Share;
use crate::umem::kernel_frames::KernelFrames;
use crate::umem::{KERNEL_HEADROOM, Umem, UmemError};

/// A pool of frames; clones are handles to the same one.
///
/// It stays on its thread:
/// ```compile_fail,E0277
/// # fn other_thread(pool: ringway_xsk::Pool) {
/// std::thread::spawn(move || pool.allocate());
/// # }
/// ```
pub struct Pool {
    inner: NonNull<Inner>,
    /// Owns, and is of one thread.
    _inner: PhantomData<*const Inner>,
}

/// The target of handles and packets.
pub(crate) struct Inner {
    handles: Cell<usize>,
    /// Frames on the list; none while the memory is another process's.
    free: Cell<u32>,
    /// Of a pool that is taken over, until the memory is ours.
    offered: Cell<Option<Offered>>,
    /// Frames in packets. The ledger has them, too, but where others can write; on this depends
    /// when the pool ends.
    held: Cell<u64>,
    now: Cell<u32>,
    stage: Cell<u8>,
    /// A bit for each queue that is open.
    queues: Cell<u64>,
    /// A bit for each queue of a predecessor that the kernel has frames for, until it is resumed.
    left_queues: Cell<u64>,
    pub(crate) number: u8,
    /// Frames are so many bits apart.
    pub(crate) shift: u32,
    /// Where packets of our own begin in their frame.
    pub(crate) headroom: u16,
    frames: NonNull<u8>,
    records: NonNull<[AtomicU64]>,
    links: NonNull<[AtomicU64]>,
    returns: NonNull<Returns>,
    account: NonNull<Account>,
    /// The free frames. Those of one pool can be handed to another: each has room for all.
    list: Box<[Cell<u32>]>,
    pub(crate) kernel: KernelFrames,
    pub(crate) umem: Umem,
}

/// Frames on a list that is another process's still.
#[derive(Clone, Copy)]
struct Offered {
    free: u32,
    /// Behind them, those that nobody has any more.
    away: u32,
}

impl Umem {
    /// Opens the next unopened pool, on the thread that will use it; none if all are in use, or
    /// another process made this memory.
    pub fn pool(&self) -> Option<Pool> {
        self.pool_at(0)
    }

    /// As [`Umem::pool`], at this time of the pool ([`Pool::set_now`]): its frames are free since
    /// then.
    pub fn pool_at(&self, now: u32) -> Option<Pool> {
        if self.is_handed_over() {
            return None;
        }
        let number = (0..self.layout().pools).find(|number| self.open_once(*number))?;
        Some(Pool::open(self.clone(), number, now))
    }

    /// Opens a pool that a predecessor has offered, as it was, with so many frames on its list
    /// ([`Pool::free`]). Each pool can be opened once. It has no frames, and its queues receive and
    /// complete nothing, before this process has claimed the memory ([`Umem::claim`]). If nothing
    /// is offered, it is empty, and this mapping of the memory can never be claimed.
    ///
    /// # Errors
    /// [`UmemError::Foreign`] if this memory was made here, there is no such pool or it was taken,
    /// or its ledger is damaged.
    pub fn take_over_pool(&self, number: u8, free: u32) -> Result<Pool, UmemError> {
        let foreign = |why: String| UmemError::Foreign { why: format!("pool {number}: {why}") };
        if number >= self.layout().pools || !self.is_handed_over() || !self.open_once(number) {
            return Err(foreign("there is none, or it is in use".into()));
        }
        let counts = self.account(number).ledger.read();
        let share = match self.inheritance() {
            Some(inheritance) => inheritance.of_pool(number, free, &counts).map_err(foreign)?,
            None => Share::none(self.frames() as usize),
        };
        Ok(Pool::taken_over(self.clone(), number, share))
    }
}

impl Pool {
    fn open(umem: Umem, number: u8, now: u32) -> Self {
        let share = umem.share(number);
        let kernel = KernelFrames::none(umem.frames() as usize);
        let pool = Self::of(umem, number, kernel);
        pool.set_now(now);
        let inner = pool.inner();
        inner.ledger().given.add(share.len() as u64);
        // The lowest on top, where the first packets come from.
        share.rev().for_each(|frame| inner.put(frame));
        pool
    }

    /// With what a predecessor had in it.
    fn taken_over(umem: Umem, number: u8, share: Share) -> Self {
        let Share { free, away, kernel } = share;
        let pool = Self::of(umem, number, kernel);
        let inner = pool.inner();
        for (place, frame) in inner.list.iter().zip(free.iter().chain(&away)) {
            place.set(*frame);
        }
        // The UMEM has u32 frames.
        let (free, away) = (free.len() as u32, away.len() as u32);
        inner.offered.set(Some(Offered { free, away }));
        pool
    }

    fn of(umem: Umem, number: u8, kernel: KernelFrames) -> Self {
        let layout = *umem.layout();
        let inner = Box::new(Inner {
            handles: Cell::new(1),
            free: Cell::new(0),
            offered: Cell::new(None),
            held: Cell::new(0),
            now: Cell::new(0),
            stage: Cell::new(0),
            queues: Cell::new(0),
            left_queues: Cell::new(kernel.queues()),
            number,
            shift: layout.chunk.shift(),
            // Below 4 096, as is checked of the UMEM.
            headroom: (KERNEL_HEADROOM + layout.headroom) as u16,
            frames: umem.base(),
            records: umem.records().into(),
            links: umem.links().into(),
            returns: umem.returns(number).into(),
            account: umem.account(number).into(),
            list: (0..layout.frames).map(|_| Cell::new(0)).collect(),
            kernel,
            umem,
        });
        Self { inner: NonNull::from(Box::leak(inner)), _inner: PhantomData }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        // SAFETY: this handle is counted.
        unsafe { self.inner.as_ref() }
    }

    #[inline]
    pub(crate) fn pointer(&self) -> NonNull<Inner> {
        self.inner
    }

    /// An empty packet of one frame, with the headroom of received packets; none if no frame is
    /// free.
    #[inline]
    pub fn allocate(&self) -> Option<Packet> {
        let inner = self.inner();
        let stage = inner.stage.get();
        let frame = inner.take(Place::Held, stage).or_else(|| inner.take_late(stage))?;
        inner.ledger().allocated.add(1);
        inner.hold(1);
        Some(Packet::new(self.inner, frame, inner.headroom, 0))
    }

    /// The number of free frames; of a pool that is taken over, also those that will be free once
    /// its memory is claimed.
    pub fn free(&self) -> u32 {
        let offered = self.inner().offered.get().map_or(0, |Offered { free, away }| free + away);
        self.inner().free.get() + offered
    }

    /// Its number among the UMEM's pools.
    pub fn number(&self) -> u8 {
        self.inner().number
    }

    /// The memory of its frames.
    pub fn umem(&self) -> &Umem {
        &self.inner().umem
    }

    /// Every transition of its frames so far.
    pub fn counts(&self) -> Counts {
        self.inner().ledger().read()
    }

    /// Sets the time from which ages are computed, in any unit that increases, such as
    /// milliseconds. Call it once per burst. It may overflow.
    #[inline]
    pub fn set_now(&self, now: u32) {
        self.inner().now.set(now);
        self.inner().account().legend.now.store(now, Relaxed);
    }

    /// Sets the application's stage of packets that are received or allocated from now on.
    #[inline]
    pub fn set_stage(&self, stage: u8) {
        self.inner().stage.set(stage);
    }

    /// Names a stage below 16, in 32 bytes: [`crate::Watch::stage_name`].
    pub fn name_stage(&self, stage: u8, name: &str) {
        if let Some(label) = self.inner().account().legend.stages.get(usize::from(stage)) {
            label.write(name);
        }
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        let handles = &self.inner().handles;
        handles.set(handles.get() + 1);
        Self { inner: self.inner, _inner: PhantomData }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let handles = &self.inner().handles;
        handles.set(handles.get() - 1);
        // SAFETY: this handle is not used any more, and pointed to the inner part until now.
        unsafe { end_if_last(self.inner) };
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("number", &self.number()).field("free", &self.free()).finish()
    }
}

/// Ends a pool that nobody has a handle to or a packet of.
///
/// # Safety
/// It has not ended, and the caller does not refer to it afterwards unless it has a handle or a
/// packet.
#[inline]
pub(crate) unsafe fn end_if_last(inner: NonNull<Inner>) {
    // SAFETY: the caller's.
    let over = unsafe { inner.as_ref() }.is_over();
    if over {
        // SAFETY: it was leaked from a box, and nobody points to it any more.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

impl Inner {
    #[inline]
    fn is_over(&self) -> bool {
        self.handles.get() == 0 && self.held.get() == 0
    }

    /// So many frames more are in packets.
    #[inline]
    pub(crate) fn hold(&self, frames: u64) {
        // One that has just arrived may be let go before it was counted.
        self.held.set(self.held.get().wrapping_add(frames));
    }

    /// So many are not any more.
    #[inline]
    pub(crate) fn let_go(&self, frames: u64) {
        self.held.set(self.held.get().wrapping_sub(frames));
    }

    #[inline]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.account().ledger
    }

    #[inline]
    fn account(&self) -> &Account {
        // SAFETY: within the memory that `umem` keeps; atomics.
        unsafe { self.account.as_ref() }
    }

    /// Whether it has its frames: one that is taken over, once the memory is ours. Asked before
    /// anything is put on the list.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        // Nearly always.
        self.offered.get().is_none() || self.claimed()
    }

    #[cold]
    fn claimed(&self) -> bool {
        if !self.umem.is_ours() {
            return false;
        }
        if let Some(Offered { free, away }) = self.offered.take() {
            self.free.set(free);
            // Each is put where it is already.
            for place in &self.list[free as usize..(free + away) as usize] {
                self.put(place.get());
                self.ledger().returned.add(1);
            }
        }
        true
    }

    /// Takes a frame to be held where the list was empty: one that came home from another thread.
    #[cold]
    #[inline(never)]
    fn take_late(&self, stage: u8) -> Option<u32> {
        self.take_returned();
        self.take(Place::Held, stage)
    }

    /// Puts frames on the list that came home from other threads.
    #[inline]
    pub(crate) fn take_returned(&self) {
        if !self.is_usable() {
            return;
        }
        // SAFETY: as above.
        let mut next = unsafe { self.returns.as_ref() }.take();
        while let Some(frame) = next {
            // Read before the frame is anybody else's.
            next = Link::unpack(self.links()[frame as usize].load(Relaxed)).next.checked_sub(1);
            self.put(frame);
            self.ledger().returned.add(1);
        }
    }

    #[inline]
    pub(crate) fn records(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { self.records.as_ref() }
    }

    #[inline]
    pub(crate) fn links(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { self.links.as_ref() }
    }

    /// The bytes of a frame.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> NonNull<u8> {
        debug_assert!((frame as usize) < self.records().len());
        // SAFETY: there is such a frame, so it lies within the mapping. Numbers of frames come from
        // this process's own memory.
        unsafe { self.frames.add((frame as usize) << self.shift) }
    }

    #[inline]
    pub(crate) fn address(&self, frame: u32) -> u64 {
        u64::from(frame) << self.shift
    }

    #[inline]
    pub(crate) fn record(&self, place: Place, stage: u8) -> u64 {
        Record { place, pool: self.number, stage, since: self.now.get() }.pack()
    }

    #[inline]
    pub(crate) fn note(&self, frame: u32, place: Place, stage: u8) {
        write_down(self.records(), frame, self.record(place, stage));
    }

    /// The stage of packets that are received now.
    #[inline]
    pub(crate) fn stage(&self) -> u8 {
        self.stage.get()
    }

    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.free.get()
    }

    /// Takes a frame off the list, to be in `place` from now on. The caller counts it.
    #[inline]
    pub(crate) fn take(&self, place: Place, stage: u8) -> Option<u32> {
        let top = self.free.get().checked_sub(1)?;
        let frame = self.list[top as usize].get();
        self.free.set(top);
        self.note(frame, place, stage);
        Some(frame)
    }

    /// Takes up to `count` frames off the list, to be in `place` from now on. The caller counts
    /// them, and has to go through all.
    #[inline]
    pub(crate) fn take_burst(
        &self,
        count: u32,
        place: Place,
        stage: u8,
    ) -> impl ExactSizeIterator<Item = u32> {
        let (free, record, records) = (self.free.get(), self.record(place, stage), self.records());
        let left = free.saturating_sub(count);
        self.free.set(left);
        self.list[left as usize..free as usize].iter().rev().map(move |taken| {
            let frame = taken.get();
            write_down(records, frame, record);
            frame
        })
    }

    /// Puts a frame on the list. The caller counts it, and it was nowhere else.
    #[inline]
    pub(crate) fn put(&self, frame: u32) {
        let top = self.free.get();
        self.note(frame, Place::Free, 0);
        self.list[top as usize].set(frame);
        self.free.set(top + 1);
    }

    /// Puts frames of packets on the list, up to one that has several or is of another pool. How
    /// many, whose packets are to be forgotten and counted.
    #[inline]
    pub(crate) fn put_burst(&self, packets: &[Packet]) -> usize {
        let (top, record, records) = (self.free.get(), self.record(Place::Free, 0), self.records());
        let mut listed = 0;
        for (place, packet) in self.list[top as usize..].iter().zip(packets) {
            if !packet.is_single_of(self) {
                break;
            }
            write_down(records, packet.frame(), record);
            place.set(packet.frame());
            listed += 1;
        }
        self.free.set(top + listed);
        listed as usize
    }

    /// The frames on the list.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> {
        let listed = self.free.get() + self.offered.get().map_or(0, |offered| offered.free);
        self.list[..listed as usize].iter().map(Cell::get)
    }

    /// A number for a queue; at most 64 are open at a time.
    pub(crate) fn open_queue(&self) -> Option<u8> {
        let number = (self.queues.get() | self.left_queues.get()).trailing_ones();
        let bit = 1_u64.checked_shl(number)?;
        self.queues.set(self.queues.get() | bit);
        Some(number as u8)
    }

    /// The number that a queue had before; none where another has it.
    pub(crate) fn take_over_queue(&self, number: u8) -> Option<()> {
        let bit = 1_u64.checked_shl(number.into()).filter(|bit| self.queues.get() & bit == 0)?;
        self.queues.set(self.queues.get() | bit);
        self.left_queues.set(self.left_queues.get() & !bit);
        Some(())
    }

    pub(crate) fn name_queue(&self, queue: u8, name: &str) {
        // Below 64.
        self.account().legend.queues[usize::from(queue)].write(name);
    }

    /// Takes back what a queue had given to the kernel, which is gone.
    pub(crate) fn close_queue(&self, queue: u8) {
        // A successor has it otherwise, with all its frames.
        if !self.umem.is_ours() || !self.is_usable() {
            return;
        }
        for (frame, place) in self.kernel.of_queue(queue) {
            let count =
                if place == Place::Fill { &self.ledger().unfilled } else { &self.ledger().unsent };
            count.add(1);
            self.kernel.take_back(frame);
            self.put(frame);
        }
        self.queues.set(self.queues.get() & !(1 << queue));
    }
}

/// Writes down where a frame is that a list or a packet has: with no look at how many there are,
/// which would be a tenth of all that is done for a frame.
#[inline]
fn write_down(records: &[AtomicU64], frame: u32, record: u64) {
    debug_assert!((frame as usize) < records.len());
    // SAFETY: there is such a frame, as in `Inner::frame`, so there is a record of it.
    unsafe { records.get_unchecked(frame as usize) }.store(record, Relaxed);
}

impl Packet {
    /// A handle to its pool.
    pub(crate) fn handle(&self) -> Pool {
        let handles = &self.inner().handles;
        handles.set(handles.get() + 1);
        Pool { inner: self.pool(), _inner: PhantomData }
    }
}
