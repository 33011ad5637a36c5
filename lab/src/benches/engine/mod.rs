//! The cost of the engine beside DPDK and the kernel's sockets: `ringway-lab bench engine`.
//!
//! Load comes from the kernel (bpf/load.bpf.c), so that no generator is measured, and is counted
//! where it ends. In each round Ringway and its peer take turns, on the same topology made afresh
//! and the same processor; who begins takes turns, too. The medians of the rounds count.

mod case;
mod load;
mod loops;
pub(crate) mod report;
mod site;
mod sockets;
pub(super) mod testpmd;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

pub use case::Case;

use crate::Result;
use crate::harness::cpu::Cpus;
use crate::harness::{self, Harness, Repeated, Scenario};
use case::Side;
use load::Storage;
use report::{EngineFigures, Row};
use site::Site;
use testpmd::Testpmd;

/// Packet programs in user space, beside DPDK's and the kernel's sockets, in turns.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root. Takes about eleven minutes; runs in network namespaces of its own. dpdk-testpmd is taken from PATH, else from \
    target/peers (`packaging/bootstrap --tests` unpacks it there); without it Ringway is measured alone. It gets huge pages \
    where 256 MiB of them are free (`sysctl vm.nr_hugepages=256` reserves twice that), else pages of 4 KiB. Exit code 1 when a \
    case was not measured.\n\nExamples:\n  ringway-lab bench engine\n  ringway-lab bench engine --rounds 3 --seconds 2 -o json\n  \
    ringway-lab bench engine --only memory-macswap,wire-parse"
)]
pub struct Engine {
    /// Only these cases.
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    pub only: Vec<Case>,
    /// How much of it.
    #[command(flatten)]
    pub repeated: Repeated,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figure {
    pps: u64,
    /// Picoseconds of user mode a packet.
    user_ps: Option<u64>,
    loss: Option<Loss>,
    p99_us: Option<u64>,
}

/// What is lost at a rate.
#[derive(Clone, Copy, Debug, Default)]
struct Loss {
    /// Packets of a thousand millions.
    ppb: u64,
    /// Those of them that never came as far as the socket.
    before_ppb: u64,
    /// How long the working thread was ready to run, and did not.
    waited: Option<Duration>,
}

/// The figures of a case in one round.
#[derive(Clone, Copy, Debug)]
struct Turn {
    ringway: Figure,
    peer: Option<Figure>,
}

/// Picoseconds.
fn per_packet(time: Duration, packets: u64) -> u64 {
    (time.as_nanos() * 1000 / u128::from(packets.max(1))) as u64
}

impl harness::Case for Case {
    fn key(&self) -> Value {
        json!({ "name": self })
    }
}

impl Scenario for Engine {
    const NAME: &'static str = "engine";
    type Figures = EngineFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<EngineFigures> {
        let mut cases = harness::chosen(&Case::ALL, &self.only);
        let Repeated { rounds, seconds } = self.repeated;
        let mut bench = Bench {
            cpus: Cpus::here()?,
            testpmd: find_testpmd(&cases, harness),
            duration: Duration::from_secs(seconds),
            testpmd_version: None,
        };
        let mut found: BTreeMap<Case, Vec<Turn>> = BTreeMap::new();
        harness.rounds(rounds.count, &mut cases, |harness, round, &case| {
            let turn = bench.turn(case, round)?;
            let peer = turn.peer.map(|peer| format!("  beside {:>10}", peer.pps));
            let (pps, peer) = (turn.ringway.pps, peer.unwrap_or_default());
            harness.say(format!("{case:<19} {pps:>10} packets/s{peer}"));
            found.entry(case).or_default().push(turn);
            Ok(())
        });
        let version = bench.testpmd_version.map(|version| ("dpdk-testpmd".to_owned(), version));
        harness.machine.versions.extend(version);
        Ok(EngineFigures {
            cases: cases.iter().map(|case| Row::new(*case, &found[case])).collect(),
            rounds: rounds.count,
            duration_s: seconds,
            testpmd_memory: bench.testpmd.as_ref().map(Testpmd::memory),
        })
    }
}

/// Without it the cases that need it are Ringway's alone.
fn find_testpmd(cases: &[Case], harness: &mut Harness<'_>) -> Option<Testpmd> {
    let error = match Testpmd::find() {
        Ok(testpmd) => return Some(testpmd),
        Err(error) => error,
    };
    for case in cases.iter().filter(|case| case.needs_testpmd()) {
        harness.skip(case, format!("no peer to measure beside: {error}"));
    }
    None
}

struct Bench {
    cpus: Cpus,
    testpmd: Option<Testpmd>,
    duration: Duration,
    testpmd_version: Option<String>,
}

impl Bench {
    fn turn(&mut self, case: Case, round: u32) -> Result<Turn> {
        let has_peer = match case.needs_testpmd() {
            true => self.testpmd.is_some(),
            false => case.peer().is_some(),
        };
        let mut sides = vec![Side::Ringway];
        sides.extend(has_peer.then_some(Side::Peer));
        let sides = harness::in_turns(round, sides);
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
            figure.loss = site.loss(&server, figure.pps, time)?;
        }
        if let Some(version) = server.stop()?.as_deref().and_then(testpmd::version) {
            self.testpmd_version = Some(version);
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
    use crate::harness::Rounds;

    /// The real thing, as short as it can be; without a peer that is not there.
    #[test]
    fn measures_every_case() {
        if !ringway_testnet::root_or_skip("engine::measures_every_case") {
            return;
        }
        let repeated = Repeated { rounds: Rounds { count: 1 }, seconds: 1 };
        let scenario = Engine { only: Vec::new(), repeated };
        let report = harness::measure(&scenario, &mut |line| eprintln!("{line}")).unwrap();
        assert!(report.ok(), "{report}");
        assert_eq!(report.figures.cases.len(), Case::ALL.len(), "{report}");
        if let Some(skipped) = report.skipped.first() {
            ringway_testnet::skip("engine::measures_every_case", skipped.to_string());
        }
    }
}
