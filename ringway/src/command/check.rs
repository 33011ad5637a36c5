//! `ringway check`: is the configuration right, and does it fit this machine and another node?

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringway_api::client::node_list;
use ringway_api::client::node_selector::NodeSelector;
use ringway_api::text::counted;
use ringway_config::{Config, DEFAULT_PATH, Errors};
use ringway_daemon::daemon::shield_plan::{self, ReadList, ShieldPlan};
use ringway_daemon::daemon::shield_warnings;
use ringway_daemon::health;
use ringway_daemon::monitor::mitigation_program;
use ringway_daemon::preflight;
use ringway_doctor::{Finding, Outcome, Program, Report, Rule, Severity, rules};
use ringway_host::Fix;
use ringway_plan::prefix_list::BadLine;
use serde::Serialize;

use super::doctor::{Looked, balancer, tone};
use super::other_node;
use crate::cli::{CheckArgs, Output};
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone, paint};

/// Between the two looks at the machine.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// Absent: only the machine was looked at.
    file: Option<String>,
    valid: Option<bool>,
    errors: Vec<Place>,
    /// Lists of the shield, as they were read.
    lists: Vec<ListEntry<'a>>,
    /// What is valid and yet worth knowing.
    notes: Vec<String>,
    /// Findings about the file's requirements on the machine, with --host, and about another node,
    /// with --other-node.
    findings: Option<Vec<FindingEntry<'a>>>,
    /// The doctor's report on the machine itself; only with --host.
    host: Option<&'a Looked>,
    ok: bool,
}

#[derive(Serialize)]
struct Place {
    /// The configuration file, or one that it includes.
    file: String,
    /// Absent when the error is about the file as a whole.
    line: Option<usize>,
    column: Option<usize>,
    message: String,
}

#[derive(Serialize)]
struct FindingEntry<'a> {
    check: &'static str,
    subject: &'a str,
    state: &'static str,
    reason: &'a str,
    fix: Fix,
    place: Option<&'a str>,
}

#[derive(Serialize)]
struct ListEntry<'a> {
    name: &'a str,
    prefixes: usize,
    skipped_lines: usize,
    /// The first of these lines.
    first: Vec<SkippedLine<'a>>,
    /// Why it cannot be read: it is empty, unless a daemon has it in force.
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct SkippedLine<'a> {
    line: u32,
    text: &'a str,
    why: String,
}

impl<'a> From<&'a ReadList> for ListEntry<'a> {
    fn from(list: &'a ReadList) -> Self {
        let line = |bad: &'a BadLine| SkippedLine {
            line: bad.line,
            text: &bad.text,
            why: bad.why.to_string(),
        };
        let first = list.bad.iter().map(line).collect();
        let (prefixes, skipped_lines) = (list.entries, list.skipped);
        let error = list.error.as_ref().map(|error| error.what.as_str());
        ListEntry { name: &list.name, prefixes, skipped_lines, first, error }
    }
}

impl<'a> From<&'a Finding> for FindingEntry<'a> {
    fn from(Finding { check, outcome, .. }: &'a Finding) -> Self {
        let Outcome { subject, severity, found, place, .. } = outcome;
        let (state, fix) = (word(*severity), outcome.remedy());
        FindingEntry { check, subject, state, reason: found, fix, place: place.as_deref() }
    }
}

/// How a severity is called here: what is critical forbids a start.
fn word(severity: Severity) -> &'static str {
    if severity == Severity::Crit { "fail" } else { severity.as_str() }
}

struct Subject<'a> {
    path: &'a Path,
    /// `None`: there is no file, and none was named.
    config: Option<Result<Config, Errors>>,
    /// The shield, with its lists as they were read.
    plan: Option<Arc<ShieldPlan>>,
    report: Option<Report>,
    host: Option<Looked>,
}

/// Validates; also looks at the machine, or at another node, where asked.
pub fn main(args: &CheckArgs) -> anyhow::Result<Exit> {
    let path = args.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH));
    let alone = args.host && args.config.is_none() && !path.exists();
    let mut config = (!alone).then(|| load(path));
    let plan = match &config {
        Some(Ok(valid)) => shield_plan::check(valid).unwrap_or_else(|errors| {
            config = Some(Err(errors));
            None
        }),
        _ => None,
    };
    if let (Some(Ok(config)), true) = (&config, args.upgrade) {
        return super::upgrade::main(config, args.output.output);
    }
    let other = match (&args.other_node, &config) {
        (None, _) | (_, Some(Err(_))) => None,
        (Some(file), _) => {
            let selector = NodeSelector { config: args.config.as_deref(), node: None };
            Some(other_node::compare(&selector, file)?)
        }
    };
    let mut subject = match args.host {
        true => examine(path, config, rules::balancer(), INTERVAL),
        false => Subject { path, config, plan: None, report: None, host: None },
    };
    subject.plan = plan;
    if let Some(other) = other {
        subject.report.get_or_insert_default().findings.extend(other.findings);
    }
    let exit = subject.verdict();
    match (args.output.output, &subject.config) {
        (Output::Json, _) => table::json(&subject.document())?,
        (Output::Table, Some(Err(errors))) => exit::refuse(errors),
        (Output::Table, _) => table::print(&subject.render(table::colour()))?,
    }
    Ok(exit)
}

fn load(path: &Path) -> Result<Config, Errors> {
    ringway_config::load(path)
        .and_then(|config| Errors::new(health::unfit(&config)).map_or(Ok(config), Err))
}

/// Looks at the machine for the configuration, or for none; not for one that is wrong.
fn examine<'a>(
    path: &'a Path,
    config: Option<Result<Config, Errors>>,
    checks: impl IntoIterator<Item = &'static Rule>,
    interval: Duration,
) -> Subject<'a> {
    let (report, program): (Option<Report>, Option<Program>) = match &config {
        Some(Err(_)) => {
            return Subject { path, config, plan: None, report: None, host: None };
        }
        Some(Ok(config)) => Some(preflight::run_all(config)).unzip(),
        None => (None, None),
    };
    let host = Some(balancer(program, checks, interval));
    Subject { path, config, plan: None, report, host }
}

/// The answer of `ringway check --host -o json`, but for findings that name clients.
pub fn host_document(path: &Path) -> impl Serialize {
    let subject = examine(path, Some(load(path)), rules::AT_START, Duration::ZERO);
    serde_json::to_value(subject.document()).unwrap_or_default()
}

impl Subject<'_> {
    fn lists(&self) -> impl Iterator<Item = &ReadList> {
        self.plan.iter().flat_map(|plan| &plan.lists)
    }

    /// What is valid and yet worth knowing.
    fn notes(&self) -> Vec<String> {
        let Some(Ok(config)) = &self.config else { return Vec::new() };
        let mut notes: Vec<String> = self.lists().filter_map(ReadList::unreadable).collect();
        notes.extend(self.plan.iter().filter_map(|plan| plan.secret.unusable()));
        notes.extend(shield_warnings::warnings(config, self.plan.as_deref()));
        // With --host it is a finding.
        let program = mitigation_program::unfit(config).filter(|_| self.host.is_none());
        notes.extend(program);
        notes.extend(shield_warnings::challenges(config));
        notes.extend(shield_warnings::unasked_cookies(config));
        notes
    }

    fn verdict(&self) -> Exit {
        let fits = self.report.as_ref().is_none_or(|report| report.worst() == Severity::Ok);
        let sound = self.host.as_ref().is_none_or(|host| host.crit == 0);
        match &self.config {
            Some(Err(_)) => Exit::Usage,
            _ if fits && sound => Exit::Done,
            _ => Exit::Unhealthy,
        }
    }

    fn document(&self) -> Document<'_> {
        let errors = self.config.iter().filter_map(|config| config.as_ref().err());
        let place = |error: &ringway_config::Error| Place {
            file: error.file.clone(),
            line: Some(error.line).filter(|line| *line > 0),
            column: Some(error.column).filter(|column| *column > 0),
            message: error.message.clone(),
        };
        Document {
            schema: "ringway.check/1",
            file: self.config.is_some().then(|| self.path.display().to_string()),
            valid: self.config.as_ref().map(Result::is_ok),
            errors: errors.flat_map(Errors::iter).map(place).collect(),
            lists: self.lists().map(ListEntry::from).collect(),
            notes: self.notes(),
            findings: self
                .report
                .as_ref()
                .map(|report| report.findings.iter().map(FindingEntry::from).collect()),
            host: self.host.as_ref(),
            ok: self.verdict() == Exit::Done,
        }
    }

    fn render(&self, colour: bool) -> String {
        let path = self.path.display();
        let mut text = match &self.config {
            Some(Ok(config)) => {
                let warning = paint("warning", Tone::Warn, colour);
                let notes = self.notes().into_iter().map(|note| format!("{warning}: {note}\n"));
                valid(self.path, config) + &skipped(self.lists()) + &notes.collect::<String>()
            }
            _ => format!("{path}: not there, so this machine alone{}\n", without_file()),
        };
        if let Some(report) = &self.report {
            text += &lines(report, colour);
        }
        if let Some(host) = &self.host {
            text += &format!("\n{}", host.render(colour));
        }
        text
    }
}

/// Nodes that are loaded all the same: started by options, or with another file.
fn without_file() -> String {
    match node_list::all().unwrap_or_default().as_slice() {
        [] => String::new(),
        nodes => format!("; of nodes that are loaded tells:{}", node_list::lines(nodes)),
    }
}

fn valid(path: &Path, config: &Config) -> String {
    let backends: usize = config.services.iter().map(|service| service.backends.len()).sum();
    let forward = config.forward.as_ref().map(|forward| {
        let names: Vec<&str> = forward.interfaces.iter().map(|name| name.as_str()).collect();
        format!("{} {}, ", forward.mode, names.join(" "))
    });
    format!(
        "{}: valid, node {}, {}{}, {}\n",
        path.display(),
        config.node.name.as_str(),
        forward.unwrap_or_default(),
        counted(config.services.len(), "service"),
        counted(backends, "backend"),
    )
}

/// The lists that are in force but for some lines.
fn skipped<'l>(lists: impl Iterator<Item = &'l ReadList>) -> String {
    let mut text = String::new();
    for list in lists.filter(|list| list.skipped > 0) {
        let lines = counted(list.skipped, "line");
        text += &format!("list {}: {lines} of its file skipped:\n", list.name);
        list.bad.iter().for_each(|bad| text += &format!("  {bad}\n"));
        if list.skipped > list.bad.len() {
            text += &format!("  and {} more\n", counted(list.skipped - list.bad.len(), "line"));
        }
    }
    text
}

fn lines(report: &Report, colour: bool) -> String {
    let mut table = Table::new(&["check", "subject", "state", "found"]);
    for finding in &report.findings {
        table.row(vec![
            Cell::new(finding.check),
            Cell::new(&finding.outcome.subject),
            Cell::new(word(finding.outcome.severity)).tone(tone(finding.outcome.severity)),
            Cell::new(&finding.outcome.found),
        ]);
    }
    let mut text = format!("\n{}", table.render(colour));
    for Finding { check, outcome, .. } in &report.findings {
        let (remedy, severity) = (outcome.remedy(), outcome.severity);
        if !remedy.is_empty() {
            let severity = paint(word(severity), tone(severity), colour);
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{severity}: {check} {}\n  to do: {remedy}", outcome.subject);
        }
    }
    if text.ends_with('\n') { text } else { text + "\n" }
}
