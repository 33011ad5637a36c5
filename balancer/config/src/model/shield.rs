//! `[shield]` as values: what is dropped in front of the gateway.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ringway_abi::ShieldMode;
use ringway_filter::Filter;

use super::Service;
use crate::reader::located::Located;
use crate::reader::value::written;

/// What the shield checks of a packet, in this order: sanity, lists that allow, lists that block,
/// rules, limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shield {
    /// Of packets to services that have no mode of their own; never off.
    pub mode: ShieldMode,
    pub protect: Protect,
    /// Whether packets that no host sends are dropped: impossible flags, lengths, addresses.
    pub sanity: bool,
    /// No two with one name.
    pub lists: Vec<ShieldList>,
    /// The first that matches decides; those that count let the search go on. No two have one name.
    pub rules: Vec<ShieldRule>,
    pub limits: ShieldLimits,
    pub syn: SynSettings,
    pub mitigation: Option<Mitigation>,
}

impl Shield {
    /// The mode of packets to this service, while nobody has set another.
    pub fn mode_of(&self, service: &Service) -> ShieldMode {
        service.shield.and_then(|own| own.mode).unwrap_or(self.mode)
    }

    pub fn limits_of(&self, service: &Service) -> Limits {
        let own = service.shield.unwrap_or_default().limits;
        own.instead_of(self.limits.every_service)
    }

    /// Those in force while automatic mitigation has armed the service.
    pub fn armed_limits_of(&self, service: &Service) -> Limits {
        let meanwhile = self.mitigation.as_ref().map(|mitigation| mitigation.limits);
        self.limits_of(service).stricter(meanwhile.unwrap_or_default())
    }
}

/// Who answers SYNs while their service is under attack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Syn {
    /// The backends.
    #[default]
    Off,
    /// The gateway, those of sources that are not learnt, in a way that proves the sender's address;
    /// then its next SYN is forwarded.
    Challenge,
    /// The gateway, with a cookie; it connects who brings that back to a backend.
    Proxy,
    /// The gateway, with a cookie that the backend knows as well (`ringway accept`).
    Backend,
}

impl Syn {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Syn::Off => "off",
            Syn::Challenge => "challenge",
            Syn::Proxy => "proxy",
            Syn::Backend => "backend",
        }
    }
}

impl fmt::Display for Syn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `[shield.syn]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SynSettings {
    /// Not only while a service is under attack.
    pub always: bool,
    /// Absolute path of the file with the key, the same on all nodes; none: a key of this node's own.
    pub secret: Option<Located<PathBuf>>,
}

/// What a service says in place of `[shield]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceShield {
    pub mode: Option<ShieldMode>,
    pub limits: OwnLimits,
}

/// `[shield.limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShieldLimits {
    /// Of each service that says nothing else.
    pub every_service: Limits,
    /// Lengths of the prefixes that count as one source, IPv4 and IPv6: 8 to 32, 16 to 128.
    pub source_prefix: (u8, u8),
    /// Up to it an established nat flow passes whatever the limits say; at most 1 Mpps.
    pub flow_rate: RateLimit,
    /// The same of a source that was learnt.
    pub allow_rate: RateLimit,
    /// Answered datagrams have their sources learnt, too, for their own service.
    pub learn_udp: bool,
}

impl ShieldLimits {
    /// With the keys of the configuration, in words.
    pub fn named(self) -> Vec<(&'static str, String)> {
        let limits = self.every_service.named();
        let limits = limits.map(|(key, limit)| (key, limit.map_or("none".into(), RateLimit::rate)));
        let (v4, v6) = self.source_prefix;
        let others = [
            ("flow_rate", self.flow_rate.rate()),
            ("allow_rate", self.allow_rate.rate()),
            ("learn_udp", self.learn_udp.to_string()),
            ("source_prefix_v4", v4.to_string()),
            ("source_prefix_v6", v6.to_string()),
        ];
        limits.into_iter().chain(others).collect()
    }
}

/// Rates beyond which packets to a service are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of all its packets.
    pub packets: Option<RateLimit>,
    /// Of packets to its address, those to other services of the address among them.
    pub destination: Option<RateLimit>,
    /// Of packets that open a flow.
    pub new_flows: Option<RateLimit>,
    /// Of the packets of one source prefix; at most 1 Mpps.
    pub source: Option<RateLimit>,
}

impl Limits {
    /// With the keys of the configuration.
    pub fn named(self) -> [(&'static str, Option<RateLimit>); 4] {
        [
            ("packets", self.packets),
            ("destination", self.destination),
            ("new_flows", self.new_flows),
            ("source", self.source),
        ]
    }

    /// Of each limit the lower one.
    pub fn stricter(self, other: Limits) -> Limits {
        let lower = |one: Option<RateLimit>, other: Option<RateLimit>| {
            one.into_iter().chain(other).min_by_key(|limit| limit.packets_per_second)
        };
        Limits {
            packets: lower(self.packets, other.packets),
            destination: lower(self.destination, other.destination),
            new_flows: lower(self.new_flows, other.new_flows),
            source: lower(self.source, other.source),
        }
    }

    /// Whether nothing is limited.
    pub fn is_empty(self) -> bool {
        self == Limits::default()
    }
}

/// As it is written: `packets 50kpps, source 2kpps`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.named().into_iter().filter_map(|(key, limit)| Some((key, limit?)));
        let limits: Vec<String> =
            limits.map(|(key, limit)| format!("{key} {}", limit.rate())).collect();
        f.write_str(if limits.is_empty() { "none" } else { "" })?;
        f.write_str(&limits.join(", "))
    }
}

/// Limits in place of others. `Some(None)`: there is none; `None`: the others' is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLimits {
    pub packets: Option<Option<RateLimit>>,
    pub new_flows: Option<Option<RateLimit>>,
    pub source: Option<Option<RateLimit>>,
}

impl OwnLimits {
    /// With the keys of the configuration.
    pub fn named(self) -> [(&'static str, Option<Option<RateLimit>>); 3] {
        [("packets", self.packets), ("new_flows", self.new_flows), ("source", self.source)]
    }

    pub fn instead_of(self, others: Limits) -> Limits {
        Limits {
            packets: self.packets.unwrap_or(others.packets),
            destination: others.destination,
            new_flows: self.new_flows.unwrap_or(others.new_flows),
            source: self.source.unwrap_or(others.source),
        }
    }
}

/// The destinations that the shield acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protect {
    /// Addresses of services.
    Services,
    /// These, and the node's own.
    Host,
}

impl Protect {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Protect::Services => "services",
            Protect::Host => "host",
        }
    }
}

impl fmt::Display for Protect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file of prefixes of source addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShieldList {
    pub name: Located<String>,
    /// Absolute path; read again when it changes.
    pub file: Located<PathBuf>,
    pub action: ListAction,
    pub bad_lines: BadLines,
}

/// What becomes of packets from a list's prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListAction {
    Block,
    /// Neither lists that block nor rules are asked.
    Allow,
}

impl ListAction {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            ListAction::Block => "block",
            ListAction::Allow => "allow",
        }
    }
}

impl fmt::Display for ListAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of a list with lines that are no prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadLines {
    /// The whole file is refused, and the list stays as it was.
    Refuse,
    /// The other lines are taken.
    Skip,
}

/// A filter, and what becomes of the packets that match it.
#[derive(Clone, Debug)]
pub struct ShieldRule {
    /// As written; else the preset's, or `rule 3`, its number from 1.
    pub name: Located<String>,
    pub filter: Located<Filter>,
    pub action: RuleAction,
}

/// Equal when they mean the same: a filter is what its expression says.
impl PartialEq for ShieldRule {
    fn eq(&self, other: &ShieldRule) -> bool {
        self.name == other.name
            && self.filter.expression() == other.filter.expression()
            && self.action == other.action
    }
}

impl Eq for ShieldRule {}

/// What a rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleAction {
    Drop,
    /// No later rule is asked.
    Pass,
    /// Counted, and the next rule is asked.
    Count,
    /// Dropped above the rate.
    Limit(RateLimit),
}

impl RuleAction {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            RuleAction::Drop => "drop",
            RuleAction::Pass => "pass",
            RuleAction::Count => "count",
            RuleAction::Limit(_) => "limit",
        }
    }
}

/// As it is written, a limit with its rate.
impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            RuleAction::Limit(limit) => write!(f, " {}", limit.rate()),
            _ => Ok(()),
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// 1 to 100 000 000.
    pub packets_per_second: u32,
    /// Packets that may come at once, at least 1.
    pub burst: u32,
}

impl RateLimit {
    /// With a burst of a tenth of a second.
    pub const fn new(packets_per_second: u32) -> RateLimit {
        let burst = packets_per_second / 10;
        RateLimit { packets_per_second, burst: if burst > 0 { burst } else { 1 } }
    }

    /// The rate as a configuration writes it: `10kpps`.
    pub fn rate(self) -> String {
        let pps = self.packets_per_second;
        match [(1_000_000, "Mpps"), (1000, "kpps")]
            .iter()
            .find(|(unit, _)| pps.is_multiple_of(*unit))
        {
            Some((unit, name)) => format!("{}{name}", pps / unit),
            None => format!("{pps}pps"),
        }
    }
}

/// `[shield.mitigation]`: what is an attack, and what becomes of a service meanwhile. At least one of
/// the three thresholds is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mitigation {
    /// More packets a second to a service are an attack.
    pub packets: Option<u32>,
    /// More new flows a second.
    pub new_flows: Option<u32>,
    pub above_baseline: Option<AboveBaseline>,
    /// How long an attack is taken to last after the last sample above a threshold.
    pub lasting: Duration,
    /// In force meanwhile, where they are stricter than those of the service.
    pub limits: Limits,
    /// The program that is told, with its arguments; empty: none.
    pub run: Vec<String>,
    /// It is told once more than the thresholds has come for so long.
    pub run_after: Duration,
}

/// A threshold that is learnt, of packets and of new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AboveBaseline {
    /// So many times what the service usually gets.
    pub factor: u32,
    /// Fewer a second are no attack.
    pub minimum: u32,
}

impl Mitigation {
    /// With the keys of the configuration, in words.
    pub fn named(&self) -> Vec<(String, String)> {
        let rate = |rate: Option<u32>| rate.map(|rate| RateLimit::new(rate).rate());
        let above = self.above_baseline;
        let keys = [
            ("packets", rate(self.packets)),
            ("new_flows", rate(self.new_flows)),
            ("above_baseline", above.map(|above| above.factor.to_string())),
            ("minimum", rate(above.map(|above| above.minimum))),
            ("for", Some(written(self.lasting))),
            ("run", Some(self.run.join(" ")).filter(|run| !run.is_empty())),
            ("run_after", (!self.run.is_empty()).then(|| written(self.run_after))),
        ];
        let limits = self.limits.named();
        let limits =
            limits.map(|(key, limit)| (format!("limits {key}"), limit.map(RateLimit::rate)));
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(limits);
        keys.map(|(key, value)| (key, value.unwrap_or_else(|| "none".into()))).collect()
    }
}
