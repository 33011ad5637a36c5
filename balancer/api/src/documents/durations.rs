//! How long checks took, counted by upper bounds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds.
pub const BOUNDS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Durations as they are counted.
#[derive(Debug, Default)]
pub struct Durations {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Of each bound what was at most that and more than the bound before; last what was more than
    /// all.
    pub counts: [u64; BOUNDS.len() + 1],
    pub sum_us: u64,
}

impl Durations {
    /// One check took so long.
    pub fn count(&self, took: Duration) {
        let place = BOUNDS.partition_point(|bound| *bound < took.as_secs_f64());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Counters so far.
    pub fn counted(&self) -> Counted {
        let counts = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Counted { counts, sum_us: self.sum_us.load(Ordering::Relaxed) }
    }
}

impl Counted {
    pub fn add(&mut self, other: &Counted) {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, more)| *own += more);
        self.sum_us += other.sum_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_bound() {
        let durations = Durations::default();
        for us in [1, 1000, 1001, 4_000_000, 5_000_001] {
            durations.count(Duration::from_micros(us));
        }
        let mut counted = durations.counted();
        let want = [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
        assert_eq!((counted.counts, counted.sum_us), (want, 9_002_003));
        counted.add(&durations.counted());
        assert_eq!(counted.counts[0], 4);
    }
}
