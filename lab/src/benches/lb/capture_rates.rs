//! HTTP through Ringway, by turns with a capture of everything and without.

use std::path::Path;
use std::time::Duration;

use ringway_testnet::{Signal, tools};
use serde_json::Value;

use super::path::{LbPath, PathSetup};
use crate::harness::{Harness, wrk};
use crate::{Error, Result};

const CONNECTIONS: u32 = 100;
/// For a capture to begin or end: it loads programs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Packets a second in each round, and what the captures came to.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) off: Vec<u64>,
    pub(crate) on: Vec<u64>,
    pub(crate) captured: u64,
    pub(crate) lost: u64,
}

/// Measures so many rounds of this length.
pub(crate) fn measure(
    rounds: u32,
    duration: Duration,
    ringway: &Path,
    harness: &mut Harness<'_>,
) -> Result<Rates> {
    let setup = PathSetup::set_up(LbPath::RingwayHost, ringway)?;
    let site = Site { setup, ringway, duration };
    wrk::run(&site.setup.net.client.ns, &site.setup.url(), 50, Duration::from_secs(1))?;
    let mut rates = Rates::default();
    harness.repeat(rounds, |harness, _| {
        let off = site.packets_per_second()?;
        let (on, summary) = site.captured()?;
        harness.say(format!("off {off:>8} packets/s  on {on:>8} packets/s"));
        rates.off.push(off);
        rates.on.push(on);
        rates.captured += summary["captured_packets"].as_u64().unwrap_or(0);
        rates.lost += summary["lost_packets"].as_u64().unwrap_or(0);
        Ok(())
    })?;
    Ok(rates)
}

struct Site<'r> {
    setup: PathSetup,
    ringway: &'r Path,
    duration: Duration,
}

impl Site<'_> {
    /// `ringway ARGUMENTS` among the balancer's pins.
    fn command(&self, arguments: &[&str]) -> Result<std::process::Command> {
        let pid = self.setup.pid().unwrap_or_default().to_string();
        let mut command = self.setup.net.host.command(tools::find("nsenter")?.path);
        command.args(["--mount", "--target", &pid]).arg(self.ringway);
        command.args(arguments).args(["--node", "bench"]);
        Ok(command)
    }

    /// Packets that interfaces have given to the packet path, ever.
    fn seen(&self) -> Result<u64> {
        let failed = |output: String| Error::Failed { program: "ringway status".into(), output };
        let output = self.command(&["status", "--ledger", "-o", "json"])?.output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        let status: Result<Value, _> = serde_json::from_slice(&output.stdout);
        let status = status.map_err(|error| failed(error.to_string()))?;
        let seen = status["ledger"]["seen_packets"].as_u64();
        seen.ok_or_else(|| failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Packets of a request by requests a second.
    fn packets_per_second(&self) -> Result<u64> {
        let before = self.seen()?;
        let client = &self.setup.net.client.ns;
        let figures = wrk::run(client, &self.setup.url(), CONNECTIONS, self.duration)?;
        let packets = self.seen()?.saturating_sub(before) as f64;
        Ok((packets / figures.requests.max(1) as f64 * figures.requests_per_s) as u64)
    }

    /// The same while all packets are captured; to where they take no room.
    fn captured(&self) -> Result<(u64, Value)> {
        let command = self.command(&["capture", "-w", "/dev/null", "-o", "json"])?;
        let mut capture = self.setup.net.host.spawn(command)?;
        capture.wait_for_log("capturing from", PATIENCE)?;
        let rate = self.packets_per_second()?;
        capture.signal(Signal::INT)?;
        let end = capture.wait(PATIENCE)?;
        let summary = end.log.lines().find_map(|line| serde_json::from_str(line).ok());
        let failed =
            || Error::Failed { program: "ringway capture".into(), output: end.log.clone() };
        Ok((rate, summary.ok_or_else(failed)?))
    }
}
