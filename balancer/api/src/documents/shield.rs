//! The shield of a node: its configuration, what was typed at run time, and what is in force.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ringway_abi::Reason;
use ringway_abi::raw::rw_shield_count;
use ringway_config::{
    Config, ListAction, Protect, Protocol, RateLimit, RuleAction, Service, ShieldList, ShieldMode,
    ShieldRule, Syn,
};
use ringway_kernel::shield::SynSecrets;
use ringway_kernel::{Arrivals, HeavySource, ServiceState, ShieldCounts};
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::{SynAnswer, SynPolicy};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::limits::{LimitCounter, LimitsStatus};
use crate::documents::mitigation::{AttackStatus, MitigationStatus};
use crate::documents::named;
use crate::shield::{ModeOverride, RuntimeShield, ShieldEntry, prefix_text};

/// Name and version of the schema of [`ShieldStatus`].
pub const SCHEMA: &str = "ringway.shield/1";
/// Heavy sources that are named.
const MOST_HEAVY: usize = 10;

/// Name and version of the schema of [`Blocked`].
pub const BLOCKED_SCHEMA: &str = "ringway.blocked/1";

/// Whether the shield answers a packet for this reason; else it drops it.
pub fn is_answered(reason: Reason) -> bool {
    matches!(reason, Reason::SynChallenged | Reason::SynAnswered)
}

/// `GET /v1/shield`, and the answer to a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShieldStatus {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Whether the configuration has `[shield]`.
    pub configured: bool,
    /// The mode in force; of services that have none of their own, while there is no override.
    #[serde(with = "named")]
    pub mode: ShieldMode,
    /// What `[shield]` says of it.
    #[serde(with = "named")]
    pub configured_mode: ShieldMode,
    /// What was typed in its place.
    pub mode_override: Option<ModeOverride>,
    #[serde(with = "named")]
    pub protect: Protect,
    pub sanity: bool,
    /// In the order of the file.
    pub lists: Vec<ListStatus>,
    pub rules: Vec<RuleStatus>,
    /// Services that have a mode of their own.
    pub services: Vec<ServiceMode>,
    /// Of each protocol of services that have limits.
    #[serde(default)]
    pub limits: Vec<LimitsStatus>,
    /// Lengths of the prefixes that count as one source, IPv4 and IPv6.
    #[serde(default)]
    pub source_prefix_v4: u8,
    #[serde(default)]
    pub source_prefix_v6: u8,
    /// Sources that have sent most beyond the rate of one, the most first.
    #[serde(default)]
    pub heavy_sources: Vec<HeavySourceStatus>,
    /// All of them, of which `heavy_sources` has the first ten.
    #[serde(default)]
    pub heavy_source_count: u64,
    /// Each protocol of each service, where there is `[shield.mitigation]`.
    #[serde(default)]
    pub mitigation: Vec<MitigationStatus>,
    /// How often the program of `[shield.mitigation]` has failed since the daemon began.
    #[serde(default)]
    pub program_failures: u64,
    /// What was blocked at run time.
    pub blocked: RuntimeCount,
    pub allowed: RuntimeCount,
    /// What answers to SYNs are made of; null where no service has `syn`, or it is not known.
    #[serde(default)]
    pub syn_secret: Option<SynSecretStatus>,
    /// When the packet path began to count.
    #[serde(default)]
    pub counted_since: Option<Timestamp>,
    /// Packets that would have been dropped, by reason; only reasons that occurred.
    #[serde(with = "named::counts")]
    pub observed: BTreeMap<Reason, u64>,
    /// The entry that a change was about, as it is, or was before it was removed.
    #[serde(default)]
    pub entry: Option<ShieldEntry>,
    /// The entry of the same prefix that it has replaced.
    #[serde(default)]
    pub replaced: Option<ShieldEntry>,
    /// Why a prefix that a change has blocked passes nevertheless, or some of it.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListStatus {
    pub name: String,
    pub file: PathBuf,
    #[serde(with = "named")]
    pub action: ListAction,
    /// In force; absent where that is not known.
    #[serde(default)]
    pub prefixes: Option<u64>,
    /// Of its file, as they are no prefixes.
    #[serde(default)]
    pub skipped_lines: Option<u64>,
    /// When its file was written, as it was read last.
    #[serde(default)]
    pub written: Option<Timestamp>,
    /// From its prefixes.
    pub packets: u64,
    /// Of layer 3.
    pub bytes: u64,
    /// Null while it is not known.
    #[serde(default)]
    pub packets_per_second: Option<f64>,
}

/// The secret of answers to SYNs: nodes with the same fingerprint know one another's answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SynSecretStatus {
    /// One-way: it gives nobody the secret.
    pub fingerprint: String,
    /// Of the secret before, whose answers are still taken.
    pub former_fingerprint: Option<String>,
    /// Null: a key of the node's own, which no other node has.
    pub file: Option<PathBuf>,
    /// It has made answers since then.
    pub since: Timestamp,
}

/// A counter of the shield.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShieldCounter {
    List(String),
    Rule(String),
    RuleOver(String),
    RunTime(ListAction),
    Service(String, Protocol, LimitCounter),
}

/// A list as it was read last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListReading {
    pub name: String,
    pub prefixes: u64,
    pub skipped_lines: u64,
    /// When its file was written; absent: there was none.
    pub written: Option<Timestamp>,
}

/// Prefixes that were typed, and packets from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeCount {
    pub prefixes: u64,
    pub packets: u64,
    /// Of layer 3.
    pub bytes: u64,
    /// Null while it is not known.
    #[serde(default)]
    pub packets_per_second: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    pub name: String,
    /// The expression, a preset's, too.
    #[serde(rename = "match")]
    pub expression: String,
    /// `drop`, `pass`, `count` or `limit`.
    pub action: String,
    /// Packets a second of a limit.
    pub rate_pps: Option<u32>,
    /// Packets of a limit that may come at once.
    pub burst: Option<u32>,
    /// That matched.
    pub packets: u64,
    /// Of layer 3.
    pub bytes: u64,
    /// That match; null while it is not known.
    #[serde(default)]
    pub packets_per_second: Option<f64>,
    /// Of those that matched, over the rate of a limit: dropped, or would have been.
    #[serde(default)]
    pub over_limit_packets: u64,
    /// Null while it is not known, and of rules without a rate.
    #[serde(default)]
    pub over_limit_packets_per_second: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceMode {
    pub service: String,
    #[serde(with = "named")]
    pub mode: ShieldMode,
}

/// A source that sends too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeavySourceStatus {
    #[serde(with = "prefix_text")]
    pub prefix: Prefix,
    /// To which it sends.
    pub service: String,
    #[serde(with = "named")]
    pub protocol: Protocol,
    /// It was a client before: others may send in its name.
    #[serde(default)]
    pub learnt: bool,
    /// Over the rate of a source, without a pause of a minute; of more than a minute the latter half
    /// or more.
    pub over_limit_packets: u64,
    /// The same a second, from the first of them to the last.
    #[serde(default)]
    pub over_limit_pps: u64,
    /// The first of them.
    #[serde(default)]
    pub since: Timestamp,
    #[serde(default)]
    pub last_seen: Timestamp,
}

/// `GET /v1/blocked`: prefixes that were blocked or allowed at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Whether a daemon holds them in force.
    pub in_force: bool,
    /// Whether the configuration has `[shield]`: without, none is in force.
    #[serde(default = "yes")]
    pub configured: bool,
    /// In the order of the prefixes.
    pub entries: Vec<ShieldEntry>,
}

impl ShieldStatus {
    /// Without counts.
    pub fn new(config: &Config, runtime: &RuntimeShield) -> ShieldStatus {
        let typed = |action| RuntimeCount {
            prefixes: runtime.count(action) as u64,
            ..RuntimeCount::default()
        };
        let shield = config.shield.as_ref();
        let configured_mode = shield.map_or(ShieldMode::Off, |shield| shield.mode);
        let over = runtime.mode.filter(|_| shield.is_some());
        let own_mode = |service: &Service| {
            let service_name = service.name.to_string();
            service.shield?.mode.map(|mode| ServiceMode { service: service_name, mode })
        };
        ShieldStatus {
            schema: SCHEMA.into(),
            node: config.node.name.to_string(),
            configured: shield.is_some(),
            mode: over.map_or(configured_mode, |over| over.mode),
            configured_mode,
            mode_override: over,
            protect: shield.map_or(Protect::Services, |shield| shield.protect),
            sanity: shield.is_some_and(|shield| shield.sanity),
            lists: shield.iter().flat_map(|shield| &shield.lists).map(ListStatus::new).collect(),
            rules: shield.iter().flat_map(|shield| &shield.rules).map(RuleStatus::new).collect(),
            services: config.services.iter().filter_map(own_mode).collect(),
            limits: config.services.iter().flat_map(|it| LimitsStatus::of(shield, it)).collect(),
            source_prefix_v4: shield.map_or(0, |shield| shield.limits.source_prefix.0),
            source_prefix_v6: shield.map_or(0, |shield| shield.limits.source_prefix.1),
            heavy_sources: Vec::new(),
            heavy_source_count: 0,
            mitigation: mitigation(config),
            program_failures: 0,
            blocked: typed(ListAction::Block),
            allowed: typed(ListAction::Allow),
            syn_secret: None,
            counted_since: None,
            observed: BTreeMap::new(),
            entry: None,
            replaced: None,
            warnings: Vec::new(),
        }
    }

    /// The mode of packets to a service.
    pub fn mode_of(&self, service: &str) -> ShieldMode {
        let own = self.services.iter().find(|it| it.service == service);
        own.filter(|_| self.mode_override.is_none()).map_or(self.mode, |own| own.mode)
    }

    /// Enters how its lists were read.
    pub fn enter_lists(&mut self, readings: &[ListReading]) {
        for list in &mut self.lists {
            let Some(found) = readings.iter().find(|one| one.name == list.name) else { continue };
            list.prefixes = Some(found.prefixes);
            (list.skipped_lines, list.written) = (Some(found.skipped_lines), found.written);
        }
    }

    /// Enters attacks that last, and how many there were.
    pub fn enter_attacks(
        &mut self,
        config: &Config,
        attacks: &[AttackStatus],
        found: &BTreeMap<(String, Protocol), u64>,
    ) {
        for it in &mut self.mitigation {
            let name = (it.service.clone(), it.protocol);
            it.attacks = found.get(&name).copied().unwrap_or_default();
            let own =
                |attack: &&AttackStatus| (&attack.service, attack.protocol) == (&name.0, name.1);
            it.attack = attacks.iter().find(own).cloned();
        }
        for attack in attacks {
            let service = config.services.iter().find(|it| *it.name == *attack.service);
            let Some((shield, service)) = config.shield.as_ref().zip(service) else { continue };
            let own = |it: &&mut LimitsStatus| {
                (&it.service, it.protocol) == (&attack.service, attack.protocol)
            };
            if let Some(limits) = self.limits.iter_mut().find(own) {
                limits.arm(shield.armed_limits_of(service), attack.until);
            }
        }
    }

    /// Enters what services usually get: packets and new flows a second.
    pub fn enter_usual(&mut self, usual: &BTreeMap<(String, Protocol), [Option<u64>; 2]>) {
        for it in &mut self.mitigation {
            let found = usual.get(&(it.service.clone(), it.protocol)).copied();
            [it.usual_packets_per_second, it.usual_new_flows_per_second] =
                found.unwrap_or_default();
        }
    }

    /// Its counters, with the places of their rates.
    pub fn counters(&mut self) -> impl Iterator<Item = (ShieldCounter, u64, &mut Option<f64>)> {
        let lists = self.lists.iter_mut().map(|list| {
            (ShieldCounter::List(list.name.clone()), list.packets, &mut list.packets_per_second)
        });
        let rules = self.rules.iter_mut().flat_map(RuleStatus::counters);
        let typed =
            [(ListAction::Block, &mut self.blocked), (ListAction::Allow, &mut self.allowed)];
        let typed = typed.into_iter().map(|(action, it)| {
            (ShieldCounter::RunTime(action), it.packets, &mut it.packets_per_second)
        });
        let limits = self.limits.iter_mut().flat_map(|limits| {
            let (service, protocol) = (limits.service.clone(), limits.protocol);
            limits.counters().map(move |(counter, packets, rate)| {
                (ShieldCounter::Service(service.clone(), protocol, counter), packets, rate)
            })
        });
        lists.chain(rules).chain(typed).chain(limits)
    }

    /// Enters what the packet path has counted.
    pub fn count(&mut self, counts: ShieldCounts) {
        for list in &mut self.lists {
            let found = counts.lists.get(&list.name).copied().unwrap_or_default();
            (list.packets, list.bytes) = (found.packets, found.bytes);
        }
        for rule in &mut self.rules {
            let found = counts.rules.get(&rule.name).copied().unwrap_or_default();
            (rule.packets, rule.bytes) = (found.packets, found.bytes);
            rule.over_limit_packets = found.over;
        }
        let rw_shield_count { packets, bytes, .. } = counts.runtime_block;
        (self.blocked.packets, self.blocked.bytes) = (packets, bytes);
        let rw_shield_count { packets, bytes, .. } = counts.runtime_allow;
        (self.allowed.packets, self.allowed.bytes) = (packets, bytes);
        self.observed = counts.observed;
    }

    /// Enters what services with limits have met; `services`: the packet path's.
    pub fn count_limits(&mut self, services: &[ServiceState], arrivals: &BTreeMap<u16, Arrivals>) {
        let ids = service_ids(services);
        for limits in &mut self.limits {
            let id = ids.get(&(&*limits.service, limits.protocol));
            limits.count(id.and_then(|id| arrivals.get(id)).copied().unwrap_or_default());
        }
    }

    /// Enters who answers SYNs now, and with what promise, by the packet path.
    pub fn enter_answers(&mut self, services: &[ServiceState], answers: &BTreeMap<u16, SynPolicy>) {
        let ids = service_ids(services);
        for limits in self.limits.iter_mut().filter(|limits| limits.syn != Syn::Off.name()) {
            let id = ids.get(&(&*limits.service, limits.protocol));
            let Some(now) = id.and_then(|id| answers.get(id)) else { continue };
            limits.syn_in_force = Some(now.answer.name().to_owned());
            let has_cookies = matches!(now.answer, SynAnswer::Proxy | SynAnswer::Backend);
            limits.promises = has_cookies.then(|| now.offer.into());
        }
    }

    /// Enters what answers are made of, if there are any.
    pub fn enter_secrets(&mut self, config: &Config, secrets: Option<SynSecrets>) {
        let Some(shield) = config.shield.as_ref() else { return };
        let answers = config.services.iter().any(|service| *service.syn != Syn::Off);
        self.syn_secret = secrets.filter(|_| answers).map(|secrets| SynSecretStatus {
            fingerprint: secrets.present,
            former_fingerprint: secrets.former,
            file: shield.syn.secret.as_deref().filter(|_| secrets.is_shared).cloned(),
            since: Timestamp(secrets.since),
        });
    }

    /// Enters the sources of all services, those with the most packets first.
    pub fn enter_heavy(
        &mut self,
        services: &[ServiceState],
        heavy: &[HeavySource],
        wall: SystemTime,
    ) {
        let mut all: Vec<_> = self.heavy(services, heavy.iter(), wall).collect();
        self.heavy_source_count = all.len() as u64;
        all.truncate(MOST_HEAVY);
        self.heavy_sources = all;
    }

    /// Enters those that take part in an attack: its service's, since it began, the fastest first.
    /// Not those that were clients before: whoever forges their addresses would have them blocked.
    pub fn enter_heavy_of(
        &mut self,
        attack: &AttackStatus,
        services: &[ServiceState],
        heavy: &[HeavySource],
        wall: SystemTime,
    ) {
        let id = service_ids(services).get(&(&*attack.service, attack.protocol)).copied();
        let own = heavy.iter().filter(|it| Some(it.service) == id && !it.learnt);
        let sources = own.filter(|source| attack.has_met(source, wall));
        let mut sources: Vec<_> = self.heavy(services, sources, wall).collect();
        sources.sort_by_key(|source| (Reverse(source.over_limit_pps), source.prefix));
        sources.truncate(MOST_HEAVY);
        self.heavy_sources = sources;
    }

    fn heavy<'s>(
        &self,
        services: &'s [ServiceState],
        heavy: impl Iterator<Item = &'s HeavySource>,
        wall: SystemTime,
    ) -> impl Iterator<Item = HeavySourceStatus> {
        let lengths = (self.source_prefix_v4, self.source_prefix_v6);
        let by_id: HashMap<u16, _> = services.iter().map(|it| (it.id, it)).collect();
        let ago = move |seconds: u32| Timestamp(wall - Duration::from_secs(seconds.into()));
        let one = move |source: &HeavySource| {
            let v4 = source.prefix.is_ipv4();
            let length = if v4 { lengths.0 } else { lengths.1 };
            let service = by_id.get(&source.service)?;
            Some(HeavySourceStatus {
                // Not of another length, which another configuration had.
                prefix: Prefix::new(source.prefix, length).ok()?,
                service: service.name.clone(),
                protocol: service.key.protocol,
                learnt: source.learnt,
                over_limit_packets: source.over.into(),
                over_limit_pps: (source.over / source.lasting.max(1)).into(),
                since: ago(source.silent + source.lasting),
                last_seen: ago(source.silent),
            })
        };
        heavy.filter_map(one)
    }
}

/// The ids of the packet path's services, by their names and protocols.
pub fn service_ids(services: &[ServiceState]) -> HashMap<(&str, Protocol), u16> {
    services.iter().map(|it| ((&*it.name, it.key.protocol), it.id)).collect()
}

fn mitigation(config: &Config) -> Vec<MitigationStatus> {
    if config.shield.as_ref().is_none_or(|shield| shield.mitigation.is_none()) {
        return Vec::new();
    }
    let services = config.services.iter().flat_map(|service| {
        let status = |protocol: &Protocol| MitigationStatus {
            service: service.name.to_string(),
            protocol: *protocol,
            attacks: 0,
            attack: None,
            usual_packets_per_second: None,
            usual_new_flows_per_second: None,
        };
        service.protocols.iter().map(status)
    });
    services.collect()
}

impl ListStatus {
    fn new(list: &ShieldList) -> ListStatus {
        let (name, file) = (list.name.to_string(), list.file.to_path_buf());
        ListStatus {
            name,
            file,
            action: list.action,
            prefixes: None,
            skipped_lines: None,
            written: None,
            packets: 0,
            bytes: 0,
            packets_per_second: None,
        }
    }
}

impl RuleStatus {
    fn new(rule: &ShieldRule) -> RuleStatus {
        let limit = match rule.action {
            RuleAction::Limit(limit) => Some(limit),
            _ => None,
        };
        RuleStatus {
            name: rule.name.to_string(),
            expression: rule.filter.expression().to_owned(),
            action: rule.action.name().to_owned(),
            rate_pps: limit.map(|limit: RateLimit| limit.packets_per_second),
            burst: limit.map(|limit| limit.burst),
            packets: 0,
            bytes: 0,
            packets_per_second: None,
            over_limit_packets: 0,
            over_limit_packets_per_second: None,
        }
    }

    fn counters(&mut self) -> impl Iterator<Item = (ShieldCounter, u64, &mut Option<f64>)> {
        let name = &self.name;
        let over = (self.over_limit_packets, &mut self.over_limit_packets_per_second);
        let over = Some(over).filter(|_| self.rate_pps.is_some());
        let over =
            over.map(|(packets, rate)| (ShieldCounter::RuleOver(name.clone()), packets, rate));
        let matched =
            (ShieldCounter::Rule(name.clone()), self.packets, &mut self.packets_per_second);
        std::iter::once(matched).chain(over)
    }
}

/// A daemon that does not say so tells entries of a shield that there is.
fn yes() -> bool {
    true
}

impl Blocked {
    /// `running`: a daemon runs.
    pub fn new(config: &Config, running: bool, runtime: &RuntimeShield) -> Blocked {
        let configured = config.shield.is_some();
        Blocked {
            schema: BLOCKED_SCHEMA.into(),
            node: config.node.name.to_string(),
            in_force: running && configured,
            configured,
            entries: runtime.entries.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ringway_abi::Forward;
    use ringway_plan::tables::{ServiceKey, SynOffer};

    use super::*;
    use crate::clock::from_unix_s;
    use crate::documents::measure::Measure;
    use crate::documents::mitigation::tests::attack;
    use crate::documents::mitigation_event::{self, MitigationEvent};
    use crate::shield::ShieldChange;

    const CONFIG: &str = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
        [shield]\nmode = \"observe\"\nmitigation = { packets = \"300kpps\" }\n\
        list = [{ name = \"drop\", file = \"/etc/ringway/drop.txt\", action = \"block\" }]\n\
        rule = [{ match = \"udp\", action = \"limit\", rate = \"10kpps\" }, \
        { preset = \"dns-amplification\", action = \"drop\" }]\n\
        limits = { new_flows = \"2kpps\", source_prefix_v4 = 24 }\n\
        [[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\n\
        shield = { mode = \"enforce\", packets = \"50kpps\" }\n\
        backends = [{ address = \"10.0.0.2\" }]\n";

    fn runtime() -> RuntimeShield {
        let (now, wall) = (Instant::now(), from_unix_s(1_800_000_000));
        let until = Timestamp(wall + Duration::from_secs(600));
        let entry = |prefix: &str, action, until, reason: &str| {
            let prefix = prefix.parse().expect("a prefix");
            let (since, ends) = (Timestamp::default(), None);
            ShieldChange::Add(ShieldEntry {
                prefix,
                action,
                until,
                reason: reason.into(),
                since,
                ends,
            })
        };
        let mode = Some(ModeOverride { mode: ShieldMode::Off, until, ends: None });
        [
            entry("2001:db8::/32", ListAction::Allow, None, ""),
            entry("192.0.2.0/24", ListAction::Block, Some(until), "junk"),
            ShieldChange::Mode { mode },
        ]
        .iter()
        .fold(RuntimeShield::default(), |runtime, change| {
            runtime.with(change, now, wall).expect("room")
        })
    }

    /// What others read; it only grows.
    #[test]
    fn the_documents_stay_what_they_are() {
        let config = ringway_config::parse(CONFIG, "gw.toml").expect("valid");
        let runtime = runtime();
        let mut status = ShieldStatus::new(&config, &runtime);
        let until = Timestamp(from_unix_s(1_800_000_600));
        let attack = AttackStatus {
            since: Timestamp(from_unix_s(1_800_000_000)),
            until,
            measure: Some(Measure::Packets),
            packets_per_second: 412_000,
            new_flows_per_second: 390_000,
            baseline: Some(3100),
            syns_answered_per_second: 380_000,
            lasts: false,
            ..attack("challenge", ShieldMode::Enforce)
        };
        let found = [(("web".to_owned(), Protocol::Tcp), 2)].into();
        status.enter_attacks(&config, std::slice::from_ref(&attack), &found);
        status.enter_lists(&[ListReading {
            name: "drop".into(),
            prefixes: 8,
            skipped_lines: 1,
            written: Some(Timestamp(from_unix_s(1_800_000_000))),
        }]);
        let count = |packets| rw_shield_count { packets, bytes: 100 * packets, over: packets / 2 };
        status.count(ShieldCounts {
            rules: [("rule 1".into(), count(2)), ("of another generation".into(), count(1))].into(),
            lists: [("drop".into(), count(3))].into(),
            runtime_allow: count(4),
            runtime_block: count(5),
            observed: [(Reason::Malformed, 6)].into(),
        });
        let services = [ServiceState {
            id: 3,
            key: ServiceKey::new([203, 0, 113, 9].into(), 80, Protocol::Tcp),
            name: "web".into(),
            forward: Forward::Nat,
            source_client: false,
            reset_when_none: true,
            backends: Vec::new(),
        }];
        let source = |prefix: [u8; 4], service| HeavySource {
            prefix: prefix.into(),
            service,
            learnt: false,
            over: 9,
            lasting: 2,
            silent: 1,
        };
        // One of a service that is gone, and one of a prefix of another length.
        let heavy =
            [source([192, 0, 2, 0], 3), source([192, 0, 2, 0], 4), source([192, 0, 2, 7], 3)];
        let arrived = Arrivals { packets: 7, new_flows: 2, over_source: 1, ..Arrivals::default() };
        status.count_limits(&services, &[(3, arrived), (4, Arrivals::default())].into());
        status.limits[0].promises = Some(SynOffer { sack: true, ..SynOffer::default() }.into());
        let wall = from_unix_s(1_800_000_003);
        status.enter_heavy(&services, &heavy, wall);
        let mut alone = status.clone();
        let part = source([198, 51, 100, 0], 3);
        let many = [
            vec![source([192, 0, 2, 0], 4); MOST_HEAVY],
            vec![HeavySource { silent: 6, over: 999, ..part }],
            vec![HeavySource { learnt: true, over: 999, ..part }],
            vec![part; MOST_HEAVY],
            vec![HeavySource { over: 50, lasting: 1, ..source([192, 0, 2, 0], 3) }],
        ]
        .concat();
        let both = [
            ServiceState { id: 4, name: "dns".into(), ..services[0].clone() },
            services[0].clone(),
        ];
        alone.enter_heavy_of(&attack, &both, &many, wall);
        let found = alone.heavy_sources.iter().map(|it| (it.service.as_str(), it.over_limit_pps));
        let mut want = [("web", 4); MOST_HEAVY];
        want[0] = ("web", 50);
        assert_eq!(found.collect::<Vec<_>>(), want, "not of another service, nor before it began");
        let entry = runtime.entries.iter().next().cloned();
        let status = ShieldStatus { entry, ..status };
        let blocked = Blocked::new(&config, true, &runtime);
        fn text(document: &impl Serialize) -> String {
            serde_json::to_string_pretty(document).expect("JSON") + "\n"
        }
        let event = MitigationEvent {
            schema: mitigation_event::SCHEMA.into(),
            node: "gw".into(),
            event: "begin".into(),
            attack,
            heavy_sources: status.heavy_sources.clone(),
        };
        let status = text(&status);
        for (text, want) in [
            (&status, include_str!("shield/shield.json")),
            (&text(&blocked), include_str!("shield/blocked.json")),
            (&text(&runtime), include_str!("shield/runtime.json")),
            (&text(&event), include_str!("shield/mitigation.json")),
        ] {
            assert_eq!(text, want, "should be:\n{text}");
        }
        let back: ShieldStatus = serde_json::from_str(&status).expect("the same type");
        assert_eq!(text(&back), status);
    }

    #[test]
    fn without_a_shield_nothing_is_in_force() {
        let text: String = CONFIG
            .replace("shield = { mode = \"enforce\", packets = \"50kpps\" }\n", "")
            .replace("[shield]", "[x]");
        let head = text.find("[x]").expect("a shield");
        let tail = text.find("[[service]]").expect("a service");
        let config = format!("{}{}", &text[..head], &text[tail..]);
        let config = ringway_config::parse(&config, "gw.toml").expect("valid");
        let status = ShieldStatus::new(&config, &runtime());
        assert!(!status.configured && status.mode == ShieldMode::Off);
        assert_eq!(status.mode_override, None);
        let prefixes = (status.blocked.prefixes, status.allowed.prefixes);
        assert_eq!(prefixes, (1, 1), "kept for one that comes");
        let blocked = Blocked::new(&config, true, &runtime());
        assert_eq!((blocked.in_force, blocked.configured), (false, false));
    }
}
