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

/// An interrupted trial counts if this share was sent; in a pause of a tenth a device recovers from
/// what it could not bear for long.
const ENOUGH: f64 = 0.9;
/// Trials in a row that are made again: a generator that fails so often is too slow.
const AGAIN: usize = 5;

/// A trial, and what it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub trial: Trial,
    pub loss_ratio: f64,
    /// What it counts for.
    pub seconds: f64,
}

impl Judged {
    /// The generator is known to send so many frames a second; `before` are the trials at this load.
    pub fn new(trial: Trial, sender: f64, before: &[Self]) -> Self {
        let interrupted = trial.fell_short() && trial.load <= sender;
        let (loss_ratio, seconds) = match trial.sent_share() {
            share if interrupted && share >= ENOUGH => {
                (trial.device_loss_ratio(), trial.duration_s * share)
            }
            _ if interrupted && !is_too_slow(before) => (0.0, 0.0),
            _ => (trial.loss_ratio(), trial.duration_s),
        };
        Self { trial, loss_ratio, seconds }
    }

    /// It says nothing, and is made again.
    pub fn is_void(&self) -> bool {
        self.seconds == 0.0
    }

    /// Frames a second that come through.
    pub fn forwarded(&self) -> f64 {
        self.trial.load * (1.0 - self.loss_ratio)
    }
}

/// Whether the generator was kept from sending these trials too often to be just that.
pub(super) fn is_too_slow(trials: &[Judged]) -> bool {
    trials.iter().rev().take_while(|judged| judged.is_void()).count() >= AGAIN
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
