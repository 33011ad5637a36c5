//! The audit: it finds every frame of a pool exactly once, or says what is wrong.
//!
//! The rings are walked against the stream (RX before FILL, COMPLETION before TX), so that a frame
//! which the kernel moves meanwhile is not met twice. A frame that is in no ring, though its record
//! says that the kernel has it, is inside the kernel.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use ringway_ring::Corrupt;

use crate::ledger::{Counts, Place, Record};
use crate::packet::pool::Pool;
use crate::queue::Rings;

/// Where frames were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// On the pool's list.
    pub free: u64,
    /// Frames in the FILL ring.
    pub fill: u64,
    /// In the kernel, to be filled.
    pub kernel_rx: u64,
    /// Frames in the RX ring.
    pub rx: u64,
    /// In packets that the program has.
    pub held: u64,
    /// Frames in the TX ring.
    pub tx: u64,
    /// In the kernel, being sent.
    pub kernel_tx: u64,
    /// Frames in the COMPLETION ring.
    pub completion: u64,
    /// In parcels, or come home and not taken back yet.
    pub away: u64,
}

impl Found {
    fn in_place(&self, place: Place) -> u64 {
        match place {
            Place::Free => self.free,
            Place::Fill => self.fill + self.kernel_rx + self.rx,
            Place::Held => self.held,
            Place::Tx => self.tx + self.kernel_tx + self.completion,
            Place::Away => self.away,
        }
    }
}

/// A way in which the ledger does not balance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A frame is in two places.
    #[error("frame {frame} is in {first} and in {second}")]
    Twice {
        /// The frame's number.
        frame: u32,
        /// Where it was met first.
        first: &'static str,
        /// Where it was met again.
        second: &'static str,
    },
    /// A frame is not in the place of its record.
    #[error("frame {frame} is in {found}, but recorded as {recorded:?}")]
    Record {
        /// The frame's number.
        frame: u32,
        /// Where the frame was found.
        found: &'static str,
        /// The frame's record, if it has one.
        recorded: Option<Record>,
    },
    /// An address belongs to no frame.
    #[error("{found} holds address {address:#x}, which is no frame")]
    NoFrame {
        /// Name of the ring that holds it.
        found: &'static str,
        /// In bytes from the UMEM's begin.
        address: u64,
    },
    /// The counters differ from the walk.
    #[error("{place:?}: {counted} frames by the counters, {found} found")]
    Count {
        /// The place whose frames were counted.
        place: Place,
        /// Frames that entered it less those that left it.
        counted: u64,
        /// Met on the walk.
        found: u64,
    },
    /// A ring cannot be walked.
    #[error("{ring}: {source}")]
    Ring {
        /// Name of the ring.
        ring: &'static str,
        /// The indexes.
        source: Corrupt,
    },
}

/// The result of a pool's audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Frames by the counters.
    pub counts: Counts,
    /// Frames found by the walk.
    pub found: Found,
    /// Everything that is wrong; nothing if the ledger balances.
    pub faults: Vec<Fault>,
}

impl Audit {
    /// Whether every frame was found exactly once, in the place of its record.
    pub fn balanced(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { free, fill, kernel_rx, rx, held, tx, kernel_tx, completion, away } = self.found;
        write!(
            f,
            "free {free}, FILL {fill}, kernel {kernel_rx}, RX {rx}, held {held}, TX {tx}, kernel {kernel_tx}, \
             COMPLETION {completion}, away {away}: "
        )?;
        match &*self.faults {
            [] => f.write_str("balanced"),
            [first, more @ ..] => {
                write!(f, "not balanced: {first}")?;
                more.iter().take(9).try_for_each(|fault| write!(f, "; {fault}"))?;
                more.len().checked_sub(9).map_or(Ok(()), |n| write!(f, "; and {n} more"))
            }
        }
    }
}

impl Pool {
    /// Finds every frame of this pool, in its list and in the rings of **all** its queues. It takes
    /// a walk over all records, and allocates: for tests, and every few seconds, not for every
    /// burst.
    pub fn audit(&self, queues: &[&Rings]) -> Audit {
        let inner = self.inner();
        let mut walk = Walk {
            pool: self,
            met: vec![None; inner.records().len()],
            found: Found::default(),
            faults: Vec::new(),
        };
        walk.found.free =
            walk.meet("the free list", Place::Free, inner.listed().map(|f| inner.address(f)));
        for rings in queues {
            walk.rings(rings);
        }
        walk.records();
        let counts = self.counts();
        // Frames that other pools have adopted are not counted here.
        let (counted, found) = (counts.in_place(Place::Away), walk.found.away);
        if found > counted {
            walk.faults.push(Fault::Count { place: Place::Away, counted, found });
        }
        for place in [Place::Free, Place::Fill, Place::Held, Place::Tx] {
            let (counted, found) = (counts.in_place(place), walk.found.in_place(place));
            if counted != found {
                walk.faults.push(Fault::Count { place, counted, found });
            }
        }
        Audit { counts, found: walk.found, faults: walk.faults }
    }
}

struct Walk<'a> {
    pool: &'a Pool,
    /// Where each frame was met.
    met: Vec<Option<&'static str>>,
    found: Found,
    faults: Vec<Fault>,
}

impl Walk<'_> {
    fn rings(&mut self, rings: &Rings) {
        match rings.rx.unread() {
            Ok(all) => self.found.rx += self.meet("RX", Place::Fill, all.map(|d| d.address)),
            Err(source) => self.faults.push(Fault::Ring { ring: "RX", source }),
        }
        match rings.fill.unconsumed() {
            Ok(all) => self.found.fill += self.meet("FILL", Place::Fill, all),
            Err(source) => self.faults.push(Fault::Ring { ring: "FILL", source }),
        }
        match rings.completion.unread() {
            Ok(all) => self.found.completion += self.meet("COMPLETION", Place::Tx, all),
            Err(source) => self.faults.push(Fault::Ring { ring: "COMPLETION", source }),
        }
        match rings.tx.unconsumed() {
            Ok(all) => self.found.tx += self.meet("TX", Place::Tx, all.map(|d| d.address)),
            Err(source) => self.faults.push(Fault::Ring { ring: "TX", source }),
        }
    }

    /// How many frames were met there for the first time.
    fn meet(
        &mut self,
        found: &'static str,
        place: Place,
        addresses: impl Iterator<Item = u64>,
    ) -> u64 {
        let inner = self.pool.inner();
        let mut count = 0;
        for address in addresses {
            let frame = address >> inner.shift;
            let index = usize::try_from(frame).unwrap_or(usize::MAX);
            let (Some(met), Some(record)) = (self.met.get_mut(index), inner.records().get(index))
            else {
                self.faults.push(Fault::NoFrame { found, address });
                continue;
            };
            // There is such a record.
            let frame = frame as u32;
            let word = record.load(Relaxed);
            if let Some(first) = *met {
                self.faults.push(Fault::Twice { frame, first, second: found });
                continue;
            }
            *met = Some(found);
            count += 1;
            if !Record::is(word, place, inner.number) {
                self.faults.push(Fault::Record { frame, found, recorded: Record::unpack(word) });
            }
        }
        count
    }

    /// Frames that were in no list and no ring.
    fn records(&mut self) {
        let inner = self.pool.inner();
        for (frame, (word, met)) in inner.records().iter().zip(&self.met).enumerate() {
            let record = Record::unpack(word.load(Relaxed)).filter(|r| r.pool == inner.number);
            let (Some(record), None) = (record, met) else { continue };
            match record.place {
                Place::Held => self.found.held += 1,
                Place::Fill => self.found.kernel_rx += 1,
                Place::Tx => self.found.kernel_tx += 1,
                Place::Away => self.found.away += 1,
                Place::Free => self.faults.push(Fault::Record {
                    // The UMEM has u32 frames.
                    frame: frame as u32,
                    found: "no list",
                    recorded: Some(record),
                }),
            }
        }
    }
}
