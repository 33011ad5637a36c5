//! The cost of capturing every packet, and of capturing none: `ringway-lab bench capture`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::benches::lb::capture_rates;
use crate::benches::packet::residue;
use crate::harness::median::median;
use crate::harness::{Figures, Harness, Repeated, Scenario};
use crate::{Result, programs};

/// What it costs to capture every packet, and to be able to.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Needs root. Takes two minutes; runs in network namespaces of its own. HTTP goes through a \
    gateway by turns with a capture of everything and without; what a packet costs before and after a capture is \
    measured on programs that are attached to nothing.\n\n{}\n\nExamples:\n  \
    ringway-lab bench capture\n  ringway-lab bench capture --rounds 3 --seconds 2 -o json", programs::PEERS_HELP))]
pub struct Capture {
    /// How much of it.
    #[command(flatten)]
    pub repeated: Repeated,
    /// The `ringway` binary to measure.
    #[arg(skip)]
    pub ringway: PathBuf,
}

/// Medians.
#[derive(Debug, Serialize)]
pub struct CaptureFigures {
    /// Packets a second through the gateway, HTTP between veths, while nobody captures.
    pps_off: u64,
    /// The same while all packets are captured whole, and written to where they take no room.
    pps_on: u64,
    /// Packets captured in all rounds together.
    captured: u64,
    /// Packets that were not, for lack of room in the ring.
    lost: u64,
    /// Nanoseconds that a packet costs more after a capture than before any.
    ns_off: u64,
    /// Nanoseconds that it costs more while it is captured, by test run.
    ns_on: u64,
    pps_off_by_round: Vec<u64>,
    pps_on_by_round: Vec<u64>,
    rounds: u32,
}

impl Scenario for Capture {
    const NAME: &'static str = "capture";
    const PEERS: &'static [(&'static str, &'static str)] = &[("nginx", "-v"), ("wrk", "-v")];
    type Figures = CaptureFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<CaptureFigures> {
        let (rounds, seconds) = (self.repeated.rounds.count, self.repeated.seconds);
        let (mut off, mut on) = (Vec::new(), Vec::new());
        harness.repeat(rounds, |harness, _| {
            let residue::Costs { before, during, after } = residue::measure()?;
            off.push(after.saturating_sub(before));
            on.push(during.saturating_sub(before));
            harness
                .say(format!("{before} ns before a capture, {during} ns in one, {after} ns after"));
            Ok(())
        })?;
        let rates =
            capture_rates::measure(rounds, Duration::from_secs(seconds), &self.ringway, harness)?;
        Ok(CaptureFigures {
            pps_off: median(&rates.off),
            pps_on: median(&rates.on),
            captured: rates.captured,
            lost: rates.lost,
            ns_off: median(&off),
            ns_on: median(&on),
            pps_off_by_round: rates.off,
            pps_on_by_round: rates.on,
            rounds,
        })
    }
}

impl Figures for CaptureFigures {
    fn tables(&self) -> String {
        let share = self.pps_on as f64 / self.pps_off.max(1) as f64;
        let on = format!("packets/s while all are captured, {share:.3} of that");
        let lines = [
            (self.pps_off, "packets/s through the gateway, nobody captures"),
            (self.pps_on, &on),
            (self.captured, "captured"),
            (self.lost, "lost (ring full)"),
            (self.ns_off, "ns a packet more after a capture than before any"),
            (self.ns_on, "ns a packet more while it is captured"),
        ];
        lines.map(|(figure, what)| format!("  {figure:>12}  {what}\n")).concat()
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "medians of {} rounds, off and on in turns; HTTP between namespaces says nothing about hardware.",
            self.rounds
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::report::testing;

    #[test]
    fn json_has_the_promised_keys() {
        let figures = CaptureFigures {
            pps_off: 4,
            pps_on: 3,
            captured: 2,
            lost: 1,
            ns_off: 0,
            ns_on: 9,
            pps_off_by_round: vec![4],
            pps_on_by_round: vec![3],
            rounds: 1,
        };
        assert!(figures.tables().contains("3  packets/s while all are captured, 0.750 of that"));
        assert_eq!(
            testing::names(&testing::report("capture", figures, Vec::new())),
            "captured failed lost machine ns_off ns_on pps_off pps_off_by_round pps_on pps_on_by_round rounds schema skipped"
        );
    }
}
