//! The report of a demo.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::judge::Verdict;
use super::load::Tally;
use crate::harness::median::rounded;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.demo/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    pub schema: String,
    /// In the order they ran.
    pub phases: Vec<Phase>,
    /// The longest of the phases' failovers, ms; null when no backend was killed.
    pub failover_ms: Option<u64>,
    pub ok: bool,
}

impl DemoReport {
    pub(super) fn new(phases: Vec<Phase>) -> Self {
        Self {
            schema: SCHEMA.into(),
            failover_ms: phases.iter().filter_map(|p| p.failover_ms).max(),
            ok: phases.iter().all(|p| p.ok),
            phases,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// As `--only` takes it.
    pub name: String,
    /// How packets reach the backends: `nat`.
    pub forward: String,
    /// Requests sent, the failed ones included.
    pub requests: u64,
    /// Failed requests that no killed backend explains.
    pub errors: u64,
    /// Failed requests that had been sent to the killed backend before the failover was complete.
    pub lost_to_killed: u64,
    pub requests_per_s: f64,
    /// Of the answered requests.
    pub latency_p99_ns: u64,
    /// From the kill to the sending of the last request that was lost, ms; null where nothing was
    /// killed.
    pub failover_ms: Option<u64>,
    /// Whether what this phase shows held.
    pub ok: bool,
    /// The failures in words.
    pub problems: Vec<String>,
}

impl Phase {
    /// A phase with a load and perhaps a kill. It holds when there were answers and no errors.
    pub(super) fn of_load(name: &str, tally: &Tally, verdict: Verdict) -> Self {
        let answers = tally.answers();
        let mut problems = verdict.problems;
        if answers == 0 {
            problems.push("not one request was answered".into());
        }
        Self {
            requests: tally.requests(),
            errors: verdict.errors,
            lost_to_killed: verdict.lost_to_killed,
            requests_per_s: per_second(answers, tally.elapsed),
            latency_p99_ns: tally.latency.value_at_quantile(0.99),
            failover_ms: verdict.failover.map(milliseconds_rounded_up),
            ok: verdict.errors == 0 && problems.is_empty(),
            problems,
            ..Self::empty(name)
        }
    }

    /// A phase that could not be carried through.
    pub(super) fn failed(name: &str, problem: String) -> Self {
        Self { ok: false, problems: vec![problem], ..Self::empty(name) }
    }

    pub(super) fn empty(name: &str) -> Self {
        Self {
            name: name.into(),
            forward: "nat".into(),
            requests: 0,
            errors: 0,
            lost_to_killed: 0,
            requests_per_s: 0.0,
            latency_p99_ns: 0,
            failover_ms: None,
            ok: true,
            problems: Vec::new(),
        }
    }

    /// Notes something else that did not hold.
    pub(super) fn blame(&mut self, problem: impl Into<String>) {
        self.ok = false;
        self.problems.push(problem.into());
    }
}

/// One decimal is more than such a figure can carry.
pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    rounded(count as f64 / elapsed.as_secs_f64().max(1e-9), 1)
}

/// A loss in the first millisecond is no failover of zero.
fn milliseconds_rounded_up(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(failover_ms: u64) -> Phase {
        Phase { failover_ms: Some(failover_ms), ..Phase::empty("kill-backend") }
    }

    #[test]
    fn the_longest_failover_counts() {
        let report =
            DemoReport::new(vec![Phase::empty("curl"), killed(20), killed(1900), killed(3)]);
        assert_eq!((report.failover_ms, report.ok), (Some(1900), true));
        assert_eq!(DemoReport::new(vec![Phase::empty("curl")]).failover_ms, None);
    }

    #[test]
    fn one_bad_phase_is_enough() {
        let mut bad = Phase::empty("curl");
        bad.blame("b3 was never seen");
        assert!(!DemoReport::new(vec![Phase::empty("wrk"), bad]).ok);
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(DemoReport::new(vec![killed(7)])).unwrap();
        for key in ["schema", "phases", "failover_ms", "ok"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in [
            "name",
            "forward",
            "requests",
            "errors",
            "lost_to_killed",
            "requests_per_s",
            "latency_p99_ns",
        ] {
            assert!(json["phases"][0].get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn rounding() {
        assert_eq!(milliseconds_rounded_up(Duration::from_micros(1)), 1);
        assert_eq!(milliseconds_rounded_up(Duration::from_millis(5)), 5);
        assert_eq!(per_second(1000, Duration::from_secs(3)), 333.3);
    }
}
