//! Limits of services: what is over them is dropped, and established flows are spared.

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{ECHO, SOON, needs_root};
use ringway_testnet::{wait_for, wait_until};
use serde_json::Value;

use super::{World, dropped, dropped_since, shield};

/// Datagrams that leave at once: the ring of a veth takes them, with those of the connection beside
/// them. What is sent for longer establishes its flow.
const COUNT: u64 = 100;

/// What becomes of [`COUNT`] datagrams to the echo service that leave at once, each from the next of
/// these sockets: how many are answered. The others are dropped by reason.
fn flood(world: &World, sockets: &[UdpSocket], reason: &str) -> Result<u64> {
    let before = dropped(&world.gateway)?;
    for (socket, _) in sockets.iter().cycle().zip(0..COUNT) {
        socket.send_to(b"?", ECHO)?;
    }
    let mut answered = 0;
    let end = || {
        for socket in sockets {
            while socket.recv(&mut [0; 64]).is_ok() {
                answered += 1;
            }
        }
        let now = dropped_since(&world.gateway, &before).map_err(|e| format!("{e:#}"))?;
        let all: u64 = now.values().sum();
        match now[reason] == COUNT - answered && all == now[reason] {
            true => Ok(()),
            false => Err(format!("{answered} of {COUNT} answered, dropped {now:?}")),
        }
    };
    wait_for(format!("the end of {COUNT} datagrams"), SOON, end)?;
    Ok(answered)
}

/// Some, not all: how many exactly, the packet path's own tests know.
fn keeps_to_a_rate(answered: u64) -> Result<()> {
    ensure!((1..COUNT).contains(&answered), "{answered} of {COUNT} passed");
    Ok(())
}

#[test]
fn limits_drop_what_is_over_them_and_spare_established_flows() -> Result<()> {
    needs_root!();
    let limits = |more: &str| format!("[shield]\nlimits = {{ flow_rate = \"1Mpps\", {more} }}\n");
    let world = World::new(&limits("packets = \"100pps\""))?;
    let sockets = |from: &str, count: usize| -> Result<Vec<UdpSocket>> {
        let bind = |_| -> Result<UdpSocket> {
            let socket = world.site.client().run(|| UdpSocket::bind((from, 0)))??;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        (0..count).map(bind).collect()
    };
    // It sends far more than the rate, and is spared.
    let transfer = world.transfer()?;
    // A new flow each time: one that lasts is established, and passes.
    let one = || sockets("10.1.0.3", 1);
    let passed = flood(&world, &one()?, "service-limit")?;
    keeps_to_a_rate(passed)?;
    let of = |status: &Value, service: &str, protocol: &str| -> Result<Value> {
        let all = status["limits"].as_array().context("no limits")?;
        let own = |it: &&Value| it["service"] == service && it["protocol"] == protocol;
        Ok(all.iter().find(own).context("no such service")?.clone())
    };
    let status = shield(&world.gateway)?;
    let echo = of(&status, "echo", "udp")?;
    let counts = |it: &Value| ["arrived_packets", "arrived_new_flows"].map(|key| it[key].as_u64());
    ensure!(counts(&echo) == [Some(COUNT), Some(1)] && echo["packets_pps"] == 100, "{status}");
    ensure!(echo["over_limit_packets"] == COUNT - passed, "{status}");
    let packets = &echo["by_limit"][0];
    ensure!(packets["limit"] == "packets" && packets["pps"] == 100, "{status}");
    ensure!(packets["over"]["packets"] == COUNT - passed, "{status}");
    ensure!(status["counted_since"].is_string(), "{status}");
    ensure!(status["heavy_sources"] == Value::Array(Vec::new()), "{status}");
    let spared = || {
        let status = shield(&world.gateway).ok()?;
        of(&status, "steady", "tcp").ok()?["established"]["packets"].as_u64()
    };
    wait_until("packets of the connection over the limit", SOON, || spared() > Some(100))?;
    let arriving = || {
        let status = shield(&world.gateway).ok()?;
        of(&status, "steady", "tcp").ok()?["arrived_packets_per_second"].as_f64()
    };
    wait_until("the rate of the connection", SOON, || arriving() > Some(1.0))?;

    world.reload(&limits("source = \"10pps\""))?;
    keeps_to_a_rate(flood(&world, &one()?, "source-limit")?)?;
    world.is("others", &[("10.1.0.4", "answered"), ("10.1.0.2", "answered")])?;
    let status = shield(&world.gateway)?;
    // The connection's may be another.
    let mut all = status["heavy_sources"].as_array().context("no sources")?.iter();
    let heavy = all.find(|source| source["prefix"] == "10.1.0.3/32").context("no such source")?;
    ensure!(heavy["service"] == "echo" && heavy["protocol"] == "udp", "{status}");
    ensure!(heavy["over_limit_packets"].as_u64() > Some(0), "{status}");
    let shown = world.gateway.ringway(&["shield", "status"])?.done()?.out;
    let words = ["source   10pps     configuration", "10.1.0.3/32", "last seen"];
    ensure!(words.iter().all(|words| shown.contains(words)), "{shown}");

    world.reload(&limits("new_flows = \"20pps\""))?;
    let many = sockets("10.1.0.4", COUNT as usize)?;
    keeps_to_a_rate(flood(&world, &many, "new-flow-limit")?)?;

    // What observe lets pass is counted.
    let observe = limits("packets = \"20pps\"").replacen('\n', "\nmode = \"observe\"\n", 1);
    world.reload(&observe)?;
    let before = shield(&world.gateway)?["observed"]["service-limit"].as_u64();
    let answered = flood(&world, &one()?, "service-limit")?;
    ensure!(answered == COUNT, "{answered} of {COUNT} were answered in observe mode");
    let after = shield(&world.gateway)?["observed"]["service-limit"].as_u64();
    ensure!(before.is_none() && after > Some(0), "{before:?}, then {after:?}");
    ensure!(transfer.finish()? > 1 << 20, "too little traffic");
    Ok(())
}
