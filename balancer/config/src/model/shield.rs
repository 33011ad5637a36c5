//! `[shield]` as values: what is dropped in front of the gateway.

use std::fmt;
use std::path::PathBuf;

use ringway_abi::ShieldMode;
use ringway_filter::Filter;

use crate::reader::located::Located;

/// What the shield checks of a packet, in this order: sanity, lists that allow, lists that block,
/// rules.
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
