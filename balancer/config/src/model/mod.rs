//! The configuration as values: what the rest of Ringway works with.

pub(crate) mod check;
mod forward;
mod shield;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use forward::InterfaceForward;
pub(crate) use forward::fewest;
pub use ringway_abi::{Faces, Forward, ForwardMode, ShieldMode};
pub use shield::{
    AboveBaseline, BadLines, Limits, ListAction, Mitigation, OwnLimits, Protect, RateLimit,
    RuleAction, ServiceShield, Shield, ShieldLimits, ShieldList, ShieldRule, Syn, SynSettings,
};

use ringway_abi::raw::RW_BLOCK_ALL;
use ringway_bpf_sys::XdpMode;

use crate::reader::diagnostics::{Error, Source};
use crate::reader::located::Located;
use crate::sections::check::{Check, CheckAt};

/// A whole configuration, checked in itself. Whether it fits this machine (do the interfaces
/// exist, does anybody answer for the addresses) is for others to find out; they report it with
/// [`Config::error_at`].
#[derive(Clone, Debug)]
pub struct Config {
    pub node: Node,
    pub nat: Nat,
    pub flows: Flows,
    pub tunnel: Tunnel,
    /// None: packets meet the gateway alone.
    pub shield: Option<Shield>,
    /// None: packets of no service are the kernel's alone.
    pub forward: Option<InterfaceForward>,
    /// `[[service]]`, in the order of the file; none only with `[forward]`.
    pub services: Vec<Service>,
    pub metrics: Metrics,
    pub api: Api,
    pub log: Log,
    pub(crate) source: Source,
}

impl Config {
    /// An error at the place where `value` was written, rendered like the parser's own.
    /// `what` should say what is wrong and what to do.
    pub fn error_at<T>(&self, value: &Located<T>, what: impl Into<String>) -> Error {
        Error::at_value(&self.source, value.span(), what.into())
    }

    /// An error at `key` of `[section]` in the main file; of the file as a whole where it is not
    /// written.
    pub fn error_at_key(&self, section: &str, key: &str, what: impl Into<String>) -> Error {
        Error::at_value(&self.source, self.source.key(section, key), what.into())
    }

    /// The name of the file, as errors show it.
    pub fn filename(&self) -> &str {
        self.source.filename()
    }
}

/// Equal when they mean the same, wherever it was written.
impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        self.node == other.node
            && self.nat == other.nat
            && self.flows == other.flows
            && self.tunnel == other.tunnel
            && self.shield == other.shield
            && self.forward == other.forward
            && self.services == other.services
            && self.metrics == other.metrics
            && self.api == other.api
            && self.log == other.log
    }
}

/// This machine, or this instance on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Names the directory under /sys/fs/bpf/ringway: letters, digits, `-` and `_`.
    pub name: Located<String>,
    /// Interfaces to attach to; the position is the interface slot. 1 to `RW_MAX_IFACES`.
    pub interfaces: Vec<Located<String>>,
    /// Sides that interfaces face, by name; the others face clients and backends.
    pub faces: BTreeMap<String, Faces>,
    /// How to attach. `None`, "auto": native where the driver can, else generic.
    pub xdp_mode: Located<Option<XdpMode>>,
    /// Attach even to an interface that carries the default route.
    pub allow_default_route: bool,
    /// A pinned XDP program of the user's own that decides about what Ringway passes on.
    pub on_pass: Option<Located<PathBuf>>,
    /// Directory for what survives the daemon, absolute path: overrides, health.
    pub state: Located<PathBuf>,
}

impl Node {
    /// The side that the interface of this name faces.
    pub fn faces(&self, interface: &str) -> Faces {
        self.faces.get(interface).copied().unwrap_or_default()
    }
}

/// Source address and port translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat {
    /// Source addresses towards backends, of every family that needs one; empty: the address the
    /// kernel itself would use towards each backend.
    pub addresses: Vec<Located<IpAddr>>,
    /// Source ports; must be disjoint from net.ipv4.ip_local_port_range.
    pub ports: Located<PortRange>,
    /// Flows tracked at once.
    pub flows: u32,
    /// Idle timeouts.
    pub timeouts: Timeouts,
}

/// Ports `first..=last`, host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    pub first: u16,
    /// Highest port, not below `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port there is.
    pub const ALL: PortRange = PortRange { first: 1, last: u16::MAX };

    pub fn count(self) -> u16 {
        self.last - self.first + 1
    }

    /// Has it a port that the other has too?
    pub fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The aligned blocks it is made of, each an entry in the packet path's table: first port, and
    /// the logarithm of their number of ports. All ports are one block, which has port 0 too, where
    /// nobody is; any other range is 30 at most.
    pub fn blocks(self) -> Vec<(u16, u8)> {
        if self == PortRange::ALL {
            return vec![(0, RW_BLOCK_ALL as u8)];
        }
        let (mut at, end) = (u32::from(self.first), u32::from(self.last) + 1);
        let mut blocks = Vec::new();
        while at < end {
            let block = at.trailing_zeros().min((end - at).ilog2());
            blocks.push((at as u16, block as u8));
            at += 1 << block;
        }
        blocks
    }

    /// Is the port one of them?
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PortRange::ALL => f.write_str("*"),
            PortRange { first, last } if first == last => write!(f, "{first}"),
            PortRange { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// Idle timeouts of tracked flows: whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP, handshake not finished.
    pub syn: Duration,
    /// TCP, established.
    pub established: Duration,
    /// TCP, one side has sent FIN.
    pub closing: Duration,
    /// TCP, both have, or RST.
    pub closed: Duration,
    /// UDP, no answer yet.
    pub udp_new: Duration,
    /// UDP, answered.
    pub udp: Duration,
}

/// Records of the flows of dsr services, needed only while a ring changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Flows that can have a record at once.
    pub tracked: u32,
    /// Records that the clients of one prefix (/24, /64) may open in a second.
    pub new_per_prefix: u32,
}

/// Outer headers of tunnels to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer source addresses, at most one of each family; none of a family: the address the
    /// kernel itself would use towards each backend.
    pub source: Located<Vec<IpAddr>>,
    /// UDP port that backends take GUE at, unless a service names another. Host byte order.
    pub gue_port: u16,
    /// Marks of the sockets that health checks of dsr backends use.
    pub marks: Located<Marks>,
}

/// Socket marks (SO_MARK) `value + 0`, `value + 1` and on, as many as the mask leaves bits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marks {
    /// The first mark.
    pub value: u32,
    /// Bits that all of them have alike: ones, then zeros.
    pub mask: u32,
}

impl Marks {
    pub fn count(self) -> usize {
        1 << self.mask.count_zeros().min(31)
    }

    /// The one of this number.
    pub fn nth(self, n: usize) -> Option<u32> {
        (n < self.count()).then_some(self.value | n as u32)
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

impl Tunnel {
    /// The configured outer source address towards a backend.
    pub fn source_towards(&self, backend: IpAddr) -> Option<IpAddr> {
        self.source.iter().copied().find(|source| source.is_ipv4() == backend.is_ipv4())
    }
}

/// Treatment of the MSS option of a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MssClamp {
    /// Lowered to what fits the tunnel's path; left alone where there is no tunnel.
    Auto,
    /// Left alone.
    Off,
    /// Lowered to this many bytes.
    Bytes(u16),
}

/// Transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP, IP protocol number 6.
    Tcp,
    /// UDP, IP protocol number 17.
    Udp,
}

impl Protocol {
    /// Its name in configuration, output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique; shown in status and metrics.
    pub name: Located<String>,
    /// The address that clients connect to. Backends are of the same family, unless a tunnel leads
    /// to them.
    pub address: Located<IpAddr>,
    /// Port that clients connect to, host byte order; the first of a range.
    pub port: Located<u16>,
    /// The last port of a range, else as `port`. 1 and 65535 together are `"*"`.
    pub last_port: u16,
    /// One or two, TCP first.
    pub protocols: Vec<Protocol>,
    /// How packets reach the backends.
    pub forward: Forward,
    /// UDP port that the backends take GUE at (dsr-gue), host byte order.
    pub gue_port: u16,
    /// Treatment of the MSS option of a SYN (dsr).
    pub mss_clamp: MssClamp,
    /// Source address that the backends see; under dsr always the client's.
    pub source: SourceMode,
    /// Key that chooses a flow's backend.
    pub affinity: Affinity,
    /// The one that answers for the address on the link.
    pub announce: Announce,
    /// Treatment of clients while no backend is healthy.
    pub when_none_healthy: WhenNoneHealthy,
    /// Established TCP connections of a backend whose checks fail go on until it has sent nothing
    /// for so long (`on_down = "keep"`); none: they are reset (`on_down = "reset"`).
    pub keep_for: Option<Duration>,
    /// With a larger share of unhealthy backends than this, checks are not believed: every backend
    /// gets traffic. None: they always are.
    pub max_unhealthy: Option<MaxUnhealthy>,
    /// A backend that comes up gets its whole weight only after this long, a tenth of it at once;
    /// none: at once.
    pub slow_start: Option<Duration>,
    /// Who answers SYNs; not off only with a shield, and with something that arms it.
    pub syn: Located<Syn>,
    /// In place of the shield's mode and limits, for packets to this service; only with a shield.
    pub shield: Option<ServiceShield>,
    /// How health is checked; none: every backend is always up.
    pub check: Option<Check>,
    /// At least one, no two with the same address and port.
    pub backends: Vec<Backend>,
}

impl Service {
    /// The ports that clients connect to.
    pub fn ports(&self) -> PortRange {
        PortRange { first: *self.port, last: self.last_port }
    }

    /// How this one of its backends is checked.
    pub fn check_of(&self, backend: &Backend) -> Option<Check> {
        let mut check = self.check.clone()?;
        check.address = backend.check.address.clone().or(check.address);
        check.port = backend.check.port.or(check.port);
        Some(check)
    }
}

/// Percent of a service's backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxUnhealthy(pub u8);

impl MaxUnhealthy {
    /// Whether so many unhealthy ones of all backends with weight are too many.
    pub fn is_exceeded(self, unhealthy: usize, all: usize) -> bool {
        unhealthy * 100 > all * usize::from(self.0)
    }
}

/// Source address that the backends see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceMode {
    /// An address of the node.
    Node,
    /// The client's own; backends must route their replies through the node.
    Client,
}

impl SourceMode {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            SourceMode::Node => "node",
            SourceMode::Client => "client",
        }
    }
}

impl fmt::Display for SourceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Key that chooses the backend of a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Affinity {
    /// Addresses, ports and protocol: a client's flows spread.
    FiveTuple,
    /// The client's address alone: all its flows share a backend.
    Source,
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Affinity::FiveTuple => "5-tuple",
            Affinity::Source => "source",
        })
    }
}

/// The one that answers ARP and neighbour solicitations for a service address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Announce {
    /// The node's kernel, which must own the address (`announce` absent).
    Kernel,
    /// Ringway itself, in XDP.
    Arp,
    /// Nobody needs to: a router has a route to the address by way of the node.
    Routed,
}

impl Announce {
    /// Its name in output; `kernel` is what the configuration leaves out.
    pub const fn name(self) -> &'static str {
        match self {
            Announce::Kernel => "kernel",
            Announce::Arp => "arp",
            Announce::Routed => "routed",
        }
    }
}

impl fmt::Display for Announce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Treatment of clients while no backend is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhenNoneHealthy {
    /// TCP is reset, UDP dropped.
    Reset,
    /// Sends no answer.
    Drop,
    /// The backends nevertheless, all of them.
    All,
}

impl fmt::Display for WhenNoneHealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhenNoneHealthy::Reset => "reset",
            WhenNoneHealthy::Drop => "drop",
            WhenNoneHealthy::All => "all",
        })
    }
}

/// One backend of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub address: Located<IpAddr>,
    /// Its own port, host byte order; the service's unless given. 0: the one that the client asked
    /// for, where the service has several.
    pub port: u16,
    /// Share of new flows relative to the others, 0..=1000; 0: none (drained).
    pub weight: u16,
    /// Where it is asked, if elsewhere than the service's check says; see [`Service::check_of`].
    pub check: CheckAt,
}

impl Backend {
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(*self.address, self.port)
    }

    /// The same for people, see [`endpoint_text`].
    pub fn shown(&self) -> String {
        endpoint_text(self.endpoint())
    }
}

/// A backend for people: `10.0.0.2:80`, or the address alone where the port is 0, the one that the
/// client asked for.
pub fn endpoint_text(endpoint: SocketAddr) -> String {
    match endpoint.port() {
        0 => endpoint.ip().to_string(),
        _ => endpoint.to_string(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where Prometheus asks, /healthz and /readyz beside it; `None`: `listen = "off"`.
    pub listen: Option<Located<SocketAddr>>,
    /// With more backends than this, counted per service and protocol, none has series of its own.
    pub backends: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Unix socket, absolute path.
    pub socket: Located<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Text for people or JSON for machines.
    pub format: LogFormat,
    /// Least important level written.
    pub level: LogLevel,
    /// Whether every result of every health check is logged.
    pub log_checks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogFormat {
    Text,
    /// One object per line.
    Json,
}

/// Least important level written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what is likely to.
    Warn,
    /// And what changed.
    Info,
    /// And why.
    Debug,
    /// Everything.
    Trace,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        })
    }
}
