//! `ringway-lab bench`: measurements.

use std::path::Path;
use std::{fs, io};

use anyhow::Context as _;
use clap::Args;
use ringway_measure::benches::tcp;
use ringway_measure::harness::{self, BenchReport, Scenario};
use ringway_terminal::exit::{self, Exit};

use crate::cli::{Bench, BenchArgs, CompareArgs, OfRingway, Output, OutputArgs, Plotted, Printed};
use crate::table;

pub fn main(args: BenchArgs) -> anyhow::Result<Exit> {
    match args.what {
        Bench::Lb(OfRingway { mut scenario, ringway, output }) => {
            if scenario.needs_ringway() {
                scenario.ringway = ringway.find()?;
            }
            printed(&Printed { scenario, output })
        }
        Bench::Capture(OfRingway { mut scenario, ringway, output }) => {
            scenario.ringway = ringway.find()?;
            printed(&Printed { scenario, output })
        }
        Bench::Forward(OfRingway { mut scenario, ringway, output }) => {
            if scenario.needs_ringway() {
                scenario.ringway = ringway.find()?;
            }
            printed(&Printed { scenario, output })
        }
        Bench::Packet(args) => printed(&args),
        Bench::Engine(args) => printed(&args),
        Bench::TcpMemory(args) => plotted(&args),
        Bench::Million(args) => plotted(&args),
        Bench::TcpConnect(args) => plotted(&args),
        Bench::KernelPath(args) => plotted(&args),
        Bench::Shield(OfRingway { mut scenario, ringway, output }) => {
            if scenario.needs_ringway() {
                scenario.ringway = ringway.find()?;
            }
            printed(&Printed { scenario, output })
        }
        Bench::Compare(args) => compare(&args),
        Bench::Inner { job } => {
            tcp::inner(&job)?;
            Ok(Exit::Done)
        }
    }
}

fn printed<S: Scenario + Args>(args: &Printed<S>) -> anyhow::Result<Exit> {
    print(&measure(&args.scenario)?, args.output)
}

fn plotted<S: Scenario + Args>(args: &Plotted<S>) -> anyhow::Result<Exit> {
    let page = args.html.as_deref();
    page.map_or(Ok(()), can_be_written)?;
    let report = measure(&args.scenario)?;
    if let Some((path, html)) = page.zip(report.html()) {
        fs::write(path, html).with_context(|| unwritable(path))?;
        exit::say(format_args!("plots in {}", path.display()));
    }
    print(&report, args.output)
}

fn measure<S: Scenario>(scenario: &S) -> anyhow::Result<BenchReport<S::Figures>> {
    Ok(harness::run(scenario, crate::VERSION, &mut |line| exit::say(line))?)
}

fn print<F: harness::Figures>(report: &BenchReport<F>, output: OutputArgs) -> anyhow::Result<Exit> {
    match output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(report)?,
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn compare(args: &CompareArgs) -> anyhow::Result<Exit> {
    let found = ringway_measure::compare::compare(&args.before, &args.after)?;
    match args.output.output {
        Output::Table => table::print(&found.to_string())?,
        Output::Json => table::json(&found)?,
    }
    Ok(if args.fail_on_worse && found.is_worse() { Exit::Unhealthy } else { Exit::Done })
}

/// Whether the page can be written, before minutes are spent on it. A file that is there stays as
/// it is.
fn can_be_written(page: &Path) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let tried = match options.write(true).create_new(true).open(page) {
        Ok(_) => fs::remove_file(page),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::OpenOptions::new().write(true).open(page).map(drop)
        }
        Err(error) => Err(error),
    };
    tried.with_context(|| unwritable(page))
}

fn unwritable(page: &Path) -> String {
    format!("writing {}: see that its directory is there and yours", page.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_refused_beforehand() {
        let directory = tempfile::tempdir().unwrap();
        let page = |path: &str| directory.path().join(path);
        assert!(can_be_written(&page("new.html")).is_ok());
        assert!(!page("new.html").exists(), "nothing is made yet");
        fs::write(page("old.html"), "old").unwrap();
        assert!(can_be_written(&page("old.html")).is_ok());
        assert_eq!(fs::read_to_string(page("old.html")).unwrap(), "old");
        for wrong in ["no/directory.html", "."] {
            let said = format!("{:#}", can_be_written(&page(wrong)).unwrap_err());
            assert!(said.contains("see that its directory is there"), "{said}");
        }
    }
}
