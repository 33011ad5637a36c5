//! Every packet is accounted for.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Device, ECHO, Gateway, Load, RunCounts, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, ask_udp, get,
    needs_root,
};
use ringway_testnet::wait_for;
use serde_json::Value;

const INTERFACES: [&str; 2] = ["eth0", "eth1"];

/// One interface in three counts: our ledger, the device, and the kernel's count of our program's
/// runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    seen: u64,
    received: u64,
    runs: u64,
}

impl Count {
    fn since(self, before: Count) -> Count {
        Count {
            seen: self.seen - before.seen,
            received: self.received - before.received,
            runs: self.runs - before.runs,
        }
    }
}

fn seen(status: &Value, interface: usize) -> Result<u64> {
    status["interfaces"][interface]["ledger"]["seen_packets"].as_u64().context("no ledger")
}

/// Counts of both interfaces at a moment when nothing came in.
fn count(site: &Site, gateway: &Gateway, runs: &RunCounts) -> Result<[Count; 2]> {
    let read = || -> Result<[Count; 2]> {
        let before = gateway.status()?;
        let mut counts = [Count { seen: 0, received: 0, runs: 0 }; 2];
        for (n, name) in INTERFACES.iter().enumerate() {
            let device = Device::read(&site.net.gateway, name)?;
            counts[n].received = device.received;
            counts[n].runs = runs.of(device.program)?;
            counts[n].seen = seen(&before, n)?;
        }
        let after = gateway.status()?;
        for (n, count) in counts.iter().enumerate() {
            ensure!(seen(&after, n)? == count.seen, "packets still come in");
        }
        Ok(counts)
    };
    Ok(wait_for("a quiet moment", SOON, || read().map_err(|error| format!("{error:#}")))?)
}

/// Traffic of every sort.
fn traffic(site: &Site) -> Result<()> {
    Load::start(site.client(), &format!("http://{SERVICE_V4}/"), 10, 1)?.finish()?;
    let web6 = SocketAddr::new(SERVICE_V6, 80);
    for _ in 0..20 {
        get(site.client(), web6)?;
    }
    let socket = site.client().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    socket.connect(ECHO)?;
    ask_udp(&socket, "hello")?;
    for target in ["10.1.0.80", "10.1.0.1", "fd01::80"] {
        let mut ping = site.client().command("ping");
        ping.args(["-c", "3", "-i", "0.01", "-W", "1", target]).output()?;
    }
    // Nobody's port, on a service address and on the gateway's own.
    for target in ["10.1.0.80:9", "10.1.0.1:9"] {
        let target: SocketAddr = target.parse()?;
        let refused = site
            .client()
            .run(|| TcpStream::connect_timeout(&target, Duration::from_millis(300)))?;
        ensure!(refused.is_err(), "{target} is open");
    }
    Ok(())
}

#[test]
fn the_ledger_agrees_with_itself_the_device_and_the_kernel() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let services = site.service("web", WEB, "")
        + &site.service("web6", SocketAddr::new(SERVICE_V6, 80), "")
        + &site.service("echo", ECHO, "protocol = \"udp\"\n");
    let gateway = site.start(&services)?;
    let runs = RunCounts::begin()?;
    let before = count(&site, &gateway, &runs)?;
    traffic(&site)?;
    let after = count(&site, &gateway, &runs)?;
    for ((name, before), after) in INTERFACES.iter().zip(before).zip(after) {
        let Count { seen, received, runs } = after.since(before);
        ensure!(seen > 100, "{name}: hardly any traffic, {seen} packets");
        ensure!(seen == received && seen == runs, "{name}: {seen}, {received}, {runs}");
    }

    let status = gateway.status()?;
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    for interface in status["interfaces"].as_array().into_iter().flatten() {
        ensure!(interface["ledger"]["difference_packets"] == 0, "{interface}");
        let counters = status["counters"].as_array().into_iter().flatten();
        let own = counters.filter(|counter| counter["interface"] == interface["name"]);
        let sum: u64 = own.filter_map(|counter| counter["packets"].as_u64()).sum();
        ensure!(interface["ledger"]["sum_packets"] == sum, "{interface} but counters add to {sum}");
    }
    gateway.ringway(&["status", "--ledger"])?.says(0, &["difference"])?;
    Ok(())
}
