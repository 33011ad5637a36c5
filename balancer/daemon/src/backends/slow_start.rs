//! Slow start: a backend that came up, or may have flows again, gets its weight bit by bit.

use std::time::{Duration, Instant};

/// When a backend began, and how long until it has its whole weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStart {
    pub at: Instant,
    /// In nine steps of the same length.
    pub whole: Duration,
}

const STEPS: u32 = 9;

impl SlowStart {
    /// From now on, in the slow start of a service that has one.
    pub fn begin(whole: Option<Duration>, now: Instant) -> Option<SlowStart> {
        whole.map(|whole| SlowStart { at: now, whole })
    }

    /// Tenths of its weight: 1 at first, 10 at the end.
    pub fn tenths(&self, now: Instant) -> u16 {
        let gone = now.saturating_duration_since(self.at).as_nanos() * u128::from(STEPS);
        let steps = gone / self.whole.as_nanos().max(1);
        1 + steps.min(u128::from(STEPS)) as u16
    }

    /// Percentage of its weight; `None`: all of it.
    pub fn percent(&self, now: Instant) -> Option<u16> {
        Some(10 * self.tenths(now)).filter(|percent| *percent < 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_a_tenth_to_the_whole() {
        let at = Instant::now();
        let rise = SlowStart { at, whole: Duration::from_secs(9) };
        let after = |ms| at + Duration::from_millis(ms);
        let tenths: Vec<u16> =
            [0, 999, 1000, 8999, 9000, 99_000].map(|ms| rise.tenths(after(ms))).into();
        assert_eq!(tenths, [1, 1, 2, 9, 10, 10]);
        assert_eq!(rise.percent(after(4500)), Some(50));
        assert_eq!(rise.percent(after(9000)), None);
    }
}
