//! A figure of several rounds.

use crate::harness::median::middle;

/// The middle of the rounds, and how far they are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figure {
    pub middle: f64,
    /// From the least to the most, in the figure's unit.
    pub apart: f64,
}

impl Figure {
    /// None without any that is positive.
    pub(super) fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let rounds: Vec<f64> = rounds.into_iter().filter(|n| n.is_finite() && *n > 0.0).collect();
        let least = rounds.iter().copied().reduce(f64::min)?;
        let most = rounds.iter().copied().reduce(f64::max)?;
        Some(Self { middle: middle(rounds)?, apart: most - least })
    }

    /// Of packets a second: nanoseconds.
    pub(super) fn per_second(rounds: &[u64]) -> Option<Self> {
        Self::of(rounds.iter().filter(|pps| **pps > 0).map(|pps| 1e9 / *pps as f64))
    }

    /// Both, one after the other.
    pub(super) fn and(self, other: Self) -> Self {
        Self { middle: self.middle + other.middle, apart: self.apart + other.apart }
    }

    /// By so much more than another, so often; never less than nothing.
    pub(super) fn more_than(self, other: Self, times: f64) -> Self {
        Self {
            middle: (self.middle - other.middle).max(0.0) * times,
            apart: (self.apart + other.apart) * times,
        }
    }

    pub(super) fn spread(self) -> f64 {
        self.apart / self.middle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_and_spreads() {
        let figure = Figure::of([30.0, 10.0, 20.0, 0.0, f64::NAN]).unwrap();
        assert_eq!(figure, Figure { middle: 20.0, apart: 20.0 });
        assert!((figure.spread() - 1.0).abs() < 1e-9);
        assert_eq!(Figure::of([10.0, 20.0]).unwrap().middle, 15.0);
        assert_eq!(Figure::of([0.0]), None);
        assert_eq!(Figure::per_second(&[0, 1_000_000]).unwrap().middle, 1000.0);
    }

    #[test]
    fn sums_keep_their_spread() {
        let (a, b) = (Figure { middle: 50.0, apart: 5.0 }, Figure { middle: 20.0, apart: 1.0 });
        assert_eq!(a.and(b), Figure { middle: 70.0, apart: 6.0 });
        assert_eq!(a.more_than(b, 2.0), Figure { middle: 60.0, apart: 12.0 });
        assert_eq!(b.more_than(a, 2.0).middle, 0.0);
    }
}
