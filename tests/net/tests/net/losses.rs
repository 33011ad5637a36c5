//! What the kernel drops after our verdict is counted, with its reason, daemon or no daemon.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, SERVICE_V4, Site, needs_root, udp_to};
use ringway_testnet::{attach_pass, detach_pass};
use serde_json::Value;

const DISCARD: SocketAddr = SocketAddr::new(SERVICE_V4, 9);

/// A UDP service with one backend, whose socket takes everything and never answers.
fn start(more: &str) -> Result<(Site, Gateway, UdpSocket)> {
    let site = Site::new(1)?;
    let sink = site.net.backends[0].ns.run(|| UdpSocket::bind("0.0.0.0:9"))??;
    let text = site.configuration(&site.service("discard", DISCARD, "protocol = \"udp\"\n"));
    let text = text.replacen("\n\n", &format!("\n{more}\n\n"), 1);
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    Ok((site, gateway, sink))
}

/// Sends so many datagrams, waits until each has been redirected, and returns the status then.
fn send(site: &Site, gateway: &Gateway, count: u64, size: usize) -> Result<Value> {
    let redirected = |status: &Value| {
        let counters = status["counters"].as_array().into_iter().flatten();
        let mut forward = counters.filter(|c| c["reason"] == "nat-forward");
        forward.next().and_then(|c| c["packets"].as_u64()).unwrap_or(0)
    };
    let before = redirected(&gateway.status()?);
    let socket = udp_to(site.client(), DISCARD)?;
    for _ in 0..count {
        socket.send(&vec![1; size])?;
    }
    gateway.wait_status("all redirected", |status| redirected(status) == before + count)
}

/// The one reason that was counted, and how often.
fn lost(status: &Value) -> Result<(String, u64)> {
    let losses = status["losses"].as_array().context("no losses")?;
    let one = losses.len() == 1 && losses[0]["interface"] == "eth0";
    ensure!(one, "{losses:?}, findings {}", status["findings"]);
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    let reason = losses[0]["reason"].as_str().context("no reason")?;
    Ok((reason.to_owned(), losses[0]["packets"].as_u64().context("no packets")?))
}

/// The kernel counts a loss a moment after the packet was redirected.
fn expect(gateway: &Gateway, reason: &str, packets: u64) -> Result<()> {
    let wanted = (reason.to_owned(), packets);
    let fits = |status: &Value| lost(status).is_ok_and(|found| found == wanted);
    gateway.wait_status(&format!("{packets} {reason}"), fits)?;
    Ok(())
}

/// The far end of a veth pair does not poll. Counting goes on without a daemon, and under the next.
#[test]
fn a_receiver_that_takes_no_redirected_frames() -> Result<()> {
    needs_root!();
    let (site, mut gateway, _sink) = start("")?;
    ensure!(
        send(&site, &gateway, 5, 10)?["losses"] == Value::Array(vec![]),
        "lost when all is well"
    );
    detach_pass(&site.net.switch, "gw")?;
    send(&site, &gateway, 20, 10)?;
    expect(&gateway, "lost-no-receiver", 20)?;
    gateway.kill()?;
    send(&site, &gateway, 7, 10)?;
    expect(&gateway, "lost-no-receiver", 27)?;
    gateway.start_healthy()?;
    send(&site, &gateway, 3, 10)?;
    expect(&gateway, "lost-no-receiver", 30)?;
    attach_pass(&site.net.switch, "gw")?;
    send(&site, &gateway, 5, 10)?;
    expect(&gateway, "lost-no-receiver", 30)?;

    let table = gateway.ringway(&["status", "--ledger"])?;
    ensure!(
        table.out.contains(" packets sent on, 30 were dropped by the kernel afterwards"),
        "{table:?}"
    );
    ensure!(table.out.contains("ethtool -K IFACE gro on"), "{table:?}");
    gateway.terminate()?;
    gateway.ringway(&["detach", "--verify"])?.done()?;
    Ok(())
}

/// A daemon would have seen the smaller MTU and had us drop it.
#[test]
fn a_frame_too_big_for_its_way_out() -> Result<()> {
    needs_root!();
    let (site, mut gateway, _sink) = start("")?;
    gateway.kill()?;
    site.net.gateway.ip("link set dev eth1 mtu 1300\n")?;
    send(&site, &gateway, 12, 1400)?;
    expect(&gateway, "lost-too-big", 12)?;
    send(&site, &gateway, 5, 1000)?;
    expect(&gateway, "lost-too-big", 12)
}

#[test]
fn a_device_that_went_down() -> Result<()> {
    needs_root!();
    for mode in ["", "xdp_mode = \"generic\""] {
        let (site, mut gateway, _sink) = start(mode)?;
        gateway.kill()?;
        site.net.gateway.ip("link set dev eth1 down\n")?;
        send(&site, &gateway, 9, 10)?;
        expect(&gateway, "lost-device-down", 9).with_context(|| format!("mode {mode:?}"))?;
    }
    Ok(())
}
