//! `ringway-lab bench`: each scenario of the lab, whose fields are its options, and how its result
//! is shown.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ringway_measure::benches::{
    Capture, Engine, Forward, KernelPath, Lb, Million, Packet, Shield, TcpConnect, TcpMemory,
};

use super::{OutputArgs, RingwayArgs};

/// `ringway-lab bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub what: Bench,
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// HTTP through Ringway, nginx, haproxy and nftables, in turns.
    Lb(OfRingway<Lb>),
    /// Nanoseconds and calls that a packet costs in the gateway's programs.
    Packet(Printed<Packet>),
    /// Packet programs in user space, beside DPDK's and the kernel's sockets, in turns.
    Engine(Printed<Engine>),
    /// Frames a second, loss, latency, bursts and recovery of what forwards, by RFC 2544.
    Forward(OfRingway<Forward>),
    /// What it costs to capture every packet, and to be able to.
    Capture(OfRingway<Capture>),
    /// Bytes that a TCP socket takes of the kernel's memory, state by state.
    TcpMemory(Plotted<TcpMemory>),
    /// A million TCP connections on this machine, and what they take.
    Million(Plotted<Million>),
    /// How long connecting takes, and what makes it a second longer.
    TcpConnect(Plotted<TcpConnect>),
    /// What a packet, a request and a copy cost in the kernel, and where the time goes.
    KernelPath(Plotted<KernelPath>),
    /// What the shield costs a packet, and what it saves.
    Shield(OfRingway<Shield>),
    /// What changed by more than chance from one run to another.
    Compare(CompareArgs),
    /// A job for a bench's own helper processes.
    #[command(hide = true)]
    Inner {
        /// Which.
        job: String,
    },
}

/// `ringway-lab bench compare`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs of `bench forward` or of `bench lb`. A figure changed if the ranks of all rounds are apart by chance in less than \
    1 of 100 runs (Mann-Whitney, exact, two-sided), for which a run needs five rounds. Of `bench forward --rfc`, which has one, a throughput or burst \
    changed if its bounds overlap no more. Frame loss is compared as frames a second in overload: loads are each run's own. \
    Exit code 0 whatever changed, unless --fail-on-worse is given.\n\n\
    Examples:\n  ringway-lab bench compare before after\n  ringway-lab bench compare lb-before.json lb-after.json --fail-on-worse"
)]
pub struct CompareArgs {
    /// The first run: its folder, or what -o json printed.
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The second one.
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// Exit with 3 where a figure is worse.
    #[arg(long)]
    pub fail_on_worse: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A scenario whose result is printed.
#[derive(Debug, Args)]
pub struct Printed<S: Args> {
    #[command(flatten)]
    pub scenario: S,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One that runs the gateway's program.
#[derive(Debug, Args)]
pub struct OfRingway<S: Args> {
    #[command(flatten)]
    pub scenario: S,
    #[command(flatten)]
    pub ringway: RingwayArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// One that has a page beside what is printed.
#[derive(Debug, Args)]
pub struct Plotted<S: Args> {
    #[command(flatten)]
    pub scenario: S,
    /// Also write a self-contained page with plots to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::cli::Cli;

    #[test]
    fn rounds_and_seconds_unless_others_are_asked_for() {
        for (bench, rounds, seconds) in [
            ("lb", 3, Some(5)),
            ("packet", 5, None),
            ("engine", 5, Some(5)),
            ("capture", 5, Some(5)),
            ("tcp-memory", 3, None),
            ("kernel-path", 3, Some(2)),
            ("shield", 3, Some(4)),
        ] {
            let matches = Cli::command().get_matches_from(["ringway-lab", "bench", bench]);
            let bench = matches.subcommand_matches("bench").and_then(|bench| bench.subcommand());
            let (name, options) = bench.unwrap();
            assert_eq!(options.get_one::<u32>("rounds"), Some(&rounds), "{name}");
            let asked = options.try_get_one::<u64>("seconds").unwrap_or_default();
            assert_eq!(asked, seconds.as_ref(), "{name}");
        }
    }
}
