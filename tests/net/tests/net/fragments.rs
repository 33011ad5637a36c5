//! Datagrams that do not fit into one packet, both ways, and what comes of floods of them.

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Site, ask_udp, needs_root};

use crate::udp::{before_iperf, carries, echoes, socket_to};

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
                ask_udp(&socket, &text).with_context(|| format!("{size} bytes to {target}"))?;
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
    let gateway = before_iperf(&site)?;
    for direction in [&[][..], &["-R"]] {
        carries(&site, &gateway, &[&["-u", "-b", "20M", "-l", "4000"], direction].concat())?;
    }
    Ok(())
}
