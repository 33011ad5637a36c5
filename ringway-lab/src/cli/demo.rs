//! `ringway-lab demo`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use ringway_measure::{PEERS_HELP, demo};

use super::{OutputArgs, RingwayArgs};

/// `ringway-lab demo`
#[derive(Debug, Args)]
#[command(
    after_help = format!("Needs root. Runs in network namespaces of its own and cleans up after itself. Exit \
    code 1 when it did not hold.\n\n{PEERS_HELP}\n\nExamples:\n  \
    ringway-lab demo\n  ringway-lab demo --list\n  ringway-lab demo --only curl,kill-backend -o json\n  \
    ringway-lab demo --keep\n  ringway-lab demo --clean")
)]
pub struct DemoArgs {
    /// List the phases and do nothing.
    #[arg(long)]
    pub list: bool,
    /// Only these phases, in the order of --list.
    #[arg(long, value_name = "NAME", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(demo::PHASES.map(|phase| phase.name)))]
    pub only: Vec<String>,
    /// Leave everything standing and print commands to try.
    #[arg(long)]
    pub keep: bool,
    /// Take down what --keep left standing, except demos still running.
    #[arg(long, conflicts_with_all = ["list", "only", "keep"])]
    pub clean: bool,
    /// A job for the demo's own helper processes.
    #[arg(long, hide = true, value_name = "JOB")]
    pub inner: Option<String>,
    #[command(flatten)]
    pub ringway: RingwayArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
