//! The ledger: the place of each frame, the time since when it is there, and counts of all
//! transitions.
//!
//! It has two independent accounts. A [`Record`] for each frame says where it is. A [`Counts`] for
//! each pool counts every transition where it happens; none of its counters is computed from
//! others. [`Pool::audit`] compares the two with each other, with the list of free frames and with
//! the rings.
//!
//! Only the pool's worker writes, by plain stores. Any thread, and any process that has the memory,
//! may read ([`Watch`](crate::Watch), [`Inspector`](crate::Inspector)).
//!
//! [`Pool::audit`]: crate::packet::pool::Pool::audit

pub(crate) mod audit;
pub(crate) mod watch;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

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

/// The record of a frame: one word, one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The frame's place.
    pub place: Place,
    /// The owner's pool number.
    pub pool: u8,
    /// Of a held frame the application's stage ([`crate::Packet::set_stage`]); of one with the
    /// kernel the queue's number.
    pub stage: u8,
    /// The time since when, in the pool's time ([`crate::Pool::set_now`]).
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

    /// None if there is no record yet.
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let [place, stage, pool, _] = (word as u32).to_le_bytes();
        let place = Place::ALL.into_iter().find(|p| *p as u8 == place)?;
        Some(Self { place, pool, stage, since: (word >> 32) as u32 })
    }

    /// Whether place and pool are the same; age and stage do not matter.
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
        /// From free to held.
        allocated,
        /// From held to free.
        freed,
        /// From free to the FILL ring.
        filled,
        /// From the FILL ring to held.
        received,
        /// From held to the TX ring.
        sent,
        /// From the TX ring to free.
        completed,
        /// Fill to free, when a queue was closed.
        unfilled,
        /// Tx to free, when a queue was closed.
        unsent,
        /// From held to away.
        handed,
        /// Away to held: of another pool before.
        adopted,
        /// Away to free: nobody adopted it.
        returned,
    }
}

/// The part of a pool in the shared memory.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) ledger: Ledger,
    /// Used by former versions; keeps the layout.
    _unused: [AtomicU64; 16],
    pub(crate) legend: Legend,
}

/// The names that make a pool's records readable for others.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Legend {
    /// The pool's clock, which records are stamped with.
    pub(crate) now: AtomicU32,
    /// Names of stages; those above have none.
    pub(crate) stages: [Label; 16],
    /// Names of queues.
    pub(crate) queues: [Label; 64],
}

/// A list of frames that returned from other threads: any thread adds to it, and the pool takes
/// all. The number of the first and one more; 0: none.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Returns(AtomicU32);

impl Returns {
    /// Adds a chain of frames. `link` makes the frame that was first the next of the last one of
    /// these.
    pub(crate) fn add(&self, first: u32, link: impl Fn(Option<u32>)) {
        let mut old = self.0.load(Relaxed);
        loop {
            link(old.checked_sub(1));
            // Release: who takes it sees the links. What is taken is taken whole, so that an old
            // first cannot come back.
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

/// # Safety
/// Made of atomics alone, for which all bytes are valid: others may write it while it is referred
/// to.
pub(crate) unsafe trait Shared {}
// SAFETY: atomics.
unsafe impl Shared for AtomicU64 {}
// SAFETY: made of atomics.
unsafe impl Shared for Account {}

impl Counts {
    /// The number of the pool's frames in a place, by these counters. Of frames that are away, the
    /// pool has counted those that it handed over and got back, but not those that others have
    /// adopted since.
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

/// A name of up to 32 bytes of UTF-8, with zeroes behind it. It is written once, before the number
/// is used; a reader meanwhile gets half a name, and nothing else goes wrong.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Label([AtomicU64; 4]);

impl Label {
    /// A name is cut after 32 bytes.
    pub(crate) fn write(&self, name: &str) {
        let len = (0..=name.len().min(32)).rev().find(|n| name.is_char_boundary(*n)).unwrap_or(0);
        for (n, word) in self.0.iter().enumerate() {
            let byte = |k: usize| name.as_bytes()[..len].get(8 * n + k).copied().unwrap_or(0);
            word.store(u64::from_ne_bytes(std::array::from_fn(byte)), Relaxed);
        }
    }

    /// Any process with the memory may have written the name, so its control characters are
    /// replaced: none moves a terminal's cursor.
    pub(crate) fn read(&self) -> String {
        let bytes: Vec<u8> =
            self.0.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        without_controls(&String::from_utf8_lossy(&bytes[..len]))
    }
}

/// The text with its control characters replaced.
pub(crate) fn without_controls(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
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

    #[test]
    fn what_is_written_is_read() {
        let label = Label::default();
        assert_eq!(label.read(), "");
        for name in ["l2fwd: received", "x", "", "12345678901234567890123456789012"] {
            label.write(name);
            assert_eq!(label.read(), name);
        }
        label.write("\x1b]0;owned\x07\n\u{9b}2J");
        assert_eq!(label.read(), "\u{fffd}]0;owned\u{fffd}\u{fffd}\u{fffd}2J");
        label.write("1234567890123456789012345678901\u{e9}");
        assert_eq!(label.read(), "1234567890123456789012345678901");
    }
}
