//! What the shield costs a packet, and what it saves: `ringway-lab bench shield`.
//!
//! [`costs`] are by test run, on gateways that are attached to nothing, as those of `bench packet`;
//! drops of the kernel's firewalls are of frames that the kernel itself makes.

mod costs;
mod firewall;
mod flood;
mod lists;
mod peers;
mod report;
mod swap;

use std::fmt;
use std::thread;

use clap::value_parser;
use serde_json::{Value, json};

use self::report::ShieldFigures;
use self::swap::{Swap, SwapSite};
use crate::benches::packet::settle;
use crate::harness::named_enum::named;
use crate::harness::{self, Case, Harness, Rounds, Scenario};
use crate::{Error, Result};

named! {
    /// Who drops the attack.
    pub enum Defence {
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

named! {
    pub enum Part {
        /// Nanoseconds of a packet.
        Costs = "costs",
        /// Gaps between packets while a list is swapped.
        Swap = "swap",
    }
}

/// What the shield costs a packet, and what it saves.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("rounds", |rounds| rounds.default_value("3")),
    after_help = "Needs root. Takes five minutes; runs in network namespaces of its own. Exit code 1 when something that can run \
    here did not.\n\nExamples:\n  ringway-lab bench shield\n  \
    ringway-lab bench shield --only costs --rounds 5 -o json\n  \
    ringway-lab bench shield --only costs --prefixes 100000"
)]
pub struct Shield {
    /// Only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Prefixes of the block lists; half as many sources of packets that pass, a hundredth of the
    /// prefixes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub prefixes: u32,
    #[command(flatten)]
    pub rounds: Rounds,
}

impl Scenario for Shield {
    const NAME: &'static str = "shield";
    const PEERS: &'static [(&'static str, &'static str)] =
        &[("nft", "--version"), ("iptables-nft-restore", "--version")];
    type Figures = ShieldFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<ShieldFigures> {
        let parts = harness::chosen(&Part::ALL, &self.only);
        // A thread of its own can have a network namespace of its own, gone with it, and keep to
        // one processor.
        let (costs, swap) = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                settle()?;
                let costs = match parts.contains(&Part::Costs) {
                    true => costs::measure(self.rounds.count, self.prefixes, harness)?,
                    false => costs::Found::new(),
                };
                let swap = parts.contains(&Part::Swap).then(|| self.swap(harness));
                Ok::<_, Error>((costs, swap.flatten()))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(ShieldFigures::new(self.rounds.count, &costs, swap))
    }
}

impl Shield {
    fn swap(&self, harness: &mut Harness<'_>) -> Option<Swap> {
        let (mut cases, mut site) = (vec![SwapCase], None);
        harness.each(&mut cases, |_, _| {
            site = Some(SwapSite::new(self.prefixes)?);
            Ok(())
        });
        let mut site = site?;
        harness.rounds(self.rounds.count, &mut cases, |harness, _, _| {
            let line = site.round()?;
            harness.say(line);
            Ok(())
        });
        (!cases.is_empty()).then(|| site.figures())
    }
}

struct SwapCase;

impl Case for SwapCase {
    fn key(&self) -> Value {
        json!({ "case": Part::Swap })
    }
}

impl fmt::Display for SwapCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Part::Swap.name())
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
