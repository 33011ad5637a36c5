//! `ringway-lab gen`: sends packets, receives them, and says what became of them.

mod recipe;
mod report;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use ringway_engine::stamp::Clock;
use ringway_engine::{
    App, AppFactory, Engine, EngineConfig, EngineError, Idle, PortSpec, WorkerConfig,
    WorkerOptions, engine_on,
};
use ringway_host::netlink::links::by_name;
use ringway_measure::generate::{
    Checker, Generator, GeneratorControl, ReceiveCounts, Traffic, live_frames,
};
use ringway_xsk::{Chunk, UmemConfig};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::report::{GenReport, Log};
use crate::cli::{GenArgs, GenPort, Output};
use crate::table;
use ringway_terminal::exit::{Exit, say};

/// How often it looks whether something has happened.
const LOOKS: Duration = Duration::from_millis(5);
/// So many looks without another packet, about a second, end the wait for those on their way; so
/// does this time. Looks are counted because a busy machine may let this thread stand still.
const QUIET_LOOKS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(10);
const QUIET_LOOKS_OF_A_SINK: u32 = 40;
const PATIENCE_OF_A_SINK: Duration = Duration::from_secs(1);
/// Frames up to this length fit into 2 048 bytes.
const SHORT: usize = 1792;

/// Sends and receives until there is no more of it, or somebody says so.
pub fn main(args: &GenArgs) -> anyhow::Result<Exit> {
    let generated = args.port.as_ref().map(|port| recipe::generated(args, port)).transpose()?;
    // Before there are threads, so that all hear of them.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("signals are not heard")?;
    let mut run = Run::start(args, generated, signals)?;
    run.watch();
    let report = run.end()?;
    match args.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    match report.error {
        _ if !report.balanced => {
            say("the ledger does not balance, a bug of Ringway");
            Ok(Exit::Unhealthy)
        }
        Some(error) => Err(anyhow::anyhow!(error)),
        None => Ok(Exit::Done),
    }
}

/// A sender, a receiver, or both.
struct Run<'a> {
    args: &'a GenArgs,
    signals: Signals,
    engine: Option<Engine>,
    live: Option<JoinHandle<Result<(), ringway_measure::Error>>>,
    control: Arc<GeneratorControl>,
    checked: Arc<Mutex<ReceiveCounts>>,
    start: Instant,
    log: Log,
    stream: u16,
    told: bool,
}

impl<'a> Run<'a> {
    fn start(
        args: &'a GenArgs,
        generated: Option<Traffic>,
        signals: Signals,
    ) -> anyhow::Result<Self> {
        let (clock, control) = (Clock::new(), Arc::<GeneratorControl>::default());
        let stream = generated.as_ref().map(|generated| generated.stream);
        let checked = Arc::new(Mutex::new(ReceiveCounts::new(stream.as_slice())));
        let longest = generated.iter().flat_map(|generated| &generated.templates);
        let longest = longest.map(|template| template.frame().len()).max().unwrap_or(0);
        let mut workers = Vec::new();
        if !args.sink.is_empty() {
            let checked = checked.clone();
            let app = factory(move || Checker::new(clock, checked.clone()));
            workers.push(WorkerConfig { cpu: args.sink_cpu, ports: args.sink.clone(), app });
        }
        hindrances(args, longest)
            .iter()
            .for_each(|hindrance| say(format_args!("warn: {hindrance}")));
        let links = Arc::new(links(args));
        // Last, so that the receiver is there when it begins.
        let mut live_one = None;
        match (&args.port, generated) {
            (Some(GenPort::Engine(port)), Some(generated)) => {
                workers.push(sender(args.cpu, port, generated, clock, &control, &links));
            }
            (Some(GenPort::Live(name)), Some(generated)) => live_one = Some((name, generated)),
            _ => (),
        }
        let engine = match workers.is_empty() {
            true => None,
            false => {
                let engine = Engine::start(&config(args, longest), workers);
                Some(engine.map_err(|error| running(&error).unwrap_or_else(|| anyhow!(error)))?)
            }
        };
        let live = live_one.map(|(name, generated)| {
            let ifindex = ringway_host::interface_by_name(name)?.link.ifindex;
            let control = control.clone();
            let run = move || {
                wait_for(&links, &control);
                live_frames::run(&generated, ifindex, clock, &control)
            };
            thread::Builder::new().name("live".into()).spawn(run).context("no thread for it")
        });
        let ports = args.port.iter().map(ToString::to_string);
        let ports: Vec<_> = ports.chain(args.sink.iter().map(ToString::to_string)).collect();
        say(format_args!("running on {}; Ctrl-C ends it, with the report", ports.join(", ")));
        Ok(Self {
            args,
            signals,
            engine,
            live: live.transpose()?,
            control,
            checked,
            start: Instant::now(),
            log: Log::new(args.interval),
            stream: stream.unwrap_or_default(),
            told: false,
        })
    }

    /// Until all is sent, and received as far as it comes.
    fn watch(&mut self) {
        while !self.told && !self.is_sent() {
            self.sample();
            let over = |seconds| self.start.elapsed() >= seconds;
            self.told |= self.args.port.is_none() && self.args.seconds.is_some_and(over);
        }
        self.control.stop();
        let since = Instant::now();
        while !self.is_gone() && since.elapsed() < PATIENCE {
            self.sample();
        }
        if !self.args.sink.is_empty() {
            self.wait_for_the_rest();
        }
    }

    /// A sink alone does not know how many there are, nor whether others go on sending.
    fn wait_for_the_rest(&mut self) {
        self.told = false;
        let sent = self.args.port.is_some().then(|| self.control.made().packets);
        let (looks, patience) = match sent {
            Some(_) => (QUIET_LOOKS, PATIENCE),
            None => (QUIET_LOOKS_OF_A_SINK, PATIENCE_OF_A_SINK),
        };
        let (since, mut quiet, mut seen) = (Instant::now(), 0, 0);
        while !self.told && quiet < looks && since.elapsed() < patience {
            let (unique, all) = {
                let checked = lock(&self.checked);
                (checked.unique_packets(), checked.received_packets())
            };
            quiet = if all == seen { quiet + 1 } else { 0 };
            seen = all;
            if sent.is_some_and(|sent| unique >= sent) {
                return;
            }
            self.sample();
        }
    }

    /// Whether no more is made, or somebody has ended who should not.
    fn is_sent(&self) -> bool {
        let live = self.live.as_ref().is_some_and(JoinHandle::is_finished);
        live || self.control.made().finished || self.engine.as_ref().is_some_and(Engine::is_over)
    }

    /// Whether what was made has left its port's rings.
    fn is_gone(&self) -> bool {
        match &self.args.port {
            Some(GenPort::Engine(_)) => self.engine.as_ref().is_some_and(Engine::is_over),
            Some(GenPort::Live(_)) => self.live.as_ref().is_some_and(JoinHandle::is_finished),
            None => true,
        }
    }

    /// Waits a little, hears signals, and says how it goes.
    fn sample(&mut self) {
        thread::sleep(LOOKS);
        self.told |= self.signals.pending().next().is_some();
        let received = lock(&self.checked).received_packets();
        self.log.tick(self.args, &self.control.made(), received);
    }

    fn end(mut self) -> anyhow::Result<GenReport> {
        let seconds = self.start.elapsed().as_secs_f64();
        let mut error = None;
        if let Some(live) = self.live.take() {
            let ended = live.join().map_err(|_| anyhow::anyhow!("the sender has panicked"))?;
            error = ended.err().map(|error| error.to_string());
        }
        let mut ended = Vec::new();
        for report in self.engine.take().map(Engine::stop).unwrap_or_default() {
            ended.push(report?);
        }
        let failed = ended.iter().find_map(|report| report.error.as_ref());
        error = error.or_else(|| failed.map(ToString::to_string));
        let (made, checked) = (self.control.made(), lock(&self.checked));
        let mut report =
            GenReport::new(self.args, self.stream, &made, &checked, &ended, self.log.intervals());
        report.seconds = seconds;
        report.error = error.or_else(|| report.nothing_sent());
        Ok(report)
    }
}

/// That a running engine has the interface, if that is why there is no other.
fn running(error: &EngineError) -> Option<anyhow::Error> {
    let interface = error.taken_interface()?;
    let pid = engine_on(interface)?;
    Some(anyhow!(
        "{interface}: process {pid} is a running engine and has this interface; end it first, or take another interface"
    ))
}

/// Interfaces that packets leave and come by.
fn interfaces(args: &GenArgs) -> impl Iterator<Item = &str> {
    let port = args.port.as_ref().and_then(GenPort::interface);
    port.into_iter().chain(args.sink.iter().filter_map(PortSpec::interface))
}

/// Those of them that somebody has set up.
fn links(args: &GenArgs) -> Vec<String> {
    let is_up = |name: &&str| by_name(name).is_ok_and(|link| link.up);
    interfaces(args).filter(is_up).map(str::to_owned).collect()
}

/// A driver may take its link down for a program: what is sent until it is back is gone.
fn wait_for(links: &[String], control: &GeneratorControl) {
    let start = Instant::now();
    let gone = |name: &&String| by_name(name).is_ok_and(|link| !link.carrier);
    while let Some(name) = links.iter().find(gone) {
        if control.is_stopped() {
            return;
        }
        if start.elapsed() >= PATIENCE {
            return say(format_args!(
                "warn: {name} has no carrier after {} s: it sends all the same",
                PATIENCE.as_secs()
            ));
        }
        thread::sleep(LOOKS);
    }
}

/// Why packets will not arrive, as far as that is known now.
fn hindrances(args: &GenArgs, longest: usize) -> Vec<String> {
    let port = args.port.as_ref().and_then(GenPort::interface);
    let mut hindrances = Vec::new();
    for name in interfaces(args) {
        // Opening it reports that it does not exist.
        let Ok(link) = by_name(name) else { continue };
        if !link.carrier {
            hindrances.push(format!(
                "{name} has no carrier: it is down, or the other end of its cable is, and nothing that is sent arrives; look at `ip link`"
            ));
        }
        let allowed = link.mtu as usize + 14 + if args.packets.vlan.is_some() { 4 } else { 0 };
        if port == Some(name) && longest > allowed {
            let mtu = link.mtu;
            hindrances.push(format!(
                "{name} sends frames of up to {allowed} bytes, as its MTU of {mtu} has it, and there are some of {longest}: ask for \
                 shorter ones, or raise the MTU"
            ));
        }
    }
    hindrances.dedup();
    hindrances
}

fn sender(
    cpu: Option<usize>,
    port: &PortSpec,
    generated: Traffic,
    clock: Clock,
    control: &Arc<GeneratorControl>,
    links: &Arc<Vec<String>>,
) -> WorkerConfig {
    let (control, links) = (control.clone(), links.clone());
    // All ports are open then.
    let app = factory(move || {
        wait_for(&links, &control);
        Generator::new(generated.clone(), clock, control.clone())
    });
    WorkerConfig { cpu, ports: vec![port.clone()], app }
}

fn factory<A: App + 'static>(make: impl Fn() -> A + Send + Sync + 'static) -> AppFactory {
    Arc::new(move || Box::new(make()))
}

fn config(args: &GenArgs, longest: usize) -> EngineConfig {
    let chunk = if longest > SHORT { Chunk::Bytes4096 } else { Chunk::Bytes2048 };
    // A worker that sleeps cannot keep the rate, and would measure its own wake-ups.
    let options = WorkerOptions { idle: Idle::Latency, ..WorkerOptions::default() };
    EngineConfig {
        umem: UmemConfig { frames: args.frames, chunk, ..UmemConfig::default() },
        options,
        ..EngineConfig::default()
    }
}

/// Counts that are whole, whoever panicked.
fn lock(checked: &Mutex<ReceiveCounts>) -> MutexGuard<'_, ReceiveCounts> {
    checked.lock().unwrap_or_else(PoisonError::into_inner)
}
