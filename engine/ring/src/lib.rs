//! A ring of descriptors between two sides that share memory: one produces, the other consumes
//! (Documentation/networking/af_xdp.rst, net/xdp/xsk_queue.h).
//!
//! - The indices are free-running: they count up through `u32::MAX` to 0 and are never wrapped by
//!   hand. `producer - consumer`, in wrapping arithmetic, is the number of entries in the ring; an
//!   index is masked only to find its slot.
//! - Each side stores its own index with release and loads the other's with acquire. There is no
//!   other ordering.
//! - Reserving and peeking return a guard. Nothing is shared until the guard is submitted or
//!   released; dropping it cancels, so neither an early return nor a panic leaks a descriptor.
//! - An impossible index of the other side is [`Corrupt`]; nothing is read or written then.
//!
//! # Example
//!
//! ```
//! let (mut producer, mut consumer) = ringway_ring::in_memory::<u64>(4);
//!
//! let mut reserved = producer.reserve(2)?;
//! assert_eq!(reserved.push(0x1000), Ok(()));
//! assert_eq!(reserved.push(0x2000), Ok(()));
//! assert_eq!(reserved.push(0x3000), Err(0x3000), "two were reserved");
//! reserved.submit();
//!
//! let arrived = consumer.peek(64)?;
//! assert_eq!(arrived.iter().collect::<Vec<_>>(), [0x1000, 0x2000]);
//! arrived.release();
//! # Ok::<(), ringway_ring::Corrupt>(())
//! ```

#![warn(missing_docs)]

mod sync;

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicU32, Slot};

/// The other side's index is further from ours than the ring is long: the memory is not the ring's,
/// or another process writes there. Close the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ring of {size} has producer index {producer} and consumer index {consumer}, which cannot be: \
     something else writes to its memory; close the socket and open another"
)]
pub struct Corrupt {
    /// Slots of the ring.
    pub size: u32,
    /// The producer index, as read.
    pub producer: u32,
    /// The consumer index, as read.
    pub consumer: u32,
}

/// The place of a ring, and the owner of its memory.
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    /// The consumer's word to the producer.
    flags: NonNull<AtomicU32>,
    slots: NonNull<Slot<T>>,
    /// A power of two.
    size: u32,
    _memory: Arc<dyn Any + Send + Sync>,
}

impl<T: Copy> Shared<T> {
    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it is there for as long as `_memory`, and atomic for both sides.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: it is there for as long as `_memory`, and atomic for both sides.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: it is there for as long as `_memory`, and atomic for both sides.
        unsafe { self.flags.as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> NonNull<Slot<T>> {
        let place = (index & (self.size - 1)) as usize;
        // SAFETY: a masked index is below the size, and there are as many slots.
        unsafe { self.slots.add(place) }
    }

    /// The number of entries in the ring.
    #[inline]
    fn filled(&self, producer: u32, consumer: u32) -> Result<u32, Corrupt> {
        let filled = producer.wrapping_sub(consumer);
        if filled > self.size {
            return Err(Corrupt { size: self.size, producer, consumer });
        }
        Ok(filled)
    }

    /// The entries between the indices now.
    fn between(
        &self,
        producer: u32,
        consumer: u32,
    ) -> Result<impl ExactSizeIterator<Item = T>, Corrupt> {
        let filled = self.filled(producer, consumer)?;
        Ok((0..filled as usize).map(move |n| {
            // SAFETY: the slot is within the ring, and filled: what is ours to produce nobody else
            // writes, and what is ours to consume is left alone until we release it.
            unsafe { Slot::read(self.slot(consumer.wrapping_add(n as u32))) }
        }))
    }
}

/// The kernel needs a wake-up to continue with a ring (`XDP_RING_NEED_WAKEUP`, linux/if_xdp.h).
const NEEDS_WAKEUP: u32 = 1;

/// The place of a ring in mapped memory, as `XDP_MMAP_OFFSETS` says.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct Place<T> {
    /// Address of the producer's index.
    pub producer: NonNull<u32>,
    /// Address of the consumer's index.
    pub consumer: NonNull<u32>,
    /// The flags, of which the consumer of FILL and TX sets "needs wake-up".
    pub flags: NonNull<u32>,
    /// Address of the first slot.
    pub slots: NonNull<T>,
    /// The number of slots: a power of two.
    pub size: u32,
}

#[cfg(not(loom))]
impl<T: Copy> Place<T> {
    /// Our side of a ring that the other side consumes. `memory` is kept for as long as it is in
    /// use.
    ///
    /// # Safety
    /// - `memory` owns the memory that this points to, and its indices and slots are aligned.
    /// - Any bytes are a valid `T`.
    /// - There is no other producer, and the other side keeps to the protocol: it writes its own
    ///   index only.
    ///
    /// # Panics
    /// The size is not a power of two.
    pub unsafe fn producer(self, memory: Arc<dyn Any + Send + Sync>) -> Producer<T> {
        Producer::new(self.shared(memory))
    }

    /// Our side of a ring that the other side fills.
    ///
    /// # Safety
    /// As [`Place::producer`]; the other side writes to its own index, and to slots that are not
    /// filled.
    ///
    /// # Panics
    /// The size is not a power of two.
    pub unsafe fn consumer(self, memory: Arc<dyn Any + Send + Sync>) -> Consumer<T> {
        Consumer::new(self.shared(memory))
    }

    fn shared(self, memory: Arc<dyn Any + Send + Sync>) -> Shared<T> {
        assert!(self.size.is_power_of_two(), "{} slots: a ring has a power of two", self.size);
        Shared {
            producer: self.producer.cast(),
            consumer: self.consumer.cast(),
            flags: self.flags.cast(),
            slots: self.slots.cast(),
            size: self.size,
            _memory: memory,
        }
    }
}

/// The side that fills: of FILL and TX it is ours.
pub struct Producer<T> {
    shared: Shared<T>,
    /// The next to be filled; nobody else writes this index.
    next: u32,
    /// The other side's index when it was last read.
    consumed: u32,
}

/// The side that empties: of RX and COMPLETION it is ours.
pub struct Consumer<T> {
    shared: Shared<T>,
    /// The next to be read; nobody else writes this index.
    next: u32,
    /// The other side's index when it was last read.
    produced: u32,
}

// SAFETY: each side is one handle that cannot be cloned; its memory is shared by atomics and by
// slots that pass from side to side.
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T: Copy> Producer<T> {
    fn new(shared: Shared<T>) -> Self {
        let (next, consumed) = (shared.producer().load(Relaxed), shared.consumer().load(Acquire));
        Self { shared, next, consumed }
    }

    /// Slots that are free now, up to `wanted`. The other side's index is read only if the last
    /// reading is not enough.
    #[inline]
    fn free(&mut self, wanted: u32) -> Result<u32, Corrupt> {
        let size = self.shared.size;
        if size - self.shared.filled(self.next, self.consumed)? < wanted {
            self.consumed = self.shared.consumer().load(Acquire);
        }
        Ok((size - self.shared.filled(self.next, self.consumed)?).min(wanted))
    }

    /// Reserves up to `wanted` slots; fewer, or none, if the ring is nearly full.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn reserve(&mut self, wanted: u32) -> Result<Reserved<'_, T>, Corrupt> {
        let reserved = self.free(wanted)?;
        Ok(Reserved { ring: self, reserved, written: 0 })
    }

    /// Entries that were produced and are not consumed yet, oldest first. The other side may
    /// consume meanwhile.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn unconsumed(&self) -> Result<impl ExactSizeIterator<Item = T> + '_, Corrupt> {
        self.shared.between(self.next, self.shared.consumer().load(Acquire))
    }

    /// Whether the consumer sleeps until it is woken.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.flags().load(Relaxed) & NEEDS_WAKEUP != 0
    }

    /// Slots of the ring.
    pub fn size(&self) -> u32 {
        self.shared.size
    }
}

/// Slots to be filled. Dropping it cancels the reservation.
#[must_use = "nothing is produced until it is submitted"]
pub struct Reserved<'a, T: Copy> {
    ring: &'a mut Producer<T>,
    reserved: u32,
    written: u32,
}

impl<T: Copy> Reserved<'_, T> {
    /// The number of slots that are not filled yet.
    #[inline]
    pub fn remaining(&self) -> u32 {
        self.reserved - self.written
    }

    /// Fills the next slot.
    ///
    /// # Errors
    /// Hands the descriptor back if all reserved slots are filled.
    #[inline]
    pub fn push(&mut self, descriptor: T) -> Result<(), T> {
        if self.written == self.reserved {
            return Err(descriptor);
        }
        let slot = self.ring.shared.slot(self.ring.next.wrapping_add(self.written));
        // SAFETY: the slot is within the ring, and free: the other side does not look at it before
        // it is produced.
        unsafe { Slot::write(slot, descriptor) };
        self.written += 1;
        Ok(())
    }

    /// Produces the pushed descriptors; slots that were not filled stay free. Returns the number of
    /// descriptors.
    #[inline]
    pub fn submit(self) -> u32 {
        // The other side may be looking at the index: it is not written for nothing.
        if self.written > 0 {
            self.ring.next = self.ring.next.wrapping_add(self.written);
            // Release: whoever sees the index sees the slots.
            self.ring.shared.producer().store(self.ring.next, Release);
        }
        self.written
    }
}

impl<T: Copy> Consumer<T> {
    fn new(shared: Shared<T>) -> Self {
        let (produced, next) = (shared.producer().load(Acquire), shared.consumer().load(Relaxed));
        Self { shared, next, produced }
    }

    /// Peeks at up to `wanted` descriptors; fewer, or none, if there are no more.
    ///
    /// # Errors
    /// [`Corrupt`].
    #[inline]
    pub fn peek(&mut self, wanted: u32) -> Result<Peeked<'_, T>, Corrupt> {
        if self.shared.filled(self.produced, self.next)? < wanted {
            // Acquire: what is before this index has been written.
            self.produced = self.shared.producer().load(Acquire);
        }
        let len = self.shared.filled(self.produced, self.next)?.min(wanted);
        Ok(Peeked { ring: self, len })
    }

    /// Entries that were produced and are not released yet, oldest first. The other side may
    /// produce more meanwhile.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn unread(&self) -> Result<impl ExactSizeIterator<Item = T> + '_, Corrupt> {
        self.shared.between(self.shared.producer().load(Acquire), self.next)
    }

    /// Tells the producer whether to wake this side up, as the kernel does.
    pub fn ask_for_wakeup(&mut self, needed: bool) {
        self.shared.flags().store(if needed { NEEDS_WAKEUP } else { 0 }, Relaxed);
    }

    /// Slots of the ring.
    pub fn size(&self) -> u32 {
        self.shared.size
    }
}

/// Descriptors to be read. Dropping it leaves them in the ring.
#[must_use = "nothing is consumed until it is released"]
pub struct Peeked<'a, T: Copy> {
    ring: &'a mut Consumer<T>,
    len: u32,
}

impl<T: Copy> Peeked<'_, T> {
    /// The number of descriptors.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies of them, oldest first.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        let (shared, next) = (&self.ring.shared, self.ring.next);
        (0..self.len as usize).map(move |n| {
            // SAFETY: the slot is within the ring, and was produced: the other side leaves it alone
            // until it is released.
            unsafe { Slot::read(shared.slot(next.wrapping_add(n as u32))) }
        })
    }

    /// Gives all slots back. Returns their number.
    #[inline]
    pub fn release(self) -> u32 {
        let all = self.len;
        self.release_first(all)
    }

    /// Gives the oldest slots back, `count` or all that there are; the others stay in the ring.
    /// Returns their number.
    #[inline]
    pub fn release_first(self, count: u32) -> u32 {
        let count = count.min(self.len);
        if count > 0 {
            self.ring.next = self.ring.next.wrapping_add(count);
            // Release: our reads are over before the other side may write there.
            self.ring.shared.consumer().store(self.ring.next, Release);
        }
        count
    }
}

/// A ring in plain memory, with both of its sides: between two threads, or in place of the
/// kernel's.
///
/// # Panics
/// `size` is not a power of two.
pub fn in_memory<T: Copy + Default + Send + 'static>(size: u32) -> (Producer<T>, Consumer<T>) {
    in_memory_from(size, 0)
}

/// The same with indices that begin at `first`: just below `u32::MAX`, they soon overflow.
///
/// # Panics
/// `size` is not a power of two.
pub fn in_memory_from<T: Copy + Default + Send + 'static>(
    size: u32,
    first: u32,
) -> (Producer<T>, Consumer<T>) {
    in_memory_at(size, first, first)
}

fn in_memory_at<T: Copy + Default + Send + 'static>(
    size: u32,
    producer: u32,
    consumer: u32,
) -> (Producer<T>, Consumer<T>) {
    assert!(size.is_power_of_two(), "{size} slots: a ring has a power of two");
    let memory = Arc::new(InMemory {
        producer: Line(AtomicU32::new(producer)),
        consumer: Line(AtomicU32::new(consumer)),
        flags: Line(AtomicU32::new(0)),
        slots: (0..size).map(|_| Slot::new(T::default())).collect(),
    });
    let shared = || Shared {
        producer: NonNull::from(&memory.producer.0),
        consumer: NonNull::from(&memory.consumer.0),
        flags: NonNull::from(&memory.flags.0),
        slots: NonNull::from(&*memory.slots).cast(),
        size,
        _memory: memory.clone(),
    };
    (Producer::new(shared()), Consumer::new(shared()))
}

/// Away from what the other side writes: CPUs fetch lines of 64 bytes in pairs.
#[repr(align(128))]
struct Line(AtomicU32);

struct InMemory<T> {
    producer: Line,
    consumer: Line,
    flags: Line,
    slots: Box<[Slot<T>]>,
}

// SAFETY: slots are reached through the two sides only, each of which is one handle.
unsafe impl<T: Send> Sync for InMemory<T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// As the kernel lays one out: indices on cache lines of their own, then the slots
    /// (net/xdp/xsk_queue.h).
    #[repr(C, align(64))]
    struct Mapped {
        producer: [AtomicU32; 16],
        consumer: [AtomicU32; 16],
        flags: [AtomicU32; 16],
        slots: [Slot<u64>; 4],
    }

    // SAFETY: the slots are reached through the two sides only.
    unsafe impl Sync for Mapped {}

    #[test]
    fn in_memory_of_somebody_else() {
        let index = || std::array::from_fn(|_| AtomicU32::new(u32::MAX));
        let slots = std::array::from_fn(|_| Slot::new(0));
        let flags = std::array::from_fn(|_| AtomicU32::new(0));
        let memory = Arc::new(Mapped { producer: index(), consumer: index(), flags, slots });
        let place = Place::<u64> {
            producer: NonNull::from(&memory.producer[0]).cast(),
            consumer: NonNull::from(&memory.consumer[0]).cast(),
            flags: NonNull::from(&memory.flags[0]).cast(),
            slots: NonNull::from(&memory.slots).cast(),
            size: 4,
        };
        // SAFETY: `memory` is that of the place, and there is one handle of each side.
        let (mut ours, mut theirs) =
            unsafe { (place.producer(memory.clone()), place.consumer(memory.clone())) };
        let mut reserved = ours.reserve(9).unwrap();
        for n in 0..4 {
            assert_eq!(reserved.push(n), Ok(()));
        }
        assert_eq!(reserved.submit(), 4);
        assert_eq!(memory.producer[0].load(Acquire), 3);
        assert!(ours.unconsumed().unwrap().eq(0..4) && theirs.unread().unwrap().eq(0..4));
        assert!(!ours.needs_wakeup());
        theirs.ask_for_wakeup(true);
        assert!(ours.needs_wakeup());
        let peeked = theirs.peek(9).unwrap();
        assert!(peeked.iter().eq(0..4));
        // Dropped, they are still there.
        drop(peeked);
        assert_eq!(theirs.peek(9).unwrap().release_first(3), 3);
        assert_eq!(memory.consumer[0].load(Acquire), 2);
        assert!(ours.unconsumed().unwrap().eq([3]) && theirs.unread().unwrap().eq([3]));
        assert_eq!(ours.reserve(9).unwrap().remaining(), 3);
    }

    #[test]
    fn indices_that_cannot_be() {
        for (producer, consumer) in [(5, 0), (0, 1), (u32::MAX, 4), (3, u32::MAX - 1)] {
            let (mut ours, mut theirs) = in_memory_at::<u64>(4, producer, consumer);
            let corrupt = Corrupt { size: 4, producer, consumer };
            assert_eq!(ours.reserve(1).err(), Some(corrupt));
            assert_eq!(theirs.peek(1).err(), Some(corrupt));
        }
        // Full, across the overflow, is not corrupt.
        let (mut ours, mut theirs) = in_memory_at::<u64>(4, 1, u32::MAX - 2);
        assert_eq!(ours.reserve(1).map(|reserved| reserved.remaining()), Ok(0));
        assert_eq!(theirs.peek(9).map(|peeked| peeked.len()), Ok(4));
    }
}
