//! What the engine costs, beside DPDK and the kernel's sockets: `ringway-lab bench engine`.
//!
//! Load comes from the kernel (bpf/load.bpf.c), so that no generator is measured, and is counted where it ends. In each round Ringway
//! and its peer take turns, on the same topology made afresh and the same processor; who begins takes turns, too. The medians
//! of the rounds count.

mod case;
pub(crate) mod cpu;
mod load;
mod loops;
mod report;
mod site;
mod sockets;
mod testpmd;

use std::collections::BTreeMap;
use std::time::Duration;

pub use case::Case;
pub use report::{Goal, NotRun, Report, Row, SCHEMA};

use crate::demo::clean::{Guard, end_on_signals};
use crate::{Result, needs_root};
use case::Side;
use cpu::Cpus;
use load::Storage;
use site::Site;
use testpmd::Testpmd;

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Times that every case is measured; the medians count.
    pub rounds: u32,
    /// Length of one measurement; whole seconds, at least one.
    pub duration: Duration,
    /// Cases to measure; empty: all.
    pub only: Vec<Case>,
}

impl Default for Options {
    /// Everything, five rounds of five seconds.
    fn default() -> Self {
        Self { rounds: 5, duration: Duration::from_secs(5), only: Vec::new() }
    }
}

/// What one measurement found.
#[derive(Clone, Copy, Debug, Default)]
struct Figure {
    pps: u64,
    /// Picoseconds of user mode a packet.
    user_ps: Option<u64>,
    /// Packets lost of a thousand millions.
    lost_ppb: Option<u64>,
    p99_us: Option<u64>,
}

/// What one round found of a case.
#[derive(Clone, Copy, Debug)]
struct Turn {
    ringway: Figure,
    peer: Option<Figure>,
}

/// Picoseconds.
fn per_packet(time: Duration, packets: u64) -> u64 {
    (time.as_nanos() * 1000 / u128::from(packets.max(1))) as u64
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process does so should this
/// one be killed. `progress` is told in words what goes on, and aloud what is skipped or fails: that does not stop the others, and is
/// in [`Report::skipped`] or [`Report::failed`]. Needs root.
///
/// # Errors
/// Nothing can be measured here.
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench engine")?;
    let guard = Guard::start()?;
    end_on_signals()?;
    let report = run(options, &mut progress);
    guard.dismiss();
    report
}

fn run(options: &Options, progress: &mut impl FnMut(&str)) -> Result<Report> {
    let duration = Duration::from_secs(options.duration.as_secs().max(1));
    let mut bench = Bench {
        cpus: Cpus::here()?,
        testpmd: None,
        duration,
        report: Report::new(options),
        found: BTreeMap::new(),
    };
    let mut cases = Case::ALL.to_vec();
    cases.retain(|case| options.only.is_empty() || options.only.contains(case));
    bench.look_for_testpmd(&cases, progress);
    for round in 1..=bench.report.rounds {
        cases.retain(|case| bench.keep_on(*case, round, progress));
    }
    let rows = cases.iter().map(|case| Row::new(*case, &bench.found[case]));
    bench.report.cases = rows.collect();
    Ok(bench.report)
}

struct Bench {
    cpus: Cpus,
    testpmd: Option<Testpmd>,
    duration: Duration,
    report: Report,
    found: BTreeMap<Case, Vec<Turn>>,
}

impl Bench {
    fn look_for_testpmd(&mut self, cases: &[Case], progress: &mut impl FnMut(&str)) {
        match Testpmd::find() {
            Ok(testpmd) => {
                self.report.testpmd_memory = Some(testpmd.memory());
                self.testpmd = Some(testpmd);
            }
            Err(error) => {
                for &name in cases.iter().filter(|case| case.needs_testpmd()) {
                    let reason = format!("no peer to measure beside: {error}");
                    progress(&format!("{name}: Ringway alone: {reason}"));
                    self.report.skipped.push(NotRun { name, reason });
                }
            }
        }
    }

    /// Whether it is of use to go on with a case.
    fn keep_on(&mut self, name: Case, round: u32, progress: &mut impl FnMut(&str)) -> bool {
        match self.turn(name, round) {
            Ok(turn) => {
                let rounds = self.report.rounds;
                let peer = turn.peer.map(|peer| format!("  beside {:>10}", peer.pps));
                let pps = turn.ringway.pps;
                let peer = peer.unwrap_or_default();
                progress(&format!("round {round}/{rounds}  {name:<19} {pps:>10} packets/s{peer}"));
                self.found.entry(name).or_default().push(turn);
                true
            }
            Err(error) => {
                let reason = error.to_string();
                progress(&format!("{name}: FAILED: {reason}"));
                self.report.failed.push(NotRun { name, reason });
                false
            }
        }
    }

    fn turn(&mut self, case: Case, round: u32) -> Result<Turn> {
        let has_peer = match case.needs_testpmd() {
            true => self.testpmd.is_some(),
            false => case.peer().is_some(),
        };
        let mut sides = vec![Side::Ringway];
        sides.extend(has_peer.then_some(Side::Peer));
        if round.is_multiple_of(2) {
            sides.reverse();
        }
        let mut turn = Turn { ringway: Figure::default(), peer: None };
        for &side in &sides {
            let figure = self.most(case, side)?;
            match side {
                Side::Ringway => turn.ringway = figure,
                Side::Peer => turn.peer = Some(figure),
            }
        }
        if let Some(peer) = turn.peer.as_mut().filter(|_| case.answers()) {
            let rate = turn.ringway.pps.min(peer.pps) / 2;
            for side in sides {
                let figure = match side {
                    Side::Ringway => &mut turn.ringway,
                    Side::Peer => &mut *peer,
                };
                figure.p99_us = Some(self.p99_us(case, side, rate)?);
            }
        }
        Ok(turn)
    }

    /// As many packets as one side can, and what Ringway loses of somewhat fewer.
    fn most(&mut self, case: Case, side: Side) -> Result<Figure> {
        let (cpus, time) = (self.cpus, self.duration);
        match (case, side, &self.testpmd) {
            (Case::MemoryMacswap, Side::Peer, Some(testpmd)) => return testpmd.macswap(cpus, time),
            (
                Case::MemoryMacswap | Case::WireParse | Case::WireBuild | Case::FrameAllocFree,
                ..,
            ) => return loops::run(case, cpus, time),
            _ => (),
        }
        let mut storage = Storage::uninit();
        let site = Site::new(&mut storage, case, cpus, false)?;
        let server = site.start(side, self.testpmd.as_ref())?;
        let mut figure = site.most(&server, time)?;
        if side == Side::Ringway {
            figure.lost_ppb = site.lost_ppb(figure.pps, time)?;
        }
        if let Some(version) = server.stop()?.as_deref().and_then(testpmd::version) {
            self.report.machine.versions.insert("dpdk-testpmd".into(), version);
        }
        Ok(figure)
    }

    fn p99_us(&self, case: Case, side: Side, rate: u64) -> Result<u64> {
        let mut storage = Storage::uninit();
        let site = Site::new(&mut storage, case, self.cpus, true)?;
        let server = site.start(side, self.testpmd.as_ref())?;
        let p99 = site.p99_us(rate, self.duration)?;
        server.stop()?;
        Ok(p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The real thing, as short as it can be; without a peer that is not there.
    #[test]
    fn measures_every_case() {
        if !ringway_testnet::root_or_skip("engine::measures_every_case") {
            return;
        }
        let options = Options { rounds: 1, duration: Duration::from_secs(1), ..Options::default() };
        let report = run(&options, &mut |line: &str| eprintln!("{line}")).unwrap();
        assert!(report.ok(), "{report}");
        assert_eq!(report.cases.len(), Case::ALL.len(), "{report}");
        if let Some(NotRun { name, reason }) = report.skipped.first() {
            ringway_testnet::skip("engine::measures_every_case", format!("{name}: {reason}"));
        }
    }
}
