//! Replies to the gateway's answers to SYNs that fit no answer, more than fit one: clients of nodes
//! with different secrets do not get in. Pure: fed with the kernel's counters every few seconds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringway_api::problem_kind::{Problem, ProblemKind};
use ringway_kernel::Arrivals;

/// Replies of the last while count.
const WINDOW: Duration = Duration::from_secs(10);
/// Fewer are late ones, or of connections that are over.
const FEW: u64 = 20;
/// A finding stays this long after the last of them.
const HOLD: Duration = Duration::from_secs(60);

/// What services have met, by their names.
pub type Sample = BTreeMap<String, Arrivals>;

/// Recent samples of every service.
#[derive(Debug, Default)]
pub struct AnswerWatch {
    services: BTreeMap<String, Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    noted: VecDeque<(Instant, Arrivals)>,
    failing: Option<Failing>,
}

/// Replies of the last while, when most fitted no answer.
#[derive(Clone, Copy, Debug)]
struct Failing {
    seen: Instant,
    failed: u64,
    met: u64,
}

impl AnswerWatch {
    /// Takes the counters as they are now. Services that are missing are forgotten.
    pub fn note(&mut self, now: Instant, sample: Sample) {
        self.services.retain(|name, _| sample.contains_key(name));
        for (name, arrivals) in sample {
            self.services.entry(name).or_default().note(now, arrivals);
        }
    }

    /// `secret`: the file of the secret; none: a key of the node's own.
    pub fn findings(&self, secret: Option<&str>) -> Vec<Problem> {
        let failing = self.services.iter().filter_map(|(name, it)| Some((name, it.failing?)));
        failing.map(|(name, failing)| finding(name, failing, secret)).collect()
    }
}

impl Memory {
    fn note(&mut self, now: Instant, arrivals: Arrivals) {
        while self.noted.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            self.noted.pop_front();
        }
        self.noted.push_back((now, arrivals));
        let Some((_, before)) = self.noted.front() else { return };
        let met = arrivals.answers_met.saturating_sub(before.answers_met);
        let failed = arrivals.answers_failed.saturating_sub(before.answers_failed);
        if failed >= FEW && failed > met {
            self.failing = Some(Failing { seen: now, failed, met });
        } else if self.failing.is_some_and(|it| now - it.seen > HOLD) {
            self.failing = None;
        }
    }
}

fn finding(name: &str, Failing { failed, met, .. }: Failing, secret: Option<&str>) -> Problem {
    let what = format!(
        "service {name}: within {} s {failed} replies to answered SYNs fitted no answer of this node, \
         {met} fitted one",
        WINDOW.as_secs()
    );
    let compare = "compare the fingerprints of `ringway shield status` and the clocks of all nodes \
                   that serve it";
    let remedy = match secret {
        Some(file) => format!(
            "{compare}; copy {file} to those that differ, `ringway reload` there; if all agree, \
             this node has lost flows, or somebody guesses"
        ),
        None => format!(
            "if other nodes serve it, too, write secret = \"/etc/ringway/syn.secret\" under \
             [shield.syn] of all, with one file; {compare}; if there are no others, this node has lost flows, or somebody guesses"
        ),
    };
    ProblemKind::SynAnswersFail.problem(what, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, counts: &[(u64, u64)]) -> (AnswerWatch, Vec<Problem>) {
        let (mut watch, begin) = (AnswerWatch::default(), Instant::now());
        for (n, (met, failed)) in counts.iter().enumerate() {
            let (answers_met, answers_failed) = (*met, *failed);
            let arrivals = Arrivals { answers_met, answers_failed, ..Arrivals::default() };
            let now = begin + Duration::from_secs(seconds * n as u64);
            watch.note(now, [("web".to_owned(), arrivals)].into());
        }
        let found = watch.findings(None);
        (watch, found)
    }

    fn words(problem: &Problem) -> String {
        format!("{}; {}", problem.error, problem.remedy)
    }

    #[test]
    fn replies_that_fit_no_answer_are_told() {
        let (watch, found) = at(2, &[(5, 100), (6, 130)]);
        let text = words(&found[0]);
        let said = "service web: within 10 s 30 replies";
        assert!(text.contains(said) && text.contains("1 fitted one"), "{text}");
        assert!(text.contains("secret = \"/etc/ringway/syn.secret\""), "{text}");
        let text = words(&watch.findings(Some("/etc/s"))[0]);
        assert!(text.contains("copy /etc/s to those that differ"), "{text}");
    }

    #[test]
    fn few_or_less_than_those_that_fit_are_not() {
        assert!(at(2, &[(0, 100), (0, 119)]).1.is_empty(), "few");
        assert!(at(2, &[(0, 100), (50, 140)]).1.is_empty(), "more fit");
        assert!(at(11, &[(0, 100), (0, 110), (0, 120)]).1.is_empty(), "slowly");
        assert_eq!(at(10, &[(0, 0), (0, 99), (0, 99), (0, 99)]).1.len(), 1, "held");
        let mut long = vec![(0, 99); 10];
        long.insert(0, (0, 0));
        assert!(at(10, &long).1.is_empty(), "over");
    }
}
