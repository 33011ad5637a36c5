//! `ringway-lab demo` and `ringway-lab bench`: what shows Ringway at work, and measures it.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ringway_measure::benches::tcp::{connect, memory, million};
use ringway_measure::benches::{engine as engine_bench, kernel_path, lb, packet};
use ringway_measure::demo;

use super::{OutputArgs, RingwayArgs};
use ringway_terminal::quantity::whole;

/// What `demo` and `bench` run beside Ringway.
macro_rules! peers_help {
    () => {
        "Environment:\n  RINGWAY_PEERS  directory that nginx, wrk and the like were unpacked into, looked at \
        after PATH [default: target/peers]"
    };
}

/// `ringway-lab demo`
#[derive(Debug, Args)]
#[command(
    after_help = concat!("Needs root. Runs in network namespaces of its own and cleans up after itself. Exit \
    code 1 when it did not hold.\n\n", peers_help!(), "\n\nExamples:\n  \
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
    Lb(BenchLbArgs),
    /// Nanoseconds that a packet costs in the gateway's programs.
    Packet(BenchPacketArgs),
    /// Packet programs in user space, beside DPDK's and the kernel's sockets, in turns.
    Engine(BenchEngineArgs),
    /// What it costs to capture every packet, and to be able to.
    Capture(BenchCaptureArgs),
    /// Bytes that a TCP socket takes of the kernel's memory, state by state.
    TcpMemory(BenchTcpMemoryArgs),
    /// A million TCP connections on this machine, and what they take.
    Million(BenchMillionArgs),
    /// How long connecting takes, and what makes it a second longer.
    TcpConnect(BenchTcpConnectArgs),
    /// What a packet, a request and a copy cost in the kernel, and where the time goes.
    KernelPath(BenchKernelPathArgs),
    /// A job for a bench's own helper processes.
    #[command(hide = true)]
    Inner {
        /// Which.
        job: String,
    },
}

/// How often and how long is measured.
#[derive(Clone, Copy, Debug, Args)]
pub struct RepeatedArgs {
    /// How often everything is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of one measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
}

/// `ringway-lab bench lb`
#[derive(Debug, Args)]
#[command(
    after_help = concat!("Needs root. Takes about six minutes; runs in network namespaces of its own. Exit code 1 \
    when a path that can run here did not.\n\n", peers_help!(), "\n\nExamples:\n  ringway-lab bench lb\n  \
    ringway-lab bench lb -o json --show-configs\n  \
    ringway-lab bench lb --only direct,nftables,ringway-host --connections 100")
)]
pub struct BenchLbArgs {
    /// Only these paths.
    #[arg(long, value_name = "PATH", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(lb::Path::ALL.map(lb::Path::name))
            .try_map(|name| name.parse::<lb::Path>()))]
    pub only: Vec<lb::Path>,
    /// Concurrent connections, each number measured.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,1000",
        value_parser = clap::value_parser!(u32).range(1..=4000))]
    pub connections: Vec<u32>,
    /// How often each path is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of one measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Print every configuration used.
    #[arg(long)]
    pub show_configs: bool,
    #[command(flatten)]
    pub ringway: RingwayArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench packet`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Takes some minutes, on one processor; attaches nothing to any interface and leaves \
    nothing behind. Exit code 1 when a path that can run here did not.\n\nExamples:\n  ringway-lab bench packet\n  \
    ringway-lab bench packet --only pass,nat --ip 4 --flows 1,10000 --rounds 3 -o json\n  \
    ringway-lab bench packet --only nat --flows 10000000"
)]
pub struct BenchPacketArgs {
    /// Only these paths.
    #[arg(long, value_name = "PATH", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(packet::Path::ALL.map(packet::Path::name))
            .try_map(|name| name.parse::<packet::Path>()))]
    pub only: Vec<packet::Path>,
    /// Only these IP versions.
    #[arg(long, value_name = "VERSION", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(["4", "6"]).map(|version| match version.as_str() {
            "4" => packet::Ip::V4,
            _ => packet::Ip::V6,
        }))]
    pub ip: Vec<packet::Ip>,
    /// Flows that take turns, each number measured [default: 1, 10000, 500000 and 10000000].
    ///
    /// Where the gateway keeps a record of each flow, ten million are measured only when asked for.
    #[arg(long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub flows: Vec<u32>,
    /// How often each is measured; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench engine`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Takes about eleven minutes; runs in network namespaces of its own. dpdk-testpmd is taken from PATH, else from \
    target/peers (`packaging/bootstrap --tests` unpacks it there); without it Ringway is measured alone. It gets huge pages \
    where 256 MiB of them are free (`sysctl vm.nr_hugepages=256` reserves twice that), else pages of 4 KiB. Exit code 1 when a \
    case was not measured.\n\nExamples:\n  ringway-lab bench engine\n  ringway-lab bench engine --rounds 3 --seconds 2 -o json\n  \
    ringway-lab bench engine --only memory-macswap,wire-parse"
)]
pub struct BenchEngineArgs {
    /// Only these cases.
    #[arg(long, value_name = "CASE", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(engine_bench::Case::ALL.map(engine_bench::Case::name))
            .try_map(|name| name.parse::<engine_bench::Case>()))]
    pub only: Vec<engine_bench::Case>,
    #[command(flatten)]
    pub repeated: RepeatedArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench capture`
#[derive(Debug, Args)]
#[command(
    after_help = concat!("Needs root. Takes two minutes; runs in network namespaces of its own. HTTP goes through a \
    gateway by turns with a capture of everything and without; what a packet costs before and after a capture is \
    measured on programs that are attached to nothing.\n\n", peers_help!(), "\n\nExamples:\n  \
    ringway-lab bench capture\n  ringway-lab bench capture --rounds 3 --seconds 2 -o json")
)]
pub struct BenchCaptureArgs {
    #[command(flatten)]
    pub repeated: RepeatedArgs,
    #[command(flatten)]
    pub ringway: RingwayArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A page beside what is printed.
#[derive(Debug, Args)]
pub struct HtmlArgs {
    /// Also write a self-contained page with plots to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `ringway-lab bench tcp-memory`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Takes a minute; runs in network namespaces of its own. Both ends of each connection are \
    here, client and server counted apart. Keep the machine quiet: others' files and sockets are in the same caches. Numbers may end in k, M, G or T.\n\n\
    Examples:\n  ringway-lab bench tcp-memory\n  ringway-lab bench tcp-memory --only established,time-wait --rounds 1 --connections 2k -o json\n  \
    ringway-lab bench tcp-memory --html tcp-memory.html"
)]
pub struct BenchTcpMemoryArgs {
    /// Only these states.
    #[arg(long, value_name = "STATE", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(memory::State::ALL.map(memory::State::name))
            .try_map(|name| name.parse::<memory::State>()))]
    pub only: Vec<memory::State>,
    /// Connections in each state [default: 8000, or as many as open files and memory allow].
    #[arg(long, value_name = "N", value_parser = whole::<u32>(memory::LEAST_CONNECTIONS.into()..=1_000_000))]
    pub connections: Option<u32>,
    /// How often each state is measured; the median counts.
    #[arg(long, value_name = "N", default_value = "3",
        value_parser = whole::<u32>(1..=100))]
    pub rounds: u32,
    #[command(flatten)]
    pub html: HtmlArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench million`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. A million take about 9 GB and four minutes, both schemes together; runs in network \
    namespaces of its own, by helper processes that end with it. Says how many are possible where there is too little \
    memory or too few files. Numbers may end in k, M, G or T. Exit code 1 when not all connections were there and carried data.\n\nExamples:\n  \
    ringway-lab bench million\n  ringway-lab bench million --connections 100k --scheme many-server-ports -o json\n  \
    ringway-lab bench million --connections 50k --no-pace"
)]
pub struct BenchMillionArgs {
    /// Connections, established at the same time.
    #[arg(long, value_name = "N", default_value = "1M",
        value_parser = whole::<u64>(1..=100_000_000))]
    pub connections: u64,
    /// What there are many of [default: one after the other].
    #[arg(long, value_name = "SCHEME", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(million::Scheme::ALL.map(million::Scheme::name))
            .try_map(|name| name.parse::<million::Scheme>()))]
    pub scheme: Vec<million::Scheme>,
    /// Connections a second [default: 5000 for each processor].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=10_000_000))]
    pub rate: Option<u64>,
    /// All at once and to queues of 128: shows what overflows.
    #[arg(long, conflicts_with = "rate")]
    pub no_pace: bool,
    #[command(flatten)]
    pub html: HtmlArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench tcp-connect`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Takes half a minute; runs in network namespaces of its own. Delays are made by `tc netem`; where the kernel \
    lacks it, by two TAP devices with this process between them. Numbers may end in k, M, G or T. Exit code 1 when an experiment failed.\n\nExamples:\n  ringway-lab bench tcp-connect\n  \
    ringway-lab bench tcp-connect --only accept-queue,syn-queue -o json\n  ringway-lab bench tcp-connect --html connect.html"
)]
pub struct BenchTcpConnectArgs {
    /// Only these experiments.
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(connect::Experiment::ALL.map(connect::Experiment::name))
            .try_map(|name| name.parse::<connect::Experiment>()))]
    pub only: Vec<connect::Experiment>,
    /// Connections of each case of loopback, veth and delayed; of delayed one by one at most 50.
    ///
    /// The other experiments have numbers of their own: 64 connections to each queue, 50 for ports.
    #[arg(long, value_name = "N", default_value = "500",
        value_parser = whole::<u32>(1..=20_000))]
    pub connections: u32,
    /// Sockets in TIME_WAIT that make ports scarce; for the experiment ports.
    #[arg(long, value_name = "N", default_value = "30k",
        value_parser = whole::<u32>(100..=40_000))]
    pub time_wait: u32,
    #[command(flatten)]
    pub html: HtmlArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway-lab bench kernel-path`
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root. Takes three minutes; runs in network namespaces of its own. What this kernel does not allow is skipped, \
    with the reason. Keep the machine quiet: softirq time is that of all processors, and is not told where others are busy. A rate that this machine does not reach is reported as missed. \
    Numbers may end in k, M, G or T.\n\nExamples:\n  \
    ringway-lab bench kernel-path\n  ringway-lab bench kernel-path --only receive --rate 50k --seconds 5 -o json\n  \
    ringway-lab bench kernel-path --html kernel-path.html"
)]
pub struct BenchKernelPathArgs {
    /// Only these.
    #[arg(long, value_name = "GROUP", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(kernel_path::Group::ALL.map(kernel_path::Group::name))
            .try_map(|name| name.parse::<kernel_path::Group>()))]
    pub only: Vec<kernel_path::Group>,
    /// Packets a second that come in; for the group receive.
    #[arg(long, value_name = "N", default_value = "20k",
        value_parser = whole::<u32>(1..=10_000_000))]
    pub rate: u32,
    /// Length of one measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2",
        value_parser = whole::<u64>(1..=600))]
    pub seconds: u64,
    /// How often each is measured; the medians count.
    #[arg(long, value_name = "N", default_value = "3",
        value_parser = whole::<u32>(1..=100))]
    pub rounds: u32,
    #[command(flatten)]
    pub html: HtmlArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
