//! `[shield]`: lists, rules and limits that packets meet before the gateway.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ringway_filter::{Error, Filter};
use toml::de::{DeTable, DeValue};

use super::mitigation;
use super::rates::{MAX_RATE, MAX_SINGLE_RATE, rate, shared_limits};
use crate::model::{
    BadLines, ListAction, OwnLimits, Protect, RateLimit, RuleAction, ServiceShield, Shield,
    ShieldLimits, ShieldList, ShieldMode, ShieldRule, SynSettings,
};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, boolean, choice, file, integer, label, table, text};

const MAX_LISTS: usize = 64;
const MAX_RULES: usize = 256;
/// A packet's result has a bit for each.
const MAX_COUNTING: usize = 48;
const FLOW_RATE: RateLimit = RateLimit::new(10_000);
const ALLOW_RATE: RateLimit = RateLimit::new(500);
/// Lengths of source prefixes.
const PREFIX_V4: RangeInclusive<u32> = 8..=32;
const PREFIX_V6: RangeInclusive<u32> = 16..=128;
const BURST: RangeInclusive<u32> = 1..=100_000_000;
/// What a filter's interpreters would keep of a packet: all.
const WHOLE: u32 = 65_535;

const MODES: [(&str, ShieldMode); 2] = [mode(ShieldMode::Enforce), mode(ShieldMode::Observe)];
const SERVICE_MODES: [(&str, ShieldMode); 3] =
    [mode(ShieldMode::Enforce), mode(ShieldMode::Observe), mode(ShieldMode::Off)];
const PROTECT: [(&str, Protect); 2] =
    [(Protect::Services.name(), Protect::Services), (Protect::Host.name(), Protect::Host)];
const LIST_ACTIONS: [(&str, ListAction); 2] =
    [(ListAction::Block.name(), ListAction::Block), (ListAction::Allow.name(), ListAction::Allow)];
const BAD_LINES: [(&str, BadLines); 2] = [("refuse", BadLines::Refuse), ("skip", BadLines::Skip)];
const ACTIONS: [(&str, Action); 4] = [
    ("drop", Action::Drop),
    ("pass", Action::Pass),
    ("count", Action::Count),
    ("limit", Action::Limit),
];

const fn mode(mode: ShieldMode) -> (&'static str, ShieldMode) {
    (mode.name(), mode)
}

/// What `action` of a rule says; the rate of a limit is a key of its own.
#[derive(Clone, Copy, PartialEq)]
enum Action {
    Drop,
    Pass,
    Count,
    Limit,
}

/// A filter by name.
#[derive(Clone, Copy)]
struct Preset {
    name: &'static str,
    expression: &'static str,
    /// Matches what clients send in peace, too: only its rate tells a flood.
    by_rate: bool,
}

/// Lengths are those of frames. A response of DNS without EDNS has at most 578 bytes, over IPv6 and
/// with a VLAN tag; one of NTP, signed, at most 150. The other protocols have no business with a
/// service.
const PRESETS: [Preset; 8] = [
    reflected("dns-amplification", "udp src port 53 and greater 600"),
    reflected("ntp-amplification", "udp src port 123 and greater 200"),
    reflected("ssdp-amplification", "udp src port 1900"),
    reflected("memcached-amplification", "udp src port 11211"),
    reflected("chargen-amplification", "udp src port 19"),
    // Other expressions do not find TCP and UDP behind these, and behind one fragment header at most.
    reflected(
        "ipv6-extension",
        "ip6[6] = 0 or ip6[6] = 43 or ip6[6] = 60 or \
         (ip6[6] = 44 and (ip6[40] = 0 or ip6[40] = 43 or ip6[40] = 60 or ip6[40] = 44))",
    ),
    Preset { name: "udp-flood", expression: "udp", by_rate: true },
    Preset { name: "icmp-flood", expression: "icmp or icmp6", by_rate: true },
];

const fn reflected(name: &'static str, expression: &'static str) -> Preset {
    Preset { name, expression, by_rate: false }
}

const LIST: &str =
    "list = [{ name = \"drop\", file = \"/etc/ringway/drop.txt\", action = \"block\" }]";
const RULE: &str = "rule = [{ match = \"udp src port 19\", action = \"drop\" }]";
const MATCH: &str = "match = \"udp src port 19\"";

/// None where the file has no `[shield]`.
pub(crate) fn read(file: &mut Section) -> Option<Shield> {
    let mut section = file.table("shield", "[shield]".into())?;
    let shield = Shield {
        mode: *section.or("mode", ShieldMode::Enforce, |v| choice(v, &MODES)),
        protect: *section.or("protect", Protect::Services, |v| choice(v, &PROTECT)),
        sanity: *section.or("sanity", true, boolean),
        lists: lists(&mut section),
        rules: rules(&mut section),
        limits: limits(&mut section),
        syn: syn(&mut section),
        mitigation: mitigation::read(&mut section),
    };
    section.finish();
    Some(shield)
}

fn syn(shield: &mut Section) -> SynSettings {
    let Some(mut section) = shield.table("syn", "[shield.syn]".into()) else {
        return SynSettings::default();
    };
    let always = *section.or("always", false, boolean);
    let is_named = section.has("secret");
    let secret =
        section.optional("secret", |v| file(v, "write a path such as \"/etc/ringway/syn.secret\""));
    // One that was refused is an error already; a service that needs one is no second error.
    let secret = secret.or_else(|| is_named.then(|| PathBuf::new().into()));
    section.finish();
    SynSettings { always, secret }
}

/// `shield` of a service: its mode, or a table.
pub(crate) fn of_service(service: &mut Section) -> Option<ServiceShield> {
    let place = format!("shield of {}", service.place);
    let Some(mut section) = service.table_if("shield", place) else {
        let mode = service.optional("shield", |v| choice(v, &SERVICE_MODES))?.into_inner();
        return Some(ServiceShield { mode: Some(mode), ..ServiceShield::default() });
    };
    let mode = section.optional("mode", |v| choice(v, &SERVICE_MODES)).map(Located::into_inner);
    let limits = own_limits(&mut section);
    section.refuse(
        "destination",
        "destination is of an address, which may have several services: write it in [shield.limits]",
    );
    section.finish();
    Some(ServiceShield { mode, limits })
}

fn limits(shield: &mut Section) -> ShieldLimits {
    let mut section = shield.table_or_empty("limits", "[shield.limits]".into());
    let every_service = shared_limits(&mut section);
    let mut limit = |key, most| section.optional(key, |v| rate(v, most)).map(Located::into_inner);
    let (flow_rate, allow_rate) =
        (limit("flow_rate", MAX_SINGLE_RATE), limit("allow_rate", MAX_SINGLE_RATE));
    let learn_udp = *section.or("learn_udp", true, boolean);
    let v4 = *section.or("source_prefix_v4", 32, |v| integer(v, PREFIX_V4));
    let v6 = *section.or("source_prefix_v6", 64, |v| integer(v, PREFIX_V6));
    section.finish();
    ShieldLimits {
        every_service,
        source_prefix: (v4 as u8, v6 as u8),
        flow_rate: flow_rate.unwrap_or(FLOW_RATE),
        allow_rate: allow_rate.unwrap_or(ALLOW_RATE),
        learn_udp,
    }
}

/// Limits in place of those of `[shield.limits]`.
fn own_limits(section: &mut Section) -> OwnLimits {
    let mut limit = |key, most| {
        let read = |v: &DeValue| match v.as_str() {
            Some("none") => Ok(None),
            _ => rate(v, most).map(Some).map_err(|wrong| wrong + ", or \"none\""),
        };
        section.optional(key, read).map(Located::into_inner)
    };
    OwnLimits {
        packets: limit("packets", MAX_RATE),
        new_flows: limit("new_flows", MAX_RATE),
        source: limit("source", MAX_SINGLE_RATE),
    }
}

fn lists(shield: &mut Section) -> Vec<ShieldList> {
    let Some(tables) = shield.list("list", LIST, |v| table(v, &format!("write {LIST}"))) else {
        return Vec::new();
    };
    let lists: Vec<ShieldList> = (1..)
        .zip(tables.iter())
        .filter_map(|(number, table)| {
            let mut section = shield.inside(format!("list {number} of [shield]"), table);
            let name = section.required("name", "name = \"drop\"", |v| label(v, "a list's"));
            let file = section.required("file", "file = \"/etc/ringway/drop.txt\"", |v| {
                file(v, "write a path such as \"/etc/ringway/drop.txt\"")
            });
            let action =
                section.required("action", "action = \"block\"", |v| choice(v, &LIST_ACTIONS));
            let bad_lines = section.or("bad_lines", BadLines::Refuse, |v| choice(v, &BAD_LINES));
            section.finish();
            let (action, bad_lines) = (*action?, *bad_lines);
            Some(ShieldList { name: name?, file: file?, action, bad_lines })
        })
        .collect();
    once(shield, "list", lists.iter().map(|list| &list.name));
    at_most(shield, "lists", &tables, MAX_LISTS);
    lists
}

fn rules(shield: &mut Section) -> Vec<ShieldRule> {
    let Some(tables) = shield.list("rule", RULE, |v| table(v, &format!("write {RULE}"))) else {
        return Vec::new();
    };
    let read = |(number, table): (usize, &Located<&DeTable>)| {
        let place = format!("rule {number} of [shield]");
        rule(shield.inside(place, table), table, number)
    };
    let rules: Vec<ShieldRule> = (1..).zip(tables.iter()).filter_map(read).collect();
    once(shield, "rule", rules.iter().map(|rule| &rule.name));
    at_most(shield, "rules", &tables, MAX_RULES);
    let counting = rules.iter().filter(|rule| rule.action == RuleAction::Count).count();
    if counting > MAX_COUNTING {
        let message = format!(
            "{counting} rules of [shield] have action = \"count\": keep at most {MAX_COUNTING}"
        );
        shield.report.error(tables.span(), message);
    }
    rules
}

fn rule(mut section: Section, table: &DeTable, number: usize) -> Option<ShieldRule> {
    let name = section.optional("name", |v| label(v, "a rule's"));
    let expression = section.optional("match", expression);
    let preset = section.optional("preset", preset);
    match &preset {
        Some(preset) if table.contains_key("match") => {
            let message = format!("{} has match and preset: remove one", section.place);
            section.report.error(preset.span(), message);
        }
        None if !table.contains_key("preset") => section.require("match", MATCH),
        _ => {}
    }
    let written = match &preset {
        Some(preset) => Some(Located::new(preset.expression.to_owned(), preset.span())),
        None => expression,
    };
    let filter = written.and_then(|written| compile(&section, &written));
    let action = action(&mut section, preset.as_deref().copied());
    section.finish();
    let default = || match &preset {
        Some(preset) => Located::new(preset.name.to_owned(), preset.span()),
        None => format!("rule {number}").into(),
    };
    Some(ShieldRule { name: name.unwrap_or_else(default), filter: filter?, action: action? })
}

fn expression(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write an expression as for tcpdump, such as \"udp src port 19\"";
    let text = text(value, REMEDY)?;
    match text.trim().is_empty() {
        true => Err(format!("is empty, which every packet matches: {REMEDY}")),
        false => Ok(text.into()),
    }
}

fn preset(value: &DeValue) -> Read<&'static Preset> {
    let names: Vec<(&str, &Preset)> = PRESETS.iter().map(|preset| (preset.name, preset)).collect();
    choice(value, &names)
}

/// Ethertypes of what comes to the shield: IPv4 and IPv6.
const JUDGED: [u16; 2] = [0x0800, 0x86dd];

/// An error of the expression is marked where it is, not at the whole value.
fn compile(section: &Section, written: &Located<String>) -> Option<Located<Filter>> {
    let error = match Filter::compile(written, WHOLE) {
        Ok(filter) if JUDGED.iter().any(|it| filter.can_match_ethertype(*it)) => {
            return Some(Located::new(filter, written.span()));
        }
        Ok(_) => {
            let message = format!(
                "match of {}: no packet that the shield judges can ever match: those are IPv4 and \
                 IPv6, without their VLAN tags; write it without vlan",
                section.place
            );
            section.report.error(written.span(), message);
            return None;
        }
        Err(error) => error,
    };
    let at = match &error {
        Error::Syntax { at, .. } => section.report.within(&written.span(), written, at),
        _ => written.span(),
    };
    section.report.error(at, format!("match of {}: {}", section.place, error.brief()));
    None
}

fn action(section: &mut Section, preset: Option<&Preset>) -> Option<RuleAction> {
    let action = section.required("action", "action = \"drop\"", |v| choice(v, &ACTIONS));
    let rate = section.optional("rate", |v| rate(v, MAX_RATE));
    let burst = section.optional("burst", |v| integer(v, BURST));
    let action = action?;
    if *action == Action::Limit {
        section.require("rate", "rate = \"10kpps\"");
        let limit = *rate?;
        let burst = burst.map_or(limit.burst, Located::into_inner);
        return Some(RuleAction::Limit(RateLimit { burst, ..limit }));
    }
    let written = [("rate", rate.map(|rate| rate.span())), ("burst", burst.map(|b| b.span()))];
    for (key, written) in written {
        let Some(written) = written else { continue };
        let message = format!(
            "{key} of {} has no effect without action = \"limit\": remove it, or write that",
            section.place
        );
        section.report.error(written, message);
    }
    if let Some(flood) = preset.filter(|preset| preset.by_rate && *action != Action::Count) {
        let message = format!(
            "preset = {:?} of {} matches what clients send in peace, too: write action = \"limit\" \
             and rate = \"10kpps\"",
            flood.name, section.place
        );
        section.report.error(action.span(), message);
    }
    Some(match *action {
        Action::Pass => RuleAction::Pass,
        Action::Count => RuleAction::Count,
        Action::Drop | Action::Limit => RuleAction::Drop,
    })
}

/// Reports names that come again.
fn once<'n>(shield: &Section, what: &str, names: impl Iterator<Item = &'n Located<String>>) {
    let mut seen = HashSet::new();
    for name in names.filter(|name| !seen.insert(name.as_str())) {
        let message = format!(
            "{:?} is the name of an earlier {what} of [shield]: write another, name = \"{name}-2\"",
            **name
        );
        shield.report.error(name.span(), message);
    }
}

fn at_most<T>(shield: &Section, what: &str, written: &Located<Vec<T>>, limit: usize) {
    if written.len() > limit {
        let message = format!("[shield] has {} {what}: keep at most {limit}", written.len());
        shield.report.error(written.span(), message);
    }
}
