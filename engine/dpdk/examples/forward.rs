//! Forwards between two devices for so many seconds, and says how many packets a second:
//! `forward SECONDS dpdk:net_null0 dpdk:net_null1`. As root.

use std::env;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ringway_dpdk::{Dpdk, Options};
use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::{App, Engine, Idle, WorkerConfig, WorkerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let seconds: f64 = arguments.next().ok_or("how many seconds?")?.parse()?;
    let ports: Vec<_> = arguments.map(|port| port.parse()).collect::<Result<_, _>>()?;
    let opener = Dpdk::open(std::slice::from_ref(&ports), &Options::default())?;
    let app = Arc::new(|| -> Box<dyn App<_>> { Box::new(L2fwd::new(Macs::AsIs)) });
    let options = WorkerOptions { idle: Idle::Latency, ..WorkerOptions::default() };
    let engine =
        Engine::start_with(opener, options, vec![WorkerConfig { cpu: Some(0), ports, app }])?;
    let began = Instant::now();
    sleep(Duration::from_secs_f64(seconds));
    let elapsed = began.elapsed();
    for report in engine.stop() {
        let report = report?;
        let sent = report.status.packets.transmitted_packets as f64;
        println!("{:.2} Mpps, {}", sent / elapsed.as_secs_f64() / 1e6, report.audit);
    }
    Ok(())
}
