//! Forwards between devices for so many seconds, and says how many packets a second:
//! `forward SECONDS dpdk:net_null0 dpdk:net_null1`. A device that brings nothing by itself gets so
//! many packets first, which go round: `forward SECONDS FIRST dpdk:net_ring0`. As root.

use std::env;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ringway_dpdk::{Dpdk, MbufPool, Options};
use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::{
    App, Burst, Cycles, Engine, Idle, PortSpec, Verdict, WorkerConfig, WorkerOptions,
};
use ringway_xsk::Buffer as _;

/// Forwards, and sends packets of its own once.
struct Forward {
    l2fwd: L2fwd,
    first: usize,
}

impl App<MbufPool> for Forward {
    fn name(&self) -> &'static str {
        "forward"
    }

    fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_, MbufPool>) {
        self.l2fwd.on_burst(now, burst);
    }

    fn on_round(&mut self, _now: Cycles, burst: &mut Burst<'_, MbufPool>) {
        let first = std::mem::take(&mut self.first);
        burst.originate_burst(first, |packet| {
            // Broadcast, of a kind that is for experiments.
            let mut frame = [0xff; 60];
            frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
            let _ = packet.append(&frame);
            Verdict::Forward(0)
        });
    }

    fn reads_packets(&self) -> bool {
        <L2fwd as App<MbufPool>>::reads_packets(&self.l2fwd)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let seconds: f64 = arguments.next().ok_or("how many seconds?")?.parse()?;
    let mut ports: Vec<String> = arguments.collect();
    let first = ports.first().and_then(|first| first.parse().ok());
    if first.is_some() {
        ports.remove(0);
    }
    let first = first.unwrap_or(0);
    let ports: Vec<PortSpec> = ports.iter().map(|port| port.parse()).collect::<Result<_, _>>()?;
    let opener = Dpdk::open(std::slice::from_ref(&ports), &Options::default())?;
    let app = Arc::new(move || -> Box<dyn App<_>> {
        Box::new(Forward { l2fwd: L2fwd::new(Macs::AsIs), first })
    });
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
