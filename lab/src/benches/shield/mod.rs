//! What the shield costs a packet, and what it saves: `ringway-lab bench shield`.
//!
//! [`costs`] are by test run, on gateways that are attached to nothing, as those of `bench packet`;
//! drops of the kernel's firewalls are by the rate of packets through a veth pair. [`scenarios`] are
//! attacks beside good traffic.

mod adversary;
mod arming;
mod begin;
mod costs;
mod firewall;
mod flood;
mod goal;
mod good;
mod lists;
mod peers;
mod report;
mod scenarios;
mod swap;
mod syn;

use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::value_parser;
use serde_json::{Value, json};

use self::report::ShieldFigures;
use self::swap::{Swap, SwapSite};
pub use self::syn::Answerer;
use crate::benches::packet::{PACKETS, settle};
use crate::harness::named_enum::named;
use crate::harness::{self, Case, Harness, Repeated, Scenario};
use crate::{Error, Result, programs};

named! {
    /// Who drops the attack.
    pub enum Defence {
        /// An XDP program drops the attack at an interface of its own, and good traffic goes through
        /// Ringway: nothing can be cheaper.
        BareDrop = "bare-drop",
        /// Ringway without `[shield]`.
        None = "none",
        /// nftables, hook ingress of family netdev: one rule.
        NftNetdev = "nft-netdev",
        /// nftables, hook prerouting: one rule.
        NftPrerouting = "nft-prerouting",
        /// iptables, 50 rules of which the last drops.
        Iptables50 = "iptables-50",
        /// An XDP program that asks the kernel's trie of prefixes (BPF_MAP_TYPE_LPM_TRIE).
        KernelTrie = "kernel-trie",
        Ringway = "ringway",
    }
}

impl Defence {
    /// Those that attacks are upon. The first tells how fast these are to be.
    const SCENARIOS: [Self; 6] = [
        Self::BareDrop,
        Self::None,
        Self::NftNetdev,
        Self::NftPrerouting,
        Self::Iptables50,
        Self::Ringway,
    ];
}

named! {
    pub enum Part {
        /// Nanoseconds of a packet.
        Costs = "costs",
        /// Gaps between packets while a list is swapped.
        Swap = "swap",
        /// Good traffic beside attacks, by the defences in turn.
        Scenarios = "scenarios",
        /// Mixes of packets that cost good traffic most.
        Adversary = "adversary",
        /// The time until an attack has armed its service.
        Arming = "arming",
        /// Answers to SYNs: what they cost, and how many a second there are.
        Syn = "syn",
    }
}

/// What the shield costs a packet, and what it saves.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("rounds", |rounds| rounds.default_value("3")),
    mut_arg("seconds", |seconds| seconds.default_value("4")),
    after_help = format!("Needs root. Takes twelve minutes; runs in network namespaces of its own. Exit code 1 when something that can run \
    here did not.\n\n{}\n\nExamples:\n  ringway-lab bench shield\n  \
    ringway-lab bench shield --only costs --rounds 5 -o json\n  \
    ringway-lab bench shield --only scenarios --seconds 10\n  \
    ringway-lab bench shield --only adversary --budget 1000 --seed 7\n  \
    ringway-lab bench shield --only arming --rounds 100\n  \
    ringway-lab bench shield --only syn --answerer challenge", programs::PEERS_HELP)
)]
pub struct Shield {
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Prefixes of the block lists; half as many sources of packets that pass, a hundredth of the
    /// prefixes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub prefixes: u32,
    /// Packets of each cost.
    #[arg(long, value_name = "N", default_value_t = PACKETS, value_parser = value_parser!(u32).range(10_000..))]
    pub packets: u32,
    /// Only these defences of `scenarios`. Rates of attacks are those of bare-drop.
    #[arg(long, value_name = "DEFENCE", value_delimiter = ',')]
    pub defence: Vec<Defence>,
    /// Only these answerers of `syn`'s floods.
    #[arg(long, value_name = "ANSWERER", value_delimiter = ',')]
    pub answerer: Vec<Answerer>,
    /// Mixes that the adversary may try.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub budget: u32,
    /// What it tries first.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How often costs and gaps are measured, attacks in a row of `arming`, and for how many seconds
    /// each attack of `scenarios`.
    #[command(flatten)]
    pub repeated: Repeated,
    /// The `ringway` binary to measure.
    #[arg(skip)]
    pub ringway: PathBuf,
}

impl Scenario for Shield {
    const NAME: &'static str = "shield";
    const PEERS: &'static [(&'static str, &'static str)] =
        &[("nginx", "-v"), ("nft", "--version"), ("iptables-nft-restore", "--version")];
    type Figures = ShieldFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<ShieldFigures> {
        let parts = harness::chosen(&Part::ALL, &self.only);
        // A thread of its own can have a network namespace of its own, gone with it, and keep to
        // one processor.
        let (costs, swap, adversary, answers) = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                settle()?;
                let costs = match parts.contains(&Part::Costs) {
                    true => costs::measure(self, harness)?,
                    false => costs::Found::new(),
                };
                let swap = parts.contains(&Part::Swap).then(|| self.swap(harness));
                let mut adversary = adversary::Found::default();
                if parts.contains(&Part::Adversary) {
                    harness.each(&mut vec![PartCase(Part::Adversary)], |harness, _| {
                        adversary =
                            adversary::search(self.budget, self.seed, self.prefixes, harness)?;
                        Ok(())
                    });
                }
                let answers = match parts.contains(&Part::Syn) {
                    true => syn::costs(self, harness)?,
                    false => Vec::new(),
                };
                Ok::<_, Error>((costs, swap.flatten(), adversary, answers))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let scenarios = match parts.contains(&Part::Scenarios) {
            true => {
                let time = Duration::from_secs(self.repeated.seconds);
                let defences = harness::chosen(&Defence::SCENARIOS, &self.defence);
                scenarios::measure(&self.ringway, &defences, time, harness)?
            }
            false => Vec::new(),
        };
        let mut arming = None;
        if parts.contains(&Part::Arming) {
            harness.each(&mut vec![PartCase(Part::Arming)], |harness, _| {
                arming = Some(arming::measure(&self.ringway, self.repeated.rounds.count, harness)?);
                Ok(())
            });
        }
        let floods = match parts.contains(&Part::Syn) {
            true => syn::floods(self, harness)?,
            false => Vec::new(),
        };
        let syn = syn::SynFigures { costs: answers, floods };
        Ok(ShieldFigures::new(&self.repeated, &costs, swap, scenarios, adversary, arming, syn))
    }
}

impl Shield {
    /// Whether it runs the gateway's program.
    pub fn needs_ringway(&self) -> bool {
        let parts = harness::chosen(&Part::ALL, &self.only);
        [Part::Scenarios, Part::Arming, Part::Syn].iter().any(|part| parts.contains(part))
    }

    fn swap(&self, harness: &mut Harness<'_>) -> Option<Swap> {
        let (mut cases, mut site) = (vec![PartCase(Part::Swap)], None);
        harness.each(&mut cases, |_, _| {
            site = Some(SwapSite::new(self.prefixes)?);
            Ok(())
        });
        let mut site = site?;
        harness.rounds(self.repeated.rounds.count, &mut cases, |harness, _, _| {
            let line = site.round()?;
            harness.say(line);
            Ok(())
        });
        (!cases.is_empty()).then(|| site.figures())
    }
}

/// A part that is one case.
struct PartCase(Part);

impl Case for PartCase {
    fn key(&self) -> Value {
        json!({ "case": self.0 })
    }
}

impl fmt::Display for PartCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name())
    }
}

/// A peer that lets packets pass which it should drop measures something else.
fn none_missed(packets: u64) -> Result<()> {
    if packets == 0 {
        return Ok(());
    }
    let what = format!("{packets} packets were not dropped");
    Err(Error::NoFigure { who: Defence::KernelTrie.name().into(), what })
}
