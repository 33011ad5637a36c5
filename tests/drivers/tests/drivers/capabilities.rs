//! What a driver has and lacks, without a gateway: the cells of the table that a small program or
//! the kernel's answer shows. What it lacks is refused with driver, kernel, cause and way out.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_driver_tests::Cell;
use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::xdp_features::{self, Features};
use ringway_net_tests::{configuration, ringway, service};
use ringway_testnet::wait_until;
use ringway_xsk::{Redirect, XdpMode};

use crate::bench::{Bench, Nic, SOON, pings};

/// Queues that a program's map has room for.
pub const QUEUES: u32 = 8;
/// A link that goes down for a program has done so then.
const DOWN: Duration = Duration::from_millis(300);

/// Attaches a program that passes everything, for a moment: whether it runs in the driver, and
/// whether the link goes down for it.
pub fn native_and_reset(bench: &Bench, nic: &Nic) -> Result<()> {
    nic.wait_up()?;
    let told = told_of_reset(bench, nic)?;
    let before = nic.downs()?;
    let start = Instant::now();
    let attached = Redirect::attach(&nic.name, XdpMode::Native, QUEUES);
    let took = start.elapsed();
    // At once, or by a work queue.
    let _ = wait_until("a reset", DOWN, || nic.downs().is_ok_and(|now| now > before));
    nic.wait_up()?;
    let resets = nic.downs()? > before;
    println!(
        "  {}: attached in {} ms, packets again after {} ms{}",
        nic.name,
        took.as_millis(),
        start.elapsed().as_millis(),
        if resets { ", the link went down" } else { "" }
    );
    let word = match &attached {
        Ok(_) => "yes",
        Err(error) => {
            let said = error.to_string();
            names(bench, nic, &said, &["use generic mode"])?;
            "no"
        }
    };
    bench.see(nic, Cell::Native, word)?;
    drop(attached);
    nic.wait_up()?;
    bench.see(nic, Cell::Reset, if resets { "yes" } else { "no" })?;
    ensure!(
        told == resets,
        "told before that the driver stops for it: {told}; the link went down: {resets}"
    );
    Ok(())
}

/// Whether `ringway check --host` says that attaching stops the interface.
fn told_of_reset(bench: &Bench, nic: &Nic) -> Result<bool> {
    let (vip, backend) = (nic.address(80).parse()?, nic.address(2).parse()?);
    let body = service(
        "told",
        SocketAddr::new(vip, 7),
        &[SocketAddr::new(backend, 7)],
        "announce = \"arp\"\n",
    );
    let text = configuration(&bench.gateway, &[&nic.name], &body);
    let file = bench.gateway.directory().join("told.toml");
    std::fs::write(&file, text)?;
    let ran = ringway(
        &bench.gateway,
        &["check", "--host", "-o", "json", "-c", &file.display().to_string()],
    )?;
    let said = ran.said();
    let findings = ran.json()?;
    let find = |finding: &&serde_json::Value| finding["check"] == "link-reset";
    let finding = findings["findings"].as_array().into_iter().flatten().find(find);
    let finding = finding.with_context(|| format!("no link-reset in {said}"))?;
    Ok(finding["state"] == "warn")
}

/// An error names the driver, the kernel, and what to do.
pub fn names(bench: &Bench, nic: &Nic, said: &str, words: &[&str]) -> Result<()> {
    let kernel = bench.release.split(['+', '-']).next().unwrap_or_default();
    for word in [&[&*nic.driver, kernel], words].concat() {
        ensure!(said.contains(word), "{word:?} is not in {said:?}");
    }
    Ok(())
}

/// Native at an MTU of 9000, with a packet that takes several buffers.
pub fn frags(bench: &Bench, nic: &Nic) -> Result<()> {
    if !bench.has(nic, Cell::Native) {
        return bench.see(nic, Cell::Frags, "-");
    }
    nic.set_mtu(9000)?;
    let seen = large(bench, nic);
    nic.set_mtu(1500)?;
    nic.wait_up()?;
    bench.see(nic, Cell::Frags, seen?)
}

fn large(bench: &Bench, nic: &Nic) -> Result<&'static str> {
    nic.wait_up()?;
    let attached = Redirect::attach(&nic.name, XdpMode::Native, QUEUES);
    let redirect = match attached {
        Ok(redirect) => redirect,
        Err(error) => {
            names(bench, nic, &error.to_string(), &["MTU", "use generic mode"])?;
            return Ok("no");
        }
    };
    ensure!(redirect.several_frames(), "attached without frags at an MTU of 9000");
    nic.wait_up()?;
    let passes = || pings(&nic.far, &nic.address(1), 8000);
    wait_until("a ping of 8000 bytes, by native XDP", SOON, passes)?;
    Ok("yes")
}

/// Receive queues on this guest's two CPUs.
pub fn queues(bench: &Bench, nic: &Nic) -> Result<()> {
    bench.see(nic, Cell::Queues, &queues_now(nic)?.to_string())
}

/// With a program on it virtio_net has more: those that it sends by.
pub fn queues_now(nic: &Nic) -> Result<u32> {
    let channels = Ethtool::open()?.channels(&nic.name)?;
    Ok(match channels {
        Some(channels) => channels.rx,
        None => nic.link()?.rx_queues,
    })
}

/// Metadata that the driver gives to XDP programs, as it declares.
pub fn hints(bench: &Bench, nic: &Nic) -> Result<()> {
    let features = features(nic)?;
    let word = match features.and_then(|features| features.rx_hints) {
        None => "unknown".to_owned(),
        Some(0) => "none".to_owned(),
        Some(bits) => xdp_features::rx_hints(bits).join(","),
    };
    // What it declares beside is what was seen.
    if let Some(features) = features {
        let native = bench.has(nic, Cell::Native);
        ensure!(features.xdp.native() == native, "{}: declared {features:?}", nic.name);
        ensure!(features.xdp.zero_copy() || !bench.has(nic, Cell::ZeroCopy), "{features:?}");
    }
    bench.see(nic, Cell::Hints, &word)
}

/// `None`: this kernel does not tell.
fn features(nic: &Nic) -> Result<Option<Features>> {
    let ifindex = nic.link()?.ifindex;
    Ok(xdp_features::devices()?.and_then(|mut all| all.remove(&ifindex)))
}
