//! The ledger, read beside the workers: by any thread of this process ([`Watch`]), and by another
//! process, which maps the memory so that nothing can be written ([`Inspector`]).

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::{Counts, Label, Place, Record};
use crate::umem::{KERNEL_HEADROOM, Umem, UmemError};

/// Held frames of one pool and stage that are older than they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// The owner's pool number.
    pub pool: u8,
    /// The application's stage that had them last.
    pub stage: u8,
    /// Number of frames.
    pub frames: u32,
    /// Age of the oldest, in the pool's time.
    pub oldest: u32,
    /// Number of the oldest.
    pub frame: u32,
}

/// The ledger, read beside the workers. Different frames may be seen at different moments.
#[derive(Clone, Debug)]
pub struct Watch {
    umem: Umem,
    /// The next frame to be looked at.
    cursor: u32,
}

impl Watch {
    /// The counters of a pool.
    ///
    /// # Panics
    /// There is no such pool.
    pub fn counts(&self, pool: u8) -> Counts {
        self.umem.account(pool).ledger.read()
    }

    /// The number of pools.
    pub fn pools(&self) -> u8 {
        self.umem.layout().pools
    }

    /// The number of frames.
    pub fn frames(&self) -> u32 {
        self.umem.frames()
    }

    /// The time of a pool, which its worker sets: ages are told from it.
    ///
    /// # Panics
    /// There is no such pool.
    pub fn now(&self, pool: u8) -> u32 {
        self.umem.account(pool).legend.now.load(Relaxed)
    }

    /// The name that a pool's worker gave a stage; empty if it has none.
    ///
    /// # Panics
    /// There is no such pool.
    pub fn stage_name(&self, pool: u8, stage: u8) -> String {
        let stages = &self.umem.account(pool).legend.stages;
        stages.get(usize::from(stage)).map(Label::read).unwrap_or_default()
    }

    /// The name of a pool's queue: "eth0, queue 3"; empty if it has none.
    ///
    /// # Panics
    /// There is no such pool.
    pub fn queue_name(&self, pool: u8, queue: u8) -> String {
        let queues = &self.umem.account(pool).legend.queues;
        queues.get(usize::from(queue)).map(Label::read).unwrap_or_default()
    }

    /// The record of a frame; none if there is no such frame, or its pool was never opened.
    pub fn record(&self, frame: u32) -> Option<Record> {
        Record::unpack(self.umem.records().get(frame as usize)?.load(Relaxed))
    }

    /// Reads up to `frames` further records, and adds held frames that are older than `limit`, in
    /// their pool's time, to `found`: an entry for each pool and stage. True if the last frame was
    /// among them, so that the next call begins anew.
    ///
    /// A record is eight bytes, and reading it takes nothing from the worker but a cache line now
    /// and then.
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

impl Umem {
    /// The ledger, for any thread to read while workers continue.
    pub fn watch(&self) -> Watch {
        Watch { umem: self.clone(), cursor: 0 }
    }
}

/// The memory of another process, which continues meanwhile: nothing is locked, and the process
/// does not notice.
#[derive(Debug)]
pub struct Inspector {
    umem: Umem,
}

impl Inspector {
    /// Of the other's [`Umem::file`]: handed over, or found under /proc/PID/fd, where it is called
    /// `memfd:ringway-umem`. It need not be open for writing.
    ///
    /// # Errors
    /// [`UmemError::Foreign`], [`UmemError::Memory`].
    pub fn of_file(file: OwnedFd) -> Result<Self, UmemError> {
        Umem::read_only(file).map(|umem| Self { umem })
    }

    /// Watches the ledger for leaks.
    pub fn watch(&self) -> Watch {
        self.umem.watch()
    }

    /// Bytes of the frames, and of the ledger behind them.
    pub fn sizes(&self) -> (usize, usize) {
        let (_, frames, ledger) = self.umem.place();
        (frames, ledger)
    }

    /// A frame's bytes from the start of received packets to its end; empty if there is no such
    /// frame. Only its owner knows the packet's length. Bytes that are written meanwhile may be
    /// read in part.
    pub fn packet(&self, frame: u32) -> Vec<u8> {
        let layout = self.umem.layout();
        if frame >= layout.frames {
            return Vec::new();
        }
        let begin = (KERNEL_HEADROOM + layout.headroom) as usize;
        let frame_begin = (frame as usize) << layout.chunk.shift();
        let byte = |n: usize| {
            // SAFETY: within the mapping, as the frame is. Others write there, in another process:
            // read as it happens to be, once.
            unsafe { self.umem.base().add(frame_begin + n).read_volatile() }
        };
        (begin..layout.chunk.bytes() as usize).map(byte).collect()
    }

    /// Every frame with its record.
    pub fn records(&self) -> impl Iterator<Item = (u32, Record)> {
        let known = |(n, word): (u32, &AtomicU64)| Some((n, Record::unpack(word.load(Relaxed))?));
        (0..).zip(self.umem.records()).filter_map(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UmemConfig;

    #[test]
    fn from_outside() {
        let config = UmemConfig { frames: 8, headroom: 32, ..UmemConfig::default() };
        let umem = Umem::new(&config).unwrap();
        let pool = umem.pool().unwrap();
        pool.name_stage(3, "app: third");
        pool.set_now(7);
        let mut packet = pool.allocate().unwrap();
        packet.append(b"hello").unwrap();
        packet.set_stage(3);
        // SAFETY: nothing is written there.
        let file = unsafe { umem.file() }.try_clone_to_owned().unwrap();
        let inspector = Inspector::of_file(file).unwrap();
        let (watch, frame) = (inspector.watch(), packet.frame());
        assert!(inspector.packet(frame).starts_with(b"hello\0"));
        assert_eq!(inspector.packet(frame).len(), 2048 - 256 - 32);
        assert!(inspector.packet(8).is_empty());
        let held: Vec<_> =
            inspector.records().filter(|(_, record)| record.place == Place::Held).collect();
        assert_eq!(held, [(frame, Record { place: Place::Held, pool: 0, stage: 3, since: 7 })]);
        assert_eq!((watch.now(0), &*watch.stage_name(0, 3)), (7, "app: third"));
        assert_eq!(watch.stage_name(0, 200), "");
    }
}
