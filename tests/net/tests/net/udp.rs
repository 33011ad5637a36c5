//! UDP, and large transfers.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Dns, Echo, Gateway, SERVICE_V4, SERVICE_V6, SOON, Site, ask_udp, needs_root, service,
};
use serde_json::Value;

const DNS: SocketAddr = SocketAddr::new(SERVICE_V4, 53);
/// nginx tells whether the machine lives.
const CHECK: &str =
    "protocol = \"udp\"\ncheck = { type = \"tcp\", port = 80, interval = \"200ms\", fall = 5 }\n";

/// A gateway with an echo service of either family, and who answers there.
pub(super) fn echoes(site: &Site) -> Result<(Gateway, [SocketAddr; 2], Vec<Echo>)> {
    let targets = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 7));
    let mut servers = site.echo(SERVICE_V4, 7)?;
    servers.extend(site.echo(SERVICE_V6, 7)?);
    let services =
        site.service("echo", targets[0], CHECK) + &site.service("echo6", targets[1], CHECK);
    let gateway = Gateway::start(&site.net.gateway, &site.configuration(&services))?;
    Ok((gateway, targets, servers))
}

/// One of the client's, of the target's family.
pub(super) fn socket_to(site: &Site, target: SocketAddr) -> Result<UdpSocket> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = site.client().run(|| UdpSocket::bind(any))??;
    socket.connect(target)?;
    Ok(socket)
}

#[test]
fn dig_asks_and_every_backend_answers() -> Result<()> {
    needs_root!();
    let site = Site::new(3)?;
    let mut servers = Vec::new();
    for (n, endpoint) in site.backends(SERVICE_V4, 53).into_iter().enumerate() {
        let record = Ipv4Addr::new(192, 0, 2, n as u8 + 1);
        servers.push(Dns::start(&site.net.backends[n].ns, endpoint, record)?);
    }
    let services = site.service("dns", DNS, CHECK);
    let _gateway = Gateway::start(&site.net.gateway, &site.configuration(&services))?;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..30 {
        let mut dig = site.client().tool("dig")?;
        let arguments = ["+short", "+noedns", "+tries=1", "+time=30", "@10.1.0.80", "x.example"];
        let output = dig.args(arguments).output()?;
        let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(answer.starts_with("192.0.2."), "dig said {answer:?}");
        seen.insert(answer);
    }
    ensure!(seen.len() == 3, "only {seen:?} answered");
    Ok(())
}

#[test]
fn datagrams_of_every_size_and_without_checksum() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let (_gateway, targets, _echo) = echoes(&site)?;
    for target in targets {
        let socket = socket_to(&site, target)?;
        // The answer is three bytes longer ("b1 "); its packet has at most 1 500.
        let longest = if target.is_ipv4() { 1469 } else { 1449 };
        for size in [0, 1, 2, 3, 18, 19, 512, longest] {
            let text = "x".repeat(size);
            ask_udp(&socket, &text).with_context(|| format!("{size} bytes to {target}"))?;
        }
    }
    let socket = socket_to(&site, targets[0])?;
    ringway_net_tests::no_checksum(&socket)?;
    ask_udp(&socket, "no checksum").context("without checksum")?;
    Ok(())
}

/// A gateway before an iperf3 on the first backend, by TCP and UDP.
pub(super) fn before_iperf(site: &Site) -> Result<Gateway> {
    let target = SocketAddr::new(SERVICE_V4, 5201);
    let more = "announce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n";
    let services = service("bulk", target, &site.backends(SERVICE_V4, 5201), more);
    Gateway::start(&site.net.gateway, &site.configuration(&services))
}

/// Two seconds of iperf3, and what the client says at their end. With a server for this one:
/// between two, none listens.
pub(super) fn iperf(site: &Site, more: &[&str]) -> Result<Value> {
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

#[test]
fn bulk_tcp_flows_without_retransmissions() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _gateway = before_iperf(&site)?;
    for direction in [&[][..], &["-R"][..]] {
        let end = iperf(&site, direction)?;
        let rate = end["sum_received"]["bits_per_second"].as_f64().context("no rate")?;
        let bytes = end["sum_sent"]["bytes"].as_f64().context("no bytes")?;
        let again = end["sum_sent"]["retransmits"].as_f64().context("no retransmits")?;
        ensure!(rate > 100e6, "{direction:?}: {rate} bit/s");
        let segments = bytes / 1448.0;
        ensure!(again < segments / 100.0, "{direction:?}: {again} of {segments} segments again");
    }
    Ok(())
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
    let _gateway = before_iperf(&site)?;
    for direction in [&[][..], &["-R"][..]] {
        let end = iperf(&site, direction)?;
        let rate = end["sum_received"]["bits_per_second"].as_f64().context("no rate")?;
        ensure!(rate > 100e6, "{direction:?}: {rate} bit/s");
    }
    Ok(())
}

/// A receiver that has to wait for a busy machine may lose some; the gateway must not.
#[test]
fn bulk_udp_loses_nothing_on_its_way() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = before_iperf(&site)?;
    let end = iperf(&site, &["-u", "-b", "10M", "-l", "1400"])?;
    let lost = end["sum"]["lost_percent"].as_f64().context("no loss")?;
    let packets = end["sum"]["packets"].as_f64().context("no packets")?;
    ensure!(packets > 1500.0 && lost < 5.0, "{lost} % of {packets} lost");
    let status = gateway.status()?;
    let mut counters = status["counters"].as_array().into_iter().flatten();
    ensure!(!counters.any(|counter| counter["verdict"] == "drop"), "{}", status["counters"]);
    Ok(())
}
