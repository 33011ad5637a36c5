//! Two runs of a bench: what changed by more than chance. `ringway-lab bench compare`.

mod rank;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::benches::measurable;
use crate::harness::median::middle;
use crate::harness::named_enum::named;
use crate::harness::table::{Column, or_dash, table};
use crate::{Error, Result};

/// Below this probability a difference is none of chance.
const CHANCE: f64 = 0.01;

/// A figure of a run, and how sure it is.
#[derive(Clone, Debug, PartialEq)]
enum Measured {
    /// It is between them.
    Bounds(f64, f64),
    /// One of each trial or round.
    Trials(Vec<f64>),
    /// The tester hides it.
    NotMeasurable,
}

/// Figures by what they are of.
type Figures = BTreeMap<String, (Better, Measured)>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Better {
    More,
    Less,
}

named! {
    pub(super) enum Verdict {
        Worse = "worse",
        Better = "better",
        Same = "within noise",
        TooFew = "too few trials",
        NotMeasurable = "not measurable",
    }
}

/// Changes, in percent, from which on two runs would not overlap, with spreads as they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Seen {
    down: f64,
    up: f64,
}

/// A figure of both runs.
#[derive(Clone, Debug, Serialize)]
struct Change {
    figure: String,
    before: Option<f64>,
    after: Option<f64>,
    seen: Option<Seen>,
    verdict: Verdict,
    statistic: String,
}

/// What changed from one run to the other.
#[derive(Debug, Serialize)]
pub struct Comparison {
    schema: &'static str,
    /// What else is different, and so may be the reason.
    differences: Vec<String>,
    changes: Vec<Change>,
    only_before: Vec<String>,
    only_after: Vec<String>,
}

/// Compares the runs of these folders, or of the JSON that was printed.
///
/// # Errors
/// One of them is no result, or they are of different benches.
pub fn compare(before: &Path, after: &Path) -> Result<Comparison> {
    let (old, new) = (read(before)?, read(after)?);
    let schemas = [&old, &new].map(|run| run["schema"].as_str().unwrap_or_default().to_owned());
    let figures = match schemas.each_ref().map(String::as_str) {
        ["ringway.bench.forward/1", "ringway.bench.forward/1"] => [&old, &new].map(forward),
        ["ringway.bench.lb/1", "ringway.bench.lb/1"] => [&old, &new].map(lb),
        [one, other] => {
            return Err(Error::Unavailable(format!(
                "{} is of {one:?} and {} of {other:?}: name two runs of `bench forward`, or two \
                    of `bench lb -o json`",
                before.display(),
                after.display()
            )));
        }
    };
    Ok(Comparison::new(differences(&old, &new), &figures))
}

fn read(path: &Path) -> Result<Value> {
    let file: PathBuf = if path.is_dir() { path.join("report.json") } else { path.into() };
    let text = fs::read_to_string(&file).map_err(|error| {
        let path = file.display();
        Error::Unavailable(format!(
            "reading {path}: {error}; name the folder of a run (`bench forward --folder`), or \
                what a bench printed with -o json"
        ))
    })?;
    serde_json::from_str(&text).map_err(|error| {
        Error::Unavailable(format!("{}: {error}; it is no bench's JSON", file.display()))
    })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn forward(run: &Value) -> Figures {
    let mut figures = Figures::new();
    for cell in list(&run["cells"]) {
        let of = format!("{}, {}", text(&cell["road"]), text(&cell["size"]));
        let rounds: Vec<&Value> = list(&cell["rounds"]).collect();
        let each = |of: fn(&Value) -> Vec<f64>| -> Vec<f64> {
            rounds.iter().flat_map(|round| of(round)).collect()
        };
        for (what, found, (lower, upper)) in [
            ("frames/s", "throughput", ("lower", "upper")),
            ("frames in a burst", "back_to_back", ("frames", "upper")),
        ] {
            if let Some(measured) = bounds(&rounds, found, (lower, upper)) {
                figures.insert(format!("{of}: {what}"), (Better::More, measured));
            }
        }
        let latency = || rounds.iter().flat_map(|round| list(&round["latency"]));
        for at in latency() {
            for percentile in ["p50_us", "p99_us"] {
                let same = || latency().filter(|other| other["percent"] == at["percent"]);
                let name = format!("{of}: {percentile} at {} %", at["percent"]);
                figures.insert(name, (Better::Less, times(same, percentile)));
            }
        }
        for (what, better, trials) in [
            // Loads of two runs differ with their senders' ceilings; what comes through does not.
            ("frames/s in overload", Better::More, overload(&rounds)),
            (
                "ms of losses after overload",
                Better::Less,
                each(|round| numbers(&round["recovery"]["overload_trials_ms"])),
            ),
            (
                "ms without frames after kill -9",
                Better::Less,
                each(|round| round["recovery"]["killed_ms"].as_f64().into_iter().collect()),
            ),
        ] {
            if !trials.is_empty() {
                figures.insert(format!("{of}: {what}"), (better, Measured::Trials(trials)));
            }
        }
    }
    figures
}

/// What each round found; of one round, its bounds; none of none.
fn bounds(rounds: &[&Value], found: &str, (lower, upper): (&str, &str)) -> Option<Measured> {
    let found: Vec<&Value> =
        rounds.iter().map(|round| &round[found]).filter(|one| one.is_object()).collect();
    let proved = |one: &Value| one[lower].as_f64().unwrap_or(0.0);
    match found[..] {
        [] => None,
        [one] => {
            let upper = one[upper].as_f64().unwrap_or(f64::INFINITY);
            Some(Measured::Bounds(proved(one), upper))
        }
        _ => Some(Measured::Trials(found.into_iter().map(proved).collect())),
    }
}

/// A percentile of all trials at a load.
fn times<'v, I>(at_load: impl Fn() -> I, percentile: &str) -> Measured
where
    I: Iterator<Item = &'v Value>,
{
    let middle_of = |whose: &str| middle(at_load().filter_map(|at| at[whose][percentile].as_f64()));
    let own = middle_of("own").unwrap_or(0.0);
    if middle_of("device").is_some_and(|time| measurable(time, own).is_none()) {
        return Measured::NotMeasurable;
    }
    let trials = at_load().flat_map(|at| list(&at["trials"]));
    Measured::Trials(trials.filter_map(|trial| trial[percentile].as_f64()).collect())
}

/// What comes through where more is sent: one for each round, or of one round all.
fn overload(rounds: &[&Value]) -> Vec<f64> {
    let through = |at: &Value| at["through_fps"].as_f64();
    let of = |round: &&Value| list(&round["loss"]).filter_map(through).collect::<Vec<_>>();
    match rounds {
        [one] => of(one),
        _ => rounds.iter().filter_map(|round| middle(of(round))).collect(),
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).filter_map(Value::as_f64).collect()
}

fn lb(run: &Value) -> Figures {
    let figure = |run: &Value| {
        let rounds = numbers(&run["requests_per_s_by_round"]);
        let name =
            format!("{}, {} connections: requests/s", text(&run["path"]), run["connections"]);
        (name, (Better::More, Measured::Trials(rounds)))
    };
    list(&run["runs"]).map(figure).collect()
}

/// Without quotation marks.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Of the machines, the programs and how was measured.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    let all = [
        "/machine/cpu",
        "/machine/cores",
        "/machine/kernel",
        "/machine/versions",
        "/plan",
        "/both_ways",
        "/ipv6",
        "/rounds",
        "/duration_s",
        COMMAND,
    ];
    let value = |run: &Value, path: &str| {
        let value = text(run.pointer(path)?);
        Some(if path == COMMAND { without_folder(&value) } else { value })
    };
    let differs = |path: &&str| value(old, path) != value(new, path);
    let say = |path: &str| {
        let of = |run: &Value| value(run, path).unwrap_or_else(|| "nothing".into());
        let name = path.rsplit('/').next().unwrap_or(path);
        format!("{name}: {} / {}", of(old), of(new))
    };
    all.into_iter().filter(differs).map(say).collect()
}

/// As it was typed.
const COMMAND: &str = "/command";

/// The folder that results go to is another for each run.
fn without_folder(command: &str) -> String {
    let typed = shlex::split(command).unwrap_or_default();
    let mut words = typed.iter().map(String::as_str);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("--folder") {
            Some("") => drop(words.next()),
            Some(value) if value.starts_with('=') => {}
            _ => kept.push(word),
        }
    }
    shlex::try_join(kept).unwrap_or_else(|_| command.into())
}

impl Measured {
    /// Of bounds the lower one, which is proved.
    fn value(&self) -> Option<f64> {
        match self {
            Self::Bounds(lower, _) => Some(*lower),
            Self::Trials(all) => middle(all.iter().copied()),
            Self::NotMeasurable => None,
        }
    }

    /// The least and the greatest, as shares of the value.
    fn spread(&self) -> Option<(f64, f64)> {
        let value = self.value().filter(|value| *value > 0.0)?;
        let (least, most) = match self {
            Self::Bounds(lower, upper) => (*lower, *upper),
            Self::Trials(all) => {
                let all = || all.iter().copied();
                (all().reduce(f64::min)?, all().reduce(f64::max)?)
            }
            Self::NotMeasurable => return None,
        };
        Some((least / value, most / value))
    }

    fn seen(&self, after: &Self) -> Option<Seen> {
        let ((least, most), (least_after, most_after)) = (self.spread()?, after.spread()?);
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let seen = Seen { down: percent(least / most_after), up: percent(most / least_after) };
        Some(seen).filter(|seen| seen.up.is_finite())
    }

    /// Whether it changed, and by which statistic.
    fn changed(&self, after: &Self) -> (Option<bool>, String) {
        match (self, after) {
            (Self::Trials(before), Self::Trials(after)) => {
                let (p, sizes) = (rank::rank_test(before, after), (before.len(), after.len()));
                let enough = rank::least(sizes.0, sizes.1) < CHANCE;
                let statistic =
                    format!("rank test of {} and {} trials, p = {p:.3}", sizes.0, sizes.1);
                (enough.then_some(p < CHANCE), statistic)
            }
            (Self::Bounds(low, high), Self::Bounds(lower, higher)) => {
                (Some(high <= lower || higher <= low), "bounds".into())
            }
            _ => (None, "none".into()),
        }
    }
}

impl Comparison {
    fn new(differences: Vec<String>, [old, new]: &[Figures; 2]) -> Self {
        let change = |(figure, (better, before)): (&String, &(Better, Measured))| {
            let (_, after) = new.get(figure)?;
            let (changed, statistic) = before.changed(after);
            let grew = after.value() > before.value();
            let is_hidden = [before, after].contains(&&Measured::NotMeasurable);
            let verdict = match changed {
                None if is_hidden => Verdict::NotMeasurable,
                None => Verdict::TooFew,
                Some(false) => Verdict::Same,
                Some(true) if grew == (*better == Better::More) => Verdict::Better,
                Some(true) => Verdict::Worse,
            };
            let is_judged = !matches!(verdict, Verdict::TooFew | Verdict::NotMeasurable);
            let seen = before.seen(after).filter(|_| is_judged);
            let (before, after) = (before.value(), after.value());
            let figure = figure.clone();
            Some(Change { figure, before, after, seen, verdict, statistic })
        };
        let mut changes: Vec<Change> = old.iter().filter_map(change).collect();
        // What changed is seen first.
        changes.sort_by_key(|change| Verdict::ALL.iter().position(|one| *one == change.verdict));
        let only = |one: &Figures, other: &Figures| {
            one.keys().filter(|key| !other.contains_key(*key)).cloned().collect()
        };
        Self {
            schema: "ringway.bench.compare/1",
            differences,
            changes,
            only_before: only(old, new),
            only_after: only(new, old),
        }
    }

    /// Whether a figure is worse by more than chance.
    pub fn is_worse(&self) -> bool {
        self.count(Verdict::Worse) > 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }
}

const COLUMNS: [Column<Change>; 7] = [
    Column::text("figure", |change| change.figure.clone()),
    Column::number("before", |change| number(change.before)),
    Column::number("after", |change| number(change.after)),
    Column::number("%", |change| match (change.before, change.after) {
        (Some(before), Some(after)) if before != 0.0 => {
            format!("{:+.1}", (after / before - 1.0) * 100.0)
        }
        _ => "-".into(),
    }),
    Column::number("seen from %", |change| {
        change.seen.map_or_else(|| "-".into(), |Seen { down, up }| format!("{down:.0} {up:+.0}"))
    }),
    Column::text("", |change| change.verdict.to_string()),
    Column::text("by", |change| change.statistic.clone()),
];

fn number(figure: Option<f64>) -> String {
    let digits = if figure.is_some_and(|figure| figure >= 1000.0) { 0 } else { 1 };
    or_dash(figure, digits)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&table(&COLUMNS, &self.changes))?;
        let [better, worse, few] =
            [Verdict::Better, Verdict::Worse, Verdict::TooFew].map(|verdict| self.count(verdict));
        let hidden = self.count(Verdict::NotMeasurable);
        let all = self.changes.len() - hidden;
        writeln!(
            f,
            "\n{all} figures: {better} better, {worse} worse, {few} with too few trials to tell; \
                {hidden} more that the tester hides in one run or both."
        )?;
        writeln!(
            f,
            "Changed are bounds that do not overlap, and trials whose ranks are apart by chance \
                in less than 1 of 100 runs (Mann-Whitney, exact, two-sided). Changes of `seen \
                from` percent, down or up, would have been seen; smaller ones may hide in the \
                noise."
        )?;
        let (expected, changed) = (all as f64 * CHANCE, better + worse);
        write!(
            f,
            "Of {all} figures that are the same, at most {expected:.1} seem changed by chance"
        )?;
        match changed {
            0 => writeln!(f, ".")?,
            _ => writeln!(
                f,
                "; {changed} or more in at most {:.0} of 100 pairs of runs, if none depends on \
                    another.",
                100.0 * rank::so_many_or_more(changed, expected)
            )?,
        }
        for (what, list) in [
            ("different", &self.differences),
            ("only in the first run", &self.only_before),
            ("only in the second run", &self.only_after),
        ] {
            list.iter().try_for_each(|one| writeln!(f, "{what}: {one}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(kernel: &str, lower: f64, p99: [f64; 5]) -> Value {
        let loss = [1.0, 0.9, 0.8, 0.7, 0.6].map(|share| {
            let (load, through) = (share * 4e6, lower * (0.97 + share / 20.0));
            json!({ "load": load, "through_fps": through })
        });
        json!({
            "schema": "ringway.bench.forward/1", "machine": { "kernel": kernel },
            "cells": [{
                "road": "af_xdp", "size": 64, "rounds": [{
                    "throughput": { "lower": lower, "upper": lower * 1.02 },
                    "back_to_back": { "frames": 300.0, "upper": null },
                    "loss": loss,
                    "recovery": { "overload_trials_ms": p99, "killed_ms": 90.0 },
                    "latency": [{ "percent": 50, "trials": p99.map(|p99| json!({ "p50_us": 9.0, "p99_us": p99 })) }],
                }],
            }],
        })
    }

    fn compared(old: &Value, new: &Value) -> Comparison {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("old")).unwrap();
        fs::write(path("old/report.json"), old.to_string()).unwrap();
        fs::write(path("new"), new.to_string()).unwrap();
        compare(&path("old"), &path("new")).unwrap()
    }

    #[test]
    fn what_is_apart_by_more_than_chance_changed() {
        let old = run("6.1", 1e6, [10.0, 11.0, 12.0, 13.0, 14.0]);
        let same = compared(&old, &run("6.1", 1.01e6, [11.5, 10.5, 12.5, 13.5, 9.0]));
        assert!(!same.is_worse() && same.count(Verdict::Same) == 6, "{same}");
        assert!(same.differences.is_empty(), "{same}");
        let other = compared(&old, &run("6.12", 1.03e6, [15.0, 16.0, 17.0, 18.0, 19.0]));
        let verdicts: Vec<Verdict> = other.changes.iter().map(|change| change.verdict).collect();
        use Verdict::{Better, Same, TooFew, Worse};
        assert_eq!(verdicts, [Worse, Worse, Better, Better, Same, Same, TooFew]);
        let text = other.to_string();
        for part in
            ["+3.0", "p = 0.008", "7 figures: 2 better, 2 worse", "different: kernel: 6.1 / 6.12"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn how_much_would_have_been_seen() {
        let of = |all: [f64; 3]| Measured::Trials(all.into());
        let seen = of([9.0, 10.0, 12.0]).seen(&of([90.0, 100.0, 120.0])).unwrap();
        let near = |is: f64, wanted: f64| (is - wanted).abs() < 1e-9;
        assert!(near(seen.up, 100.0 / 3.0) && near(seen.down, -25.0), "{seen:?}");
        let apart = |percent: f64| {
            let after = [9.0, 10.0, 12.0].map(|one| one * (1.0 + percent / 100.0));
            rank::rank_test(&[9.0, 10.0, 12.0], &after) == rank::least(3, 3)
        };
        assert!(apart(seen.up + 0.1) && apart(seen.down - 0.1));
        assert!(!apart(seen.up - 0.1) && !apart(seen.down + 0.1));
        assert_eq!(of([0.0; 3]).seen(&of([1.0; 3])), None);
    }

    #[test]
    fn what_the_tester_hides_is_not_compared() {
        let mut old = run("6.1", 1e6, [10.0; 5]);
        let at = &mut old["cells"][0]["rounds"][0]["latency"][0];
        at["device"] = json!({ "p50_us": 9.0, "p99_us": 10.0 });
        at["own"] = json!({ "p50_us": 2.0, "p99_us": 4.0 });
        let compared = compared(&old, &run("6.1", 1e6, [10.0; 5]));
        assert_eq!(compared.count(Verdict::NotMeasurable), 1, "{compared}");
        let text = compared.to_string();
        assert!(text.contains("6 figures:") && text.contains("; 1 more that"), "{text}");
        assert!(text.contains("p99_us at 50 %                         -     10.0"), "{text}");
    }

    #[test]
    fn folders_of_results_are_no_difference() {
        let bench = "ringway-lab bench forward";
        for folder in ["", " --folder a", " --folder=b/c", " --folder 'a b'"] {
            let command = format!("{bench}{folder} --quick");
            assert_eq!(without_folder(&command), format!("{bench} --quick"));
        }
    }

    /// One figure of each round, be there five loads or latencies in it.
    #[test]
    fn rounds_are_ranked() {
        let all = |lowers: [f64; 5]| {
            let mut all = run("6.1", 1e6, [9.0; 5]);
            let rounds =
                lowers.map(|lower| run("6.1", lower, [9.0; 5])["cells"][0]["rounds"][0].take());
            all["cells"][0]["rounds"] = rounds.into();
            all
        };
        let old = all([1e6, 2e6, 1.5e6, 1.2e6, 1.1e6]);
        let verdict = |new: &Value, figure: &str| {
            let compared = compared(&old, new);
            let change = compared.changes.iter().find(|change| change.figure.ends_with(figure));
            let change = change.unwrap_or_else(|| panic!("{compared}"));
            (change.verdict, change.statistic.clone())
        };
        let by = |p: &str| format!("rank test of 5 and 5 trials, p = {p}");
        let apart = all([2.1e6, 2.2e6, 2.3e6, 2.4e6, 2.5e6]);
        for figure in [": frames/s", "in overload"] {
            assert_eq!(verdict(&apart, figure), (Verdict::Better, by("0.008")));
        }
        let near = all([1.9e6, 2.2e6, 2.3e6, 2.4e6, 2.5e6]);
        assert_eq!(verdict(&near, ": frames/s"), (Verdict::Same, by("0.016")));
        assert_eq!(verdict(&apart, "kill -9"), (Verdict::Same, by("1.000")));
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        let rounds = |path: &str, rounds: [u32; 3]| {
            json!({ "schema": "ringway.bench.lb/1", "runs": [
                { "path": path, "connections": 100, "requests_per_s_by_round": rounds } ] })
        };
        let few = compared(&rounds("direct", [1, 2, 3]), &rounds("direct", [4, 5, 6]));
        assert!(few.count(Verdict::TooFew) == 1 && !few.is_worse(), "{few}");
        let apart = compared(&rounds("direct", [1, 2, 3]), &rounds("nftables", [4, 5, 6]));
        let wanted = (0, 1, 1);
        assert_eq!((apart.changes.len(), apart.only_before.len(), apart.only_after.len()), wanted);
        let folder = tempfile::tempdir().unwrap();
        let missing = compare(folder.path(), folder.path()).unwrap_err().to_string();
        assert!(missing.contains("name the folder of a run"), "{missing}");
    }
}
