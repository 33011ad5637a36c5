//! Finds leaks of frames while the engine runs: from the records beside the frames, which cost the
//! workers nothing to read, and from the number of frames that each worker knows to have.

use std::fmt;
use std::time::{Duration, Instant};

use ringway_xsk::{Aged, Pool, Watch};
use serde::Serialize;

use crate::status::WorkerStatus;

/// A frame that is held for longer is suspect; in milliseconds, the unit of a worker's pool.
const OLD_MS: u32 = 2000;
/// Least time between two searches.
const BETWEEN: Duration = Duration::from_millis(900);

/// Frames of one stage that are never let go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The number of their worker.
    pub worker: usize,
    /// The stage that had them last: "l2fwd: received".
    pub stage: String,
    pub frames: u32,
    /// Age of the oldest, in milliseconds.
    pub oldest_ms: u32,
    /// The number of the oldest.
    pub frame: u32,
    /// Always true. In 0.1.0 an app could hold packets, too; the key stays for who reads it.
    pub lost: bool,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, stage, frames, frame, .. } = self;
        let seconds = f64::from(self.oldest_ms) / 1000.0;
        write!(
            f,
            "worker {worker} has lost {frames} frames of stage `{stage}`, the oldest (frame {frame}) for {seconds:.1} s"
        )
    }
}

/// Remembers its findings from search to search.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    looked: Option<Instant>,
    suspects: Vec<Aged>,
    leaks: Vec<Leak>,
}

impl Detector {
    /// Searches for leaks; call it about once a second. Worker n has pool n. Without records of
    /// frames, those of a worker's are leaked that it has not known between two rounds.
    pub(crate) fn sample(&mut self, watch: Option<Watch>, workers: &[WorkerStatus]) -> Vec<Leak> {
        let Some(mut watch) = watch else { return workers.iter().filter_map(nameless).collect() };
        if self.looked.is_none_or(|looked| looked.elapsed() >= BETWEEN) {
            self.looked = Some(Instant::now());
            let mut aged = Vec::new();
            watch.aged(u32::MAX, OLD_MS, &mut aged);
            let leaked = aged.iter().filter(|aged| self.is_leaked(aged, workers));
            self.leaks = leaked.map(|aged| of(aged, &watch)).collect();
            self.suspects = aged;
        }
        self.leaks.clone()
    }

    /// Whether the same oldest frame, and no fewer of its stage, were found before. A packet that
    /// waits for a port is old, too, and no leak.
    fn is_leaked(&self, aged: &Aged, workers: &[WorkerStatus]) -> bool {
        let same = |was: &Aged| {
            (was.pool, was.stage, was.frame) == (aged.pool, aged.stage, aged.frame)
                && was.frames <= aged.frames
        };
        let worker = workers.iter().find(|worker| worker.worker == usize::from(aged.pool));
        worker.is_some_and(|worker| worker.frames.lost_frames > 0) && self.suspects.iter().any(same)
    }
}

fn nameless(worker: &WorkerStatus) -> Option<Leak> {
    let frames = u32::try_from(worker.frames.lost_frames).unwrap_or(u32::MAX);
    let leak = Leak {
        worker: worker.worker,
        stage: worker.app.clone(),
        frames,
        oldest_ms: 0,
        frame: 0,
        lost: true,
    };
    (frames > 0).then_some(leak)
}

fn of(aged: &Aged, watch: &Watch) -> Leak {
    let stage = watch.stage_name(aged.pool, aged.stage);
    let (frames, oldest_ms, frame) = (aged.frames, aged.oldest, aged.frame);
    Leak { worker: aged.pool.into(), stage, frames, oldest_ms, frame, lost: true }
}

/// The frames still held in a pool whose worker has ended and freed all that it knew.
pub(crate) fn left_behind(mut watch: Watch, pool: &Pool) -> Vec<Leak> {
    // One more than now, so that a frame that was lost just now has an age, too.
    pool.set_now(watch.now(pool.number()).wrapping_add(1));
    let (pool, mut aged) = (pool.number(), Vec::new());
    watch.aged(u32::MAX, 0, &mut aged);
    aged.iter().filter(|aged| aged.pool == pool).map(|aged| of(aged, &watch)).collect()
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
