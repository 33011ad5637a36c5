//! `ringway-lab demo`: real traffic through Ringway, in namespaces.

use std::io::{self, Write};

use ringway_measure::demo::{self, Cleaned, Command, DemoOptions, DemoReport, Phase};
use ringway_terminal::error::Error;
use serde::Serialize;

use crate::cli::{DemoArgs, Output};
use ringway_terminal::exit::Exit;
use ringway_terminal::table::{self, Cell, Table, Tone};

pub fn main(args: &DemoArgs) -> anyhow::Result<Exit> {
    if let Some(job) = &args.inner {
        demo::inner(job)?;
    } else if args.list {
        match args.output.output {
            Output::Json => table::json(&document())?,
            Output::Table => table::print(&list())?,
        }
    } else if args.clean {
        clean()?;
    } else {
        return run(args);
    }
    Ok(Exit::Done)
}

fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let options =
        DemoOptions { ringway: args.ringway.find()?, only: args.only.clone(), keep: args.keep };
    let (report, commands) = demo::run(&options, &say).map_err(failed)?;
    match args.output.output {
        Output::Json => table::json(&report)?,
        Output::Table => table::print(&render(&report, table::colour()))?,
    }
    // Not on stdout, which may be a JSON document.
    for Command { what, line } in &commands {
        say(&format!("# {what}\n{line}"));
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}

/// Progress. Nobody reading it is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A wrong phase is wrong usage.
fn failed(error: ringway_measure::Error) -> anyhow::Error {
    let said = error.to_string();
    match error {
        ringway_measure::Error::NoSuchPhase(..) => Error::configuration(said, "").into(),
        _ => Error::failed(said, "").into(),
    }
}

fn clean() -> anyhow::Result<()> {
    let Cleaned { removed, at_work } = demo::clean().map_err(failed)?;
    let mut lines: String = removed.iter().map(|name| format!("removed {name}\n")).collect();
    for pid in &at_work {
        lines += &format!(
            "left alone: process {pid} is still running its demo; `kill -INT {pid}` ends it and takes it down\n"
        );
    }
    table::print(if lines.is_empty() { "no demo was left standing\n" } else { &lines })?;
    Ok(())
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    phases: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    what: &'static str,
}

fn document() -> Document {
    let entry = |phase: &demo::Info| Entry { name: phase.name, what: phase.what };
    Document { schema: "ringway.demo-phases/1", phases: demo::PHASES.iter().map(entry).collect() }
}

fn list() -> String {
    let mut table = Table::new(&["phase", "what it does"]);
    for phase in demo::PHASES {
        table.row(vec![Cell::new(phase.name), Cell::new(phase.what)]);
    }
    table.render(table::colour())
}

fn render(report: &DemoReport, colour: bool) -> String {
    let mut table = Table::new(&[
        "phase",
        "forward",
        "requests",
        "errors",
        "lost to killed",
        "failover",
        "requests/s",
        "p99",
        "",
    ]);
    for phase in &report.phases {
        table.row(row(phase));
    }
    let verdict = match (report.ok, report.failover_ms) {
        (true, Some(ms)) => format!("It held; failover in {ms} ms."),
        (true, None) => "It held.".into(),
        (false, _) => "It did not hold: see the phases above.".into(),
    };
    let tone = if report.ok { Tone::Good } else { Tone::Bad };
    format!("\n{}\n{}\n", table.render(colour), table::paint(&verdict, tone, colour))
}

fn row(phase: &Phase) -> Vec<Cell> {
    let bad_if = |bad: bool| if bad { Tone::Bad } else { Tone::Plain };
    let verdict = if phase.ok { "held" } else { "did not hold" };
    let failover = phase.failover_ms.map_or_else(|| "-".into(), |ms| format!("{ms} ms"));
    let verdict_tone = if phase.ok { Tone::Good } else { Tone::Bad };
    vec![
        Cell::new(phase.name.as_str()),
        Cell::new(phase.forward.as_str()),
        Cell::number(phase.requests),
        Cell::number(phase.errors).tone(bad_if(phase.errors > 0)),
        Cell::number(phase.lost_to_killed),
        Cell::number(failover),
        Cell::number(format!("{:.0}", phase.requests_per_s)),
        Cell::number(format!("{:.2} ms", phase.latency_p99_ns as f64 / 1e6)),
        Cell::new(verdict).tone(verdict_tone),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, ok: bool) -> Phase {
        Phase {
            name: name.into(),
            forward: "nat".into(),
            requests: 1000,
            errors: u64::from(!ok),
            lost_to_killed: 0,
            requests_per_s: 1234.5,
            latency_p99_ns: 1_250_000,
            failover_ms: Some(12),
            ok,
            problems: Vec::new(),
        }
    }

    #[test]
    fn one_aligned_table() {
        let phases = vec![phase("curl", true), phase("kill-backend", false)];
        let report =
            DemoReport { schema: demo::SCHEMA.into(), phases, failover_ms: Some(12), ok: false };
        let text = render(&report, false);
        assert!(text.contains("It did not hold"), "{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("nat")).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].find("1000"), rows[1].find("1000"));
    }

    #[test]
    fn every_phase_is_listed() {
        let text = list();
        assert!(demo::PHASES.iter().all(|phase| text.contains(phase.name)), "{text}");
    }
}
