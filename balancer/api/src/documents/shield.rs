//! The shield of a node: its configuration, what was typed at run time, and what is in force.

use std::path::PathBuf;

use ringway_config::{
    Config, ListAction, Protect, RateLimit, RuleAction, ShieldList, ShieldMode, ShieldRule,
};
use serde::{Deserialize, Serialize};

use crate::documents::named;
use crate::shield::{ModeOverride, RuntimeShield, ShieldEntry};

/// Name and version of the schema of [`ShieldStatus`].
pub const SCHEMA: &str = "ringway.shield/1";
/// Name and version of the schema of [`Blocked`].
pub const BLOCKED_SCHEMA: &str = "ringway.blocked/1";

/// `GET /v1/shield`, and the answer to a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Prefixes that were blocked at run time.
    pub blocked: u64,
    pub allowed: u64,
    /// The entry that a change was about, as it is, or was before it was removed.
    #[serde(default)]
    pub entry: Option<ShieldEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListStatus {
    pub name: String,
    pub file: PathBuf,
    #[serde(with = "named")]
    pub action: ListAction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceMode {
    pub service: String,
    #[serde(with = "named")]
    pub mode: ShieldMode,
}

/// `GET /v1/blocked`: prefixes that were blocked or allowed at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Whether a daemon holds them in force.
    pub in_force: bool,
    /// In the order of the prefixes.
    pub entries: Vec<ShieldEntry>,
}

impl ShieldStatus {
    pub fn new(config: &Config, runtime: &RuntimeShield) -> ShieldStatus {
        let shield = config.shield.as_ref();
        let configured_mode = shield.map_or(ShieldMode::Off, |shield| shield.mode);
        let over = runtime.mode.filter(|_| shield.is_some());
        let own_mode = |service: &ringway_config::Service| {
            let service_name = service.name.to_string();
            service.shield.map(|mode| ServiceMode { service: service_name, mode })
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
            blocked: runtime.count(ListAction::Block) as u64,
            allowed: runtime.count(ListAction::Allow) as u64,
            entry: None,
        }
    }
}

impl ListStatus {
    fn new(list: &ShieldList) -> ListStatus {
        let (name, file) = (list.name.to_string(), list.file.to_path_buf());
        ListStatus { name, file, action: list.action }
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
        }
    }
}

impl Blocked {
    pub fn new(node: &str, in_force: bool, entries: Vec<ShieldEntry>) -> Blocked {
        let (schema, node) = (BLOCKED_SCHEMA.into(), node.to_owned());
        Blocked { schema, node, in_force, entries }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock::{Timestamp, from_unix_s};
    use crate::shield::ShieldChange;

    const CONFIG: &str = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
        [shield]\nmode = \"observe\"\n\
        list = [{ name = \"drop\", file = \"/etc/ringway/drop.txt\", action = \"block\" }]\n\
        rule = [{ match = \"udp\", action = \"limit\", rate = \"10kpps\" }, \
        { preset = \"dns-amplification\", action = \"drop\" }]\n\
        [[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\nshield = \"enforce\"\n\
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
        let status = ShieldStatus::new(&config, &runtime);
        let entry = runtime.entries.first().cloned();
        let status = ShieldStatus { entry, ..status };
        let blocked = Blocked::new("gw", true, runtime.entries.clone());
        fn text(document: &impl Serialize) -> String {
            serde_json::to_string_pretty(document).expect("JSON") + "\n"
        }
        let status = text(&status);
        for (text, want) in [
            (&status, include_str!("shield/shield.json")),
            (&text(&blocked), include_str!("shield/blocked.json")),
            (&text(&runtime), include_str!("shield/runtime.json")),
        ] {
            assert_eq!(text, want, "should be:\n{text}");
        }
        let back: ShieldStatus = serde_json::from_str(&status).expect("the same type");
        assert_eq!(text(&back), status);
    }

    #[test]
    fn without_a_shield_nothing_is_in_force() {
        let text: String = CONFIG.replace("shield = \"enforce\"\n", "").replace("[shield]", "[x]");
        let head = text.find("[x]").expect("a shield");
        let tail = text.find("[[service]]").expect("a service");
        let config = format!("{}{}", &text[..head], &text[tail..]);
        let config = ringway_config::parse(&config, "gw.toml").expect("valid");
        let status = ShieldStatus::new(&config, &runtime());
        assert!(!status.configured && status.mode == ShieldMode::Off);
        assert_eq!(status.mode_override, None);
        assert_eq!((status.blocked, status.allowed), (1, 1), "kept for one that comes");
    }
}
