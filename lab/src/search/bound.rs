//! What the trials at one load say: RFC 9971, appendices A and B.

use super::goal::Target;
use super::trial::Trial;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Lower,
    Upper,
    /// More trials may make it either.
    Undecided,
}

/// A trial, and what it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub trial: Trial,
    pub loss_ratio: f64,
    /// What it counts for.
    pub seconds: f64,
}

impl Judged {
    /// The generator is known to send so many frames a second.
    pub fn new(trial: Trial, sender: f64) -> Self {
        if trial.fell_short() && trial.load <= sender {
            let (loss_ratio, seconds) = (trial.device_loss_ratio(), trial.offered_s());
            return Self { trial, loss_ratio, seconds };
        }
        Self { trial, loss_ratio: trial.loss_ratio(), seconds: trial.duration_s }
    }

    /// Frames a second that come through.
    pub fn forwarded(&self) -> f64 {
        self.trial.load * (1.0 - self.loss_ratio)
    }
}

/// A load is decided when it is the same whether all trials that are missing go well or badly.
pub(super) fn classify(target: &Target, trials: &[Judged]) -> Bound {
    let Target { loss_ratio, exceed_ratio, trial_s, sum_s, .. } = *target;
    let (mut low_s, mut high_s, mut short_low_s, mut short_high_s) = (0.0, 0.0, 0.0, 0.0);
    for judged in trials {
        let long = judged.trial.duration_s >= trial_s;
        let sum = match (long, judged.loss_ratio > loss_ratio) {
            (true, false) => &mut low_s,
            (true, true) => &mut high_s,
            (false, false) => &mut short_low_s,
            (false, true) => &mut short_high_s,
        };
        *sum += judged.seconds;
    }
    // Short trials with little loss prove nothing; they only make up for short ones with much.
    let made_up_s = short_low_s * exceed_ratio / (1.0 - exceed_ratio);
    let high_s = high_s + f64::max(0.0, short_high_s - made_up_s);
    let whole_s = f64::max(high_s + low_s, sum_s);
    let may_exceed_s = whole_s * exceed_ratio;
    let (optimistic, pessimistic) = (high_s <= may_exceed_s, whole_s - low_s <= may_exceed_s);
    match (optimistic, pessimistic) {
        (true, true) => Bound::Lower,
        (false, false) => Bound::Upper,
        _ => Bound::Undecided,
    }
}

/// The greatest loss ratio of the long trials that must be good at a lower bound, best first; what
/// is missing of them counts as lost.
pub(super) fn quantile_loss(target: &Target, trials: &[Judged]) -> f64 {
    let long = |judged: &&Judged| judged.trial.duration_s >= target.trial_s;
    let mut long: Vec<&Judged> = trials.iter().filter(long).collect();
    long.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
    let all_s = long.iter().map(|judged| judged.seconds).sum::<f64>().max(target.sum_s);
    let mut left_s = all_s * (1.0 - target.exceed_ratio);
    for judged in long {
        left_s -= judged.seconds;
        if left_s <= 0.0 {
            return judged.loss_ratio;
        }
    }
    1.0
}
