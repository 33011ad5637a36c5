//! Datagrams that do not fit into one packet, both ways, and what comes of floods of them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, SERVICE_V4, SOON, Site, ask_udp, needs_root, service};
use serde_json::Value;

use crate::udp::{echoes, socket_to};

/// The answer is as long as the question, so both come in fragments.
#[test]
fn long_datagrams_both_ways() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let (gateway, targets, _echo) = echoes(&site)?;
    for target in targets {
        for round in 0..4 {
            let socket = socket_to(&site, target)?;
            for size in [1470, 1473, 2000, 4000, 8192, 20_000] {
                let text = "x".repeat(size + round);
                ask_udp(&socket, &text, Duration::from_secs(3))
                    .with_context(|| format!("{size} bytes to {target}"))?;
            }
        }
    }
    let status = gateway.status()?;
    let mut counters = status["counters"].as_array().into_iter().flatten();
    ensure!(!counters.any(|counter| counter["verdict"] == "drop"), "{}", status["counters"]);
    Ok(())
}

#[test]
fn bulk_udp_in_fragments() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let target = SocketAddr::new(SERVICE_V4, 5201);
    let mut server = site.net.backends[0].ns.tool("iperf3")?;
    server.args(["-s", "--forceflush"]);
    let mut server = site.net.backends[0].ns.spawn(server)?;
    server.wait_for_log("Server listening", SOON)?;
    let more = "announce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n";
    let services = service("bulk", target, &site.backends(SERVICE_V4, 5201), more);
    let _gateway = Gateway::start(&site.net.gateway, &site.configuration(&services))?;
    for direction in [&[][..], &["-R"][..]] {
        let mut client = site.client().tool("iperf3")?;
        client.args(["-J", "-c", "10.1.0.80", "-t", "2", "-u", "-b", "20M", "-l", "4000"]);
        let output = client.args(direction).output()?;
        let said: Value = serde_json::from_slice(&output.stdout).context("iperf3")?;
        ensure!(said["error"].is_null(), "iperf3: {}", said["error"]);
        let sum = &said["end"]["sum"];
        let lost = sum["lost_percent"].as_f64().context("no loss")?;
        let packets = sum["packets"].as_f64().context("no packets")?;
        ensure!(packets > 500.0 && lost < 5.0, "{direction:?}: {lost} % of {packets} lost");
    }
    Ok(())
}
