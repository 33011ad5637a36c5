//! The shared part of all benches. A [`Scenario`] measures and describes its figures. Repetition
//! and order, skipped cases, progress and the report are here.

pub(crate) mod cpu;
pub(crate) mod machine;
pub(crate) mod median;
pub(crate) mod named_enum;
pub(crate) mod plot;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod wrk;

use std::fmt::Display;

use clap::value_parser;
use serde_json::Value;

pub use self::report::{BenchReport, Figures};

use self::machine::Machine;
use self::report::NotRun;
use crate::demo::clean::guarded;
use crate::{Error, Result, needs_root};

/// Takes a line whenever something happens.
pub type Progress<'p> = &'p mut (dyn FnMut(&str) + Send);

/// Something that `ringway-lab bench` measures. Its fields are its options on the command line.
pub trait Scenario {
    /// The word after `ringway-lab bench`.
    const NAME: &'static str;
    /// Programs that Ringway is measured beside, each with the option that prints its version.
    const PEERS: &'static [(&'static str, &'static str)] = &[];
    type Figures: Figures;

    /// Refuses what cannot be, before anything is set up.
    ///
    /// # Errors
    /// It cannot be measured here, or not so much of it.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Measures.
    ///
    /// # Errors
    /// Nothing can be measured here.
    fn measure(&self, harness: &mut Harness<'_>) -> Result<Self::Figures>;
}

/// How often everything is measured: `--rounds`. A scenario may have another default.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Rounds {
    /// How often each is measured; the median counts.
    #[arg(id = "rounds", long, value_name = "N", default_value_t = 5,
        value_parser = value_parser!(u32).range(1..=100))]
    pub count: u32,
}

/// How often and how long is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Repeated {
    #[command(flatten)]
    pub rounds: Rounds,
    /// Length of one measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// One of the things that are measured in turn.
pub(crate) trait Case: Display {
    /// Its name in JSON.
    fn key(&self) -> Value;
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process
/// does so should this one be killed. `version` is of what is measured. Needs root.
///
/// # Errors
/// Nothing can be measured here. A case that cannot be is in the report.
pub fn run<S: Scenario>(
    scenario: &S,
    version: &str,
    progress: Progress<'_>,
) -> Result<BenchReport<S::Figures>> {
    needs_root(&format!("bench {}", S::NAME))?;
    scenario.check()?;
    let mut harness = Harness::new(S::PEERS, progress);
    harness.machine.versions.insert("ringway".into(), version.into());
    guarded(|| measure_by(harness, scenario))
}

/// The same by whoever takes care of the rest.
#[cfg(test)]
pub(crate) fn measure<S: Scenario>(
    scenario: &S,
    progress: Progress<'_>,
) -> Result<BenchReport<S::Figures>> {
    measure_by(Harness::new(S::PEERS, progress), scenario)
}

fn measure_by<S: Scenario>(
    mut harness: Harness<'_>,
    scenario: &S,
) -> Result<BenchReport<S::Figures>> {
    let figures = scenario.measure(&mut harness)?;
    Ok(harness.report(S::NAME, figures))
}

fn schema(name: &str) -> String {
    format!("ringway.bench.{name}/1")
}

/// The tool of a scenario: rounds, progress, skipped cases.
pub struct Harness<'p> {
    pub(crate) machine: Machine,
    progress: Progress<'p>,
    /// Before each line of progress.
    round: String,
    skipped: Vec<NotRun>,
    failed: Vec<NotRun>,
}

impl<'p> Harness<'p> {
    pub(crate) fn new(peers: &[(&str, &str)], progress: Progress<'p>) -> Self {
        let machine = Machine::with(peers);
        Self { machine, progress, round: String::new(), skipped: Vec::new(), failed: Vec::new() }
    }

    /// What is known so far.
    pub(crate) fn report<F>(&self, name: &str, figures: F) -> BenchReport<F> {
        let (skipped, failed) = (self.skipped.clone(), self.failed.clone());
        BenchReport {
            schema: schema(name),
            figures,
            skipped,
            failed,
            machine: self.machine.clone(),
        }
    }

    pub(crate) fn say(&mut self, line: impl Display) {
        (self.progress)(&format!("{}{line}", self.round));
    }

    /// Round after round; `measure` is told its number, and every line of progress begins with it.
    ///
    /// # Errors
    /// That of the first round that fails; it is the last.
    pub(crate) fn repeat(
        &mut self,
        rounds: u32,
        mut measure: impl FnMut(&mut Self, u32) -> Result<()>,
    ) -> Result<()> {
        let measured = (1..=rounds).try_for_each(|round| {
            self.round = format!("round {round}/{rounds}  ");
            measure(self, round)
        });
        self.round.clear();
        measured
    }

    /// All cases in each round, so that a drift of the machine hits all.
    pub(crate) fn rounds<C: Case>(
        &mut self,
        rounds: u32,
        cases: &mut Vec<C>,
        mut measure: impl FnMut(&mut Self, u32, &C) -> Result<()>,
    ) {
        // A case that fails is left out, and ends no round.
        let _ = self.repeat(rounds, |harness, round| {
            harness.each(cases, |harness, case| measure(harness, round, case));
            Ok(())
        });
    }

    /// All cases once. One that cannot be measured does not stop the others, is said, and tried no
    /// more.
    pub(crate) fn each<C: Case>(
        &mut self,
        cases: &mut Vec<C>,
        mut measure: impl FnMut(&mut Self, &C) -> Result<()>,
    ) {
        cases.retain(|case| match measure(self, case) {
            Ok(()) => true,
            Err(Error::Unavailable(reason)) => {
                self.skip(case, reason);
                false
            }
            Err(error) => {
                let not_run = self.leave_out(case, "FAILED", error.to_string());
                self.failed.push(not_run);
                false
            }
        });
    }

    /// Says why this machine cannot measure something; once.
    pub(crate) fn skip(&mut self, case: &impl Case, reason: String) {
        let key = case.key();
        if self.skipped.iter().all(|known| known.key != key) {
            let not_run = self.leave_out(case, "SKIPPED", reason);
            self.skipped.push(not_run);
        }
    }

    fn leave_out(&mut self, case: &impl Case, what: &str, reason: String) -> NotRun {
        (self.progress)(&format!("{case}: {what}: {reason}"));
        NotRun { case: case.to_string(), key: case.key(), reason }
    }
}

/// The compared sides in the order of this round: they take turns to begin.
pub(crate) fn in_turns<T>(round: u32, mut sides: Vec<T>) -> Vec<T> {
    if round.is_multiple_of(2) {
        sides.reverse();
    }
    sides
}

/// Those that are asked for, in the order of reports; all where none is.
pub(crate) fn chosen<T: Copy + PartialEq>(all: &[T], only: &[T]) -> Vec<T> {
    all.iter().copied().filter(|one| only.is_empty() || only.contains(one)).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use serde::Serialize;
    use serde_json::json;

    use super::*;

    struct Beasts;

    #[derive(Clone, Copy, PartialEq)]
    struct Beast(&'static str);

    impl Display for Beast {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.pad(self.0)
        }
    }

    impl Case for Beast {
        fn key(&self) -> Value {
            json!({ "beast": self.0 })
        }
    }

    #[derive(Serialize)]
    struct Legs {
        legs: Vec<String>,
    }

    impl Figures for Legs {
        fn tables(&self) -> String {
            format!("{}\n", self.legs.join(" "))
        }

        fn goals(&self) -> Vec<String> {
            vec![report::Goal::below("fewer than", 4.0, 4.0).to_string()]
        }

        fn notes(&self) -> Vec<String> {
            vec!["By counting.".into()]
        }

        fn page(&self) -> Option<plot::Page> {
            Some(plot::Page::new("Legs", "Of beasts."))
        }
    }

    impl Scenario for Beasts {
        const NAME: &'static str = "beasts";
        type Figures = Legs;

        fn measure(&self, harness: &mut Harness<'_>) -> Result<Legs> {
            let mut beasts = ["ape", "bee", "eel"].map(Beast).to_vec();
            let mut legs = Vec::new();
            harness.rounds(2, &mut beasts, |harness, round, beast| match (beast.0, round) {
                ("eel", _) => Err(Error::Unavailable("has none".into())),
                ("bee", 2) => Err(Error::Tables("flew away".into())),
                (name, _) => {
                    harness.say(format!("{name} has legs"));
                    legs.push(format!("{name}{round}"));
                    Ok(())
                }
            });
            harness.skip(&Beast("eel"), "known already".into());
            Ok(Legs { legs })
        }
    }

    #[test]
    fn a_round_that_fails_is_the_last() {
        let (mut said, mut measured) = (Vec::new(), Vec::new());
        let mut progress = |line: &str| said.push(line.to_owned());
        let mut harness = Harness::new(&[], &mut progress);
        let error = harness.repeat(3, |harness, round| {
            harness.say("begins");
            measured.extend(in_turns(round, vec!['a', 'b']));
            if round == 2 { Err(Error::Tables("gone".into())) } else { Ok(()) }
        });
        harness.say("ends");
        assert!(error.is_err());
        assert_eq!(said, ["round 1/3  begins", "round 2/3  begins", "ends"]);
        assert_eq!(measured, ['a', 'b', 'b', 'a']);
    }

    #[test]
    fn what_fails_is_left_out_and_said() {
        let mut said = Vec::new();
        let report = measure(&Beasts, &mut |line: &str| said.push(line.to_owned())).unwrap();
        assert_eq!(
            said,
            [
                "round 1/2  ape has legs",
                "round 1/2  bee has legs",
                "eel: SKIPPED: has none",
                "round 2/2  ape has legs",
                "bee: FAILED: the gateway's tables: flew away",
            ]
        );
        assert!(!report.ok());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["schema"], "ringway.bench.beasts/1");
        assert_eq!(json["legs"], json!(["ape1", "bee1", "ape2"]));
        assert_eq!(json["skipped"], json!([{ "beast": "eel", "reason": "has none" }]));
        assert_eq!(json["failed"][0]["beast"], "bee");
        assert!(json["machine"]["cores"].is_u64() && json["machine"]["versions"].is_object());
    }

    #[test]
    fn a_report_for_people() {
        let report = measure(&Beasts, &mut |_: &str| ()).unwrap();
        let text = report.to_string();
        let begins = "ape1 bee1 ape2\n\ngoals\n  fewer than 4.00: 4.00: MISSED\nskipped: eel: has none\nFAILED: bee: ";
        assert!(text.starts_with(begins), "{text}");
        assert!(text.contains("\n\nBy counting.\n") && text.contains(" cores, Linux "), "{text}");
        let page = report.html().unwrap();
        for part in ["<h1>Legs</h1>", "Skipped: eel: has none", "Failed: bee: ", "By counting."] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn only_what_is_asked_for_in_order() {
        assert_eq!(chosen(&[1, 2, 3], &[]), [1, 2, 3]);
        assert_eq!(chosen(&[1, 2, 3], &[3, 1, 3]), [1, 3]);
    }
}
