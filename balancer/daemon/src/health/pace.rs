//! When checks begin: spread in time, so that thousands make no bursts.
//!
//! First checks: [`AT_ONCE`] at once, the others evenly over the next second, or one interval where
//! that is shorter. From the third on, a target keeps a place of its own in the interval, and any
//! run of targets is spread over the whole of it. No gap between two checks of a target is shorter
//! than half the interval or longer than the interval.

use std::time::Duration;

/// First checks that begin at once.
const AT_ONCE: usize = 256;
/// The other first checks begin within this.
const FIRST_ROUND: Duration = Duration::from_secs(1);
/// 2^32 times the fractional part of the golden ratio: multiples of it are spread evenly over the
/// circle, however many follow each other.
const GOLDEN: u32 = 0x9e37_79b9;

/// When one target is checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// From the start to the first check.
    pub first: Duration,
    /// To the second, and from there to the third. Later ones follow by the interval.
    pub gap: Duration,
}

impl Pace {
    /// Of the target with this number, which is at `place` among `count` that start together.
    pub fn new(number: usize, place: usize, count: usize, interval: Duration) -> Pace {
        let late = place.saturating_sub(AT_ONCE) as f64;
        let round = FIRST_ROUND.min(interval);
        let first = round.mul_f64(late / count.saturating_sub(AT_ONCE).max(1) as f64);
        let share = f64::from((number as u32).wrapping_mul(GOLDEN)) / f64::from(u32::MAX);
        Pace { first, gap: interval.mul_f64(0.5 + share / 2.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(2);

    #[test]
    fn few_begin_at_once_and_the_rest_within_a_second() {
        assert!((0..256).all(|n| Pace::new(n, n, 256, INTERVAL).first.is_zero()));
        let firsts: Vec<_> = (0..5256).map(|n| Pace::new(n, n, 5256, INTERVAL).first).collect();
        assert!(firsts.is_sorted() && firsts[5255] < FIRST_ROUND);
        // Of 5000, 50 in any hundredth of the second.
        for hundredth in 0..100 {
            let from = Duration::from_millis(10 * hundredth);
            let within = |first: &&Duration| {
                !first.is_zero() && **first >= from && **first < from + Duration::from_millis(10)
            };
            assert!((48..=52).contains(&firsts.iter().filter(within).count()));
        }
        let short = Duration::from_millis(100);
        assert!((0..1000).all(|n| Pace::new(n, n, 1000, short).first < short));
    }

    /// However many there are, and in any run of them, as those of one service.
    #[test]
    fn from_the_third_check_on_no_tenth_of_the_interval_has_more_than_its_share() {
        for (from, to, count) in
            [(0, 10, 10), (0, 200, 200), (30, 60, 200), (0, 4000, 4000), (1000, 1100, 4000)]
        {
            let mut tenths = [0; 10];
            for place in from..to {
                let pace = Pace::new(place, place, count, INTERVAL);
                assert!(pace.gap >= INTERVAL / 2 && pace.gap <= INTERVAL);
                let third = (pace.first + 2 * pace.gap).as_secs_f64() / INTERVAL.as_secs_f64();
                tenths[(third.fract() * 10.0) as usize] += 1;
            }
            let share = (to - from) / 10;
            let most = share + share / 5 + 2;
            assert!(
                tenths.iter().all(|tenth| *tenth <= most),
                "{from}..{to} of {count}: {tenths:?}"
            );
        }
    }
}
