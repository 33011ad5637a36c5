//! Times as bpf/arrive.bpf.c counts them, and whether they can be told from the tester's own.

use serde::Serialize;

use crate::harness::median::middle;

/// Of a nanosecond count's highest bit, the five below it: 3 % apart.
const SHIFT: usize = 5;
/// A time below so many times the tester's own is not measurable.
const MEASURABLE: f64 = 3.0;

/// How often each time was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram(Vec<u64>);

/// Microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Percentiles {
    /// Each the middle one; none of none.
    pub(super) fn middle<'t>(all: impl Iterator<Item = &'t Self>) -> Option<Self> {
        let all: Vec<&Self> = all.collect();
        let of = |of: fn(&Self) -> f64| middle(all.iter().map(|times| of(times)));
        Some(Self {
            p50_us: of(|times| times.p50_us)?,
            p99_us: of(|times| times.p99_us)?,
            p999_us: of(|times| times.p999_us)?,
            max_us: of(|times| times.max_us)?,
        })
    }
}

impl Histogram {
    /// Of all ways together.
    pub(super) fn of<const N: usize>(ways: &[[u64; N]]) -> Self {
        Self((0..N).map(|at| ways.iter().map(|way| way[at]).sum()).collect())
    }

    /// Those of another trial, too.
    pub(super) fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    /// None where no frame came.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let all: u64 = self.0.iter().sum();
        let at = |share: f64| {
            let wanted = ((all as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let bucket = self.0.iter().position(|times| {
                seen += times;
                seen >= wanted
            });
            bucket.map(|bucket| middle_ns(bucket) / 1000.0)
        };
        Some(Percentiles {
            p50_us: at(0.5)?,
            p99_us: at(0.99)?,
            p999_us: at(0.999)?,
            max_us: at(1.0)?,
        })
    }
}

/// The middle of what a bucket counts.
fn middle_ns(bucket: usize) -> f64 {
    if bucket < 1 << SHIFT {
        return bucket as f64;
    }
    let (bit, below) = ((bucket >> SHIFT) - 1, bucket & ((1 << SHIFT) - 1));
    let step = (1u64 << bit) as f64;
    ((1 << SHIFT) + below) as f64 * step + step / 2.0
}

/// A time beside the tester's own; not measurable below three times that.
pub(crate) fn measurable(time_us: f64, own_us: f64) -> Option<f64> {
    (time_us >= MEASURABLE * own_us).then_some(time_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As bpf/arrive.bpf.c has it.
    fn bucket(ns: u64) -> usize {
        if ns < 1 << SHIFT {
            return ns as usize;
        }
        let bit = ns.ilog2() as usize;
        (bit - SHIFT + 1) << SHIFT | (ns >> (bit - SHIFT)) as usize & ((1 << SHIFT) - 1)
    }

    #[test]
    fn buckets_are_three_percent_wide() {
        for ns in (0..10_000).chain([123_456, 1_000_000_007, (1 << 47) + 12_345]) {
            let middle = middle_ns(bucket(ns));
            assert!((middle - ns as f64).abs() <= ns as f64 * 0.016 + 0.5, "{ns}: {middle}");
        }
        assert_eq!((bucket(31), bucket(32), bucket(33), bucket(64)), (31, 32, 33, 64));
    }

    #[test]
    fn percentiles_of_both_ways() {
        let mut ways = [[0; 48 << SHIFT]; 2];
        ways[0][bucket(1000)] = 985;
        ways[1][bucket(100_000)] = 15;
        let mut both = Histogram::of(&ways);
        let found = both.percentiles().unwrap();
        assert!((found.p50_us - 1.0).abs() < 0.02, "{found:?}");
        assert!((found.p99_us - 100.0).abs() < 2.0, "{found:?}");
        both.add(&Histogram::of(&[[1000; 1]]));
        assert_eq!(both.percentiles().unwrap().p50_us, 0.0);
        assert_eq!(Histogram::default().percentiles(), None);
    }

    #[test]
    fn what_the_tester_hides_is_not_measurable() {
        assert_eq!(measurable(3.0, 1.0), Some(3.0));
        assert_eq!(measurable(2.9, 1.0), None);
    }
}
