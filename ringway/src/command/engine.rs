//! `ringway engine`: a packet program in the foreground.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use ringway_engine::apps::{Bid, Host, Icmp, L2fwd, Macs, Offer, Sink, UdpEcho};
use ringway_engine::{
    App, AppFactory, Engine, EngineConfig, Idle, Options, Report, Status, WorkerConfig,
};
use ringway_wire::Mac;
use ringway_xsk::UmemConfig;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::cli::{EngineApp, EngineArgs, HostArgs, L2fwdArgs, Output, WorkArgs};
use crate::exit::Exit;
use crate::table;

/// How often it says how it goes, unasked.
const SAYS: Duration = Duration::from_secs(60);
/// How often it looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(50);

/// The result.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    status: Status,
    /// Whether every packet and every frame is accounted for.
    balanced: bool,
    /// Why it ended, unless it was told to or was done.
    error: Option<String>,
}

/// Runs until told to stop, or until there is nothing left to do.
pub fn main(args: &EngineArgs) -> anyhow::Result<Exit> {
    let (work, app) = app(&args.app)?;
    // Before there are threads, so that all hear of them.
    let signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).context("signals are not heard")?;
    let options = Options {
        burst: work.burst.into(),
        idle: if work.latency { Idle::Latency } else { Idle::Adaptive },
        ..Options::default()
    };
    let umem = UmemConfig { frames: work.frames, ..UmemConfig::default() };
    let worker = WorkerConfig { cpu: work.cpu, ports: work.port.clone(), app };
    let engine = Engine::start(&EngineConfig { umem, options }, vec![worker])?;
    let ports: Vec<_> = work.port.iter().map(ToString::to_string).collect();
    eprintln!("running on {}; SIGUSR1 shows how it goes, Ctrl-C ends it", ports.join(", "));
    watch(&engine, signals);
    let report = engine.stop().pop().context("there was no worker")??;
    finish(report, work.output.output)
}

/// Until a signal says so, or the worker ends.
fn watch(engine: &Engine, mut signals: Signals) {
    let mut said = Instant::now();
    while !engine.is_over() {
        let mut asked = said.elapsed() >= SAYS;
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => asked = true,
                _ => return,
            }
        }
        if asked {
            said = Instant::now();
            let (status, silent) = engine.status();
            eprint!("{status}");
            silent.iter().for_each(|n| eprintln!("worker {n} has not answered within a second"));
        }
        thread::sleep(LOOKS);
    }
}

fn finish(report: Report, output: Output) -> anyhow::Result<Exit> {
    let balanced = report.books.balanced();
    let status = Status { schema: "ringway.engine/1", workers: vec![report.status] };
    match output {
        Output::Table => table::print(&status.to_string())?,
        Output::Json => {
            let error = report.error.as_ref().map(ToString::to_string);
            table::json(&Document { status, balanced, error })?;
        }
    }
    if !balanced {
        eprintln!("the books do not balance, which is a bug of Ringway: {}", report.books);
        return Ok(Exit::Unhealthy);
    }
    report.error.map_or(Ok(Exit::Done), |error| Err(error.into()))
}

/// What runs, and how.
fn app(app: &EngineApp) -> anyhow::Result<(&WorkArgs, AppFactory)> {
    fn factory<A: App + 'static>(make: impl Fn() -> A + Send + Sync + 'static) -> AppFactory {
        Arc::new(move || Box::new(make()))
    }
    Ok(match app {
        EngineApp::L2fwd(args) => {
            let macs = macs(args);
            (&args.work, factory(move || L2fwd::new(macs)))
        }
        EngineApp::Icmp(args) => {
            let host = host(args)?;
            (&args.work, factory(move || Icmp::new(host.clone())))
        }
        EngineApp::UdpEcho(args) => {
            let (host, port) = (host(&args.host)?, args.udp_port);
            (&args.host.work, factory(move || UdpEcho::new(host.clone(), port)))
        }
        EngineApp::Bid(args) => {
            let (host, port, clients) = (host(&args.host)?, args.udp_port, args.clients);
            let offers = offers(&args.offers)?;
            let bid = move || Bid::new(host.clone(), port, offers.clone(), clients);
            (&args.host.work, factory(bid))
        }
        EngineApp::Sink(args) => (&args.work, factory(Sink::default)),
    })
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

fn host(args: &HostArgs) -> anyhow::Result<Host> {
    let mac = match args.mac {
        Some(mac) => mac,
        None => {
            let interface = args.work.port.iter().find_map(|port| port.interface());
            let interface = interface.context("no port has an interface, so say --mac MAC")?;
            let link = ringway_host::interface_by_name(interface)?.link;
            link.mac
                .with_context(|| format!("{interface} has no Ethernet address: say --mac MAC"))?
        }
    };
    Ok(Host::new(Mac(mac.0), args.address.iter().copied()))
}

fn offers(path: &Path) -> anyhow::Result<HashMap<u64, Offer>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{}: check that it is there", path.display()))?;
    let mut offers = HashMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        let (segment, offer) = offer(line).ok_or_else(|| {
            let place = format!("{}:{}", path.display(), n + 1);
            anyhow!("{place}: `{}`: write SEGMENT PRICE CREATIVE, three numbers", line.trim())
        })?;
        offers.insert(segment, offer);
    }
    Ok(offers)
}

fn offer(line: &str) -> Option<(u64, Offer)> {
    let mut words = line.split_whitespace();
    let (segment, price, creative) = (words.next()?, words.next()?, words.next()?);
    let offer = Offer { price: price.parse().ok()?, creative: creative.parse().ok()? };
    words.next().is_none().then_some((segment.parse().ok()?, offer))
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_of_offers() {
        let offer = |line| super::offer(line).map(|(segment, o)| (segment, o.price, o.creative));
        assert_eq!(offer(" 7 1000\t5 "), Some((7, 1000, 5)));
        for wrong in ["7 1000", "7 1000 5 6", "7 -1 5", "x 1 2", "7 5000000000 1"] {
            assert_eq!(offer(wrong), None, "{wrong}");
        }
    }
}
