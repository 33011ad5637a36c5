//! Findings for people.

use std::fmt::Write as _;

use ringway_doctor::{Collection, Comparison, Finding, Origin, Outcome, Report, Severity};

use crate::table::{Cell, Table, Tone, paint};

/// The machine of the findings, where that is not plain; and where their fixes are to be run.
pub fn place(origin: &Origin, elsewhere: bool) -> String {
    let run = origin.namespace.as_ref();
    let run =
        run.map_or_else(String::new, |one| format!("; run fixes in it: {} COMMAND", one.enter()));
    match elsewhere || !run.is_empty() {
        true => format!("{origin}{run}\n\n"),
        false => String::new(),
    }
}

/// Content of an archive, and the part that is not for everybody.
pub fn contents(collection: &Collection, colour: bool) -> String {
    let mut table = Table::new(&["it holds", "files", "mind"]);
    for (class, files) in collection.contents() {
        let mind = Cell::new(class.mind.unwrap_or("-"));
        table.row(vec![Cell::new(class.holds), Cell::number(files), mind]);
    }
    table.render(colour)
}

/// The findings, the worst first; then the counts.
pub fn report(report: &Report, changes: Option<&Comparison>, all: bool, colour: bool) -> String {
    let mut text = findings(report, all, colour);
    let rest = "--all shows these, too";
    text += &summary(report, (!all).then_some(rest));
    if let Some(changes) = changes {
        text += &since(changes, colour);
    }
    text
}

/// The findings, the worst first; then the counts, and the command for the rest.
pub fn symptoms(report: &Report, rest: &str, colour: bool) -> String {
    findings(report, false, colour) + &summary(report, Some(rest))
}

fn findings(report: &Report, all: bool, colour: bool) -> String {
    let mut text = String::new();
    for finding in report.symptoms() {
        text += &symptom(finding, colour);
    }
    if all {
        text += &others(report, colour);
    }
    text
}

fn symptom(finding: &Finding, colour: bool) -> String {
    let Outcome { subject, severity, found, evidence, changes, advice, .. } = &finding.outcome;
    let severity = paint(severity.as_str(), tone(*severity), colour);
    let mut text = format!("{severity}: {} {subject}: {found}\n", finding.check);
    let mut line = |name: &str, words: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<6} {words}");
    };
    for evidence in evidence {
        line("read", &format!("{} = {}", evidence.source, evidence.value.replace('\t', " ")));
    }
    if let Some(rule) = finding.rule() {
        line("rule", &format!("{} ({})", rule.rule, rule.source));
        line("why", rule.why);
    }
    for change in changes {
        line("fix", &change.fix.to_string());
        line("undo", &change.undo.to_string());
    }
    if let Some(advice) = advice {
        line("to do", &advice.to_string());
    }
    if !finding.also.is_empty() {
        let also: Vec<String> = finding.also.iter().cloned().map(Into::into).collect();
        line("also", &also.join(", "));
    }
    text + "\n"
}

fn others(report: &Report, colour: bool) -> String {
    let mut table = Table::new(&["check", "subject", "state", "found"]);
    let rest = |finding: &&Finding| finding.outcome.severity <= Severity::Unknown;
    for Finding { check, outcome, .. } in report.findings.iter().filter(rest) {
        table.row(vec![
            Cell::new(*check),
            Cell::new(&outcome.subject),
            Cell::new(outcome.severity.as_str()).tone(tone(outcome.severity)),
            Cell::new(&outcome.found),
        ]);
    }
    if table.is_empty() { String::new() } else { table.render(colour) + "\n" }
}

fn summary(report: &Report, rest: Option<&str>) -> String {
    let count =
        |severity: Severity| format!("{} {}", report.of(severity).count(), severity.as_str());
    let states = [Severity::Crit, Severity::Warn, Severity::Info, Severity::Unknown, Severity::Ok];
    let counts: Vec<String> = states.into_iter().map(count).collect();
    let more = rest.map_or_else(String::new, |rest| format!(" ({rest})"));
    format!("{}{more}\n", counts.join(", "))
}

fn since(changes: &Comparison, colour: bool) -> String {
    let groups = [
        ("fixed, or not seen now", &changes.fixed, Tone::Good),
        ("new", &changes.new, Tone::Bad),
        ("still", &changes.still, Tone::Warn),
        ("unknown now", &changes.unknown, Tone::Dim),
        ("not asked now", &changes.not_asked, Tone::Dim),
    ];
    let mut text = String::from("\nsince the earlier run:\n");
    for (name, found, tone) in groups {
        for one in found {
            let name = paint(name, tone, colour);
            let _ = writeln!(text, "  {name}: {} {}", one.check, one.subject);
        }
    }
    if groups.iter().all(|(_, found, _)| found.is_empty()) {
        text += "  nothing was wrong, and nothing is\n";
    }
    text
}

/// How it is painted.
pub fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Ok => Tone::Good,
        Severity::Unknown | Severity::Info => Tone::Dim,
        Severity::Warn => Tone::Warn,
        Severity::Crit => Tone::Bad,
    }
}
