//! UDP, whole and in fragments, and large transfers.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Echo, Gateway, SERVICE_V4, SERVICE_V6, SOON, Site, ask_udp, needs_root, service, udp_to,
};
use serde_json::Value;

/// nginx tells whether the machine lives.
const CHECK: &str =
    "protocol = \"udp\"\ncheck = { type = \"tcp\", port = 80, interval = \"200ms\", fall = 5 }\n";

/// A gateway with an echo service of either family, and who answers there.
fn echoes(site: &Site) -> Result<(Gateway, [SocketAddr; 2], Vec<Echo>)> {
    let targets = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 7));
    let mut servers = site.echo(SERVICE_V4, 7)?;
    servers.extend(site.echo(SERVICE_V6, 7)?);
    let services =
        site.service("echo", targets[0], CHECK) + &site.service("echo6", targets[1], CHECK);
    let gateway = site.start(&services)?;
    Ok((gateway, targets, servers))
}

#[test]
fn datagrams_of_every_size_and_without_checksum() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let (_gateway, targets, _echo) = echoes(&site)?;
    for target in targets {
        let socket = udp_to(site.client(), target)?;
        // The answer is three bytes longer ("b1 "); its packet has at most 1 500.
        let longest = if target.is_ipv4() { 1469 } else { 1449 };
        for size in [0, 1, 2, 3, 18, 19, 512, longest] {
            let text = "x".repeat(size);
            ask_udp(&socket, &text).with_context(|| format!("{size} bytes to {target}"))?;
        }
    }
    let socket = udp_to(site.client(), targets[0])?;
    ringway_net_tests::no_checksum(&socket)?;
    ask_udp(&socket, "no checksum").context("without checksum")?;
    Ok(())
}

/// The answer is as long as the question, so both come in fragments.
#[test]
fn datagrams_in_fragments_both_ways() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let (gateway, targets, _echo) = echoes(&site)?;
    for target in targets {
        for round in 0..4 {
            let socket = udp_to(site.client(), target)?;
            for size in [1470, 1473, 2000, 4000, 8192, 20_000] {
                let text = "x".repeat(size + round);
                ask_udp(&socket, &text).with_context(|| format!("{size} bytes to {target}"))?;
            }
        }
    }
    nothing_is_dropped(&gateway.status()?)
}

/// A gateway before an iperf3 on the first backend, by TCP and UDP.
fn before_iperf(site: &Site) -> Result<Gateway> {
    let target = SocketAddr::new(SERVICE_V4, 5201);
    let more = "announce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n";
    let services = service("bulk", target, &site.backends(SERVICE_V4, 5201), more);
    site.start(&services)
}

/// Two seconds of iperf3, and what the client says at their end. With a server for this one:
/// between two, none listens.
fn iperf(site: &Site, more: &[&str]) -> Result<Value> {
    let mut server = site.net.backends[0].ns.tool("iperf3")?;
    server.args(["-s", "-1", "--forceflush"]);
    let mut server = site.net.backends[0].ns.spawn(server)?;
    server.wait_for_log("Server listening", SOON)?;
    let mut client = site.client().tool("iperf3")?;
    let output = client.args(["-J", "-c", "10.1.0.80", "-t", "2"]).args(more).output()?;
    let said: Value = serde_json::from_slice(&output.stdout).context("iperf3")?;
    ensure!(said["error"].is_null(), "iperf3: {}", said["error"]);
    server.wait(SOON)?;
    Ok(said["end"].clone())
}

/// A datagram may lose its first fragment on its way to the gateway: veth's queues are short.
fn nothing_is_dropped(status: &Value) -> Result<()> {
    let mut counters = status["counters"].as_array().into_iter().flatten();
    let told =
        |counter: &Value| counter["verdict"] == "drop" && counter["reason"] != "fragment-early";
    ensure!(!counters.any(told), "{}", status["counters"]);
    Ok(())
}

/// Nothing is lost on its way: what a receiver that has to wait for a busy machine loses is not the
/// gateway's.
fn carries(site: &Site, gateway: &Gateway, more: &[&str]) -> Result<()> {
    let end = iperf(site, more)?;
    let sum = if end["sum_received"].is_null() { &end["sum"] } else { &end["sum_received"] };
    ensure!(sum["bytes"].as_f64() > Some(1e5), "{more:?}: {end}");
    let status = gateway.status()?;
    nothing_is_dropped(&status)?;
    // A queue of veth's is full where the receiver's processor is busy.
    let mut losses = status["losses"].as_array().into_iter().flatten();
    ensure!(!losses.any(|loss| loss["reason"] != "lost-queue-full"), "{}", status["losses"]);
    Ok(())
}

#[test]
fn bulk_loses_nothing_on_its_way() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = before_iperf(&site)?;
    let fragmented = ["-u", "-b", "20M", "-l", "4000"];
    for more in [&[][..], &["-R"], &["-u", "-b", "10M", "-l", "1400"], &fragmented] {
        carries(&site, &gateway, more)?;
    }
    carries(&site, &gateway, &[&fragmented[..], &["-R"]].concat())
}

/// Frames of several buffers (xdp.frags).
#[test]
fn bulk_tcp_with_jumbo_frames() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    for node in [&site.net.client, &site.net.backends[0]] {
        node.ns.ip("link set dev eth0 mtu 9000\n")?;
    }
    site.net.switch.ip("link set dev b1 mtu 9000\nlink set dev gw mtu 9000\n")?;
    site.net.gateway.ip("link set dev eth0 mtu 9000\nlink set dev eth1 mtu 9000\n")?;
    let gateway = before_iperf(&site)?;
    carries(&site, &gateway, &[])?;
    carries(&site, &gateway, &["-R"])
}
