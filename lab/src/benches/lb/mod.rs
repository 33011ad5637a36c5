//! HTTP through load balancers, in turn: `ringway-lab bench lb`.
//!
//! ```text
//! client eth0 --- client +--------+ b1 --- eth0 backend 1 (nginx)
//!                        |  br0   |
//! balancer eth0 - balancer +------+ b2 --- eth0 backend 2 (nginx)
//! ```
//! All are network namespaces; the bridge and the veth ends at it are the "host" of a container engine. Every path
//! gets a fresh topology with the same settings (checksum, segmentation and receive offloads off), the same two
//! backends and the same wrk command. Rounds go through all paths, so that a drift of the machine hits all. Where
//! XDP sends into a veth, its far end gets a program that passes everything, or veth would drop the frames.

mod balancer;
mod bare;
pub(crate) mod captured;
mod gateway;
mod kernel_nat;
mod path;
mod proxies;
mod report;
mod standing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::harness::machine::Machine;
pub use path::Path;
pub use report::{Comparison, NotRun, Report, Run, SCHEMA};

use crate::demo::clean::{Guard, end_on_signals};
use crate::harness::wrk;
use crate::harness::wrk::Figures;
use crate::{Error, Result, needs_root};
use standing::Standing;

/// What to measure and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Times that every path is measured; the median counts.
    pub rounds: u32,
    /// Length of one measurement; whole seconds, at least one.
    pub duration: Duration,
    /// Numbers of concurrent connections, each measured.
    pub connections: Vec<u32>,
    /// Paths to measure, in this order; empty: all.
    pub only: Vec<Path>,
    /// Put each path's configuration into the report.
    pub show_configs: bool,
    /// The `ringway` binary to measure.
    pub ringway: PathBuf,
}

impl Default for Options {
    /// Three rounds of five seconds with 100 and with 1000 connections, all paths, the `ringway` of PATH.
    fn default() -> Self {
        Self {
            rounds: 3,
            duration: Duration::from_secs(5),
            connections: vec![100, 1000],
            only: Vec::new(),
            show_configs: false,
            ringway: "ringway".into(),
        }
    }
}

/// [`run`] as a command does it: an interrupt takes everything down at once, and a guard process does so should this
/// one be killed. Not for anybody but root.
pub fn run_guarded(options: &Options, progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench lb")?;
    let guard = Guard::start()?;
    end_on_signals()?;
    let report = run(options, progress);
    guard.dismiss();
    report
}

/// Measures. `progress` is told in words what goes on, and aloud what is skipped or fails. A path that cannot run
/// here does not stop the others: it is in [`Report::skipped`] or [`Report::failed`]. Needs root.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    let mut bench = Bench { options, found: BTreeMap::new(), report: Report::new(options) };
    let mut paths = if options.only.is_empty() { Path::ALL.to_vec() } else { options.only.clone() };
    for round in 1..=options.rounds.max(1) {
        paths.retain(|path| bench.keep_on(*path, round, &mut progress));
    }
    bench.report.summarize(&bench.found);
    Ok(bench.report)
}

/// Figures of all rounds.
type Found = BTreeMap<(Path, u32), Vec<Figures>>;

struct Bench<'a> {
    options: &'a Options,
    found: Found,
    report: Report,
}

impl Bench<'_> {
    /// Measures a path once; false when it is of no use to try again.
    fn keep_on(&mut self, path: Path, round: u32, progress: &mut impl FnMut(&str)) -> bool {
        let refused = match self.measure(path, round, progress) {
            Ok(()) => return true,
            Err(Error::Unavailable(reason)) => {
                progress(&format!("{path}: SKIPPED: {reason}"));
                self.report.skipped.push(NotRun { path, reason });
                return false;
            }
            Err(e) => e.to_string(),
        };
        progress(&format!("{path}: FAILED: {refused}"));
        self.found.retain(|(p, _), _| *p != path);
        self.report.failed.push(NotRun { path, reason: refused });
        false
    }

    fn measure(&mut self, path: Path, round: u32, progress: &mut impl FnMut(&str)) -> Result<()> {
        let standing = Standing::set_up(path, &self.options.ringway)?;
        if self.options.show_configs {
            self.report.configurations.insert(path, standing.configuration().to_owned());
        }
        // Caches, neighbours and the processor's clock.
        wrk::run(&standing.net.client.ns, &standing.url(), 50, Duration::from_secs(1))?;
        for &connections in &self.options.connections {
            let ns = &standing.net.client.ns;
            let figures = wrk::run(ns, &standing.url(), connections, self.options.duration)?;
            progress(&format!(
                "round {round}/{}  {path:<17} {connections:>5} connections {:>8.0} requests/s",
                self.options.rounds, figures.requests_per_s
            ));
            self.found.entry((path, connections)).or_default().push(figures);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real thing, as short as it can be, over the paths that need no binary.
    #[test]
    fn measures_what_is_here() {
        if !ringway_testnet::root_or_skip("lb::measures_what_is_here") {
            return;
        }
        let options = Options {
            rounds: 1,
            duration: Duration::from_secs(1),
            connections: vec![20],
            only: Path::ALL.iter().copied().filter(|p| !p.is_ringway()).collect(),
            show_configs: true,
            ..Options::default()
        };
        let report = run(&options, |line| eprintln!("{line}")).unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        for skipped in &report.skipped {
            assert_eq!(skipped.path, Path::Ipvs, "{}", skipped.reason);
        }
        for run in &report.runs {
            assert!(run.requests_per_s > 0 && run.errors == 0, "{run:?}");
        }
        assert_eq!(report.runs.len() + report.skipped.len(), options.only.len());
        assert!(report.configurations[&Path::Nftables].contains("masquerade"));
    }
}
