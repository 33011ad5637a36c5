//! What it costs to look at every packet, and to look at none: `ringway-lab bench capture`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::benches::lb::captured;
use crate::benches::packet::residue;
use crate::demo::clean::{Guard, end_on_signals};
use crate::harness::machine::Machine;
use crate::harness::median::median;
use crate::{Result, needs_root};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.capture/1";

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Times that everything is measured, off and on in turns; the medians count.
    pub rounds: u32,
    /// Length of one measurement; whole seconds, at least one.
    pub duration: Duration,
    /// The `ringway` binary to measure.
    pub ringway: PathBuf,
}

/// Everything that was measured. [`fmt::Display`] is for people.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Packets a second through the gateway, HTTP between veths, while nobody captures. Median.
    pub pps_off: u64,
    /// The same while all packets are captured whole, and written to where they take no room.
    pub pps_on: u64,
    /// Packets captured in all rounds together.
    pub captured: u64,
    /// Packets that were not, for lack of room in the ring.
    pub lost: u64,
    /// Nanoseconds that a packet costs more after a capture than before any. Median.
    pub ns_off: u64,
    /// Nanoseconds that it costs more while it is captured, by test run. Median.
    pub ns_on: u64,
    /// `pps_off` of each round.
    pub pps_off_by_round: Vec<u64>,
    /// `pps_on` of each round.
    pub pps_on_by_round: Vec<u64>,
    /// Rounds, of which the figures are the medians.
    pub rounds: u32,
    /// Where this was measured.
    pub machine: Machine,
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process does so should this
/// one be killed. `progress` is told in words what goes on. Needs root.
///
/// # Errors
/// It cannot be measured here.
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench capture")?;
    let guard = Guard::start()?;
    end_on_signals()?;
    let report = run(options, &mut progress);
    guard.dismiss();
    report
}

fn run(options: &Options, progress: &mut impl FnMut(&str)) -> Result<Report> {
    let rounds = options.rounds.max(1);
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let costs = residue::measure()?;
        off.push(costs.after.saturating_sub(costs.before));
        on.push(costs.during.saturating_sub(costs.before));
        progress(&format!(
            "round {round}/{rounds}  {} ns before a capture, {} ns in one, {} ns after",
            costs.before, costs.during, costs.after
        ));
    }
    let rates = captured::measure(rounds, options.duration, &options.ringway, progress)?;
    Ok(Report {
        schema: SCHEMA,
        pps_off: median(&rates.off),
        pps_on: median(&rates.on),
        captured: rates.captured,
        lost: rates.lost,
        ns_off: median(&off),
        ns_on: median(&on),
        pps_off_by_round: rates.off,
        pps_on_by_round: rates.on,
        rounds,
        machine: Machine::with(&[("nginx", "-v"), ("wrk", "-v")]),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.pps_on as f64 / self.pps_off.max(1) as f64;
        writeln!(f, "  {:>12}  packets/s through the gateway, nobody captures", self.pps_off)?;
        writeln!(f, "  {:>12}  packets/s while all are captured, {share:.3} of that", self.pps_on)?;
        writeln!(f, "  {:>12}  captured", self.captured)?;
        writeln!(f, "  {:>12}  lost (ring full)", self.lost)?;
        writeln!(f, "  {:>12}  ns a packet more after a capture than before any", self.ns_off)?;
        writeln!(f, "  {:>12}  ns a packet more while it is captured", self.ns_on)?;
        let m = &self.machine;
        writeln!(f, "\n{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        writeln!(
            f,
            "medians of {} rounds, off and on in turns; HTTP between namespaces says nothing about hardware.",
            self.rounds
        )
    }
}
