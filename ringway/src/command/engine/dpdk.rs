//! `ringway engine` with DPDK's devices as ports.

use anyhow::{anyhow, bail};
use ringway_dpdk::{Dpdk, Options};
use ringway_engine::spread::{self, Spread};
use ringway_engine::{Engine, Idle, PortSpec, WorkerConfig, WorkerOptions};

use super::{app, cpus, finish, listen, resources, watch, work_of};
use crate::cli::{EngineApp, FrameSize, HugePages, OnLoss, WhenDead, WorkArgs, ZeroCopy};
use crate::exit::{self, Exit};

/// Its settings, if a port is DPDK's; then all must be.
pub fn wanted(app: &EngineApp) -> Option<&WorkArgs> {
    work_of(app).filter(|work| work.port.iter().any(Spread::is_dpdk))
}

/// Runs until told to stop, or until a device is lost.
pub fn main(args: &EngineApp, work: &WorkArgs) -> anyhow::Result<Exit> {
    refuse(args, work)?;
    let (signals, metrics) = listen(work)?;
    crate::logging::start(
        ringway_config::Log {
            format: ringway_config::LogFormat::Text,
            level: ringway_config::LogLevel::Info,
            log_checks: false,
        },
        None,
    )?;
    let workers: Vec<Vec<PortSpec>> = spread::workers(&work.port)?;
    let cpus = cpus(work.cpu.as_ref(), workers.len())?;
    let waits_for_link = work.on_loss == OnLoss::Reopen;
    let slots = work.ring.unwrap_or(Options::default().slots);
    let options = Options { frames: work.frames, slots, waits_for_link };
    let opener = Dpdk::open(&workers, &options)?;
    let app = app(args, workers.first().and_then(|ports| opener.mac(ports)))?;
    let worker = |(ports, cpu)| WorkerConfig { cpu, ports, app: app.clone() };
    let workers = workers.into_iter().zip(cpus).map(worker).collect();
    // No device of DPDK's wakes a thread.
    let polling =
        WorkerOptions { burst: work.burst.into(), idle: Idle::Latency, ..WorkerOptions::default() };
    let engine =
        Engine::start_with(opener, polling, workers).map_err(|error| anyhow!("{error}"))?;
    let ports: Vec<_> = work.port.iter().map(ToString::to_string).collect();
    exit::say(format_args!("ok: {}; workers poll and never sleep", ringway_dpdk::version()));
    eprintln!("running on {}; SIGUSR1 shows how it goes, Ctrl-C ends it", ports.join(", "));
    watch(&engine, signals, metrics.as_ref(), || false);
    finish(engine.stop(), Vec::new(), Vec::new(), work.output.output)
}

/// What DPDK's devices cannot do.
fn refuse(args: &EngineApp, work: &WorkArgs) -> anyhow::Result<()> {
    let leaks = matches!(args, EngineApp::Sink(args) if args.leak_every.is_some());
    let asks = matches!(args, EngineApp::Icmp(args) if args.ping.is_some());
    let asked = [
        ("--only", !work.only.is_empty(), "DPDK takes a device whole"),
        ("--when-dead", work.when_dead == WhenDead::Drop, "a device without its program is silent"),
        ("--take-over", work.take_over.is_some(), "DPDK's devices cannot be handed over"),
        ("--control", work.control.is_some(), "DPDK's devices cannot be handed over"),
        ("--zero-copy", work.zero_copy != ZeroCopy::Prefer, "DPDK never copies"),
        ("--busy-poll", work.busy_poll.is_some(), "DPDK's workers always poll"),
        ("--huge-pages", work.huge_pages != HugePages::None, "DPDK takes them where there are any"),
        ("--frame-size", work.frame_size != FrameSize::Bytes2048, "mbufs have 2048 bytes"),
        ("--headroom", work.headroom != 0, "mbufs have 128 bytes of it"),
        ("--memory-map", work.memory_map, "its memory is DPDK's"),
        ("--burst below 32", work.burst < 32, "some drivers bring packets by 32"),
        ("--leak-every", leaks, "it is for af_xdp's memory"),
        ("--ping", asks, "it is for other ports"),
    ];
    match asked.iter().find(|(_, asked, _)| *asked) {
        Some((option, _, why)) => {
            bail!(resources::usage(format!("{option} is not for dpdk ports: {why}; leave it out")))
        }
        None => Ok(()),
    }
}
