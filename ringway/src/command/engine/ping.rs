//! `ringway engine icmp --ping ADDRESS`: asks, and prints answers as `ping` does.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use anyhow::Context as _;
use ringway_api::error::Error;
use ringway_engine::apps::{Ping, PingConfig, PingReply, PingResults};
use ringway_engine::{App, AppFactory, Engine};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{IcmpArgs, Output};
use crate::exit::{Exit, say};
use crate::table;

const LOOKS: Duration = Duration::from_millis(20);
/// A worker that sleeps wakes up ten times a second: who asks more often has one that does not.
const OFTEN: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct PingReport {
    schema: &'static str,
    address: IpAddr,
    mac: Option<String>,
    sent_packets: u64,
    received_packets: u64,
    lost_packets: u64,
    loss_share: f64,
    duplicate_packets: u64,
    seconds: f64,
    rtt: Option<Rtt>,
    /// Whether every packet and every frame is accounted for.
    balanced: bool,
    error: Option<String>,
}

/// Of answers that came for the first time.
#[derive(Serialize)]
struct Rtt {
    min_ms: f64,
    avg_ms: f64,
    max_ms: f64,
    mdev_ms: f64,
}

/// Until all are asked, or a signal says so.
pub fn main(args: &IcmpArgs, address: IpAddr) -> anyhow::Result<Exit> {
    let (interval, count, size) = (args.interval, args.count, args.size);
    let asked = PingConfig { address, interval, count, size };
    if !args.host.address.iter().any(|own| own.is_ipv4() == address.is_ipv4()) {
        let remedy = "add an --address of its family";
        let what = format!("{address} cannot be asked from an address of the other family");
        return Err(Error::configuration(what, remedy).into());
    }
    let host = super::host(&args.host, None)?;
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("signals are not heard")?;
    let pinged = Arc::new(Mutex::new(PingResults::new()));
    // The lower sixteen bits differ from one process to the next.
    let identifier = std::process::id() as u16;
    let ping = {
        let pinged = pinged.clone();
        move || Ping::new(host.clone(), asked, identifier, pinged.clone())
    };
    // What could be wrong with it is wrong now.
    ping().map_err(|e| Error::configuration(e.to_string(), "see --size and --address"))?;
    // One worker asks; answers may come to any.
    let asked = AtomicBool::new(false);
    let app: AppFactory = Arc::new(move || -> Box<dyn App> {
        let ping = ping().expect("it could be made before");
        Box::new(if asked.swap(true, Relaxed) { ping.that_listens() } else { ping })
    });
    let work = &args.host.work;
    let engine = super::start(work, &app, work.latency || interval < OFTEN)?;
    let start = Instant::now();
    watch(&engine, signals, &pinged, args, address);
    let seconds = start.elapsed().as_secs_f64();
    let ended: Vec<_> = engine.stop().into_iter().collect::<Result<_, _>>()?;
    print_latest(&pinged, args, address);
    let report = PingReport::new(address, &lock(&pinged), seconds, &ended);
    match work.output.output {
        Output::Table => table::print(&report.to_string())?,
        Output::Json => table::json(&report)?,
    }
    match report.error {
        Some(error) => Err(anyhow::anyhow!(error)),
        None if !report.balanced || report.received_packets == 0 => Ok(Exit::Unhealthy),
        None => Ok(Exit::Done),
    }
}

fn watch(
    engine: &Engine,
    mut signals: Signals,
    pinged: &Mutex<PingResults>,
    args: &IcmpArgs,
    address: IpAddr,
) {
    while !engine.is_over() && signals.pending().next().is_none() {
        print_latest(pinged, args, address);
        thread::sleep(LOOKS);
    }
}

fn print_latest(pinged: &Mutex<PingResults>, args: &IcmpArgs, address: IpAddr) {
    let latest: Vec<PingReply> = lock(pinged).latest.drain(..).collect();
    if args.host.work.output.output == Output::Json {
        return;
    }
    for PingReply { bytes, sequence, ttl, rtt_ns, duplicate } in latest {
        let ms = rtt_ns as f64 / 1e6;
        let again = if duplicate { " (DUP!)" } else { "" };
        say(format_args!(
            "{bytes} bytes from {address}: icmp_seq={sequence} ttl={ttl} time={ms:.3} ms{again}"
        ));
    }
}

fn lock(pinged: &Mutex<PingResults>) -> MutexGuard<'_, PingResults> {
    pinged.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PingReport {
    fn new(
        address: IpAddr,
        pinged: &PingResults,
        seconds: f64,
        ended: &[ringway_engine::WorkerReport],
    ) -> Self {
        let (sent, answered) = (pinged.sent, pinged.answered());
        let rtt = pinged.rtt.milliseconds();
        Self {
            schema: "ringway.ping/1",
            address,
            mac: pinged.mac.map(|mac| mac.to_string()),
            sent_packets: sent,
            received_packets: answered,
            lost_packets: sent - answered,
            loss_share: if sent == 0 { 0.0 } else { (sent - answered) as f64 / sent as f64 },
            duplicate_packets: pinged.duplicates,
            seconds,
            rtt: rtt.map(|[min_ms, avg_ms, max_ms, mdev_ms]| Rtt {
                min_ms,
                avg_ms,
                max_ms,
                mdev_ms,
            }),
            balanced: ended.iter().all(|report| report.audit.balanced()),
            error: ended.iter().find_map(|report| report.error.as_ref()).map(ToString::to_string),
        }
    }
}

impl fmt::Display for PingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, sent_packets: sent, received_packets: received, .. } = self;
        writeln!(f, "--- {address} ping statistics ---")?;
        if self.mac.is_none() {
            let how = if address.is_ipv4() { "ARP" } else { "neighbour discovery" };
            writeln!(f, "nobody has answered {how} for {address}: it must be on this link")?;
        }
        write!(f, "{sent} packets transmitted, {received} received, ")?;
        if self.duplicate_packets > 0 {
            write!(f, "+{} duplicates, ", self.duplicate_packets)?;
        }
        let (loss, ms) = (self.loss_share * 100.0, self.seconds * 1000.0);
        writeln!(f, "{loss:.4}% packet loss, time {ms:.0}ms")?;
        match &self.rtt {
            Some(Rtt { min_ms, avg_ms, max_ms, mdev_ms }) => writeln!(
                f,
                "rtt min/avg/max/mdev = {min_ms:.3}/{avg_ms:.3}/{max_ms:.3}/{mdev_ms:.3} ms"
            ),
            None => Ok(()),
        }
    }
}
