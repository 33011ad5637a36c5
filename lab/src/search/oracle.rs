//! The same devices, searched by PyPI's MLRsearch: the authors' own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::simulated::{Device, Flaw};
use super::{Goal, Search, TrialPlan};

const MIN: f64 = 1e3;
const MAX: f64 = 1e7;
const DEVICES: u64 = 1000;

struct Oracle {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Oracle {
    /// None where the package is not there.
    fn start() -> Option<Self> {
        let python = || {
            let mut python = Command::new("python3");
            python.env("PYTHONPATH", ringway_testnet::tools::peers().join("python"));
            python
        };
        let there = python().args(["-c", "import MLRsearch"]).stderr(Stdio::null()).status();
        if !there.is_ok_and(|status| status.success()) {
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/search/oracle.py");
        let mut child =
            python().arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, input, output: BufReader::new(output) })
    }

    /// The conditional throughput of each goal.
    fn search(&mut self, device: &mut Device, goals: &[Goal]) -> Vec<f64> {
        let mut asked = format!("search {MIN} {MAX}\n");
        for goal in goals {
            let Goal { loss_ratio, exceed_ratio, initial_trial_s, .. } = goal;
            let Goal { final_trial_s, duration_sum_s, width, .. } = goal;
            asked += &format!(
                "goal {loss_ratio} {exceed_ratio} {initial_trial_s} {final_trial_s} {duration_sum_s} {width}\n"
            );
        }
        self.say(&(asked + "go\n"));
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            let (word, numbers) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let numbers: Vec<f64> =
                numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
            if word == "found" {
                return numbers;
            }
            let trial = device.trial(TrialPlan { load: numbers[0], duration_s: numbers[1] });
            let in_time = |frames: u64| {
                (frames as f64 * (trial.duration_s / trial.elapsed_s).min(1.0)).round() as u64
            };
            let (sent, received) = (in_time(trial.sent), in_time(trial.received));
            self.say(&format!("{} {sent} {}\n", trial.intended, sent - received));
        }
    }

    fn say(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Devices of all kinds, and goals for each, as its number says.
fn device(number: u64) -> (Device, Vec<Goal>) {
    let mut chance = Device::new(0.0, Flaw::None, number);
    let ceiling = MIN * 2.0 * (MAX / MIN / 4.0).powf(chance.chance());
    let below = ceiling * (0.3 + 0.6 * chance.chance());
    let flaw = match number % 5 {
        0 => Flaw::None,
        1 => Flaw::Noise(0.03 * chance.chance()),
        2 => Flaw::Inversion(ceiling * 0.5, ceiling * (0.5 + 0.3 * chance.chance())),
        3 => Flaw::Stretched(below),
        _ => Flaw::Slow(below),
    };
    let median = Goal { final_trial_s: 1.0, duration_sum_s: 21.0, ..Goal::TST009 };
    let partial = Goal { loss_ratio: 0.005, ..median };
    let goals = match number / 5 % 4 {
        0 => vec![median],
        1 => vec![Goal::RFC2544],
        2 => vec![Goal::TST009],
        _ => vec![median, partial],
    };
    (Device::new(ceiling, flaw, number), goals)
}

mod long {
    use super::*;

    /// Within the goal's width, and a noisy device's noise; with at most a tenth more trials.
    #[test]
    fn finds_what_the_reference_finds() {
        let test = "search::finds_what_the_reference_finds";
        let Some(mut oracle) = Oracle::start() else {
            return ringway_testnet::skip(
                test,
                "no Python package MLRsearch here: packaging/bootstrap --tests fetches it",
            );
        };
        let (mut ours, mut theirs) = (0, 0);
        for number in 0..DEVICES {
            let (mut searched, goals) = device(number);
            let mut other = searched.clone();
            let expected = oracle.search(&mut other, &goals);
            let mut search = Search::new(MIN, MAX, &goals).unwrap();
            searched.search(&mut search);
            let noise = if let Flaw::Noise(share) = searched.flaw { share } else { 0.0 };
            for ((goal, found), expected) in goals.iter().zip(search.outcomes()).zip(expected) {
                let found = found.conditional_throughput.unwrap_or(0.0);
                let apart = (found - expected).abs() / f64::max(found, expected).max(1.0);
                assert!(
                    apart <= goal.width + noise + 1.0 / MIN,
                    "device {number} {searched:?} {goal:?}: {found} here, {expected} there"
                );
            }
            ours += searched.trials;
            theirs += other.trials;
        }
        eprintln!("{DEVICES} devices: {ours} trials here, {theirs} there");
        assert!(f64::from(ours) <= 1.1 * f64::from(theirs), "{ours} trials here, {theirs} there");
    }
}
