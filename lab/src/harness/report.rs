//! The report of a bench: JSON by serde, text for people, a page with plots.

use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::Value;

use super::machine::Machine;
use super::plot::Page;

/// The figures of a scenario: its own part of the report.
pub trait Figures: Serialize {
    fn tables(&self) -> String;

    /// Goals, and whether each was reached; a line each.
    fn goals(&self) -> Vec<String> {
        Vec::new()
    }

    /// Notes on how to read the figures; a line each.
    fn notes(&self) -> Vec<String>;

    /// The plots, where there is something to draw.
    fn page(&self) -> Option<Page> {
        None
    }

    /// Whether all that was promised is so.
    fn ok(&self) -> bool {
        true
    }

    /// Whether all of it was measured in network namespaces.
    fn is_virtual(&self) -> bool {
        true
    }
}

/// What such figures must be read with.
const VIRTUAL: &str =
    "Network namespaces on one machine: these figures say nothing about network hardware.";

/// Everything that a bench found. [`fmt::Display`] is for people.
#[derive(Debug, Serialize)]
pub struct BenchReport<F> {
    /// Name and version of the JSON form.
    pub(super) schema: String,
    #[serde(flatten)]
    pub(crate) figures: F,
    /// Cases that this machine cannot measure.
    pub(crate) skipped: Vec<NotRun>,
    /// Cases that failed.
    pub(crate) failed: Vec<NotRun>,
    pub(super) machine: Machine,
}

/// A case without figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NotRun {
    #[serde(skip)]
    pub case: String,
    #[serde(flatten)]
    pub key: Value,
    /// Why, and what would change it.
    pub reason: String,
}

impl Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.reason)
    }
}

impl<F: Figures> BenchReport<F> {
    fn notes(&self) -> impl Iterator<Item = String> {
        let is_virtual = self.figures.is_virtual().then(|| VIRTUAL.to_owned());
        self.figures.notes().into_iter().chain(is_virtual)
    }

    /// Whether all that can be measured here was, and is as promised.
    pub fn ok(&self) -> bool {
        self.failed.is_empty() && self.figures.ok()
    }

    /// One self-contained page; none where there is nothing to draw.
    pub fn html(&self) -> Option<String> {
        let mut page = self.figures.page()?;
        for (what, list) in [("Skipped", &self.skipped), ("Failed", &self.failed)] {
            list.iter().for_each(|not_run| page.text(&format!("{what}: {not_run}")));
        }
        self.notes().for_each(|note| page.text(&note));
        Some(page.finish(&self.machine))
    }
}

impl<F: Figures> Display for BenchReport<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.figures.tables())?;
        let goals = self.figures.goals();
        if !goals.is_empty() {
            writeln!(f, "\ngoals\n  {}", goals.join("\n  "))?;
        }
        for (what, list) in [("skipped", &self.skipped), ("FAILED", &self.failed)] {
            list.iter().try_for_each(|not_run| writeln!(f, "{what}: {not_run}"))?;
        }
        writeln!(f, "\n{}", self.notes().collect::<Vec<_>>().join("\n"))?;
        writeln!(f, "{}\n{}", self.machine, self.machine.versions())
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    /// The figure's name, and how it compares with the goal.
    pub what: &'static str,
    pub figure: f64,
    pub goal: f64,
    pub met: bool,
}

impl Goal {
    pub fn at_least(what: &'static str, figure: f64, goal: f64) -> Self {
        Self { what, figure, goal, met: figure >= goal }
    }

    pub fn at_most(what: &'static str, figure: f64, goal: f64) -> Self {
        Self { what, figure, goal, met: figure <= goal }
    }

    pub fn below(what: &'static str, figure: f64, goal: f64) -> Self {
        Self { what, figure, goal, met: figure < goal }
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = if self.met { "met" } else { "MISSED" };
        write!(f, "{} {:.2}: {:.2}: {met}", self.what, self.goal, self.figure)
    }
}

/// Of a scenario's tests: names of fields and how they are told.
#[cfg(test)]
pub(crate) mod testing {
    use std::collections::BTreeSet;

    use super::*;

    /// The report of these figures, with this left out.
    pub fn report<F: Figures>(name: &str, figures: F, skipped: Vec<NotRun>) -> BenchReport<F> {
        let schema = super::super::schema(name);
        BenchReport { schema, figures, skipped, failed: Vec::new(), machine: Machine::with(&[]) }
    }

    /// Every name in a report's JSON, of lists those of all entries, in one line.
    pub fn names(report: &impl Serialize) -> String {
        fn walk(value: &Value, before: &str, names: &mut BTreeSet<String>) {
            match value {
                Value::Array(list) => list.iter().for_each(|one| walk(one, before, names)),
                Value::Object(map) => map.iter().for_each(|(name, value)| {
                    let name = format!("{before}{name}");
                    walk(value, &format!("{name}."), names);
                    names.insert(name);
                }),
                _ => (),
            }
        }
        let mut names = BTreeSet::new();
        walk(&serde_json::to_value(report).unwrap(), "", &mut names);
        let own = names.into_iter().filter(|name| !name.starts_with("machine."));
        own.collect::<Vec<_>>().join(" ")
    }

    /// Whether the first so many lines of a table are of one length.
    pub fn lines_up(table: &str, lines: usize) {
        let lines: Vec<&str> = table.lines().take(lines).collect();
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{table}");
    }
}
