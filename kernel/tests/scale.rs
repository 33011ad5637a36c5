//! How long a large configuration takes: 1 000 services with 100 backends each, planned and
//! written. Figures, no verdicts; run it alone, optimized:
//! `cargo test --release -p ringway-kernel --test scale -- --ignored --nocapture`

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::fs;
use std::time::{Duration, Instant};

use ringway_config::{Config, parse};
use ringway_kernel::{Gateway, GatewayOptions};
use ringway_plan::tables::NextHop;
use ringway_plan::{Health, Observed};
use ringway_testnet::root_or_skip;

const SERVICES: usize = 1000;
const BACKENDS: usize = 100;

/// As `ringway run` reads it. `own`: each service has its own machines; else all have the same.
fn config(forward: &str, own: bool) -> Config {
    let backend = |service: usize, n: usize| {
        let number = if own { service * BACKENDS + n } else { n };
        format!("{{ address = \"10.{}.{}.{}\" }}", number >> 14, number >> 7 & 127, number & 127)
    };
    let service = |service: usize| {
        let backends: Vec<String> = (0..BACKENDS).map(|n| backend(service, n)).collect();
        format!(
            "[[service]]\nname = \"s{service}\"\naddress = \"203.0.113.10\"\nport = {}\n\
             forward = \"{forward}\"\ncheck = {{ type = \"tcp\" }}\nbackends = [{}]\n",
            service + 1,
            backends.join(", ")
        )
    };
    let services: String = (0..SERVICES).map(service).collect();
    let text = format!(
        "[node]\nname = \"scale\"\ninterfaces = [\"eth0\"]\n\
         [nat]\naddresses = [\"10.255.0.1\"]\n{services}"
    );
    let config = parse(&text, "scale.toml").unwrap();
    drop(text);
    ringway_host::trim_memory();
    config
}

fn well(config: &Config) -> Observed {
    let mut observed = Observed::default();
    for service in &config.services {
        for backend in &service.backends {
            observed.set_health(&service.name, backend.endpoint(), Health::Up);
            let hop = NextHop { iface: 1, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
            observed.next_hops.insert(*backend.address, hop);
        }
    }
    observed
}

/// A line of /proc, in MB.
fn proc_mb(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
}

/// Mapped pages of the kernel: most of a ring.
fn kernel_mb() -> u64 {
    proc_mb("/proc/meminfo", "VmallocUsed:")
}

#[test]
#[ignore = "measures"]
fn a_thousand_services_of_a_hundred_backends() {
    if !root_or_skip("a_thousand_services_of_a_hundred_backends") {
        return;
    }
    for (forward, own) in [("nat", false), ("dsr-l2", false), ("nat", true), ("dsr-l2", true)] {
        measure(forward, own);
    }
}

fn measure(forward: &str, own: bool) {
    let mut config = config(forward, own);
    let mut observed = well(&config);
    let backends = (SERVICES * BACKENDS) as u32;
    let options = GatewayOptions { tracked: 4096, backends, ..common::options() };
    let (mut gateway, _) = Gateway::open(&options).unwrap();
    let mut planner = gateway.existing().unwrap().planner();
    let kernel_before = kernel_mb();
    let machines = if own { "own machines" } else { "the same machines" };
    println!("{forward}, {SERVICES} services x {BACKENDS} backends, {machines}:");
    let mut apply = |what: &str, config: &Config, observed: &Observed| {
        // The peak of this step alone.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let (begin, used) = (Instant::now(), cpu_time());
        let tables = planner.plan(config, observed).unwrap();
        let planned = begin.elapsed();
        let applied = gateway.apply(&tables).unwrap();
        let (all, used) = (begin.elapsed(), cpu_time() - used);
        println!(
            "  {what:<34} {:>7.1} ms ({:>6.1} planning; {:>6.1} on CPUs), {:>4} rings, {:>5} rows; peak {} MB, kernel {} MB",
            ms(all),
            ms(planned),
            ms(used),
            applied.rings,
            applied.backends + applied.services,
            proc_mb("/proc/self/status", "VmHWM:"),
            kernel_mb().saturating_sub(kernel_before),
        );
    };
    observed.now = 100;
    apply("first", &config, &observed);
    observed.now = 101;
    apply("nothing changed", &config, &observed);
    observed.now = 102;
    let (one, other) =
        (config.services[0].name.to_string(), config.services[0].backends[7].endpoint());
    observed.set_health(&one, other, Health::Down);
    apply("one backend of one service down", &config, &observed);
    observed.now = 103;
    observed.set_health(&one, other, Health::Up);
    apply("and up again", &config, &observed);
    observed.now = 104;
    for service in &config.services {
        observed.set_health(&service.name, service.backends[3].endpoint(), Health::Down);
    }
    apply("one backend of each down", &config, &observed);
    observed.now = 105;
    for service in &mut config.services {
        service.backends.iter_mut().step_by(2).for_each(|backend| backend.weight = 2);
    }
    apply("all changed: other weights", &config, &observed);
    observed.now = 106;
    for service in &mut config.services {
        service.backends.iter_mut().step_by(3).for_each(|backend| backend.weight = 3);
    }
    apply("all changed again", &config, &observed);
}

/// Of this process, all threads together.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
