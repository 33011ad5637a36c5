//! How long and how often: by the book, or quickly, with what that leaves out.

use std::time::Duration;

use crate::search::Goal;

/// Lengths of trials, and how often they are repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub name: &'static str,
    /// All roads and sizes are measured so often, one after another.
    pub rounds: u32,
    pub throughput: Goal,
    /// Bursts in the place of rates: a trial counts one second.
    pub back_to_back: Goal,
    /// The longest burst, at the sender's ceiling.
    pub longest_burst: Duration,
    pub loss_trial_s: f64,
    pub latency_trial_s: f64,
    pub latency_repeats: u32,
    pub overload: Duration,
    /// An overload is over when nothing was lost for so long.
    pub quiet: Duration,
    pub overload_repeats: u32,
    /// In which the program that forwards is killed.
    pub killed: Duration,
    pub stragglers: Duration,
    pub settle: Duration,
    pub deviations: &'static [&'static str],
}

const SECOND: Duration = Duration::from_secs(1);

impl Plan {
    /// A road and size in less than two minutes. A machine that others share is another one minutes
    /// later: what five rounds find, far apart, says more than one that takes as long.
    pub(super) const QUICK: Self = Self {
        name: "quick",
        rounds: 5,
        throughput: Goal {
            loss_ratio: 0.0,
            exceed_ratio: 0.5,
            initial_trial_s: 0.2,
            final_trial_s: 0.35,
            duration_sum_s: 1.05,
            width: 0.02,
        },
        back_to_back: Goal { duration_sum_s: 3.0, width: 0.1, ..BURSTS },
        longest_burst: Duration::from_millis(500),
        loss_trial_s: 0.1,
        latency_trial_s: 0.25,
        latency_repeats: 1,
        overload: Duration::from_millis(500),
        quiet: Duration::from_millis(100),
        overload_repeats: 1,
        killed: Duration::from_secs(2),
        stragglers: Duration::from_millis(60),
        settle: Duration::from_millis(30),
        deviations: &[
            "five rounds of all; figures are the middle one's, bounds those of all",
            "throughput: trials of 0.35 s, not 60 s, and of 0.2 s to see where those have to be; \
                one of three may lose frames, where RFC 2544 allows none; bounds 2 % apart",
            "after a trial 0.06 s for stragglers, not 2 s, and 0.03 s to settle, not 5 s; \
                addresses are learned once, not before each trial",
            "frame loss: trials of 0.1 s",
            "latency: all frames of a stream of 0.25 s, not tagged ones of twenty of 120 s",
            "back-to-back: bursts of up to 0.5 s, not 2 s; two of three of a length decide, not \
                the mean of 50; lengths 10 % apart",
            "recovery: overload for 0.5 s, not 60 s, with half as much again as comes through, \
                not with 110 % of the throughput, at which a device that loses frames early is \
                not overloaded; over when nothing is lost for 0.1 s, not with the last frame that \
                is lost",
        ],
    };

    /// As RFC 2544 and RFC 9004 have it.
    pub(super) const RFC: Self = Self {
        name: "rfc",
        rounds: 1,
        throughput: Goal::RFC2544,
        back_to_back: Goal { duration_sum_s: 50.0, width: 0.005, ..BURSTS },
        longest_burst: Duration::from_secs(2),
        loss_trial_s: 60.0,
        latency_trial_s: 120.0,
        latency_repeats: 20,
        overload: Duration::from_secs(60),
        quiet: Duration::from_secs(1),
        overload_repeats: 5,
        killed: Duration::from_secs(4),
        stragglers: Duration::from_secs(2),
        settle: Duration::from_secs(5),
        deviations: &[
            "throughput: MLRsearch (RFC 9971) with RFC 2544's goal, not a binary search: shorter \
                trials say where to look, bounds are trials of 60 s; 0.5 % apart",
            "addresses are learned once, not before each trial; no routing updates",
            "latency: of all frames, not one tagged frame a stream",
            "back-to-back: half of 50 bursts of a length decide (the median, where RFC 9004 has \
                the mean of 50)",
            "recovery: an overload with half as much again as comes through, not with 110 % of \
                the throughput, at which a device that loses frames early is not overloaded; over \
                when nothing is lost for 1 s, not with the last frame that is lost",
        ],
    };

    /// After an overload.
    pub(super) fn calm(&self) -> Duration {
        self.overload.min(Duration::from_secs(5))
    }

    /// Seconds that a test takes in a round, about, but for the killing of a program.
    pub(super) fn seconds(&self, test: super::Test) -> f64 {
        use super::Test;
        // Half of all trials lose frames, which are waited for.
        let pause = self.settle.as_secs_f64() + self.stragglers.as_secs_f64() / 2.0 + 0.08;
        match test {
            Test::Throughput => self.throughput.duration_sum_s * 3.0 + 22.0 * pause,
            Test::Loss => 8.0 * (self.loss_trial_s + pause),
            Test::Latency => 8.0 * f64::from(self.latency_repeats) * (self.latency_trial_s + pause),
            Test::BackToBack => self.back_to_back.duration_sum_s * 5.0 * pause,
            Test::Tune | Test::Soak => 0.0,
            Test::Recovery => {
                let phases = (self.overload + self.calm()).as_secs_f64();
                self.loss_trial_s + pause + f64::from(self.overload_repeats) * (phases + pause)
            }
        }
    }
}

const BURSTS: Goal = Goal {
    loss_ratio: 0.0,
    exceed_ratio: 0.5,
    initial_trial_s: SECOND.as_secs() as f64,
    final_trial_s: SECOND.as_secs() as f64,
    duration_sum_s: 9.0,
    width: 0.05,
};
