//! `ringway bench`: measurements.

use std::time::Duration;

use ringway_lab::{capture, engine, lb, packet};

use crate::cli::{
    Bench, BenchArgs, BenchCaptureArgs, BenchEngineArgs, BenchLbArgs, BenchPacketArgs, Output,
};
use crate::exit::{self, Exit};
use crate::table;

/// Runs a benchmark.
pub fn main(args: &BenchArgs) -> anyhow::Result<Exit> {
    match &args.what {
        Bench::Lb(args) => balancers(args),
        Bench::Packet(args) => packets(args),
        Bench::Engine(args) => engines(args),
        Bench::Capture(args) => captures(args),
    }
}

fn balancers(args: &BenchLbArgs) -> anyhow::Result<Exit> {
    let options = lb::Options {
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        connections: args.connections.clone(),
        only: args.only.clone(),
        show_configs: args.show_configs,
        ..lb::Options::default()
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
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        only: args.only.clone(),
        ..engine::Options::default()
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
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        ..capture::Options::default()
    };
    let report = capture::run_guarded(&options, |line| exit::say(line))?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    Ok(Exit::Done)
}
