//! The frames of a pool that the kernel has.

use std::cell::Cell;

use crate::ledger::Place;

/// A pool has fewer queues open than this, and numbers them from 0.
pub(crate) const QUEUES: u8 = 64;

/// A byte for each frame, in memory of this process alone. Records say the same, but others can
/// write them. So this decides whether a frame that comes back is believed.
#[derive(Debug)]
pub(crate) struct KernelFrames(Box<[Cell<u8>]>);

/// A frame that the kernel has for a queue, to be filled or to be sent. It is never 0, which says
/// that the kernel does not have it.
#[inline]
fn lent(place: Place, queue: u8) -> u8 {
    debug_assert!(queue < QUEUES && matches!(place, Place::Fill | Place::Tx));
    (queue << 1 | u8::from(place == Place::Tx)) + 1
}

impl KernelFrames {
    /// Of so many frames.
    pub(crate) fn none(frames: usize) -> Self {
        Self((0..frames).map(|_| Cell::new(0)).collect())
    }

    /// The kernel has it from now on.
    #[inline]
    pub(crate) fn lend(&self, frame: u32, place: Place, queue: u8) {
        self.0[frame as usize].set(lent(place, queue));
    }

    /// The kernel has it no more.
    #[inline]
    pub(crate) fn take_back(&self, frame: u32) {
        self.0[frame as usize].set(0);
    }

    /// Takes a frame back that the kernel can have for this; none where it has not.
    #[inline]
    pub(crate) fn redeem(&self, frame: u64, place: Place, queue: u8) -> Option<u32> {
        let held = self.0.get(usize::try_from(frame).ok()?)?;
        if held.get() != lent(place, queue) {
            return None;
        }
        held.set(0);
        // There is such a frame.
        Some(frame as u32)
    }

    /// Whether the kernel has it for this.
    pub(crate) fn has(&self, frame: u64, place: Place, queue: u8) -> bool {
        let held = usize::try_from(frame).ok().and_then(|frame| self.0.get(frame));
        held.is_some_and(|held| held.get() == lent(place, queue))
    }

    /// A bit for each queue that it has frames for.
    pub(crate) fn queues(&self) -> u64 {
        let queue = |held: &Cell<u8>| Some(1 << (held.get().checked_sub(1)? >> 1));
        self.0.iter().filter_map(queue).fold(0, |queues, bit: u64| queues | bit)
    }

    /// All that it has of a queue.
    pub(crate) fn of_queue(&self, queue: u8) -> impl Iterator<Item = (u32, Place)> {
        let place = move |held: &Cell<u8>| {
            [Place::Fill, Place::Tx].into_iter().find(|place| held.get() == lent(*place, queue))
        };
        // The UMEM has u32 frames.
        (0..).zip(&self.0).filter_map(move |(frame, held)| Some((frame, place(held)?)))
    }
}
