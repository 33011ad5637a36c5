//! The command line. One definition for parsing, help and completions.

mod backend;
mod capture;
mod doctor;
mod engine;
mod forward;
mod nic;
pub mod options_file;
mod shield;

use std::path::PathBuf;

pub use self::backend::{BackendAction, BackendArgs, OverridesAction, OverridesArgs};
pub use self::capture::CaptureArgs;
pub use self::doctor::DoctorArgs;
pub use self::engine::{
    Cpus, EngineApp, EngineArgs, FrameSize, HostArgs, HugePages, IcmpArgs, InspectArgs, L2fwdArgs,
    OnLoss, SinkArgs, TakeOver, WhenDead, WorkArgs, ZeroCopy,
};
pub use self::forward::ForwardArgs;
pub use self::nic::{BindArgs, NicAction, NicArgs, UnbindArgs};
pub use self::shield::{BlockedArgs, PrefixArgs, ShieldAction, ShieldArgs, UnblockArgs};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ringway_host::Mac;
use ringway_kernel::XdpMode;
use ringway_terminal::command_line::{CompletionsArgs, EXIT_CODES, ManArgs};
pub use ringway_terminal::command_line::{Output, OutputArgs};

/// An XDP load balancer that shows what it does.
#[derive(Debug, Parser)]
#[command(
    name = "ringway",
    version = crate::version::TEXT,
    after_help = EXIT_CODES
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway in the foreground.
    Run(RunArgs),
    /// Bridge or route packets between interfaces, in the foreground.
    Forward(ForwardArgs),
    /// Validate a configuration, and with --host whether it fits this machine.
    Check(CheckArgs),
    /// Show interfaces, services, backends and counters of a node.
    Status(StatusArgs),
    /// Watch services, backends, interfaces, drops, flows and the shield as they change.
    Top(TopArgs),
    /// List the flows of a node: client, service, backend, state.
    Flows(FlowsArgs),
    /// Read the configuration file again while traffic flows; with --dry-run: show what would
    /// change.
    Reload(ReloadArgs),
    /// Drain a backend, undrain it, or set its weight.
    Backend(BackendArgs),
    /// List the weights that were set at runtime, or clear them.
    Overrides(OverridesArgs),
    /// Drop packets from a prefix, from now on and after a restart.
    #[command(
        after_help = "Packets to what the shield protects are meant. Lists and prefixes that allow go first.\n\
        A prefix that holds a large part of all clients, a backend, a service's address or one of the gateway's own needs --force.\n\n\
        Examples:\n  ringway block 192.0.2.0/24 --for 10m --reason 'scans'\n  ringway block 2001:db8::7"
    )]
    Block(PrefixArgs),
    /// Let packets from a prefix pass the shield's lists, rules and limits.
    #[command(after_help = "A prefix that holds a large part of all clients needs --force.\n\n\
        Example:\n  ringway allow 198.51.100.0/24 --for 1h --reason monitoring")]
    Allow(PrefixArgs),
    /// Take back what `ringway block` or `ringway allow` said of a prefix.
    #[command(
        after_help = "Exit code 2 when it was not said of exactly this prefix. What a list's file says, the file alone can change.\n\n\
        Example:\n  ringway unblock 192.0.2.0/24"
    )]
    Unblock(UnblockArgs),
    /// List the prefixes that were blocked or allowed at run time.
    #[command(after_help = "Examples:\n  ringway blocked\n  ringway blocked -o json")]
    Blocked(BlockedArgs),
    /// Show the shield, or switch it off for a time.
    #[command(
        after_help = "Examples:\n  ringway shield status\n  ringway shield observe --for 15m"
    )]
    Shield(ShieldArgs),
    /// Explain why packets get their verdicts.
    Reasons(ReasonsArgs),
    /// Show what would happen to a packet, and why; nothing is sent or changed.
    Explain(ExplainArgs),
    /// Show packets as they arrive and leave, with verdict, reason, service and backend.
    Capture(CaptureArgs),
    /// Collect what a bug report needs, without secrets or clients' addresses.
    Bundle(BundleArgs),
    /// Keep the programs that are on trial for a minute on the interface of the default route.
    Confirm(ConfirmArgs),
    /// Stop the packet path of a node: remove its programs, maps and neighbours.
    Detach(DetachArgs),
    /// Open the tunnels of dsr-ipip and dsr-gue on a backend that has no tunnel devices.
    Decap(DecapArgs),
    /// Open the connections that a gateway with syn = "backend" has answered, on a backend.
    Accept(AcceptArgs),
    /// Find what is wrong with this machine's network settings: evidence, reason, fix and undo.
    Doctor(DoctorArgs),
    /// Run a packet program in user space: forward, answer pings, echo, bid, count.
    Engine(EngineArgs),
    /// List NICs and for which ports of the engine they are ready, give them to DPDK, or back to the
    /// kernel.
    Nic(NicArgs),
    /// Write a configuration from another balancer's.
    Import(ImportArgs),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write manual pages into a directory.
    #[command(hide = true)]
    Man(ManArgs),
}

/// `-c FILE`
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file.
    #[arg(short, long, value_name = "FILE", default_value = ringway_config::DEFAULT_PATH)]
    pub config: PathBuf,
}

/// `ringway run`
#[derive(Debug, Args)]
#[command(
    after_help = "Stopping it (SIGTERM, Ctrl-C) leaves programs and flows in place; a new run takes \
    them over, `ringway detach` removes them.\n\nExit code 2 when the configuration is wrong or does \
    not fit this machine, 1 when the machine is not fit for any.\n\nExample:\n  ringway run -c /etc/ringway/ringway.toml --log debug"
)]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What to log, and how much of it.
    ///
    /// error, warn, info, debug, trace, off, or filters such as info,ringway_daemon=debug.
    #[arg(long, env = "RINGWAY_LOG", value_name = "LEVEL")]
    pub log: Option<String>,
}

/// `ringway check`
#[derive(Debug, Args)]
#[command(
    after_help = "With --host: what the file wants of this machine, then the machine itself, as `ringway doctor --profile \
    balancer` sees it, asked about the interfaces of the file. Exit code 3 when a line about the file is not ok, or a finding \
    about the machine is crit.\n\nExamples:\n  ringway check -c ringway.toml\n  ringway check --host -o json\n  \
    ringway check --other-node gw2.json\n  ringway check --upgrade"
)]
pub struct CheckArgs {
    /// Configuration file; left out: /etc/ringway/ringway.toml, and with --host the machine alone
    /// where that is not there.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Also check this machine: interfaces, kernel, routes, neighbours, who answers.
    #[arg(long)]
    pub host: bool,
    /// Say which of the pinned tables a daemon of this version would keep, and change nothing.
    ///
    /// Run it from the new binary, before the old daemon is stopped. Exit code 3 when it cannot
    /// take over.
    #[arg(long, conflicts_with_all = ["host", "other_node"])]
    pub upgrade: bool,
    /// Also compare this node, whose daemon must run, with another one: whether both answer SYNs
    /// with the same secret and in the same way.
    ///
    /// FILE: what `ringway shield status -o json` says there. Exit code 3 when they differ.
    #[arg(long, value_name = "FILE")]
    pub other_node: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway status`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 3 when something is wrong, or no daemon runs or answers within two seconds: then the \
    output comes from the pinned tables. 0 also when degraded: every service is \
    served, but not every backend gets traffic.\n\n`flows now` counts half-open and unanswered \
    flows, too; the line below the tables tells them apart.\n\nExamples:\n  \
    ringway status\n  ringway status --all\n  ringway status --ledger -o json\n  ringway status --memory\n  ringway status --ready"
)]
pub struct StatusArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Print only whether the node should get traffic: exit code 0 or 3.
    ///
    /// For keepalived, BIRD and ExaBGP. Not ready: no daemon or one that hangs, not attached
    /// everywhere, tables not written, no service with a backend. A service without backends beside
    /// one with some does not count.
    #[arg(long, conflicts_with_all = ["ledger", "memory"])]
    pub ready: bool,
    /// Show this service alone; with --ready: it must have a backend, too.
    #[arg(long, value_name = "NAME", conflicts_with = "memory")]
    pub service: Option<String>,
    /// Show every problem, service and backend, however many there are.
    ///
    /// By default long tables have the rows that need attention, and sums.
    #[arg(long, conflicts_with_all = ["ready", "memory"])]
    pub all: bool,
    /// Show the ledger: packets seen, the sum of their verdicts and the difference, per interface.
    #[arg(long)]
    pub ledger: bool,
    /// Show only the memory: every map of the packet path, its entries and bytes, and what happens
    /// when it is full.
    ///
    /// Needs root, and no daemon.
    #[arg(long, conflicts_with = "ledger")]
    pub memory: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway flows`
#[derive(Debug, Args)]
#[command(
    after_help = "A filter is terms joined by and: tcp, udp, ipv4, ipv6, service NAME, client ADDRESS[/LENGTH][:PORT], \
    backend ADDRESS[/LENGTH][:PORT], port NUMBER, state STATE, idle > TIME, idle < TIME, probation, dsr; not before \
    a term turns it round. probation: flows whose place a new one may take. Times are 30s, 5m, 2h. Put it in quotes, because of < and >.\n\nReads the tables in place: \
    traffic is not held up, and every flow is shown as it was at one moment. Needs root, and no daemon. Of dsr services \
    only flows of ring slots that changed lately have records, and these do not hold the client.\n\nExamples:\n  \
    ringway flows\n  ringway flows 'service web and state established' --sort idle --reverse -n 10\n  \
    ringway flows 'client 192.0.2.0/24 and idle > 30s' -n 0 -o json"
)]
pub struct FlowsArgs {
    /// Which flows; left out: all.
    #[arg(value_name = "FILTER", num_args = 0..)]
    pub filter: Vec<String>,
    /// Sort by this; by default in no order.
    #[arg(short, long, value_enum, value_name = "KEY")]
    pub sort: Option<SortKey>,
    /// Reverse the order.
    #[arg(short, long, requires = "sort")]
    pub reverse: bool,
    /// Show at most this many; 0: all, which cannot be sorted.
    #[arg(short = 'n', long, value_name = "LIMIT", default_value_t = 50)]
    pub limit: usize,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What flows are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// Client's address and port.
    Client,
    /// Name of the service.
    Service,
    /// Backend's address and port.
    Backend,
    /// Place in a flow's life.
    State,
    /// Seconds without a packet.
    Idle,
}

/// `ringway reload`
#[derive(Debug, Args)]
#[command(
    after_help = "The daemon reads the file that it was started with; -c with another one is refused. A file that is wrong, or does not fit this \
    machine, changes nothing (exit code 2). SIGHUP does the same.\n\nExamples:\n  ringway reload --dry-run\n  \
    ringway reload"
)]
pub struct ReloadArgs {
    /// Print what would change: services, backends, ring slots, flows. Change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// If the file has warnings, change nothing and end with exit code 1.
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Which node: by its configuration or by name.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Configuration file that names the node and its API socket.
    #[arg(short, long, value_name = "FILE", conflicts_with = "node")]
    pub config: Option<PathBuf>,
    /// Name of the node; when neither is given, the only one of this network namespace, else of
    /// this machine.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl NodeArgs {
    pub fn selector(&self) -> ringway_api::client::node_selector::NodeSelector<'_> {
        ringway_api::client::node_selector::NodeSelector {
            config: self.config.as_deref(),
            node: self.node.as_deref(),
        }
    }
}

/// `ringway explain`
#[derive(Debug, Args)]
#[command(
    after_help = "Asks the loaded packet path itself, by its own tables as they are now. Needs root, and no \
    daemon. TCP is a SYN unless --flags says otherwise.\n\nExamples:\n  \
    ringway explain -i eth0 'tcp 192.0.2.7:4711 > 203.0.113.10:80'\n  \
    ringway explain -i eth0 --flags ack 'tcp [2001:db8::7]:4711 > [2001:db8:a::10]:80' -o json\n  \
    ringway explain -i eth0 -r capture.pcapng -n 7",
    // What is missing is named with both ways to say it.
    group = clap::ArgGroup::new("which").args(["packet", "read"]).required(true)
)]
pub struct ExplainArgs {
    /// Interface of the node on which the packet arrives.
    #[arg(short, long, value_name = "IFACE")]
    pub interface: String,
    /// The packet: 'tcp SENDER:PORT > RECEIVER:PORT', udp alike, 'icmp SENDER > RECEIVER' for an
    /// echo request; IPv6 addresses with a port in brackets. In quotes, because of >.
    #[arg(value_name = "PACKET")]
    pub packet: Vec<String>,
    /// Take the packet from this capture, pcapng or pcap, instead.
    #[arg(short, long, value_name = "FILE")]
    pub read: Option<PathBuf>,
    /// Which packet of the capture, counted from 1.
    #[arg(short, long, value_name = "N", default_value_t = 1, conflicts_with = "packet")]
    pub number: u64,
    /// TCP flags: fin, syn, rst, psh, ack, urg, ece, cwr, with commas, or none.
    #[arg(long, value_name = "FLAGS", default_value = "syn", conflicts_with = "read")]
    pub flags: String,
    /// Bytes of the IP packet, headers included [default: headers alone, with the options that a
    /// client's SYN has].
    #[arg(long, value_name = "N", conflicts_with = "read")]
    pub bytes: Option<u16>,
    /// TTL or hop limit.
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with = "read")]
    pub ttl: u8,
    /// MAC address it comes from: the client's, or its router's [default: one that nobody has].
    #[arg(long, value_name = "MAC", conflicts_with = "read")]
    pub source_mac: Option<Mac>,
    /// MAC address it is sent to, where a bridge decides by it [default: the interface's].
    #[arg(long, value_name = "MAC", conflicts_with = "read")]
    pub destination_mac: Option<Mac>,
    /// VLAN id it is tagged with [default: the interface's own].
    #[arg(long, value_name = "ID", conflicts_with = "read",
        value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway reasons`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway reasons\n  ringway reasons no-neighbour\n  ringway reasons drop\n  ringway reasons engine"
)]
pub struct ReasonsArgs {
    /// Only this reason, in full; or the reasons of this verdict: pass, drop, tx, redirect,
    /// aborted; or those of `ringway engine`: engine.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway top`
#[derive(Debug, Args)]
#[command(
    after_help = "Keys as in htop: q or F10 ends, h or F1 helps, t or Tab changes the view, / or F4 filters, < > or F6 \
    choose the column to sort by, I turns the order round, arrows and page keys scroll, space pauses. With --once: one \
    look of DELAY seconds, printed.\n\nExamples:\n  ringway top\n  ringway top -d 5 --view shield\n  \
    ringway top --once -o json"
)]
pub struct TopArgs {
    /// Seconds between two readings: 0.5 to 3600.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    pub delay: std::time::Duration,
    /// What is shown first.
    #[arg(long, value_enum, value_name = "VIEW", default_value_t)]
    pub view: TopView,
    /// Print one screen and end.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What `ringway top` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TopView {
    /// Services, all of a service's backends together.
    #[default]
    Services,
    /// Backends, each by itself.
    Backends,
    /// Interfaces.
    Interfaces,
    /// Verdicts and reasons.
    Reasons,
    /// Flows: the first few hundred that the filter lets through.
    Flows,
    /// The shield: services with limits, lists, rules and heavy sources.
    Shield,
}

fn delay(text: &str) -> Result<std::time::Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => {
            Ok(std::time::Duration::from_secs_f64(seconds))
        }
        _ => Err("seconds, 0.5 to 3600".to_owned()),
    }
}

/// `ringway bundle`
#[derive(Debug, Args)]
#[command(
    after_help = "Holds versions, the kernel, status, ledger, memory, programs and maps, `ringway check --host`, links, \
    routes, neighbours that are backends or routers, the configuration without secrets and comments, and the last \
    lines of the log. What could not be had is named in MANIFEST.txt, with the reason. No addresses of clients, unless \
    --with-flows is given. Needs root, and no daemon. Read it before you send it.\n\nExamples:\n  \
    ringway bundle gw1.tar\n  ringway bundle - -c /etc/ringway/ringway.toml | xz > gw1.tar.xz"
)]
pub struct BundleArgs {
    /// Output file; `-`: standard output.
    #[arg(value_name = "FILE.tar")]
    pub file: PathBuf,
    /// Replace an existing file, which is otherwise refused.
    #[arg(long)]
    pub overwrite: bool,
    /// Add flows, with their clients' addresses; at most 100 000.
    #[arg(long)]
    pub with_flows: bool,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `ringway confirm`
#[derive(Debug, Args)]
#[command(
    after_help = "With allow_default_route = true a gateway attaches to an interface that carries the default \
    route for 60 seconds: if nobody confirms in that time, because nobody can reach the machine any more, it is \
    detached again. What was confirmed stays over restarts, until `ringway detach`.\n\nExamples:\n  \
    ringway confirm\n  ringway confirm --node gw1 -o json"
)]
pub struct ConfirmArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway detach`
#[derive(Debug, Args)]
#[command(after_help = "Connections through the node end. Stop the daemon first.\n\nExamples:\n  \
    ringway detach\n  ringway detach --node gw1 --verify")]
pub struct DetachArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Afterwards, verify that nothing of Ringway is left; exit code 1 if something is.
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway decap`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground on a backend, beside no gateway: packets that a gateway sends by dsr-ipip or \
    dsr-gue are taken out of their tunnel and given to the kernel, which must own the service address \
    (`ip address add SERVICE/32 dev lo`). Anything else passes untouched. Ctrl-C or SIGTERM detaches and prints \
    the counters; with --pin it leaves the program there, which then knows the host's addresses as they were: start it again to follow \
    them.\n\nExamples:\n  ringway decap -i eth1\n  ringway decap -i eth1 --address 10.0.0.2 --gue-port 6081\n  \
    ringway decap -i eth1 --status -o json"
)]
pub struct DecapArgs {
    /// Interface on which the gateway's packets arrive.
    #[arg(short, long, value_name = "IFACE")]
    pub interface: String,
    /// Where tunnels end: outer destination address. May be repeated.
    ///
    /// Default: every address of the interface.
    #[arg(long, value_name = "ADDRESS")]
    pub address: Vec<std::net::IpAddr>,
    /// UDP port of GUE and FOU.
    #[arg(long, value_name = "PORT", default_value_t = 6080,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub gue_port: u16,
    /// How to attach: in the driver, in the kernel's receive path, or the best there is.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = xdp_mode())]
    pub mode: std::option::Option<XdpMode>,
    /// Leave tunnels open when this ends: it runs in the foreground all the same, and ends by
    /// Ctrl-C or SIGTERM. --detach closes them.
    #[arg(long)]
    pub pin: bool,
    /// Attach even to an interface that carries the default route.
    #[arg(long)]
    pub allow_default_route: bool,
    /// Show the program on the interface, and its counters.
    #[arg(long, conflicts_with_all = ["address", "gue_port", "mode", "pin", "detach"])]
    pub status: bool,
    /// Remove what --pin left.
    #[arg(long, conflicts_with_all = ["address", "gue_port", "mode", "pin"])]
    pub detach: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway accept`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground on a backend, in the network namespace of its servers. A gateway with syn = \"backend\" \
    answers SYNs itself; here the client's ACK opens the connection at the listener. Established connections pass untouched, as does \
    everything to other addresses and ports. The key is the gateways' own; a changed file is picked up, and the key before is taken for two \
    minutes more. Ctrl-C or SIGTERM detaches and prints the counters: established connections stay, and new ones fail until it runs again.\n\n\
    Needs Linux 6.9 or newer. Exit code 2 when a listener or a setting of the kernel cannot take connections so.\n\n\
    Examples:\n  ringway accept -i eth1 --secret /etc/ringway/syn.secret --listen 203.0.113.10:80 --listen [2001:db8::10]:80\n  \
    ringway accept -i eth1 --status -o json"
)]
pub struct AcceptArgs {
    /// Interface on which clients' packets arrive: with the kernel's tunnels the tunnel device, with
    /// `ringway decap` its interface.
    #[arg(short, long, value_name = "IFACE")]
    pub interface: String,
    /// File with the key of the gateways: `secret` of their [shield.syn].
    #[arg(long, value_name = "FILE", required_unless_present = "status")]
    pub secret: Option<PathBuf>,
    /// Address and port of a service, whose listener gets the connections. May be repeated.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "status",
        value_parser = listener())]
    pub listen: Vec<std::net::SocketAddr>,
    /// Show what is at work on the interface, and its counters.
    #[arg(long, conflicts_with_all = ["secret", "listen"])]
    pub status: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An address that packets are sent to, and a port.
fn listener() -> impl TypedValueParser<Value = std::net::SocketAddr> {
    |text: &str| match text.parse::<std::net::SocketAddr>() {
        Ok(at) if at.ip().is_unspecified() || at.port() == 0 => {
            Err("give the service's own address and port, also where the server listens at all"
                .to_owned())
        }
        Ok(at) => Ok(std::net::SocketAddr::new(at.ip().to_canonical(), at.port())),
        Err(_) => Err("write 203.0.113.10:80 or [2001:db8::10]:80".to_owned()),
    }
}

/// How to attach; `None`: as `auto` says.
fn xdp_mode() -> impl TypedValueParser<Value = Option<XdpMode>> {
    let value = |name, help| PossibleValue::new(name).help(help);
    let names = PossibleValuesParser::new([
        value("auto", "Native, or generic where the driver refuses"),
        value(XdpMode::Native.name(), "In the driver"),
        value(XdpMode::Generic.name(), "In the kernel's receive path"),
    ]);
    let modes = [XdpMode::Native, XdpMode::Generic];
    names.map(move |name| modes.into_iter().find(|mode| mode.name() == name))
}

/// `ringway import`
#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(subcommand)]
    pub from: ImportFrom,
}

/// Whose configuration is imported.
#[derive(Debug, Subcommand)]
pub enum ImportFrom {
    /// Of IPVS: what `ipvsadm-save -n` prints.
    Ipvs(ImportIpvsArgs),
}

/// `ringway import ipvs`
#[derive(Debug, Args)]
#[command(
    after_help = "Prints a configuration. What Ringway does otherwise, or not at all, is a comment in it and a warning \
    on standard error. Exit code 2 when a line is not understood, or none names a service.\n\nExamples:\n  \
    ipvsadm-save -n | ringway import ipvs --interfaces eth0 > ringway.toml\n  \
    ringway import ipvs /etc/ipvsadm.rules --node lb1 --interfaces eth0,eth1"
)]
pub struct ImportIpvsArgs {
    /// Where the list is; `-`: standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
    /// Interfaces of the clients and of the backends.
    ///
    /// Left out, they must be filled in: `ringway check` says where.
    #[arg(long, value_name = "IFACE", value_delimiter = ',')]
    pub interfaces: Vec<String>,
    /// Name of the node.
    #[arg(long, value_name = "NAME", default_value = "gw1")]
    pub node: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_mistyped_is_told_the_other_way() {
        for (words, wanted) in [
            ("ringway capture -c gw.toml", "the configuration file is --config"),
            ("ringway explain -i eth0", "<PACKET|--read <FILE>>"),
            ("ringway explain -i eth0 -r a.pcap tcp", "cannot be used with"),
            ("ringway explain -i eth0 -n 7 tcp", "'--number <N>' cannot be used with"),
            ("ringway explain -i eth0 -n 7", "<PACKET|--read <FILE>>"),
        ] {
            let error = Cli::try_parse_from(words.split(' ')).expect_err(words).to_string();
            assert!(error.contains(wanted), "{words}: {error}");
        }
        // Without quotes it arrives, for its parser to say what the shell did with the rest.
        assert!(Cli::try_parse_from("ringway explain -i eth0 tcp 192.0.2.7:1".split(' ')).is_ok());
    }

    #[test]
    fn every_command_has_an_example() {
        fn visit(command: &clap::Command) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let leaf = command.get_subcommands().next().is_none();
            assert!(!leaf || command.is_hide_set() || after.contains("Example"), "{command}");
            command.get_subcommands().for_each(visit);
        }
        visit(&Cli::command());
    }
}
