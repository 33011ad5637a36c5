//! `ringway-lab bench`: measurements.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use ringway_measure::benches::tcp::{self, connect, memory, million};
use ringway_measure::benches::{capture, engine, kernel_path, lb, packet};
use serde::Serialize;

use crate::cli::{
    Bench, BenchArgs, BenchCaptureArgs, BenchEngineArgs, BenchKernelPathArgs, BenchLbArgs,
    BenchMillionArgs, BenchPacketArgs, BenchTcpConnectArgs, BenchTcpMemoryArgs, HtmlArgs, Output,
    OutputArgs,
};
use crate::table;
use ringway_terminal::exit::{self, Exit};

/// Runs a benchmark.
pub fn main(args: &BenchArgs) -> anyhow::Result<Exit> {
    match &args.what {
        Bench::Lb(args) => balancers(args),
        Bench::Packet(args) => packets(args),
        Bench::Engine(args) => engines(args),
        Bench::Capture(args) => captures(args),
        Bench::TcpMemory(args) => tcp_memory(args),
        Bench::Million(args) => many_connections(args),
        Bench::TcpConnect(args) => tcp_connect(args),
        Bench::KernelPath(args) => kernel(args),
        Bench::Inner { job } => {
            tcp::inner(job)?;
            Ok(Exit::Done)
        }
    }
}

fn balancers(args: &BenchLbArgs) -> anyhow::Result<Exit> {
    let measured = args.only.is_empty() || args.only.iter().any(|path| path.is_ringway());
    let ringway = if measured { args.ringway.find()? } else { PathBuf::new() };
    let options = lb::Options {
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        connections: args.connections.clone(),
        only: args.only.clone(),
        show_configs: args.show_configs,
        ringway,
    };
    let report = lb::run_guarded(&options, |line| exit::say(line))?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn packets(args: &BenchPacketArgs) -> anyhow::Result<Exit> {
    let options = packet::Options {
        rounds: args.rounds,
        only: args.only.clone(),
        ip: args.ip.clone(),
        flows: args.flows.clone(),
    };
    let report = packet::run(&options, |line| exit::say(line))?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn engines(args: &BenchEngineArgs) -> anyhow::Result<Exit> {
    let options = engine::Options {
        rounds: args.repeated.rounds,
        duration: Duration::from_secs(args.repeated.seconds),
        only: args.only.clone(),
    };
    let report = engine::run_guarded(&options, |line| exit::say(line))?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn captures(args: &BenchCaptureArgs) -> anyhow::Result<Exit> {
    let options = capture::Options {
        rounds: args.repeated.rounds,
        duration: Duration::from_secs(args.repeated.seconds),
        ringway: args.ringway.find()?,
    };
    let report = capture::run_guarded(&options, |line| exit::say(line))?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    Ok(Exit::Done)
}

fn tcp_memory(args: &BenchTcpMemoryArgs) -> anyhow::Result<Exit> {
    page_can_be_written(&args.html)?;
    let options = memory::Options {
        connections: args.connections,
        rounds: args.rounds,
        only: args.only.clone(),
    };
    let report = memory::run_guarded(&options, |line| exit::say(line))?;
    show(&report, &args.output, &args.html, || report.html())?;
    Ok(Exit::Done)
}

fn many_connections(args: &BenchMillionArgs) -> anyhow::Result<Exit> {
    page_can_be_written(&args.html)?;
    let mut options = million::Options {
        connections: args.connections,
        rate: args.rate,
        paced: !args.no_pace,
        ..million::Options::default()
    };
    if !args.scheme.is_empty() {
        options.schemes.clone_from(&args.scheme);
    }
    let report = million::run_guarded(&options, |line| exit::say(line))?;
    show(&report, &args.output, &args.html, || report.html())?;
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn tcp_connect(args: &BenchTcpConnectArgs) -> anyhow::Result<Exit> {
    page_can_be_written(&args.html)?;
    let options = connect::Options {
        connections: args.connections,
        time_wait: args.time_wait,
        only: args.only.clone(),
    };
    let report = connect::run_guarded(&options, |line| exit::say(line))?;
    show(&report, &args.output, &args.html, || report.html())?;
    Ok(if report.ok() { Exit::Done } else { Exit::Failed })
}

fn kernel(args: &BenchKernelPathArgs) -> anyhow::Result<Exit> {
    page_can_be_written(&args.html)?;
    let options = kernel_path::Options {
        rate: args.rate,
        duration: Duration::from_secs(args.seconds),
        rounds: args.rounds,
        only: args.only.clone(),
    };
    let report = kernel_path::run_guarded(&options, |line| exit::say(line))?;
    show(&report, &args.output, &args.html, || report.html())?;
    Ok(Exit::Done)
}

/// Whether the page can be written, before minutes are spent on it. A file that is there stays as it is.
fn page_can_be_written(html: &HtmlArgs) -> anyhow::Result<()> {
    let Some(path) = &html.html else { return Ok(()) };
    let mut options = fs::OpenOptions::new();
    let tried = match options.write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::OpenOptions::new().write(true).open(path).map(drop)
        }
        Err(error) => Err(error),
    };
    tried.with_context(|| unwritable(path))
}

fn unwritable(path: &Path) -> String {
    format!("writing {}: see that its directory is there and yours", path.display())
}

/// Prints a report as asked for, and writes its page.
fn show(
    report: &(impl Display + Serialize),
    output: &OutputArgs,
    html: &HtmlArgs,
    page: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if let Some(path) = &html.html {
        fs::write(path, page()).with_context(|| unwritable(path))?;
        exit::say(format_args!("plots in {}", path.display()));
    }
    match output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(report)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_refused_beforehand() {
        let directory = tempfile::tempdir().unwrap();
        let html = |path: &str| HtmlArgs { html: Some(directory.path().join(path)) };
        assert!(page_can_be_written(&HtmlArgs { html: None }).is_ok());
        assert!(page_can_be_written(&html("new.html")).is_ok());
        assert!(!directory.path().join("new.html").exists(), "nothing is made yet");
        fs::write(directory.path().join("old.html"), "old").unwrap();
        assert!(page_can_be_written(&html("old.html")).is_ok());
        assert_eq!(fs::read_to_string(directory.path().join("old.html")).unwrap(), "old");
        for wrong in ["no/directory.html", "."] {
            let said = format!("{:#}", page_can_be_written(&html(wrong)).unwrap_err());
            assert!(said.contains("see that its directory is there"), "{said}");
        }
    }
}
