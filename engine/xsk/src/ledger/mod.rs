//! The books: where each frame is, since when, and how many went from where to where.
//!
//! Two accounts that do not know of each other. A [`Record`] for each frame says where it is. A [`Counts`] for each pool has
//! counted every transition where it happens: nothing in it is computed from anything else. [`Pool::audit`] holds the two
//! against each other, against the list of free frames and against the rings.
//!
//! Only the pool's worker writes, by plain stores. Any thread, and any process that has the memory, may read ([`Watch`]).
//!
//! [`Pool::audit`]: crate::packet::pool::Pool::audit

pub(crate) mod audit;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::umem::label::Label;
use crate::umem::{Shared, Umem};

/// Where a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Place {
    /// On its pool's list.
    Free = 1,
    /// With the kernel, to be filled: in FILL, being filled, or in RX.
    Fill = 2,
    /// In a packet that the program has.
    Held = 3,
    /// With the kernel, to be sent: in TX, being sent, or in COMPLETION.
    Tx = 4,
    /// In a [`crate::Transfer`], between two pools.
    Away = 5,
}

impl Place {
    const ALL: [Place; 5] = [Place::Free, Place::Fill, Place::Held, Place::Tx, Place::Away];
}

/// What is written down about a frame: one word, one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it is.
    pub place: Place,
    /// Whose it is.
    pub pool: u8,
    /// Of a held frame the application's stage ([`crate::Packet::set_stage`]); of one with the kernel the queue's number.
    pub stage: u8,
    /// Since when, in the pool's time ([`crate::Pool::set_now`]).
    pub since: u32,
}

impl Record {
    #[inline]
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.since) << 32
            | u64::from(self.pool) << 16
            | u64::from(self.stage) << 8
            | self.place as u64
    }

    /// None where nothing was ever written down.
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let [place, stage, pool, _] = (word as u32).to_le_bytes();
        let place = Place::ALL.into_iter().find(|p| *p as u8 == place)?;
        Some(Self { place, pool, stage, since: (word >> 32) as u32 })
    }

    /// Whether a frame is where, and whose, it is said to be, whatever its age and stage.
    #[inline]
    pub(crate) fn is(word: u64, place: Place, pool: u8) -> bool {
        word & 0xff_00ff == u64::from(pool) << 16 | place as u64
    }
}

/// One counter; only its owner writes it.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        // One writer: a plain addition, no locked instruction.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters as they are written, and as they are read.
macro_rules! counters {
    ($(#[$counters_doc:meta])* $counters:ident, $(#[$snapshot_doc:meta])* $snapshot:ident {
        $($(#[$doc:meta])* $name:ident,)*
    }) => {
        $(#[$counters_doc])*
        #[repr(C, align(128))]
        #[derive(Debug, Default)]
        pub(crate) struct $counters { $(pub(crate) $name: Counter,)* }

        impl $counters {
            pub(crate) fn read(&self) -> $snapshot {
                $snapshot { $($name: self.$name.get(),)* }
            }
        }

        $(#[$snapshot_doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snapshot { $($(#[$doc])* pub $name: u64,)* }

        impl $snapshot {
            /// Each with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}
pub(crate) use counters;

counters! {
    /// A pool's transitions, in the memory that it shares.
    Ledger,
    /// Frames of a pool that went from one place to another, since it was opened.
    Counts {
        /// Came with the pool: to free.
        given,
        /// Free to held.
        allocated,
        /// Held to free.
        freed,
        /// Free to fill.
        filled,
        /// Fill to held.
        received,
        /// Held to tx.
        sent,
        /// Tx to free.
        completed,
        /// Fill to free, when a queue was closed.
        unfilled,
        /// Tx to free, when a queue was closed.
        unsent,
        /// Held to away.
        handed,
        /// Away to held: of another pool before.
        adopted,
        /// Away to free: nobody adopted it.
        returned,
    }
}

/// What a pool has in the shared memory.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) ledger: Ledger,
    /// Of former versions.
    _unused: [AtomicU64; 16],
    pub(crate) legend: Legend,
}

/// What others need to read a pool's records.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Legend {
    /// The pool's time.
    pub(crate) now: AtomicU32,
    /// What a stage is called; those above have no names.
    pub(crate) stages: [Label; 16],
    /// What a queue is called.
    pub(crate) queues: [Label; 64],
}

/// A list of frames that came home from elsewhere: any thread adds to it, the pool takes all there are. The number of the
/// first and one more; 0: none.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Returns(AtomicU32);

impl Returns {
    /// Adds a chain of frames. `link` makes the frame that was first the next of the last one of these.
    pub(crate) fn add(&self, first: u32, link: impl Fn(Option<u32>)) {
        let mut old = self.0.load(Relaxed);
        loop {
            link(old.checked_sub(1));
            // Release: who takes it sees the links. What is taken is taken whole, so that an old first cannot come back.
            match self.0.compare_exchange_weak(old, first + 1, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Takes all: the number of the first.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        // Nearly always.
        if self.0.load(Relaxed) == 0 {
            return None;
        }
        self.0.swap(0, Acquire).checked_sub(1)
    }
}

// SAFETY: made of atomics.
unsafe impl Shared for Account {}

impl Counts {
    /// How many frames of the pool are in a place by these counters. Of those that are away, it knows what it has handed over
    /// and got back, but not what others have adopted since.
    pub fn in_place(&self, place: Place) -> u64 {
        let (entered, left): (&[u64], &[u64]) = match place {
            Place::Free => (
                &[
                    self.given,
                    self.freed,
                    self.completed,
                    self.unfilled,
                    self.unsent,
                    self.returned,
                ],
                &[self.allocated, self.filled],
            ),
            Place::Fill => (&[self.filled], &[self.received, self.unfilled]),
            Place::Held => (
                &[self.allocated, self.received, self.adopted],
                &[self.freed, self.sent, self.handed],
            ),
            Place::Tx => (&[self.sent], &[self.completed, self.unsent]),
            Place::Away => (&[self.handed], &[self.returned]),
        };
        // Others may have written them.
        let sum = |counts: &[u64]| counts.iter().fold(0_u64, |sum, n| sum.wrapping_add(*n));
        sum(entered).wrapping_sub(sum(left))
    }
}

/// Held frames of one pool and stage that are older than they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// Whose.
    pub pool: u8,
    /// The application's stage that had them last.
    pub stage: u8,
    /// How many.
    pub frames: u32,
    /// Age of the oldest, in the pool's time.
    pub oldest: u32,
    /// Number of the oldest.
    pub frame: u32,
}

/// The books, read beside the workers. What it sees of different frames may be of different moments.
#[derive(Clone, Debug)]
pub struct Watch {
    umem: Umem,
    /// The next frame to be looked at.
    cursor: u32,
}

impl Watch {
    pub(crate) fn new(umem: Umem) -> Self {
        Self { umem, cursor: 0 }
    }

    /// The counters of a pool.
    ///
    /// # Panics
    /// Where there is no such pool.
    pub fn counts(&self, pool: u8) -> Counts {
        self.umem.account(pool).ledger.read()
    }

    /// How many pools there are.
    pub fn pools(&self) -> u8 {
        self.umem.layout().pools
    }

    /// How many frames there are.
    pub fn frames(&self) -> u32 {
        self.umem.frames()
    }

    /// The time of a pool, which its worker sets: ages are told from it.
    ///
    /// # Panics
    /// Where there is no such pool.
    pub fn now(&self, pool: u8) -> u32 {
        self.umem.account(pool).legend.now.load(Relaxed)
    }

    /// What a pool's worker calls a stage; empty where it has no name.
    ///
    /// # Panics
    /// Where there is no such pool.
    pub fn stage_name(&self, pool: u8, stage: u8) -> String {
        let stages = &self.umem.account(pool).legend.stages;
        stages.get(usize::from(stage)).map(Label::read).unwrap_or_default()
    }

    /// What a pool's queue is called: "eth0, queue 3"; empty where it has no name.
    ///
    /// # Panics
    /// Where there is no such pool.
    pub fn queue_name(&self, pool: u8, queue: u8) -> String {
        let queues = &self.umem.account(pool).legend.queues;
        queues.get(usize::from(queue)).map(Label::read).unwrap_or_default()
    }

    /// What is written down about a frame; none where there is no such frame, or its pool was never opened.
    pub fn record(&self, frame: u32) -> Option<Record> {
        Record::unpack(self.umem.records().get(frame as usize)?.load(Relaxed))
    }

    /// Goes on through up to `frames` records, and adds held frames that are older than `limit`, in their pool's time, to
    /// `found`: an entry for each pool and stage. True when the last frame was among them, so that the next call begins anew.
    ///
    /// A record is eight bytes, and reading it takes nothing from the worker but a cache line now and then.
    pub fn aged(&mut self, frames: u32, limit: u32, found: &mut Vec<Aged>) -> bool {
        let now: Vec<u32> = (0..self.pools()).map(|pool| self.now(pool)).collect();
        let records = self.umem.records();
        let end = self.cursor.saturating_add(frames).min(self.umem.frames());
        for frame in self.cursor..end {
            let Some(record) = Record::unpack(records[frame as usize].load(Relaxed)) else {
                continue;
            };
            let Some(now) = now.get(usize::from(record.pool)) else { continue };
            let age = now.wrapping_sub(record.since);
            // A time just written by the worker may be later than `now`.
            if record.place == Place::Held && age > limit && age <= u32::MAX / 2 {
                add(found, record, age, frame);
            }
        }
        let done = end == self.umem.frames();
        self.cursor = if done { 0 } else { end };
        done
    }
}

fn add(found: &mut Vec<Aged>, record: Record, age: u32, frame: u32) {
    let (pool, stage) = (record.pool, record.stage);
    let Some(entry) = found.iter_mut().find(|a| (a.pool, a.stage) == (pool, stage)) else {
        found.push(Aged { pool, stage, frames: 1, oldest: age, frame });
        return;
    };
    entry.frames += 1;
    if age > entry.oldest {
        (entry.oldest, entry.frame) = (age, frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_word() {
        let record = Record { place: Place::Held, pool: 200, stage: 255, since: u32::MAX };
        assert_eq!(Record::unpack(record.pack()), Some(record));
        assert!(Record::is(record.pack(), Place::Held, 200));
        assert!(!Record::is(record.pack(), Place::Tx, 200));
        assert!(!Record::is(record.pack(), Place::Held, 199));
        assert_eq!(Record::unpack(0), None);
    }
}
