//! What is searched for.

use serde::Serialize;

/// A search goal of RFC 9971, section 4.6.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The greatest loss ratio of a trial that is low enough.
    pub loss_ratio: f64,
    /// The share of the trials' time, below 1, that may have more loss at a lower bound.
    pub exceed_ratio: f64,
    /// The shortest trials, with which the search begins.
    pub initial_trial_s: f64,
    /// The trials that count in full.
    pub final_trial_s: f64,
    /// All trials of a bound together.
    pub duration_sum_s: f64,
    /// Of the upper bound: how far the lower one may be below it.
    pub width: f64,
}

/// A goal that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum GoalError {
    #[error(
        "loads from {min} to {max} frames/s are no range; write the smaller one first, above 0"
    )]
    Range { min: f64, max: f64 },
    #[error("a goal's {what} of {is} cannot be; write {wanted}")]
    Outside { what: &'static str, is: f64, wanted: &'static str },
}

impl Goal {
    /// Throughput as RFC 2544, section 26.1, has it.
    pub const RFC2544: Self = Self {
        loss_ratio: 0.0,
        exceed_ratio: 0.0,
        initial_trial_s: 1.0,
        final_trial_s: 60.0,
        duration_sum_s: 60.0,
        width: 0.005,
    };
    /// As ETSI GS NFV-TST 009 has it: one of two trials may lose frames.
    pub const TST009: Self = Self { exceed_ratio: 0.5, duration_sum_s: 120.0, ..Self::RFC2544 };

    pub(super) fn check(&self) -> Result<(), GoalError> {
        let ratio = "a ratio from 0 to below 1";
        let at_least = "a time of at least the one before it: initial trial, final trial, sum";
        for (what, is, fine, wanted) in [
            ("loss ratio", self.loss_ratio, (0.0..1.0).contains(&self.loss_ratio), ratio),
            ("exceed ratio", self.exceed_ratio, (0.0..1.0).contains(&self.exceed_ratio), ratio),
            ("width", self.width, self.width > 0.0 && self.width < 1.0, "a ratio between 0 and 1"),
            ("initial trial", self.initial_trial_s, self.initial_trial_s > 0.0, "a time above 0 s"),
            (
                "final trial",
                self.final_trial_s,
                self.final_trial_s >= self.initial_trial_s,
                at_least,
            ),
            ("sum", self.duration_sum_s, self.duration_sum_s >= self.final_trial_s, at_least),
        ] {
            if !fine || !is.is_finite() {
                return Err(GoalError::Outside { what, is, wanted });
            }
        }
        Ok(())
    }

    /// Bounds four times and twice as far apart, from fewer and shorter trials, then its own.
    pub(super) fn targets(&self, width: u32) -> Vec<Target> {
        let whole = self.duration_sum_s;
        let sums = [self.initial_trial_s, (self.initial_trial_s * whole).sqrt(), whole];
        let target = |(sum_s, wider): (f64, u32)| Target {
            loss_ratio: self.loss_ratio,
            exceed_ratio: self.exceed_ratio,
            trial_s: self.final_trial_s.min(sum_s),
            sum_s,
            width: width * wider,
        };
        sums.into_iter().zip([4, 2, 1]).map(target).collect()
    }
}

/// A goal, or one on the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub loss_ratio: f64,
    pub exceed_ratio: f64,
    pub trial_s: f64,
    pub sum_s: f64,
    /// In steps of the grid.
    pub width: u32,
}
