//! `ringway doctor --exam`: known faults, planted one after the other, and which of them are found.

mod corpus;
mod patient;

use std::io::{self, IsTerminal};

use ringway_api::error::Error;
use ringway_doctor::{Finding, Outcome, Report};
use serde::Serialize;

use crate::cli::Output;
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone};
use corpus::{FAULTS, Fault};
use patient::Patient;

/// Of the 44.
const ENOUGH: usize = 40;
/// What these find is the machine's own, whichever namespace they are asked in.
const OF_THE_MACHINE: [&str; 7] = [
    "btf",
    "irq-on-first",
    "irqbalance",
    "softirq-load",
    "softnet-backlog",
    "tcp-memory",
    "time-squeeze",
];

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    passed: bool,
    found: usize,
    enough: usize,
    faults: Vec<Row>,
    /// In the healthy namespace, where there should be nothing.
    false_findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Row {
    fault: &'static str,
    planted: String,
    check: &'static str,
    found: bool,
    finding: Option<Finding>,
    /// Why it could not be planted here.
    error: Option<String>,
}

/// Plants each fault in a namespace of its own.
pub fn main(output: Output) -> anyhow::Result<Exit> {
    if !rustix::process::geteuid().is_root() {
        let fix = "run it as root";
        return Err(Error::configuration("the exam makes network namespaces", fix).into());
    }
    ringway_testnet::private_run()?;
    let healthy = Patient::new()?.diagnose(&[])?;
    let faults: Vec<Row> = FAULTS.iter().map(|fault| examine(fault, &healthy)).collect();
    let own = |one: &&Finding| !OF_THE_MACHINE.contains(&one.check);
    let false_findings: Vec<Finding> = healthy.symptoms().filter(own).cloned().collect();
    let found = faults.iter().filter(|row| row.found).count();
    let passed = found >= ENOUGH && false_findings.is_empty();
    let schema = "ringway.doctor-exam/1";
    let document = Document { schema, passed, found, enough: ENOUGH, faults, false_findings };
    match output {
        Output::Json => table::json(&document)?,
        Output::Table => table::print(&render(&document, table::colour()))?,
    }
    Ok(if passed { Exit::Done } else { Exit::Failed })
}

fn examine(fault: &Fault, healthy: &Report) -> Row {
    if io::stderr().is_terminal() {
        exit::say(format_args!("{} ...", fault.name));
    }
    let looked = plant_and_look(fault);
    let known = |one: &Finding| {
        healthy
            .symptoms()
            .any(|well| (well.check, &well.outcome.subject) == (one.check, &one.outcome.subject))
    };
    let finds = |one: &&Finding| {
        let also = one.also.iter().any(|other| other.check == fault.check);
        (one.check == fault.check || also) && !known(one)
    };
    let (finding, error) = match looked {
        Ok(report) => (report.symptoms().find(finds).cloned(), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let planted: Vec<String> = fault.steps.iter().map(ToString::to_string).collect();
    let (planted, found) = (planted.join("; "), finding.is_some());
    Row { fault: fault.name, planted, check: fault.check, found, finding, error }
}

fn plant_and_look(fault: &Fault) -> anyhow::Result<Report> {
    let mut patient = Patient::new()?;
    patient.plant(fault.steps)?;
    patient.diagnose(fault.steps)
}

fn render(document: &Document, colour: bool) -> String {
    let mut rows = Table::new(&["fault", "must be found by", "found", "by what"]);
    for row in &document.faults {
        let (found, tone) = if row.found { ("yes", Tone::Good) } else { ("no", Tone::Bad) };
        rows.row(vec![
            Cell::new(row.fault),
            Cell::new(row.check),
            Cell::new(found).tone(tone),
            Cell::new(said(row)),
        ]);
    }
    let wrong = &document.false_findings;
    let mut text = rows.render(colour);
    for one in wrong {
        let Finding { check, outcome: Outcome { subject, found, .. }, .. } = one;
        text += &format!("\nfalse, in a healthy namespace: {check} {subject}: {found}");
    }
    let (passed, tone) =
        if document.passed { ("passed", Tone::Good) } else { ("failed", Tone::Bad) };
    let score = format!(
        "{passed}: {} of {} faults found, at least {} must be; {} false findings, none may be",
        document.found,
        document.faults.len(),
        document.enough,
        wrong.len()
    );
    format!("{text}\n{}\n", table::paint(&score, tone, colour))
}

fn said(row: &Row) -> String {
    match (&row.finding, &row.error) {
        (Some(Finding { check, outcome, .. }), _) => {
            format!("{}: {check} {}", outcome.severity.as_str(), outcome.subject)
        }
        (None, Some(error)) => format!("not planted: {error}"),
        (None, None) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use ringway_doctor::rules;

    use super::*;

    #[test]
    fn names_are_of_checks_and_once_each() {
        let mut names: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAULTS.len());
        for check in FAULTS.iter().map(|fault| fault.check).chain(OF_THE_MACHINE) {
            assert!(rules::find(check).is_some_and(|rule| rule.applies(None)), "{check}");
        }
    }
}
