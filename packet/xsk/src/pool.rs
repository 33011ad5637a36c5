//! A worker's frames: a list of the free ones, last in, first out, so that what comes next is still in the CPU's cache.
//!
//! A pool belongs to one thread, and nothing in it is locked or atomic read-modify-write. Handles to it and packets of it
//! may be dropped in any order: it goes with the last of them. To know that, packets need not be counted one by one: the
//! ledger knows how many frames are held.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::batch::{Batch, forget_first};
use crate::ledger::{Account, Counts, Ledger, Place, Record};
use crate::packet::{Link, Packet};
use crate::umem::{KERNEL_HEADROOM, Umem};

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

/// What handles and packets point to.
pub(crate) struct Inner {
    handles: Cell<usize>,
    /// Frames on the list.
    free: Cell<u32>,
    now: Cell<u32>,
    stage: Cell<u8>,
    /// A bit for each queue that is open.
    queues: Cell<u64>,
    pub(crate) number: u8,
    /// Frames are so many bits apart.
    pub(crate) shift: u32,
    /// Where packets of our own begin in their frame.
    pub(crate) headroom: u16,
    frames: NonNull<u8>,
    records: NonNull<[AtomicU64]>,
    links: NonNull<[AtomicU64]>,
    stack: NonNull<[AtomicU32]>,
    account: NonNull<Account>,
    pub(crate) umem: Umem,
}

impl Pool {
    pub(crate) fn open(umem: Umem, number: u8, now: u32) -> Self {
        let share = umem.share(number);
        let pool = Self::taken_over(umem, number, 0);
        pool.set_now(now);
        let inner = pool.inner();
        inner.ledger().given.add(share.len() as u64);
        // The lowest on top, where the first packets come from.
        share.rev().for_each(|frame| inner.put(frame));
        pool
    }

    /// Of which books, list and so many frames on it are in the memory already.
    pub(crate) fn taken_over(umem: Umem, number: u8, free: u32) -> Self {
        let layout = *umem.layout();
        let inner = Box::new(Inner {
            handles: Cell::new(1),
            free: Cell::new(free),
            now: Cell::new(0),
            stage: Cell::new(0),
            queues: Cell::new(0),
            number,
            shift: layout.chunk.shift(),
            // Below 4 096, as is checked of the UMEM.
            headroom: (KERNEL_HEADROOM + layout.headroom) as u16,
            frames: umem.base(),
            records: umem.records().into(),
            links: umem.links().into(),
            stack: umem.stack(number).into(),
            account: umem.account(number).into(),
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

    /// An empty packet of one frame, with all the headroom that received ones have; none where no frame is free.
    #[inline]
    pub fn allocate(&self) -> Option<Packet> {
        let inner = self.inner();
        let stage = inner.stage.get();
        let frame = inner.take(Place::Held, stage).or_else(|| {
            inner.take_returned();
            inner.take(Place::Held, stage)
        })?;
        inner.ledger().allocated.add(1);
        Some(Packet::new(self.inner, frame, inner.headroom, 0))
    }

    /// Adds up to `count` empty packets, as far as the batch has room and frames are free. How many.
    pub fn allocate_burst(&self, into: &mut Batch, count: usize) -> usize {
        let inner = self.inner();
        // A batch of more than u32::MAX packets would not fit into any memory.
        let count = count.min(into.room()) as u32;
        if inner.free.get() < count {
            inner.take_returned();
        }
        let (headroom, stage) = (inner.headroom, inner.stage.get());
        let taken = inner.take_burst(count, Place::Held, stage);
        inner.ledger().allocated.add(taken.len() as u64);
        into.extend(taken.map(|frame| Packet::new(self.inner, frame, headroom, 0)))
    }

    /// Frames that are free.
    pub fn free(&self) -> u32 {
        self.inner().free.get()
    }

    /// Which of the UMEM's pools it is.
    pub fn number(&self) -> u8 {
        self.inner().number
    }

    /// Where its frames lie.
    pub fn umem(&self) -> &Umem {
        &self.inner().umem
    }

    /// Every transition of its frames so far.
    pub fn counts(&self) -> Counts {
        self.inner().ledger().read()
    }

    /// What time it is, from which ages are told: any unit that goes up, milliseconds say, once per burst. It may overflow.
    #[inline]
    pub fn set_now(&self, now: u32) {
        self.inner().now.set(now);
        self.inner().account().legend.now.store(now, Relaxed);
    }

    /// The application's stage that packets which are received or allocated from now on belong to.
    #[inline]
    pub fn set_stage(&self, stage: u8) {
        self.inner().stage.set(stage);
    }

    /// What a stage below 16 is called, in 32 bytes: [`crate::Watch::stage_name`].
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
/// It has not ended, and the caller does not refer to it afterwards unless it has a handle or a packet.
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
        self.handles.get() == 0 && self.ledger().read().in_place(Place::Held) == 0
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

    /// Puts frames on the list that came home from other threads.
    #[inline]
    pub(crate) fn take_returned(&self) {
        let mut next = self.account().returns.take();
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

    #[inline]
    fn stack(&self) -> &[AtomicU32] {
        // SAFETY: as above.
        unsafe { self.stack.as_ref() }
    }

    /// The bytes of a frame.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> NonNull<u8> {
        debug_assert!((frame as usize) < self.records().len());
        // SAFETY: there is such a frame, so it lies within the mapping.
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
        let frame = self.stack()[top as usize].load(Relaxed);
        self.free.set(top);
        self.note(frame, place, stage);
        Some(frame)
    }

    /// Takes up to `count` frames off the list, to be in `place` from now on. The caller counts them, and has to go through all.
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
        self.stack()[left as usize..free as usize].iter().rev().map(move |taken| {
            let frame = taken.load(Relaxed);
            write_down(records, frame, record);
            frame
        })
    }

    /// Puts a frame on the list. The caller counts it, and it was nowhere else.
    #[inline]
    pub(crate) fn put(&self, frame: u32) {
        let top = self.free.get();
        self.note(frame, Place::Free, 0);
        self.stack()[top as usize].store(frame, Relaxed);
        self.free.set(top + 1);
    }

    /// Puts frames of packets on the list, up to one that has several or is of another pool. How many, whose packets are to be
    /// forgotten and counted.
    #[inline]
    fn put_burst(&self, packets: &[Packet]) -> usize {
        let (top, record, records) = (self.free.get(), self.record(Place::Free, 0), self.records());
        let mut listed = 0;
        for (place, packet) in self.stack()[top as usize..].iter().zip(packets) {
            if !packet.is_single_of(self) {
                break;
            }
            write_down(records, packet.frame(), record);
            place.store(packet.frame(), Relaxed);
            listed += 1;
        }
        self.free.set(top + listed);
        listed as usize
    }

    /// The frames on the list.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> {
        self.stack()[..self.free.get() as usize].iter().map(|frame| frame.load(Relaxed))
    }

    /// A number for a queue; at most 64 are open at a time.
    pub(crate) fn open_queue(&self) -> Option<u8> {
        let number = self.queues.get().trailing_ones();
        let bit = 1_u64.checked_shl(number)?;
        self.queues.set(self.queues.get() | bit);
        Some(number as u8)
    }

    /// The number that a queue had before; none where another has it.
    pub(crate) fn take_over_queue(&self, number: u8) -> Option<()> {
        let bit = 1_u64.checked_shl(number.into()).filter(|bit| self.queues.get() & bit == 0)?;
        self.queues.set(self.queues.get() | bit);
        Some(())
    }

    pub(crate) fn name_queue(&self, queue: u8, name: &str) {
        // Below 64.
        self.account().legend.queues[usize::from(queue)].write(name);
    }

    /// Takes back what a queue had given to the kernel, which is gone.
    pub(crate) fn close_queue(&self, queue: u8) {
        let of_queue = |place| self.record(place, queue) as u32;
        let (fill, tx) = (of_queue(Place::Fill), of_queue(Place::Tx));
        for frame in 0..self.umem.frames() {
            let word = self.records()[frame as usize].load(Relaxed) as u32;
            if word == fill {
                self.ledger().unfilled.add(1);
            } else if word == tx {
                self.ledger().unsent.add(1);
            } else {
                continue;
            }
            self.put(frame);
        }
        self.queues.set(self.queues.get() & !(1 << queue));
    }
}

/// Writes down where a frame is that a list or a packet has: with no look at how many there are, which would be a tenth of all that
/// is done for a frame.
#[inline]
fn write_down(records: &[AtomicU64], frame: u32, record: u64) {
    debug_assert!((frame as usize) < records.len());
    // SAFETY: there is such a frame, as in `Inner::frame`, so there is a record of it.
    unsafe { records.get_unchecked(frame as usize) }.store(record, Relaxed);
}

/// Frees packets. Those of one frame and of the first's pool, up to another, with one look at its list: nearly always all.
pub(crate) fn free_all(packets: &mut Vec<Packet>) {
    let Some(first) = packets.first() else { return };
    let pool = first.handle();
    let listed = pool.inner().put_burst(packets);
    pool.inner().ledger().freed.add(listed as u64);
    // They are on the list.
    forget_first(packets, listed);
    packets.clear();
}

impl Packet {
    /// A handle to its pool.
    pub(crate) fn handle(&self) -> Pool {
        let handles = &self.inner().handles;
        handles.set(handles.get() + 1);
        Pool { inner: self.pool(), _inner: PhantomData }
    }
}
