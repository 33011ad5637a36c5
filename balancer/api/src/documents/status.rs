//! The answer of `ringway status` and the API: schema `ringway.status/1`.
//!
//! Fields are only ever added. Counts are of packets, bytes or flows, as the key says; moments
//! are RFC 3339 in UTC; ports are plain numbers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use ringway_abi::{Faces, FlowState, Forward, Reason, Verdict};
use ringway_config::{Announce, Protocol, SourceMode, endpoint_text};
use ringway_host::{Fix, Mac};
use ringway_kernel::XdpMode;
use ringway_plan::tables::ServiceKey;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::durations::Counted;
use crate::documents::forward::ForwardStatus;
use crate::documents::health::{Health, Lack};
use crate::documents::named;
use crate::documents::tcp_offer::TcpOffer;

pub use crate::problem_kind::Problem;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.status/1";

/// A node as it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// True when `problems` is empty and the daemon runs.
    pub healthy: bool,
    /// Why this node should get no traffic, as `ringway status --ready` says; empty: it should. A
    /// problem of one service among others is none of these.
    #[serde(default)]
    pub unready: Vec<Problem>,
    /// True when some backend that should get traffic gets none, though every service has one that
    /// does; and when no daemon answers, so that nobody knows.
    #[serde(default)]
    pub degraded: bool,
    /// No daemon answered: this is what the pins tell. What only a daemon knows is absent then; of
    /// backends there is what was known last.
    #[serde(default)]
    pub from_pins: bool,
    /// Problems, each with its remedy.
    pub problems: Vec<Problem>,
    /// Findings: possible or unknown problems, which do not make the node unhealthy.
    #[serde(default)]
    pub findings: Vec<Problem>,
    /// The process that looks after the node.
    pub daemon: Daemon,
    /// In the order of `[node] interfaces`.
    pub interfaces: Vec<Interface>,
    /// In the order of the configuration; one per protocol.
    pub services: Vec<Service>,
    /// Weights that were set at runtime.
    #[serde(default)]
    pub overrides: Vec<Override>,
    /// The last reload since the daemon began; a dry run is none.
    #[serde(default)]
    pub last_reload: Option<Reload>,
    /// How many reloads there were since the daemon began.
    #[serde(default)]
    pub reloads: Reloads,
    /// Health checks that this machine could not make since the daemon began, by what it lacked.
    #[serde(default, with = "named::counts")]
    pub checks_not_made: BTreeMap<Lack, u64>,
    /// Packets by verdict and reason, per interface; only those that occurred.
    #[serde(deserialize_with = "named::known")]
    pub counters: Vec<Counter>,
    /// The sum of all interfaces' ledgers.
    pub ledger: Ledger,
    /// Packets that were sent on but dropped by the kernel, by reason; only reasons that occurred.
    #[serde(default, deserialize_with = "named::known")]
    pub losses: Vec<Loss>,
    /// Packets that the shield would have dropped, by reason; only reasons that occurred.
    #[serde(default, deserialize_with = "named::known")]
    pub shield_observed: Vec<Observed>,
    /// The flow table; absent where it could not be read.
    #[serde(default)]
    pub flow_table: Option<FlowTable>,
    /// Records of the flows of dsr services; absent where they could not be read.
    #[serde(default)]
    pub tracked: Option<Tracked>,
    #[serde(default)]
    pub captures: Vec<Capture>,
    /// What is forwarded between interfaces; absent where nothing is, or no daemon answers.
    #[serde(default)]
    pub forward: Option<ForwardStatus>,
}

/// A `ringway capture` under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    pub pid: u32,
    /// Command line of the process, with the filter; empty: it cannot be seen from here.
    pub command: String,
    pub since: Timestamp,
    pub matched_packets: u64,
    /// Matched packets that were lost because they were read too slowly.
    pub lost_packets: u64,
}

/// Outcome of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    pub at: Timestamp,
    /// Its configuration is in force.
    pub succeeded: bool,
    /// The error; empty when it succeeded.
    pub error: String,
    /// The error in one line, for the process that found it.
    #[serde(skip)]
    pub brief: String,
    /// The remedy; may be empty.
    pub remedy: Fix,
}

/// Reloads since the daemon began; dry runs are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloads {
    /// Their configuration came in force.
    pub succeeded: u64,
    /// The configuration before it stayed in force.
    pub failed: u64,
}

/// An override of a backend's weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    pub service: String,
    pub address: IpAddr,
    /// Its own port; 0: the one that the client asked for.
    pub port: u16,
    /// It gets no new flows.
    pub drained: bool,
    /// Its weight while it is not drained; absent: the file's.
    pub weight: Option<u16>,
    /// The file's weight; absent: the file has no such backend.
    pub file_weight: Option<u16>,
    /// When it was said last.
    pub since: Timestamp,
}

/// Packets that were counted as sent and that the kernel dropped after all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Interface they came in by.
    pub interface: String,
    /// Why; `ringway reasons NAME` explains it.
    #[serde(with = "named")]
    pub reason: ringway_abi::Loss,
    pub packets: u64,
    /// The same per second, lately; absent where that is not known.
    #[serde(default)]
    pub rate_pps: Option<f64>,
}

/// Packets that the shield would have dropped for a reason, as `mode = "observe"` lets them pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    #[serde(with = "named")]
    pub reason: Reason,
    pub packets: u64,
    /// The same per second, lately; absent where that is not known.
    #[serde(default)]
    pub rate_pps: Option<f64>,
}

impl Counter {
    /// Whether only the shield drops for this reason.
    pub fn is_shields(&self) -> bool {
        self.reason.is_shields()
    }

    /// Whether it counts what is forwarded between interfaces.
    pub fn is_forwarded(&self) -> bool {
        matches!(self.reason, Reason::Bridged | Reason::Routed)
    }
}

impl Tracked {
    /// Whether there is, or was, any record.
    pub fn in_use(&self) -> bool {
        self.promoted_flows + self.probation_flows + self.opened_flows + self.adopted_flows > 0
    }
}

/// The flow table, as it was `age_ms` ago.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTable {
    /// Flows there is room for.
    pub capacity_flows: u64,
    pub current_flows: u64,
    /// The same by state; only those that occur.
    #[serde(with = "named::counts")]
    pub current_flows_by_state: BTreeMap<FlowState, u64>,
    /// Milliseconds since flows were counted, those of backends as well: ten seconds at most, and
    /// never before the last change of configuration or weights.
    #[serde(default)]
    pub age_ms: u64,
    /// The same by backend's reference; each backend shows its own.
    #[serde(skip)]
    pub by_backend: HashMap<u32, u64>,
}

/// Records of the flows of dsr services: only where a ring has changed. What is now was counted
/// when the flow table was; the rest has been counted since the packet path was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// Flows there is room for.
    pub capacity_flows: u64,
    /// Flows with a record now that no new flow can evict.
    pub promoted_flows: u64,
    /// Flows with a record now that have not sent packets a second apart yet.
    pub probation_flows: u64,
    /// New flows that got a record.
    pub opened_flows: u64,
    /// Flows older than the change of their slot that got a record.
    pub adopted_flows: u64,
    /// Records that gave way to newer ones on probation.
    pub evicted_flows: u64,
    /// Flows that found no room.
    pub refused_full_flows: u64,
    /// Flows whose source prefix had opened too many in that second.
    pub refused_quota_flows: u64,
}

impl Status {
    /// Packets sent on, and how many of them the kernel dropped afterwards.
    pub fn sent_and_lost(&self) -> (u64, u64) {
        let sent = self.interfaces.iter().map(|interface| interface.sent_packets).sum();
        (sent, self.losses.iter().map(|loss| loss.packets).sum())
    }

    /// Whether some backend gets no traffic, though every service is served; whatever else is
    /// wrong.
    pub fn is_degraded(&self) -> bool {
        self.lacking().0 > 0
            && self.services.iter().all(|service| service.backends.iter().any(Backend::serves))
    }

    /// It has no service, and forwards between interfaces.
    pub fn only_forwards(&self) -> bool {
        self.forward.is_some() && self.services.is_empty()
    }

    /// Backends with weight that get no traffic, and all with weight; of both protocols once.
    pub fn lacking(&self) -> (usize, usize) {
        let backends = self.services.iter().flat_map(|s| s.backends.iter().map(move |b| (s, b)));
        let wanted = backends.filter(|(_, backend)| backend.weight != Some(0));
        let all: BTreeMap<_, _> =
            wanted.map(|(s, backend)| ((&s.name, backend.endpoint()), backend.serves())).collect();
        (all.values().filter(|serves| !**serves).count(), all.len())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    pub running: bool,
    /// Its process, the last one when it does not run.
    pub pid: Option<u64>,
    /// When it began; when it does not run: when it was last alive.
    pub since: Option<Timestamp>,
    /// Ringway's version, when it runs.
    pub version: Option<String>,
    /// The commit it was built from, when it runs and where that is known.
    #[serde(default)]
    pub commit: Option<String>,
    /// The configuration file that it runs by, when it runs.
    #[serde(default)]
    pub configuration: Option<String>,
    /// Seconds since it began; absent when it does not answer.
    pub uptime_s: Option<u64>,
    /// Milliseconds since its loop turned last, which it does twice a second; absent when it does
    /// not answer.
    #[serde(default)]
    pub loop_age_ms: Option<u64>,
}

impl Daemon {
    /// Since when it runs, or does not.
    pub fn since_text(&self) -> String {
        self.since.map_or_else(|| "an unknown time".into(), |since| since.to_string())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    /// The kernel's number for it.
    pub ifindex: u32,
    /// The packet path's number for it, which it keeps while it is attached.
    #[serde(default)]
    pub slot: u32,
    /// Which side it faces; only a daemon knows.
    #[serde(default, with = "named::optional")]
    pub faces: Option<Faces>,
    /// The attachment's number, as `bpftool link` shows it; 0 while there is none.
    #[serde(default)]
    pub link_id: u32,
    /// The program's number, as `bpftool prog` shows it; 0 while there is none.
    #[serde(default)]
    pub program_id: u32,
    /// Whether our program is attached, as last verified.
    pub attached: bool,
    /// How often the daemon had to attach it again since it began.
    #[serde(default)]
    pub attached_again: u64,
    /// Where our program runs; absent when not known.
    #[serde(with = "named::optional")]
    pub mode: Option<XdpMode>,
    pub mode_reason: String,
    pub ledger: Ledger,
    /// Packets that came in by it and were sent on: verdict `tx` or `redirect`.
    #[serde(default)]
    pub sent_packets: u64,
    /// Packets that come in by it per second, lately; absent where that is not known.
    #[serde(default)]
    pub rate_pps: Option<f64>,
}

/// Every packet is counted on entry and once with its verdict. Exact when no packet is on its
/// way; while packets arrive, a reading may differ by those in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Counted on entry.
    pub seen_packets: u64,
    /// Counted with a verdict.
    pub sum_packets: u64,
    /// Seen less sum.
    pub difference_packets: i64,
}

impl Ledger {
    /// `seen` packets against the verdicts given to them.
    pub fn new(seen: u64, sum: u64) -> Ledger {
        let difference = seen.wrapping_sub(sum).cast_signed();
        Ledger { seen_packets: seen, sum_packets: sum, difference_packets: difference }
    }

    pub fn add(&mut self, other: Ledger) {
        *self = Ledger::new(
            self.seen_packets + other.seen_packets,
            self.sum_packets + other.sum_packets,
        );
    }
}

/// One (address, port, protocol).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub name: String,
    pub address: IpAddr,
    /// Port that clients connect to; the first of a range.
    pub port: u16,
    /// The last port of a range, else as `port`; 1 to 65535 is every port.
    #[serde(default)]
    pub last_port: u16,
    #[serde(with = "named")]
    pub protocol: Protocol,
    /// How packets reach the backends.
    #[serde(with = "named")]
    pub forward: Forward,
    /// Source address that the backends see.
    #[serde(with = "named")]
    pub source: SourceMode,
    /// The one that answers for the address; absent when not known.
    #[serde(with = "named::optional")]
    pub answers: Option<Announce>,
    /// Flows to its backends now, as those of its backends.
    #[serde(default)]
    pub current_flows: Option<u64>,
    /// Traffic per second, all its backends together; absent where that is not known.
    #[serde(default)]
    pub rates: Option<Rates>,
    /// In the order of the configuration.
    pub backends: Vec<Backend>,
    /// Counters of backends that have left: for the metrics alone.
    #[serde(skip)]
    pub departed: Sums,
}

/// Sums of counters of several backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// [`Backend::flows`], `evicted_flows`, `packets`,
    /// `bytes`, `reply_packets`, `reply_bytes`.
    pub traffic: [u64; 6],
    /// [`Backend::checks_passed`],
    /// `checks_failed`.
    pub checks: [u64; 2],
    /// [`Backend::check_durations`].
    pub durations: Counted,
}

/// One backend of one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backend {
    pub address: IpAddr,
    /// Its own port; 0: the one that the client asked for.
    pub port: u16,
    /// Share of new flows relative to the others; absent when only the pins are known.
    pub weight: Option<u16>,
    /// What the configuration file says of it; set where an override says something else or the
    /// same.
    #[serde(default)]
    pub file_weight: Option<u16>,
    /// `ringway backend drain` has taken its weight away.
    #[serde(default)]
    pub drained: bool,
    /// Percentage of its weight that it gets so far, during a slow start.
    #[serde(default)]
    pub slow_start_percent: Option<u16>,
    /// Health by its checks; unknown while no daemon answers.
    pub health: Health,
    /// What the packet path goes by meanwhile: what its checks said last. Absent while a daemon
    /// answers.
    #[serde(default)]
    pub last_health: Option<Health>,
    /// It is down, and its established TCP connections go on (`on_down = "keep"`).
    #[serde(default)]
    pub kept: bool,
    /// Since when; absent before the first result.
    pub since: Option<Timestamp>,
    /// Why it gets no traffic: the last failed check, or no way to it.
    pub reason: Option<String>,
    /// Why it takes none of the gateway's cookies (`syn = "backend"`); absent: it does, or is not
    /// asked.
    #[serde(default)]
    pub cookies_refused: Option<String>,
    /// What its server offers in TCP handshakes, as its checks have seen last where clients' packets
    /// go; absent: not seen.
    #[serde(default)]
    pub offers: Option<TcpOffer>,
    /// Way out, when there is one.
    pub next_hop: Option<NextHop>,
    /// Checks passed since the daemon began.
    pub checks_passed: u64,
    /// Checks failed since the daemon began.
    pub checks_failed: u64,
    /// How long they took: for the metrics alone.
    #[serde(skip)]
    pub check_durations: Counted,
    /// Its traffic was found in the tables.
    #[serde(skip)]
    pub is_counted: bool,
    /// Flows begun.
    pub flows: u64,
    /// Flows on probation that gave way to new ones because there was no room; nat only.
    #[serde(default)]
    pub evicted_flows: u64,
    /// Client to backend.
    pub packets: u64,
    /// Client to backend, as they came in.
    pub bytes: u64,
    /// Backend to client.
    pub reply_packets: u64,
    /// Backend to client.
    pub reply_bytes: u64,
    /// Flows to it now, see [`FlowTable::age_ms`]; absent under dsr, where most flows need no
    /// record.
    #[serde(default)]
    pub current_flows: Option<u64>,
    /// Traffic per second; absent where that is not known.
    #[serde(default)]
    pub rates: Option<Rates>,
}

/// Traffic per second, measured over the last second or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Packets, client to backend.
    pub rate_pps: f64,
    /// Bits, client to backend, as they came in.
    pub rate_bps: f64,
    /// Packets, backend to client; 0 under dsr, where replies do not pass by.
    pub reply_rate_pps: f64,
    /// Bits, backend to client.
    pub reply_rate_bps: f64,
    pub new_flows_per_s: f64,
}

impl Rates {
    pub fn add(&mut self, other: &Rates) {
        self.rate_pps += other.rate_pps;
        self.rate_bps += other.rate_bps;
        self.reply_rate_pps += other.reply_rate_pps;
        self.reply_rate_bps += other.reply_rate_bps;
        self.new_flows_per_s += other.new_flows_per_s;
    }
}

impl Backend {
    /// One of which nothing is known.
    pub fn new(endpoint: SocketAddr) -> Backend {
        Backend {
            address: endpoint.ip(),
            port: endpoint.port(),
            weight: None,
            file_weight: None,
            drained: false,
            slow_start_percent: None,
            health: Health::Unknown,
            last_health: None,
            kept: false,
            since: None,
            reason: None,
            cookies_refused: None,
            offers: None,
            next_hop: None,
            checks_passed: 0,
            checks_failed: 0,
            check_durations: Counted::default(),
            is_counted: false,
            flows: 0,
            evicted_flows: 0,
            packets: 0,
            bytes: 0,
            reply_packets: 0,
            reply_bytes: 0,
            current_flows: None,
            rates: None,
        }
    }

    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// The same for people: the address alone where the port is the one that the client asked for.
    pub fn shown(&self) -> String {
        endpoint_text(self.endpoint())
    }

    /// Whether new flows can be given to it, by what is known or was known last.
    pub fn serves(&self) -> bool {
        self.last_health.unwrap_or(self.health).is_up()
            && self.next_hop.is_some()
            && self.weight != Some(0)
    }

    /// Result of its last check, in words.
    pub fn health_text(&self) -> String {
        let (last_known, health) = match self.last_health {
            Some(last) => ("last known: ", last),
            None => ("", self.health),
        };
        format!("{last_known}{}{}", health.as_str(), self.kept_text())
    }

    /// That its TCP connections go on though it is down; empty where there are none.
    fn kept_text(&self) -> String {
        match self.current_flows {
            _ if !self.kept => String::new(),
            Some(0) => String::new(),
            Some(1) => ", its connection goes on".into(),
            Some(flows) => format!(", its {flows} connections go on"),
            None => ", its connections go on".into(),
        }
    }

    /// Why it gets no new flows, where somebody wants it so.
    pub fn withheld(&self) -> Option<&'static str> {
        match (self.drained, self.weight, self.file_weight) {
            (true, ..) => Some("is drained by an operator (override)"),
            (false, Some(0), Some(file)) if file > 0 => {
                Some("has weight 0 by an operator (override)")
            }
            (false, Some(0), _) => Some("has weight 0 in the file"),
            _ => None,
        }
    }

    /// The command that undoes it.
    pub fn release(&self, service: &str) -> String {
        let backend = self.shown();
        match self.drained {
            true => format!("ringway backend undrain {service} {backend}"),
            false => format!("ringway backend weight {service} {backend} 1"),
        }
    }
}

impl Service {
    /// One of which nothing more is known.
    pub fn new(name: &str, key: ServiceKey, forward: Forward) -> Service {
        let ServiceKey { address, port, last_port, protocol } = key;
        Service {
            name: name.to_owned(),
            address,
            port,
            last_port,
            protocol,
            forward,
            source: SourceMode::Node,
            answers: None,
            current_flows: None,
            rates: None,
            backends: Vec::new(),
            departed: Sums::default(),
        }
    }

    /// Its key in the packet path's tables.
    pub fn key(&self) -> ServiceKey {
        let Service { address, port, last_port, protocol, .. } = *self;
        ServiceKey { address, port, last_port: last_port.max(port), protocol }
    }

    /// Backends that get traffic.
    pub fn serving(&self) -> usize {
        self.backends.iter().filter(|backend| backend.serves()).count()
    }
}

/// Where packets to a backend leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    /// Interface they leave by.
    pub interface: String,
    /// MAC address of the next hop; all zero where the interface has no Ethernet header.
    pub mac: Mac,
    /// Layer 3 bytes that fit.
    pub mtu_bytes: u16,
}

/// Packets that ended one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Interface they came in by.
    pub interface: String,
    #[serde(with = "named")]
    pub verdict: Verdict,
    /// Why; `ringway reasons NAME` explains it.
    #[serde(with = "named")]
    pub reason: Reason,
    pub packets: u64,
    /// The same per second, lately; absent where that is not known.
    #[serde(default)]
    pub rate_pps: Option<f64>,
}

#[cfg(test)]
mod tests;
