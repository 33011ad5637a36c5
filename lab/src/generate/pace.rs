//! When packets may be sent.

use std::time::Duration;

/// How much of what was missed is caught up with: this time's worth, at once. What was missed
/// before is never sent, and is the difference between intended and sent.
const CATCH_UP: Duration = Duration::from_millis(10);

const SECOND: u128 = 1_000_000_000;

/// A rate, kept evenly. Units are packets or bits, as the caller likes.
///
/// Never more is spent than the rate allows until then; after a stall, no more than some
/// milliseconds' worth and the packet that had begun comes at once.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: u64,
    /// Billionths of units that may be spent, and how many there may be.
    credit: u128,
    limit: u128,
    /// Nanoseconds since the beginning.
    elapsed: u64,
}

impl Pace {
    /// Of `rate` units a second, at least 1, of which a packet takes `most` at most.
    pub fn new(rate: u64, most: u64) -> Self {
        Self::catching_up(rate, most, CATCH_UP)
    }

    /// The same; this time's worth is caught up with.
    pub fn catching_up(rate: u64, most: u64, catch_up: Duration) -> Self {
        let rate = rate.max(1);
        let limit = u128::from(rate) * catch_up.as_nanos() + u128::from(most) * SECOND;
        Self { rate, credit: 0, limit, elapsed: 0 }
    }

    /// It is so many nanoseconds since the beginning. Time does not go back: less than before is
    /// the same as before.
    #[inline]
    pub fn advance(&mut self, elapsed: u64) {
        let passed = elapsed.saturating_sub(self.elapsed);
        self.elapsed += passed;
        let earned = u128::from(self.rate) * u128::from(passed);
        self.credit = (self.credit + earned).min(self.limit);
    }

    /// Whether so many units may be spent now.
    #[inline]
    pub fn allows(&self, units: u64) -> bool {
        self.credit >= u128::from(units) * SECOND
    }

    /// Units that may be spent now.
    pub fn allowance(&self) -> u64 {
        (self.credit / SECOND) as u64
    }

    /// They are spent, which is allowed.
    #[inline]
    pub fn spend(&mut self, units: u64) {
        debug_assert!(self.allows(units));
        self.credit = self.credit.saturating_sub(u128::from(units) * SECOND);
    }

    /// How long until so many units may be spent.
    pub fn wait(&self, units: u64) -> Duration {
        let missing = (u128::from(units) * SECOND).saturating_sub(self.credit);
        Duration::from_nanos(missing.div_ceil(self.rate.into()) as u64)
    }

    /// Units that were to be spent until now.
    pub fn intended(&self) -> u64 {
        (u128::from(self.rate) * u128::from(self.elapsed) / SECOND) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The units that a greedy sender spends, packet by packet.
    fn spent(pace: &mut Pace, units: u64) -> u64 {
        let (mut spent, allowance) = (0, pace.allowance());
        while pace.allows(units) {
            pace.spend(units);
            spent += units;
        }
        assert_eq!(spent, allowance - allowance % units);
        spent
    }

    proptest! {
        #[test]
        fn never_more_than_intended(
            rate in 1..100_000_000_u64,
            units in 1..13_000_u64,
            steps in proptest::collection::vec(0..1_000_000_u64, 1..50),
        ) {
            let mut pace = Pace::new(rate, units);
            let (mut now, mut all) = (0, 0);
            for step in steps {
                now += step;
                pace.advance(now);
                let burst = spent(&mut pace, units);
                all += burst;
                let allowed = u128::from(rate) * u128::from(now) / SECOND;
                prop_assert!(u128::from(all) <= allowed, "{} of {}", all, allowed);
                prop_assert_eq!(u128::from(pace.intended()), allowed);
            }
        }

        #[test]
        fn all_of_it_by_whoever_is_never_late(
            rate in 1..10_000_000_u64,
            steps in proptest::collection::vec(1..9_999_999_u64, 1..50),
        ) {
            let mut pace = Pace::new(rate, 1);
            let (mut now, mut all) = (0, 0);
            for step in steps {
                now += step;
                pace.advance(now);
                all += spent(&mut pace, 1);
            }
            prop_assert_eq!(all, pace.intended());
        }

        #[test]
        fn a_stall_is_caught_up_with_by_no_more_than_a_burst(
            rate in 1..100_000_000_u64,
            units in 1..13_000_u64,
            stall in 0..u64::MAX / 2,
        ) {
            let mut pace = Pace::new(rate, units);
            pace.advance(stall);
            let most = u128::from(rate) * CATCH_UP.as_nanos() / SECOND + u128::from(units);
            prop_assert!(u128::from(spent(&mut pace, units)) <= most);
            let wait = pace.wait(units);
            pace.advance(stall + wait.as_nanos() as u64);
            prop_assert!(pace.allows(units), "after {:?}", wait);
            prop_assert!(wait > Duration::ZERO);
        }
    }

    #[test]
    fn evenly() {
        let mut pace = Pace::new(100_000, 1);
        let each = (1..=1000_u64).map(|n| {
            pace.advance(n * 10_000);
            spent(&mut pace, 1)
        });
        assert!(each.eq(std::iter::repeat_n(1, 1000)), "a packet every ten microseconds");
        pace.advance(0);
        assert_eq!(pace.intended(), 1000);
    }

    #[test]
    fn a_stall_is_caught_up_with_as_far_as_it_may_be() {
        for (catch_up, of_the_rate) in [(10, 40), (100, 100)] {
            let mut pace = Pace::catching_up(100_000, 1, Duration::from_millis(catch_up));
            let each = (1..=40_u64).map(|n| {
                pace.advance(n * 25_000_000);
                spent(&mut pace, 1)
            });
            assert_eq!(each.sum::<u64>() / 1000, of_the_rate);
        }
    }
}
