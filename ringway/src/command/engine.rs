//! `ringway engine`: a packet program in the foreground.

#[cfg(feature = "dpdk")]
mod dpdk;
mod interface_drops;
mod leaky_sink;
mod offers;
mod ping;
mod programs;
pub mod resources;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ringway_api::text::counted;
use ringway_config::{Log, LogFormat, LogLevel};
use ringway_doctor::Finding;
use ringway_doctor::engine::{self as rules, Queue};
use ringway_engine::apps::{Bid, Host, Icmp, L2fwd, Macs, Sink, UdpEcho};
use ringway_engine::spread::{self, Spread};
use ringway_engine::status::inspect::Inspection;
use ringway_engine::{
    App, AppFactory, BufferPool, Control, Cycles, Engine, EngineConfig, EngineError, Idle, Leak,
    Obtained, PortOpener, Predecessor, Status, WorkerConfig, WorkerOptions, WorkerReport,
};
use ringway_host::neighbour_packets::multicast::Memberships;
use ringway_host::netlink::xdp_features;
use ringway_wire::Mac;
use ringway_wire::nd::Neighbour;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::cli::{
    Cpus, EngineApp, EngineArgs, HostArgs, L2fwdArgs, Output, SinkArgs, TakeOver, WorkArgs,
};
use crate::command::engine_metrics::{self, Metrics};
use crate::command::inspect;
use crate::exit::{self, Exit};
use crate::table;

use interface_drops::{DropBaseline, InterfaceDrops};
use leaky_sink::LeakySink;
use programs::EnginePrograms;

/// How often it says how it goes, unasked.
const SAYS: Duration = Duration::from_secs(60);
/// How often it looks whether frames are let go.
const SEARCHES: Duration = Duration::from_secs(1);
/// How often it looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    status: Status,
    /// Modes that the af_xdp ports obtained.
    queues: Vec<QueueDocument>,
    /// Drops of their interfaces; those whose counters cannot be read are left out.
    interfaces: Vec<InterfaceDrops>,
    /// Whether every packet and every frame is accounted for.
    balanced: bool,
    /// Why it ended, unless it was told to or was done.
    error: Option<String>,
}

/// An AF_XDP socket's queue.
#[derive(Serialize)]
struct QueueDocument {
    interface: String,
    queue: u32,
    /// The program that brings packets runs in the driver.
    native: bool,
    zero_copy: bool,
    several_frames: bool,
    /// Metadata that the driver gives of packets that arrive; null where the kernel does not say.
    rx_hints: Option<Vec<&'static str>>,
    /// Offloads as it sends a packet; null where the kernel does not say.
    tx_metadata: Option<Vec<&'static str>>,
}

impl QueueDocument {
    fn new(obtained: &Obtained) -> Self {
        let driver = obtained.driver.unwrap_or_default();
        Self {
            interface: obtained.interface.clone(),
            queue: obtained.queue,
            native: obtained.native,
            zero_copy: obtained.zero_copy,
            several_frames: obtained.several_frames,
            rx_hints: driver.rx_hints.map(xdp_features::rx_hints),
            tx_metadata: driver.tx_metadata.map(xdp_features::tx_metadata),
        }
    }
}

/// Runs until told to stop, or until there is nothing left to do.
pub fn main(args: &EngineArgs) -> anyhow::Result<Exit> {
    if let EngineApp::Inspect(args) = &args.app {
        return inspect::main(args);
    }
    #[cfg(feature = "dpdk")]
    if let Some(work) = dpdk::wanted(&args.app) {
        return dpdk::main(&args.app, work);
    }
    // As long as the engine runs.
    let _groups = host_of(&args.app).map(join_groups);
    if let EngineApp::Icmp(icmp) = &args.app
        && let Some(address) = icmp.ping
    {
        return ping::main(icmp, address);
    }
    let work = work_of(&args.app).context("it is no program for packets")?;
    let mut app = app(&args.app, None)?;
    if let EngineApp::Sink(SinkArgs { leak_every: Some(every), .. }) = args.app {
        app = Arc::new(move || Box::new(LeakySink::new(every)));
    }
    let (signals, metrics) = listen(work)?;
    let instead = work.take_over.is_some();
    let control = || {
        let control = work.control.as_deref().map(|path| Control::bind(path, instead)).transpose();
        control.map_err(|error| anyhow!("{error}"))
    };
    // Before anything is attached; a successor's path is free once it has taken over.
    let mut bound = if instead { None } else { control()? };
    let engine = start(work, &app, work.latency)?;
    if instead {
        bound = control()?;
    }
    let control = bound;
    let since = DropBaseline::start(&work.port);
    watch(&engine, signals, metrics.as_ref(), || offer(&engine, control.as_ref()));
    let queues = engine.obtained().iter().map(QueueDocument::new).collect();
    // Before its sockets are closed: what arrives then has nowhere to go.
    let interfaces = since.lost();
    finish(engine.stop(), queues, interfaces, work.output.output)
}

/// Before there are threads, so that all hear of signals.
fn listen(work: &WorkArgs) -> anyhow::Result<(Signals, Option<Metrics>)> {
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1]).context("signals are not heard")?;
    Ok((signals, work.metrics.map(Metrics::listen).transpose()?))
}

/// Its workers, one for each queue; and says what it has got.
fn start(work: &WorkArgs, app: &AppFactory, latency: bool) -> anyhow::Result<Engine> {
    crate::logging::start(
        Log { format: LogFormat::Text, level: LogLevel::Info, log_checks: false },
        None,
    )?;
    let options = WorkerOptions {
        burst: work.burst.into(),
        idle: if latency { Idle::Latency } else { Idle::Adaptive },
        ..WorkerOptions::default()
    };
    let workers = spread::workers(&resources::ports(work)?)?;
    let umem = resources::umem(work, workers.len())?;
    let cpus = cpus(work.cpu.as_ref(), workers.len())?;
    let programs = Arc::new(EnginePrograms::new(work, workers.iter().flatten())?);
    let worker = |(ports, cpu)| WorkerConfig { cpu, ports, app: app.clone() };
    let workers = workers.into_iter().zip(cpus).map(worker).collect();
    let config = EngineConfig { umem, options, programs: programs.clone() };
    let engine = match &work.take_over {
        Some(target) => take_over(target, &config, workers)?,
        None => Engine::start(&config, workers).map_err(|error| resources::refused(&error))?,
    };
    programs.bury()?;
    resources::say(work, &engine);
    diagnose(work, engine.obtained(), engine.umem().room());
    if work.memory_map {
        eprint!("{}", inspect::memory_map(&Inspection::open(std::process::id())?)?);
    }
    let ports: Vec<_> = work.port.iter().map(ToString::to_string).collect();
    eprintln!("running on {}; SIGUSR1 shows how it goes, Ctrl-C ends it", ports.join(", "));
    Ok(engine)
}

/// For each worker its CPU.
fn cpus(asked: Option<&Cpus>, workers: usize) -> anyhow::Result<Vec<Option<usize>>> {
    let cpus = match asked {
        Some(Cpus(cpus)) if cpus.len() != workers => bail!(resources::usage(format!(
            "--cpu names {} for {}; name one for each",
            counted(cpus.len(), "CPU"),
            counted(workers, "worker")
        ))),
        Some(Cpus(cpus)) => cpus.clone(),
        None if workers > 1 => ringway_engine::allowed_cpus(),
        None => Vec::new(),
    };
    let each = |n| if cpus.len() < workers { None } else { cpus.get(n).copied() };
    Ok((0..workers).map(each).collect())
}

/// What is known now of how well it will run.
fn diagnose(work: &WorkArgs, obtained: &[Obtained], room_bytes: u32) {
    if obtained.is_empty() {
        return;
    }
    let queue = |obtained: &Obtained| Queue {
        interface: obtained.interface.clone(),
        number: obtained.queue,
        native: obtained.native,
        zero_copy: obtained.zero_copy,
        chosen: obtained.chosen,
        busy_poll: work.busy_poll.is_some(),
        several_frames: obtained.several_frames,
        room_bytes,
        driver: obtained.driver,
    };
    let queues: Vec<Queue> = obtained.iter().map(queue).collect();
    for Finding { check, outcome, .. } in rules::check(&queues).findings {
        exit::say(format_args!("{}: {check}: {outcome}", outcome.severity.as_str()));
    }
    for Obtained { interface, queue, refusals, .. } in obtained {
        for refusal in refusals {
            exit::say(format_args!("warn: {interface}, queue {queue}: {refusal}"));
        }
    }
}

/// Answers Prometheus, and says how it goes, until a signal says so, a worker ends or `taken` is
/// true.
fn watch<R: PortOpener + Sync>(
    engine: &Engine<R>,
    signals: Signals,
    metrics: Option<&Metrics>,
    taken: impl FnMut() -> bool,
) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(metrics) = metrics {
            scope.spawn(|| metrics.serve(&over, || engine_metrics::text(engine)));
        }
        watch_workers(engine, signals, taken);
        over.store(true, Relaxed);
    });
}

fn watch_workers<R: PortOpener>(
    engine: &Engine<R>,
    mut signals: Signals,
    mut taken: impl FnMut() -> bool,
) {
    let (mut said, mut searched) = (Instant::now(), Instant::now());
    let mut known = Vec::new();
    while !engine.is_over() {
        let mut asked = said.elapsed() >= SAYS;
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => asked = true,
                _ => return,
            }
        }
        if asked || searched.elapsed() >= SEARCHES {
            searched = Instant::now();
            let (status, silent) = engine.status();
            say_leaks(&status.leaks, &mut known);
            if asked {
                said = Instant::now();
                eprint!("{status}");
                silent
                    .iter()
                    .for_each(|n| eprintln!("worker {n} has not answered within a second"));
            }
        }
        if taken() {
            return;
        }
        thread::sleep(LOOKS);
    }
}

/// Offers everything to a successor that asks. Whether it has taken over.
fn offer(engine: &Engine, control: Option<&Control>) -> bool {
    let Some(successor) = control.and_then(Control::asked) else { return false };
    let taken = engine.offer(&successor);
    match &taken {
        Ok(true) => eprintln!("a successor has taken over"),
        Ok(false) => eprintln!("a successor has not taken over; this engine continues"),
        Err(error) => eprintln!("{error}"),
    }
    taken.unwrap_or(false)
}

fn take_over(
    target: &TakeOver,
    config: &EngineConfig,
    workers: Vec<WorkerConfig>,
) -> anyhow::Result<Engine> {
    // Measured now, and not while nobody looks at the rings.
    Cycles::per_second();
    let begin = || {
        let path = match target {
            TakeOver::Path(path) => path.clone(),
            TakeOver::Process(pid) => ringway_engine::control_of(*pid)?,
        };
        Engine::take_over(config, workers, Predecessor::ask(&path)?)
    };
    let (engine, gap) = begin().map_err(|error: EngineError| resources::refused(&error))?;
    eprintln!("took over; the rings were not read for {:.1} ms", gap.as_secs_f64() * 1e3);
    Ok(engine)
}

fn say_leaks(leaks: &[Leak], known: &mut Vec<(usize, String)>) {
    for leak in leaks {
        let stage = (leak.worker, leak.stage.clone());
        if !known.contains(&stage) {
            eprintln!(
                "leak: {leak}; that app has a bug, and the engine stops when no frame is left"
            );
            known.push(stage);
        }
    }
}

fn finish(
    ended: Vec<Result<WorkerReport, EngineError>>,
    queues: Vec<QueueDocument>,
    interfaces: Vec<InterfaceDrops>,
    output: Output,
) -> anyhow::Result<Exit> {
    let reports: Vec<WorkerReport> = ended.into_iter().collect::<Result<_, _>>()?;
    let unbalanced: Vec<_> = reports.iter().filter(|report| !report.audit.balanced()).collect();
    let balanced = unbalanced.is_empty();
    for report in unbalanced {
        let (worker, audit) = (report.worker, &report.audit);
        eprintln!("worker {worker}: the ledger does not balance, a bug of Ringway: {audit}");
    }
    let (mut workers, mut leaks, mut error) = (Vec::new(), Vec::new(), None);
    for report in reports {
        workers.push(report.status);
        leaks.extend(report.leaks);
        // What ended one, ended all.
        error = error.or(report.error);
    }
    let status = Status { schema: "ringway.engine/1", workers, leaks };
    match output {
        Output::Table => {
            let dropped = interfaces.iter().filter(|one| one.rx_dropped_packets > 0);
            let lines: String = dropped.map(|one| format!("{one}\n")).collect();
            table::print(&format!("{status}{lines}"))?;
        }
        Output::Json => {
            let error = error.as_ref().map(ToString::to_string);
            table::json(&Document { status, queues, interfaces, balanced, error })?;
        }
    }
    if !balanced {
        return Ok(Exit::Unhealthy);
    }
    error.map_or(Ok(Exit::Done), |error| Err(anyhow!("{error}")))
}

/// What all programs for packets have.
fn work_of(app: &EngineApp) -> Option<&WorkArgs> {
    match app {
        EngineApp::L2fwd(args) => Some(&args.work),
        EngineApp::Sink(args) => Some(&args.work),
        EngineApp::Inspect(_) => None,
        EngineApp::Icmp(_) | EngineApp::UdpEcho(_) | EngineApp::Bid(_) => {
            host_of(app).map(|host| &host.work)
        }
    }
}

/// `mac`: of a host that is not told its own; none: its interface's.
fn app<P: BufferPool>(app: &EngineApp, mac: Option<Mac>) -> anyhow::Result<AppFactory<P>> {
    fn factory<P: BufferPool, A: App<P> + 'static>(
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> AppFactory<P> {
        Arc::new(move || Box::new(make()))
    }
    Ok(match app {
        EngineApp::L2fwd(args) => {
            let macs = macs(args);
            factory(move || L2fwd::new(macs))
        }
        EngineApp::Icmp(args) => {
            let host = host(&args.host, mac)?;
            factory(move || Icmp::new(host.clone()))
        }
        EngineApp::UdpEcho(args) => {
            let (host, port) = (host(&args.host, mac)?, args.udp_port);
            factory(move || UdpEcho::new(host.clone(), port))
        }
        EngineApp::Bid(args) => {
            let (host, port, clients) = (host(&args.host, mac)?, args.udp_port, args.clients);
            let offers = offers::read(&args.offers)?;
            let bid = move || Bid::new(host.clone(), port, offers.clone(), clients);
            factory(bid)
        }
        EngineApp::Sink(_) => factory(Sink::default),
        EngineApp::Inspect(_) => bail!("it is no program for packets"),
    })
}

fn host_of(app: &EngineApp) -> Option<&HostArgs> {
    match app {
        EngineApp::Icmp(args) => Some(&args.host),
        EngineApp::UdpEcho(args) => Some(&args.host),
        EngineApp::Bid(args) => Some(&args.host),
        EngineApp::L2fwd(_) | EngineApp::Sink(_) | EngineApp::Inspect(_) => None,
    }
}

/// Whoever asks for an IPv6 address asks a multicast group, whose frames a NIC drops unless the
/// kernel wants them.
fn join_groups(host: &HostArgs) -> Memberships {
    let mut groups = BTreeSet::new();
    for interface in host.work.port.iter().filter_map(Spread::interface) {
        // What is wrong with it is told as the port is opened.
        let Ok(link) = ringway_host::netlink::links::by_name(interface) else { continue };
        let addresses = host.address.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        });
        groups.extend(addresses.map(|address| (link.ifindex, Neighbour::solicited_nodes(address))));
    }
    let (joined, errors) = Memberships::join(groups);
    for error in errors {
        exit::say(format_args!("warn: IPv6 neighbours may not find this engine: {error}"));
    }
    joined
}

fn macs(args: &L2fwdArgs) -> Macs {
    match (args.destination, args.source) {
        (Some(destination), Some(source)) => {
            Macs::Static { destination: Mac(destination.0), source: Mac(source.0) }
        }
        _ if args.swap => Macs::Swap,
        _ => Macs::AsIs,
    }
}

fn host(args: &HostArgs, mac: Option<Mac>) -> anyhow::Result<Host> {
    let mac = match args.mac.or(mac) {
        Some(mac) => mac,
        None => {
            let interface = args.work.port.iter().find_map(Spread::interface);
            let interface = interface.context("no port has an interface, so say --mac MAC")?;
            let link = ringway_host::interface_by_name(interface)?.link;
            link.mac
                .with_context(|| format!("{interface} has no Ethernet address: say --mac MAC"))?
        }
    };
    Ok(Host::new(Mac(mac.0), args.address.iter().copied()))
}
