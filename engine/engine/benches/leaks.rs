//! The cost of a search for leaks once a second, as `ringway engine` makes it: a worker makes and
//! drops packets, with the search and without, in turn. Rates are packets for each second of this
//! process's CPU time, the search included, so other load on the machine matters little.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringway_engine::apps::Sink;
use ringway_engine::{App, Engine, EngineConfig, WorkerConfig};
use ringway_xsk::UmemConfig;
use rustix::time::{ClockId, clock_gettime};

/// As often as `ringway engine` looks.
const EVERY: Duration = Duration::from_secs(1);
const TURNS: usize = 11;
/// As many frames as `ringway engine` has by default.
const FRAMES: u32 = 16_384;

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Packets for each second of CPU time.
fn rate(looked_at: bool) -> f64 {
    let app = Arc::new(|| Box::new(Sink::default()) as Box<dyn App>);
    let port = "null:64".parse().expect("it is a port");
    let worker = WorkerConfig { cpu: None, ports: vec![port], app };
    let umem = UmemConfig { frames: FRAMES, ..UmemConfig::default() };
    let config = EngineConfig { umem, ..EngineConfig::default() };
    let engine = Engine::start(&config, vec![worker]).expect("memory and a thread");
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while start.elapsed() < 2 * EVERY {
        thread::sleep(EVERY);
        if looked_at {
            let (status, _) = engine.status();
            assert!(status.leaks.is_empty(), "{status}");
        }
    }
    let cpu = cpu_seconds() - cpu;
    let reports = engine.stop();
    let packets = reports.iter().flatten().map(|r| r.status.packets.received_packets).sum::<u64>();
    packets as f64 / cpu
}

fn main() {
    let mut ratios: Vec<f64> = (0..TURNS).map(|_| rate(true) / rate(false)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("looked at, of the rate alone: {:.4} (median of {TURNS})", ratios[TURNS / 2]);
    println!("least {:.4}, most {:.4}", ratios[0], ratios[TURNS - 1]);
}
