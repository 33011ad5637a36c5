//! How fast a device forwards: MLRsearch (RFC 9971), without I/O. [`Search::next`] says which trial
//! to make, [`Search::add`] takes what came of it, [`Search::outcome`] has what is known so far.
//!
//! RFC 2544's throughput is one goal of it, [`Goal::RFC2544`]: the bounds are trials of 60 s in which
//! nothing may be lost; shorter ones only say where to look.
//!
//! All that is decided is decided from the trials made so far, so there is no other state: of the
//! goal's targets, from coarse to fine, the first one without bounds close enough is worked on, and
//! begins at the bounds of the one before.

mod bound;
mod goal;
mod trial;

#[cfg(test)]
mod oracle;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::goal::{Goal, GoalError};
pub use self::trial::Trial;

use self::bound::{Bound, Judged, classify, is_too_slow, quantile_loss};
use self::goal::Target;

/// Of a load that the generator cannot send, what it may still.
const BELOW: f64 = 0.999;

/// The trial to make next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialPlan {
    /// Frames a second.
    pub load: f64,
    pub duration_s: f64,
}

/// A search for several goals at once, which share their trials.
#[derive(Clone, Debug)]
pub struct Search {
    grid: Grid,
    /// Frames a second that the generator is known to send.
    sender: f64,
    /// Of each goal, from coarse to fine; the last is the goal itself.
    goals: Vec<Vec<Target>>,
    trials: BTreeMap<u32, Vec<Judged>>,
}

/// The bounds of a goal so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The relevant lower bound: the greatest below the smallest upper bound.
    pub lower: Option<f64>,
    /// The smallest upper bound; none where the greatest load is a lower bound.
    pub upper: Option<f64>,
    /// The greatest loss ratio of a trial at the upper bound.
    pub upper_loss_ratio: Option<f64>,
    /// At the upper bound the device lost nothing that was sent to it in time: the generator is what
    /// was measured.
    pub generator_fell_short: bool,
    /// The forwarding rate at the lower bound that the goal's trials support.
    pub conditional_throughput: Option<f64>,
    /// Whether the bounds are as close as the goal wants them.
    pub reached: bool,
}

/// Loads that are tried: each a goal's width above the one before, so that bounds which are
/// neighbours are close enough.
#[derive(Clone, Copy, Debug)]
struct Grid {
    min: f64,
    step: f64,
    last: u32,
}

/// Indexes in the grid.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bounds {
    lower: Option<u32>,
    upper: Option<u32>,
}

impl Search {
    /// Loads from `min` to `max` frames a second, both above 0.
    ///
    /// # Errors
    /// There is no such range, or a goal that nothing can reach.
    pub fn new(min: f64, max: f64, goals: &[Goal]) -> Result<Self, GoalError> {
        if !(0.0 < min && min < max && max.is_finite()) {
            return Err(GoalError::Range { min, max });
        }
        goals.iter().try_for_each(Goal::check)?;
        let narrowest = goals.iter().map(|goal| goal.width).fold(1.0, f64::min);
        let grid = Grid::new(min, max, narrowest);
        let goals = goals.iter().map(|goal| goal.targets(grid.steps(goal.width))).collect();
        Ok(Self { grid, sender: 0.0, goals, trials: BTreeMap::new() })
    }

    /// The generator is known to send so many frames a second: where it falls short below that, it
    /// was kept from its processor. Such a trial says what became of the frames that were sent, and
    /// counts for the time that sending them takes (RFC 9971 has short trials for this); where they
    /// are too few, it is made again.
    pub fn with_sender(mut self, sender: f64) -> Self {
        self.sender = sender;
        self
    }

    /// Trials in which the generator was kept from sending what it is known to send.
    pub fn interrupted(&self) -> usize {
        let short = |judged: &&Judged| judged.seconds < judged.trial.duration_s;
        self.trials.values().flatten().filter(short).count()
    }

    /// None when all goals are reached. Of the trials that the goals want, the one of the lowest
    /// load: overload may leave a device in a bad state.
    pub fn next(&self) -> Option<TrialPlan> {
        let wanted = self.goals.iter().filter_map(|targets| self.wanted(targets));
        let lowest = wanted.min_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        lowest.map(|(at, duration_s)| TrialPlan { load: self.grid.load(at), duration_s })
    }

    /// The trial that [`Search::next`] wanted, as it went.
    pub fn add(&mut self, trial: Trial) {
        let trials = self.trials.entry(self.grid.floor(trial.load)).or_default();
        trials.push(Judged::new(trial, self.sender, trials));
        if is_too_slow(trials) {
            self.sender = self.sender.min(trial.load * BELOW);
        }
    }

    /// One for each goal, in their order.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.goals.iter().map(|targets| self.outcome(targets)).collect()
    }

    /// All trials so far, from the lowest load to the highest.
    pub fn trials(&self) -> impl Iterator<Item = &Trial> {
        self.trials.values().flatten().map(|judged| &judged.trial)
    }

    fn outcome(&self, targets: &[Target]) -> Outcome {
        let Some(target) = targets.last() else { return Outcome::default() };
        let bounds = self.bounds(target);
        let at_upper = bounds.upper.map_or(&[][..], |at| self.at(at));
        let bad = || at_upper.iter().filter(|judged| judged.loss_ratio > target.loss_ratio);
        Outcome {
            lower: bounds.lower.map(|at| self.grid.load(at)),
            upper: bounds.upper.map(|at| self.grid.load(at)),
            upper_loss_ratio: at_upper.iter().map(|judged| judged.loss_ratio).reduce(f64::max),
            generator_fell_short: bad().next().is_some()
                && bad().all(|judged| judged.trial.device_loss_ratio() <= target.loss_ratio),
            conditional_throughput: bounds
                .lower
                .map(|at| self.grid.load(at) * (1.0 - quantile_loss(target, self.at(at)))),
            reached: self.wanted(targets).is_none() && !self.trials.is_empty(),
        }
    }

    fn at(&self, at: u32) -> &[Judged] {
        self.trials.get(&at).map_or(&[], Vec::as_slice)
    }

    /// The smallest upper bound, and the greatest lower one below it.
    fn bounds(&self, target: &Target) -> Bounds {
        let mut bounds = Bounds::default();
        for (at, trials) in &self.trials {
            match classify(target, trials) {
                Bound::Lower => bounds.lower = Some(*at),
                Bound::Upper => return Bounds { upper: Some(*at), ..bounds },
                Bound::Undecided => (),
            }
        }
        bounds
    }

    /// The load and duration that these targets want next.
    fn wanted(&self, targets: &[Target]) -> Option<(u32, f64)> {
        let first = targets.first()?;
        let mut around = match self.first_guess(first) {
            Ok(around) => around,
            Err(at) => return Some((at, first.trial_s)),
        };
        for target in targets {
            let bounds = self.bounds(target);
            if let Some(at) = self.grid.between(bounds, around, target.width) {
                return Some((at, target.trial_s));
            }
            around = bounds;
        }
        None
    }

    /// Where to begin: what comes through when the most is sent, and what of that. Err: the load
    /// whose trial is missing.
    fn first_guess(&self, target: &Target) -> Result<Bounds, u32> {
        let forwarded = |at: u32| -> Result<(bool, u32), u32> {
            let first = self.at(at).iter().find(|judged| !judged.is_void()).ok_or(at)?;
            let lost = first.loss_ratio > target.loss_ratio;
            Ok((lost, self.grid.floor(first.forwarded() / (1.0 - target.loss_ratio))))
        };
        let last = self.grid.last;
        let (lost, rate) = forwarded(last)?;
        if !lost {
            return Ok(Bounds { lower: Some(last), upper: None });
        }
        let rate = rate.min(last - 1);
        let (lost, less) = forwarded(rate)?;
        Ok(match lost {
            false => Bounds { lower: Some(rate), upper: Some(rate + 1) },
            true => Bounds { lower: (rate > 0).then(|| less.min(rate - 1)), upper: Some(rate) },
        })
    }
}

impl Grid {
    fn new(min: f64, max: f64, width: f64) -> Self {
        let whole = (max / min).ln();
        let last = (whole / -(1.0 - width).ln()).ceil();
        Self { min, step: whole / last, last: last as u32 }
    }

    fn load(&self, at: u32) -> f64 {
        self.min * (f64::from(at) * self.step).exp()
    }

    /// The greatest load that is not above this one; what is out of range counts as its end.
    fn floor(&self, load: f64) -> u32 {
        // A load that comes from the grid is found again.
        let steps = (load / self.min).ln() / self.step + 1e-6;
        (steps.max(0.0) as u32).min(self.last)
    }

    /// The width of a goal in steps.
    fn steps(&self, width: f64) -> u32 {
        ((-(1.0 - width).ln() / self.step + 1e-6) as u32).max(1)
    }

    /// The load that brings the bounds together; none where they are. `around` is where they are
    /// supposed to be: its ends come first, and where it proves wrong one goes away from it in steps
    /// that double, not farther than to the middle.
    fn between(&self, bounds: Bounds, around: Bounds, width: u32) -> Option<u32> {
        // The ends of the range, one step beyond what can be tried.
        let (low, high) = match (bounds.lower, bounds.upper) {
            (Some(low), _) if low == self.last => return None,
            (_, Some(0)) => return None,
            (Some(low), Some(high)) if high - low <= width => return None,
            (low, high) => {
                (low.map_or(-1, i64::from), high.map_or(i64::from(self.last) + 1, i64::from))
            }
        };
        let inside = |at: &i64| low < *at && *at < high;
        let ends = [around.lower, around.upper].map(|end| end.map(i64::from));
        if let Some(end) = ends.into_iter().flatten().find(inside) {
            return Some(end as u32);
        }
        let middle = low + (high - low) / 2;
        let at = match ends {
            [lower, Some(upper)] if low >= upper => {
                middle.min(low + (low - lower.unwrap_or(upper)).max(width.into()))
            }
            [Some(lower), upper] if high <= lower => {
                middle.max(high - (upper.unwrap_or(lower) - high).max(width.into()))
            }
            _ => middle,
        };
        Some(at.clamp(0, self.last.into()) as u32)
    }
}
