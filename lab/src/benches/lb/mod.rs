//! HTTP through load balancers, in turn: `ringway-lab bench lb`.
//!
//! ```text
//! client eth0 --- client +--------+ b1 --- eth0 backend 1 (nginx)
//!                        |  br0   |
//! balancer eth0 - balancer +------+ b2 --- eth0 backend 2 (nginx)
//! ```
//! All are network namespaces; the bridge and the veth ends at it are the "host" of a container
//! engine. Every path gets a fresh topology with the same settings (checksum, segmentation and
//! receive offloads off), the same two backends and the same wrk command. Rounds go through all
//! paths, so that a drift of the machine hits all. Where XDP sends into a veth, its far end gets a
//! program that passes everything, or veth would drop the frames.

mod balancer;
mod bare;
pub(crate) mod capture_rates;
mod cost;
mod gateway;
mod kernel_nat;
mod path;
mod proxies;
mod report;
mod sockmap;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;
use serde_json::{Value, json};

pub use path::LbPath;

use crate::harness::{self, Case, Harness, Repeated, Scenario};
use crate::{Result, programs};
use path::{Measured, PathSetup};
use report::LbFigures;

/// HTTP through Ringway, nginx, haproxy and nftables, in turns.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")), after_help = format!("Needs root. Takes about six minutes; runs in network namespaces of its own. Exit code 1 \
    when a path that can run here did not.\n\n{}\n\nExamples:\n  ringway-lab bench lb\n  \
    ringway-lab bench lb -o json --show-configs\n  \
    ringway-lab bench lb --only direct,nftables,ringway-host --connections 100", programs::PEERS_HELP))]
pub struct Lb {
    /// Only these paths.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub only: Vec<LbPath>,
    /// Concurrent connections, each number measured.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,1000",
        value_parser = value_parser!(u32).range(1..=4000))]
    pub connections: Vec<u32>,
    /// How much of it.
    #[command(flatten)]
    pub repeated: Repeated,
    /// Print every configuration used.
    #[arg(long)]
    pub show_configs: bool,
    /// The `ringway` binary to measure.
    #[arg(skip)]
    pub ringway: PathBuf,
}

impl Lb {
    /// Whether it measures Ringway, or only what it replaces.
    pub fn needs_ringway(&self) -> bool {
        harness::chosen(&LbPath::ALL, &self.only).iter().any(|path| path.is_ringway())
    }
}

impl Case for LbPath {
    fn key(&self) -> Value {
        json!({ "path": self })
    }
}

impl Scenario for Lb {
    const NAME: &'static str = "lb";
    const PEERS: &'static [(&'static str, &'static str)] =
        &[("nginx", "-v"), ("haproxy", "-v"), ("wrk", "-v"), ("nft", "--version")];
    type Figures = LbFigures;

    fn measure(&self, harness: &mut Harness<'_>) -> Result<LbFigures> {
        let duration = Duration::from_secs(self.repeated.seconds);
        let (mut found, mut configurations) = (Found::new(), BTreeMap::new());
        let mut paths = harness::chosen(&LbPath::ALL, &self.only);
        harness.rounds(self.repeated.rounds.count, &mut paths, |harness, _, &path| {
            let setup = PathSetup::set_up(path, &self.ringway)?;
            if self.show_configs {
                configurations.insert(path, setup.configuration().to_owned());
            }
            // Caches, neighbours and the processor's clock.
            setup.measure(50, Duration::from_secs(1))?;
            for &connections in &self.connections {
                let measured = setup.measure(connections, duration)?;
                harness.say(format!(
                    "{path:<17} {connections:>5} connections {:>8.0} requests/s",
                    measured.figures.requests_per_s
                ));
                found.entry((path, connections)).or_default().push(measured);
            }
            Ok(())
        });
        found.retain(|(path, _), _| paths.contains(path));
        Ok(LbFigures::new(self, &found, configurations))
    }
}

/// Figures of all rounds.
type Found = BTreeMap<(LbPath, u32), Vec<Measured>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Rounds;

    /// The real thing, as short as it can be, over the paths that need no binary.
    #[test]
    fn measures_what_is_here() {
        if !ringway_testnet::root_or_skip("lb::measures_what_is_here") {
            return;
        }
        let scenario = Lb {
            repeated: Repeated { rounds: Rounds { count: 1 }, seconds: 1 },
            connections: vec![20],
            only: LbPath::ALL.into_iter().filter(|p| !p.is_ringway()).collect(),
            show_configs: true,
            ringway: PathBuf::new(),
        };
        let report = harness::measure(&scenario, &mut |line| eprintln!("{line}")).unwrap();
        assert!(report.failed.is_empty(), "{report}");
        for skipped in &report.skipped {
            assert_eq!(skipped.case, LbPath::Ipvs.name(), "{}", skipped.reason);
        }
        let figures = &report.figures;
        for run in &figures.runs {
            assert!(run.requests_per_s > 0 && run.errors == 0 && run.cpu_ns > 0, "{run:?}");
            let sockmap = run.path == LbPath::NginxSockmap;
            assert_eq!(run.redirected_bytes.is_some_and(|bytes| bytes > 0), sockmap, "{run:?}");
        }
        assert_eq!(figures.runs.len() + report.skipped.len(), scenario.only.len());
        assert!(figures.configurations[&LbPath::Nftables].contains("masquerade"));
    }
}
