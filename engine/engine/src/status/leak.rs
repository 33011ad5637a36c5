//! Finds who does not let frames go, while the engine runs: from the records beside the frames, which take nothing from the workers
//! to be read, and from what each worker knows to have.

use std::fmt;
use std::time::{Duration, Instant};

use ringway_xsk::{Aged, Pool, Watch};
use serde::Serialize;

use crate::status::WorkerStatus;

/// A frame that is held for longer is looked at, in milliseconds, which are the unit of a worker's pool.
const OLD_MS: u32 = 2000;
/// Looks follow each other no faster.
const BETWEEN: Duration = Duration::from_millis(900);
/// Looks that find the same oldest frame, and no fewer of its stage, before frames that a worker knows of count as leaked.
const PATIENCE: u32 = 3;

/// Frames of one stage that are never let go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The number of the worker whose they are.
    pub worker: usize,
    /// What had them last: "l2fwd: received".
    pub stage: String,
    /// How many.
    pub frames: u32,
    /// Since when the oldest is held, in milliseconds.
    pub oldest_ms: u32,
    /// The number of the oldest.
    pub frame: u32,
    /// Whether nobody has them any more; else the app holds them, and more and more.
    pub lost: bool,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, stage, frames, frame, .. } = self;
        let how = if self.lost { "has lost" } else { "holds, and does not let go," };
        let seconds = f64::from(self.oldest_ms) / 1000.0;
        write!(
            f,
            "worker {worker} {how} {frames} frames of stage `{stage}`, the oldest (frame {frame}) for {seconds:.1} s"
        )
    }
}

/// Remembers what it found from look to look.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    looked: Option<Instant>,
    suspects: Vec<Suspect>,
    leaks: Vec<Leak>,
}

/// Old frames of one pool and stage.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    aged: Aged,
    /// How many there were at first.
    first: u32,
    /// How often the same oldest was found, and no fewer.
    looks: u32,
}

impl Detector {
    /// To be asked about once a second. Worker n has pool n.
    pub(crate) fn sample(&mut self, mut watch: Watch, workers: &[WorkerStatus]) -> Vec<Leak> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= BETWEEN) {
            self.looked = Some(Instant::now());
            let mut aged = Vec::new();
            watch.aged(u32::MAX, OLD_MS, &mut aged);
            self.suspects = aged.into_iter().map(|aged| self.suspect(aged)).collect();
            let leak = |suspect: &Suspect| leak(suspect, &watch, workers);
            self.leaks = self.suspects.iter().filter_map(leak).collect();
        }
        self.leaks.clone()
    }

    fn suspect(&self, aged: Aged) -> Suspect {
        let before = self.suspects.iter().find(|suspect| {
            let was = &suspect.aged;
            (was.pool, was.stage, was.frame) == (aged.pool, aged.stage, aged.frame)
                && was.frames <= aged.frames
        });
        let (first, looks) = before.map_or((aged.frames, 0), |s| (s.first, s.looks + 1));
        Suspect { aged, first, looks }
    }
}

/// What waits for a port that does not take it is old, too, and an app may hold a packet for long: neither is a leak.
fn leak(suspect: &Suspect, watch: &Watch, workers: &[WorkerStatus]) -> Option<Leak> {
    let aged = &suspect.aged;
    let worker = workers.iter().find(|worker| worker.worker == usize::from(aged.pool))?;
    let lost = worker.frames.lost_frames > 0 && suspect.looks > 0;
    // It grows, or has grown as far as it can.
    let grows = aged.frames > suspect.first
        || worker.frames.free_frames == 0
        || worker.packets.dropped.iter().any(|d| d.reason == crate::Reason::HoldFull.name());
    let kept = worker.packets.held_packets > 0 && suspect.looks >= PATIENCE && grows;
    (lost || kept).then(|| of(aged, watch, lost))
}

fn of(aged: &Aged, watch: &Watch, lost: bool) -> Leak {
    let stage = watch.stage_name(aged.pool, aged.stage);
    let (frames, oldest_ms, frame) = (aged.frames, aged.oldest, aged.frame);
    Leak { worker: aged.pool.into(), stage, frames, oldest_ms, frame, lost }
}

/// Whatever is held in a pool whose worker has ended and freed all it knew of.
pub(crate) fn left_behind(mut watch: Watch, pool: &Pool) -> Vec<Leak> {
    // What was lost just now has an age, too: nothing is younger than this.
    pool.set_now(watch.now(pool.number()).wrapping_add(1));
    let (pool, mut aged) = (pool.number(), Vec::new());
    watch.aged(u32::MAX, 0, &mut aged);
    aged.iter().filter(|aged| aged.pool == pool).map(|aged| of(aged, &watch, true)).collect()
}

#[cfg(test)]
mod tests {
    use std::mem;

    use ringway_xsk::{Umem, UmemConfig};

    use super::*;

    /// However late it was lost, and of this pool alone.
    #[test]
    fn what_is_lost_last_is_named() {
        let config = UmemConfig { frames: 8, pools: 2, ..UmemConfig::default() };
        let umem = Umem::new(&config).unwrap();
        let (pool, other) = (umem.pool().unwrap(), umem.pool().unwrap());
        pool.name_stage(3, "leaky: received");
        for now in [u32::MAX - 1, u32::MAX] {
            pool.set_now(now);
            pool.set_stage(3);
            mem::forget(pool.allocate());
            mem::forget(other.allocate());
        }
        let [leak] = &*left_behind(umem.watch(), &pool) else { panic!() };
        assert_eq!((&*leak.stage, leak.frames, leak.lost), ("leaky: received", 2, true));
    }
}
