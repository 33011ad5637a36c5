//! `ringway check`: is the configuration right, and does it fit this machine?

use std::fmt::Write as _;
use std::path::Path;

use ringway_config::{Config, Errors};
use ringway_gateway::health;
use ringway_gateway::preflight::{self, Finding, Report, State};
use ringway_gateway::words::counted;
use serde::Serialize;

use crate::cli::{CheckArgs, Output};
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone, paint};

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    file: String,
    valid: bool,
    errors: Vec<Place>,
    /// Only with --host.
    findings: Option<&'a [Finding]>,
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

/// Validates; with --host also looks at the machine.
pub fn main(args: &CheckArgs) -> anyhow::Result<Exit> {
    let path = &args.config.config;
    let config = ringway_config::load(path)
        .and_then(|config| Errors::new(health::unfit(&config)).map_or(Ok(config), Err));
    if let (Ok(config), true) = (&config, args.upgrade) {
        return super::upgrade::main(config, args.output.output);
    }
    let report = match &config {
        Ok(config) if args.host => Some(preflight::run_all(config)),
        _ => None,
    };
    let exit = verdict(&config, report.as_ref());
    match args.output.output {
        Output::Json => table::json(&document(path, &config, report.as_ref(), exit))?,
        Output::Table => match &config {
            Err(errors) => exit::say(errors),
            Ok(config) => table::print(&render(path, config, report.as_ref(), table::colour()))?,
        },
    }
    Ok(exit)
}

fn verdict(config: &Result<Config, Errors>, report: Option<&Report>) -> Exit {
    match (config, report.map(Report::worst)) {
        (Err(_), _) => Exit::Usage,
        (Ok(_), None | Some(State::Ok)) => Exit::Done,
        (Ok(_), Some(_)) => Exit::Unhealthy,
    }
}

/// What `ringway check --host -o json` says of a file.
pub fn looked_at(path: &Path) -> impl Serialize {
    let config = ringway_config::load(path)
        .and_then(|config| Errors::new(health::unfit(&config)).map_or(Ok(config), Err));
    let report = config.as_ref().ok().map(preflight::run_all);
    let exit = verdict(&config, report.as_ref());
    serde_json::to_value(document(path, &config, report.as_ref(), exit)).unwrap_or_default()
}

fn document<'a>(
    path: &Path,
    config: &Result<Config, Errors>,
    report: Option<&'a Report>,
    exit: Exit,
) -> Document<'a> {
    let errors = config.as_ref().err().into_iter().flat_map(Errors::iter);
    let place = |error: &ringway_config::Error| Place {
        file: error.file.clone(),
        line: Some(error.line).filter(|line| *line > 0),
        column: Some(error.column).filter(|column| *column > 0),
        message: error.message.clone(),
    };
    Document {
        schema: "ringway.check/1",
        file: path.display().to_string(),
        valid: config.is_ok(),
        errors: errors.map(place).collect(),
        findings: report.map(|report| report.findings.as_slice()),
        ok: exit == Exit::Done,
    }
}

fn render(path: &Path, config: &Config, report: Option<&Report>, colour: bool) -> String {
    let backends: usize = config.services.iter().map(|service| service.backends.len()).sum();
    let mut text = format!(
        "{}: valid, node {}, {}, {}\n",
        path.display(),
        config.node.name.as_str(),
        counted(config.services.len(), "service"),
        counted(backends, "backend"),
    );
    let Some(report) = report else { return text };
    let mut table = Table::new(&["check", "subject", "state", "found"]);
    for finding in &report.findings {
        table.row(vec![
            Cell::new(finding.check),
            Cell::new(&finding.subject),
            Cell::new(finding.state.as_str()).tone(tone(finding.state)),
            Cell::new(&finding.reason),
        ]);
    }
    text += &format!("\n{}", table.render(colour));
    for finding in report.findings.iter().filter(|finding| !finding.fix.is_empty()) {
        let state = paint(finding.state.as_str(), tone(finding.state), colour);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n{state}: {} {}\n  to do: {}",
            finding.check, finding.subject, finding.fix
        );
    }
    if text.ends_with('\n') { text } else { text + "\n" }
}

fn tone(state: State) -> Tone {
    match state {
        State::Ok => Tone::Good,
        State::Unknown => Tone::Dim,
        State::Warn => Tone::Warn,
        State::Fail => Tone::Bad,
    }
}
