//! The state that a predecessor left in memory that is taken over: the free frames, and those that
//! the kernel has.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::{Counts, Place, Record};
use crate::umem::kernel_frames::{KernelFrames, QUEUES};

/// A copy of all records. Others can write the memory at any time, so each record is read once:
/// then a frame that one pool takes over is no other's.
#[derive(Debug)]
pub(crate) struct Inheritance(Box<[u64]>);

/// The frames that one pool takes over.
#[derive(Debug)]
pub(crate) struct Share {
    /// Frames on its list.
    pub(crate) free: Vec<u32>,
    /// Frames that were between two pools, and are nobody's any more.
    pub(crate) away: Vec<u32>,
    pub(crate) kernel: KernelFrames,
}

impl Share {
    /// Of a memory of so many frames.
    pub(crate) fn none(frames: usize) -> Self {
        Self { free: Vec::new(), away: Vec::new(), kernel: KernelFrames::none(frames) }
    }
}

impl Inheritance {
    pub(crate) fn read(records: &[AtomicU64]) -> Self {
        Self(records.iter().map(|record| record.load(Relaxed)).collect())
    }

    /// The share of a pool that had `free` frames on its list, as the predecessor says.
    ///
    /// # Errors
    /// Why its ledger is damaged.
    pub(crate) fn of_pool(&self, pool: u8, free: u32, counts: &Counts) -> Result<Share, String> {
        let mut share = Share::none(self.0.len());
        let records = (0..).zip(self.0.iter().map(|word| Record::unpack(*word)));
        for (frame, record) in records {
            let Some(Record { place, stage, .. }) = record.filter(|r| r.pool == pool) else {
                continue;
            };
            match place {
                Place::Free => share.free.push(frame),
                Place::Away => share.away.push(frame),
                Place::Held => return Err(format!("frame {frame} is still in a packet")),
                Place::Fill | Place::Tx if stage < QUEUES => share.kernel.lend(frame, place, stage),
                Place::Fill | Place::Tx => {
                    return Err(format!("frame {frame} is with queue {stage}, which cannot be"));
                }
            }
        }
        // The lowest on top, as in a new pool.
        share.free.reverse();
        let [counted, held] = [Place::Free, Place::Held].map(|place| counts.in_place(place));
        let (said, recorded) = (u64::from(free), share.free.len() as u64);
        if [counted, recorded, held] != [said, said, 0] {
            return Err(format!(
                "the predecessor reports {said} free frames; its records show {recorded}, its \
                 counters {counted}, and {held} in packets"
            ));
        }
        Ok(share)
    }
}
