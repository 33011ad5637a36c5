//! How long a worker that has nothing to do looks on before it sleeps.
//!
//! To look costs the processor for as long as it lasts, to sleep what a system call and a wake-up
//! cost. So it looks for about as long as that, which is never much worse than what a prophet would
//! do; and for less and less where that brought nothing: packets then come in bursts that are
//! further apart than it looks. Now and then it tries the whole time again.

use std::time::Duration;

/// About what it costs to sleep and to be woken.
const SLEEPS_COST: Duration = Duration::from_micros(10);
/// Below this share of it there is no use in looking.
const LEAST: u64 = 16;
/// One of so many sleeps has the whole time before it, whatever came of it before.
const TRIES: u32 = 64;

/// How long to look, by what came of it.
#[derive(Debug)]
pub(crate) struct PollBudget {
    most: u64,
    now: u64,
    in_vain: u32,
}

impl PollBudget {
    /// Of a counter with this rate.
    pub(crate) fn new(per_second: u64) -> Self {
        let most = (SLEEPS_COST.as_secs_f64() * per_second as f64) as u64;
        Self { most, now: most, in_vain: 0 }
    }

    /// Whether it has looked long enough.
    #[inline]
    pub(crate) fn is_over(&self, polled_cycles: u64) -> bool {
        polled_cycles > self.now
    }

    /// Something came while it looked.
    #[inline]
    pub(crate) fn paid(&mut self) {
        self.now = self.most;
    }

    /// Nothing came, and it goes to sleep.
    pub(crate) fn was_in_vain(&mut self) {
        self.in_vain = self.in_vain.wrapping_add(1);
        let half = self.now / 2;
        self.now = match self.in_vain.is_multiple_of(TRIES) {
            true => self.most,
            false if half < self.most / LEAST => 0,
            false => half,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it looks before each of so many sleeps.
    fn before_sleeps(poll_budget: &mut PollBudget, sleeps: usize) -> Vec<u64> {
        let sleep = |_| {
            let now = poll_budget.now;
            assert!(poll_budget.is_over(now + 1) && !poll_budget.is_over(now));
            poll_budget.was_in_vain();
            now
        };
        (0..sleeps).map(sleep).collect()
    }

    #[test]
    fn less_and_less_where_nothing_comes() {
        let mut poll_budget = PollBudget::new(1_600_000);
        assert_eq!(before_sleeps(&mut poll_budget, 7), [16, 8, 4, 2, 1, 0, 0]);
    }

    #[test]
    fn the_whole_time_once_it_paid() {
        let mut poll_budget = PollBudget::new(1_600_000);
        before_sleeps(&mut poll_budget, 10);
        poll_budget.paid();
        assert_eq!(before_sleeps(&mut poll_budget, 3), [16, 8, 4]);
    }

    #[test]
    fn it_tries_again() {
        let mut poll_budget = PollBudget::new(1_600_000);
        let times = before_sleeps(&mut poll_budget, 200);
        let whole: Vec<_> = (0..200).filter(|n| times[*n] == 16).collect();
        assert_eq!(whole, [0, 64, 128, 192]);
    }
}
