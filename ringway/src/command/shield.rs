//! `ringway block`, `allow`, `unblock`, `blocked` and `shield`.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use ringway_abi::Limit;
use ringway_api::client::shield as client;
use ringway_api::clock::Timestamp;
use ringway_api::documents::limits::{LimitsStatus, PacketCount};
use ringway_api::documents::measure::Measure;
use ringway_api::documents::mitigation::{AttackStatus, MitigationStatus};
use ringway_api::documents::shield::{
    Blocked, RuleStatus, ShieldStatus, SynSecretStatus, is_answered,
};
use ringway_api::shield::{ModeOverride, ShieldChange, ShieldEntry, done};
use ringway_api::text::counted;
use ringway_config::{ListAction, RateLimit, ShieldMode, Syn};

use crate::cli::{
    BlockedArgs, NodeArgs, Output, PrefixArgs, ShieldAction, ShieldArgs, UnblockArgs,
};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};
use crate::units;

/// Services with limits that are shown, those with most over them; `-o json` has all.
const SERVICES_SHOWN: usize = 16;

pub fn block(args: &PrefixArgs) -> anyhow::Result<Exit> {
    add(args, ListAction::Block)
}

pub fn allow(args: &PrefixArgs) -> anyhow::Result<Exit> {
    add(args, ListAction::Allow)
}

fn add(args: &PrefixArgs, action: ListAction) -> anyhow::Result<Exit> {
    let force = if args.force { ShieldChange::Force } else { ShieldChange::Add };
    let entry = ShieldEntry {
        prefix: args.prefix,
        action,
        until: args.lasting.map(until),
        reason: args.reason.clone(),
        since: Timestamp::default(),
        ends: None,
    };
    change(&args.node, &force(entry), args.output.output)
}

pub fn unblock(args: &UnblockArgs) -> anyhow::Result<Exit> {
    change(&args.node, &ShieldChange::Remove { prefix: args.prefix }, Output::Table)
}

pub fn blocked(args: &BlockedArgs) -> anyhow::Result<Exit> {
    let blocked = client::blocked(&args.node.selector())?;
    match args.output.output {
        Output::Json => table::json(&blocked)?,
        Output::Table => table::print(&entries(&blocked, table::colour()))?,
    }
    Ok(Exit::Done)
}

pub fn main(args: &ShieldArgs) -> anyhow::Result<Exit> {
    let over = |mode, lasting| ShieldChange::Mode {
        mode: Some(ModeOverride { mode, until: until(lasting), ends: None }),
    };
    match &args.action {
        ShieldAction::Status(args) => {
            let status = client::status(&args.node.selector())?;
            match args.output.output {
                Output::Json => table::json(&status)?,
                Output::Table => table::print(&render(&status, table::colour()))?,
            }
            Ok(Exit::Done)
        }
        ShieldAction::Off(args) => {
            change(&args.node, &over(ShieldMode::Off, args.lasting), Output::Table)
        }
        ShieldAction::Observe(args) => {
            change(&args.node, &over(ShieldMode::Observe, args.lasting), Output::Table)
        }
        ShieldAction::Enforce(args) => {
            change(&args.node, &ShieldChange::Mode { mode: None }, Output::Table)
        }
    }
}

fn until(lasting: Duration) -> Timestamp {
    Timestamp(SystemTime::now() + lasting)
}

fn change(node: &NodeArgs, change: &ShieldChange, output: Output) -> anyhow::Result<Exit> {
    let status = client::change(&node.selector(), change)?;
    match output {
        Output::Json => table::json(&status)?,
        Output::Table => table::print(&changed(change, &status))?,
    }
    status.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(Exit::Done)
}

/// What was done, and whether it has an effect now.
fn changed(change: &ShieldChange, status: &ShieldStatus) -> String {
    let words = match (change, &status.entry, &status.replaced) {
        (ShieldChange::Remove { .. }, was, _) => change.outcome(was.as_ref()),
        (ShieldChange::Mode { .. }, ..) => mode(status),
        (_, _, Some(ShieldEntry { prefix, action, until, .. })) => {
            let until = until.map_or("`ringway unblock`".into(), |until| until.to_string());
            format!("{prefix} was {} until {until}; now {change}", done(*action))
        }
        _ => change.to_string(),
    };
    let note = match (change, status.mode) {
        (ShieldChange::Mode { .. }, _) | (_, ShieldMode::Enforce) => String::new(),
        // A warning tells it.
        _ if is_block(change) && !status.warnings.is_empty() => String::new(),
        _ => format!("{}\n", mode(status)),
    };
    format!("node {}: {words}\n{note}", status.node)
}

fn is_block(change: &ShieldChange) -> bool {
    let (ShieldChange::Add(entry) | ShieldChange::Force(entry)) = change else { return false };
    entry.action == ListAction::Block
}

/// The mode in force, and why.
fn mode(status: &ShieldStatus) -> String {
    let what = match status.mode {
        ShieldMode::Enforce => "the shield drops what its lists, rules and limits say",
        ShieldMode::Observe => "the shield counts what it would drop, and drops nothing",
        ShieldMode::Off => "the shield is off",
    };
    match status.mode_override {
        Some(over) => format!(
            "{what} until {}\nthen, or at once by `ringway shield enforce`, mode = \"{}\" of \
             [shield] is in force again",
            over.until,
            status.configured_mode.name()
        ),
        None if status.configured => {
            format!("{what}: mode = \"{}\" in [shield]", status.mode.name())
        }
        None => format!("{what}: the configuration has no [shield]"),
    }
}

fn render(status: &ShieldStatus, colour: bool) -> String {
    let mut text = format!("node {}: {}\n", status.node, mode(status));
    if !status.configured {
        return text;
    }
    let sanity = if status.sanity { "on" } else { "off" };
    text += &format!("protects {}; sanity checks {sanity}\n", status.protect);
    for service in &status.services {
        text += &format!("service {}: {}\n", service.service, service.mode.name());
    }
    let off = is_off(status);
    if off {
        text += "while it is off, no packet is looked at: rates are unknown, and no attack is noticed\n";
    } else if !status.mitigation.is_empty()
        && status.mitigation.iter().all(|it| it.attack.is_none())
    {
        text += "automatic mitigation: no service is attacked\n";
    }
    for attack in status.mitigation.iter().filter_map(|it| it.attack.as_ref()) {
        text += &attacked(attack);
    }
    for (typed, action) in
        [(status.blocked, ListAction::Block), (status.allowed, ListAction::Allow)]
    {
        if typed.prefixes > 0 {
            let (prefixes, done) = (counted(typed.prefixes, "prefix"), done(action));
            let packets = counted(typed.packets, "packet");
            let rate = seen(typed.packets_per_second, off);
            text +=
                &format!("at run time {prefixes} {done}, {packets}, {rate}/s: `ringway blocked`\n");
        }
    }
    for (reason, packets) in &status.observed {
        let observed = match (status.mode, is_answered(*reason)) {
            (ShieldMode::Observe, false) => "would drop",
            (ShieldMode::Observe, true) => "would answer",
            (_, false) => "would have dropped while it observed",
            (_, true) => "would have answered while it observed",
        };
        let packets = counted(packets, "packet");
        text += &format!("{observed}: {packets}, {}\n", reason.name());
    }
    if let Some(secret) = &status.syn_secret {
        text += &syn_secret(secret);
    }
    if let Some(since) = status.counted_since {
        let age = SystemTime::now().duration_since(since.0).unwrap_or_default().as_secs();
        text += &format!("counted since {since} ({})\n", units::age(age));
    }
    if !status.lists.is_empty() {
        let mut table = Table::new(&["list", "action", "packets", "packets/s", "file"]);
        for list in &status.lists {
            let file = list.file.display().to_string();
            table.row(vec![
                Cell::new(&list.name),
                Cell::new(list.action.name()),
                Cell::number(list.packets),
                Cell::number(seen(list.packets_per_second, off)),
                Cell::new(file).tone(Tone::Dim),
            ]);
        }
        text += &table.render(colour);
    }
    if !status.rules.is_empty() {
        let mut table =
            Table::new(&["rule", "action", "packets", "packets/s", "over its rate", "match"]);
        for rule in &status.rules {
            let over = rule.rate_pps.map(|_| rule.over_limit_packets.to_string());
            table.row(vec![
                Cell::new(&rule.name),
                Cell::new(rule_action(rule)),
                Cell::number(rule.packets),
                Cell::number(seen(rule.packets_per_second, off)),
                Cell::number(over.unwrap_or_else(|| "-".into())),
                Cell::new(&rule.expression).tone(Tone::Dim),
            ]);
        }
        text += &table.render(colour);
    }
    text + &limits(status, colour)
}

/// With what SYNs are answered, so that people can compare nodes.
fn syn_secret(secret: &SynSecretStatus) -> String {
    let SynSecretStatus { fingerprint, former_fingerprint, file, since } = secret;
    let source = match file {
        Some(file) => format!("the secret of {}", file.display()),
        None => "a key of this node's own, which no other node knows".to_owned(),
    };
    let former = former_fingerprint.as_ref();
    let former =
        former.map_or_else(String::new, |it| format!("; {it}, the one before, still counts"));
    format!("SYNs are answered with {source}: fingerprint {fingerprint}, since {since}{former}\n")
}

/// Whether packets to all services pass without a look at them.
fn is_off(status: &ShieldStatus) -> bool {
    let off = |mode| mode == ShieldMode::Off;
    let services = status.mode_override.is_some() || status.services.iter().all(|it| off(it.mode));
    off(status.mode) && services
}

/// A rate; while the shield is off, nothing is counted.
fn seen(rate: Option<f64>, off: bool) -> String {
    units::rate(rate.filter(|_| !off))
}

/// What services with limits get, the limits in force, and sources over theirs.
fn limits(status: &ShieldStatus, colour: bool) -> String {
    if status.limits.is_empty() {
        return "no service has limits: what arrives, and who sends most, is counted with limits\n"
            .into();
    }
    let mut shown: Vec<&LimitsStatus> = status.limits.iter().collect();
    let left_out = shown.len().saturating_sub(SERVICES_SHOWN);
    if left_out > 0 {
        shown.sort_by_key(|it| Reverse(it.over_limit_packets));
        shown.truncate(SERVICES_SHOWN);
    }
    let mut arriving = Table::new(&[
        "service",
        "packets/s",
        "new flows/s",
        "usually",
        "packets",
        "new flows",
        "established",
        "learnt",
    ]);
    let mut each = Table::new(&["service", "limit", "in force", "of", "over it", "now"]);
    for limits in &shown {
        let name = format!("{} {}", limits.service, limits.protocol);
        let mode = status.mode_of(&limits.service);
        let off = mode == ShieldMode::Off;
        arriving.row(vec![
            Cell::new(&name),
            Cell::number(seen(limits.arrived_packets_per_second, off)),
            Cell::number(seen(limits.arrived_new_flows_per_second, off)),
            Cell::number(usual(status, limits)),
            Cell::number(limits.arrived_packets),
            Cell::number(limits.arrived_new_flows),
            Cell::number(limits.established.packets),
            Cell::number(limits.learnt.packets),
        ]);
        for one in limits.by_limit.iter().filter(|it| it.pps.is_some() || it.over.packets > 0) {
            let rate = one.pps.map_or_else(|| "none".into(), |pps| RateLimit::new(pps).rate());
            let source = match (one.pps, one.mitigation_until) {
                (Some(_), Some(until)) => format!("mitigation until {until}"),
                (Some(_), None) => "configuration".into(),
                (None, _) => String::new(),
            };
            let PacketCount { packets, packets_per_second } = one.over;
            let rate_now = units::rate(packets_per_second);
            let now = match mode {
                ShieldMode::Enforce => format!("drops {rate_now}/s"),
                ShieldMode::Observe => format!("would drop {rate_now}/s"),
                ShieldMode::Off => "off".into(),
            };
            let tone =
                if !off && packets_per_second > Some(0.0) { Tone::Warn } else { Tone::Plain };
            each.row(vec![
                Cell::new(&name),
                Cell::new(one.limit.name()),
                Cell::new(rate),
                Cell::new(source),
                Cell::number(packets),
                Cell::new(now).tone(tone),
            ]);
        }
    }
    let mut text = arriving.render(colour);
    text += "usually: packets/s, new flows/s; established, learnt: over a limit, and passed\n";
    if !each.is_empty() {
        text += &each.render(colour);
    }
    text += &answers(&shown, status, colour);
    if left_out > 0 {
        let services = counted(left_out, "service");
        text += &format!("{services} with less over limits: `ringway shield status -o json`\n");
    }
    text + &heavy_sources(status, colour)
}

/// Who answers SYNs, and who would if every backend took cookies; in mode `observe` nobody does.
fn syn_now(limits: &LimitsStatus, mode: ShieldMode) -> String {
    let now = match limits.syn_in_force.as_ref().filter(|now| **now != limits.syn) {
        Some(now) => format!("{now} (not {})", limits.syn),
        None => limits.syn.clone(),
    };
    match mode {
        ShieldMode::Observe => format!("would answer: {now}"),
        _ => now,
    }
}

/// SYNs that are answered here, and what has become of the answers.
fn answers(shown: &[&LimitsStatus], status: &ShieldStatus, colour: bool) -> String {
    let mut table = Table::new(&[
        "service", "syn", "answered", "now/s", "replies", "now/s", "fit none", "now/s", "promises",
    ]);
    for limits in shown.iter().filter(|it| it.syn != Syn::Off.name()) {
        let mode = status.mode_of(&limits.service);
        let off = mode == ShieldMode::Off;
        let mut row = vec![
            Cell::new(format!("{} {}", limits.service, limits.protocol)),
            Cell::new(syn_now(limits, mode)),
        ];
        for count in [Some(limits.syns_answered), limits.answers_met, limits.answers_failed] {
            row.push(Cell::number(count.map_or("-".into(), |count| count.packets.to_string())));
            row.push(Cell::number(seen(count.and_then(|count| count.packets_per_second), off)));
        }
        row.push(Cell::new(limits.promises.map_or("-".into(), |offer| offer.to_string())));
        table.row(row);
    }
    if table.is_empty() { String::new() } else { table.render(colour) }
}

/// Packets and new flows a second.
fn usual(status: &ShieldStatus, limits: &LimitsStatus) -> String {
    let own =
        |it: &&MitigationStatus| (&it.service, it.protocol) == (&limits.service, limits.protocol);
    let found = status.mitigation.iter().find(own);
    let rate = |rate: u64| units::decimal(rate as f64);
    let both = found
        .and_then(|it| it.usual_packets_per_second.zip(it.usual_new_flows_per_second))
        .map(|(packets, flows)| format!("{}, {}", rate(packets), rate(flows)));
    both.unwrap_or_else(|| "-".into())
}

fn heavy_sources(status: &ShieldStatus, colour: bool) -> String {
    if status.heavy_sources.is_empty() {
        let mut limits = status.limits.iter().flat_map(|it| &it.by_limit);
        let why = match limits.any(|it| it.limit == Limit::Source && it.pps.is_some()) {
            true => "none in the last minute",
            false => "not counted without a limit `source`",
        };
        return format!("heavy sources: {why}\n");
    }
    let mut table =
        Table::new(&["heavy source", "service", "known", "over its rate", "a second", "last seen"]);
    for source in &status.heavy_sources {
        table.row(vec![
            Cell::new(source.prefix.to_string()),
            Cell::new(format!("{} {}", source.service, source.protocol)),
            Cell::new(if source.learnt { "learnt" } else { "-" }),
            Cell::number(source.over_limit_packets),
            Cell::number(units::decimal(source.over_limit_pps as f64)),
            Cell::new(source.last_seen.to_string()).tone(Tone::Dim),
        ]);
    }
    let left_out = status.heavy_source_count.saturating_sub(status.heavy_sources.len() as u64);
    let more = match left_out {
        0 => String::new(),
        _ => format!("and {}\n", counted(left_out, "other heavy source")),
    };
    table.render(colour) + &more
}

fn attacked(attack: &AttackStatus) -> String {
    let AttackStatus { service, protocol, until, .. } = attack;
    let (packets, flows) = (attack.packets_per_second, attack.new_flows_per_second);
    let usual = match (attack.measure, attack.baseline) {
        (Some(Measure::NewFlows), Some(usual)) => format!("; usually {usual} new flows/s"),
        (_, Some(usual)) => format!("; usually {usual} packets/s"),
        (_, None) => String::new(),
    };
    let rates = format!("{packets} packets/s, {flows} new flows/s");
    let now = match attack.ended {
        None => format!("until {until}: {rates}{usual}"),
        Some(_) => format!("until {until} if nothing more comes: now {rates}"),
    };
    let (endpoint, attacked, armed) = (attack.endpoint(), attack.attacked(), attack.armed());
    let answered = attack.answered().map_or(String::new(), |answered| format!("; {answered}"));
    format!("service {service} ({protocol} {endpoint}): {attacked}, {armed} {now}{answered}\n")
}

/// With the rate of a limit.
pub fn rule_action(rule: &RuleStatus) -> String {
    match (rule.rate_pps, rule.burst) {
        (Some(packets_per_second), Some(burst)) => {
            format!("{} {}", rule.action, RateLimit { packets_per_second, burst }.rate())
        }
        _ => rule.action.clone(),
    }
}

/// A rule without a name of its own is called `rule 3`.
pub fn rule_name(rule: &str) -> String {
    let kind = if rule.starts_with("rule ") { "" } else { "rule " };
    format!("{kind}{rule}")
}

fn entries(blocked: &Blocked, colour: bool) -> String {
    let about = match (blocked.configured, blocked.in_force) {
        _ if blocked.entries.is_empty() => "nothing was blocked or allowed at run time",
        (_, true) => "in force, in addition to the lists of the configuration",
        (false, _) => {
            "not in force, as the configuration has no [shield]; they are again once it has one: \
             `ringway unblock PREFIX` removes one"
        }
        (true, false) => "no daemon runs: the next one will find them",
    };
    let mut text = format!("node {}: {about}\n", blocked.node);
    if blocked.entries.is_empty() {
        return text;
    }
    let mut table = Table::new(&["prefix", "action", "until", "since", "reason"]);
    for entry in &blocked.entries {
        let until = entry.until.map_or("no end".into(), |until| until.to_string());
        table.row(vec![
            Cell::new(entry.prefix.to_string()),
            Cell::new(entry.action.name()),
            Cell::new(until),
            Cell::new(entry.since.to_string()).tone(Tone::Dim),
            Cell::new(&entry.reason),
        ]);
    }
    text += &table.render(colour);
    text
}

#[cfg(test)]
mod tests {
    use ringway_abi::Reason;
    use ringway_api::documents::shield::RuntimeCount;
    use ringway_api::shield::RuntimeShield;
    use ringway_config::{Limits, Protocol};
    use ringway_kernel::Arrivals;
    use ringway_kernel::shield::SynSecrets;
    use ringway_plan::tables::SynOffer;

    use super::*;
    use crate::testing::{attack, heavy_source};

    const SERVICE: &str = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n[[service]]\n\
        name = \"web\"\naddress = \"203.0.113.9\"\nport = 80\nbackends = [{ address = \"10.0.0.2\" }]\n";

    fn status(shield: &str, mode: Option<ModeOverride>) -> ShieldStatus {
        let text = shield.to_owned() + SERVICE;
        let config = ringway_config::parse(&text, "gw.toml").unwrap();
        ShieldStatus::new(&config, &RuntimeShield { mode, ..RuntimeShield::default() })
    }

    /// The cells of the row with this word.
    fn row<'t>(shown: &'t str, word: &str) -> Vec<&'t str> {
        let row = shown.lines().find(|line| line.contains(word)).expect("a row");
        row.split_whitespace().collect()
    }

    fn block(prefix: &str) -> ShieldEntry {
        ShieldEntry {
            prefix: prefix.parse().unwrap(),
            action: ListAction::Block,
            until: None,
            reason: "scans".into(),
            since: Timestamp::default(),
            ends: None,
        }
    }

    #[test]
    fn whoever_blocks_hears_whether_that_drops_anything() {
        let entry = block("192.0.2.0/24");
        let change = ShieldChange::Add(entry.clone());
        let done = "node gw: 192.0.2.0/24 is blocked: scans\n";
        assert_eq!(changed(&change, &status("[shield]\n", None)), done);
        let observed = changed(&change, &status("[shield]\nmode = \"observe\"\n", None));
        assert!(
            observed.starts_with(done) && observed.contains("drops nothing: mode = \"observe\"")
        );
        let until = Timestamp::default();
        let off = ModeOverride { mode: ShieldMode::Off, until, ends: None };
        let off = status("[shield]\n", Some(off));
        let want = "the shield is off until 1970-01-01T00:00:00Z\nthen, or at once by `ringway \
                    shield enforce`, mode = \"enforce\" of [shield] is in force again\n";
        assert_eq!(changed(&change, &off), format!("{done}{want}"));
        let mode = ShieldChange::Mode { mode: off.mode_override };
        assert_eq!(changed(&mode, &off), format!("node gw: {want}"));
        let allow = ShieldEntry { action: ListAction::Allow, ..entry.clone() };
        let replaced = Some(ShieldEntry { until: Some(until), ..entry.clone() });
        let status_after = ShieldStatus { replaced, ..status("[shield]\n", None) };
        assert_eq!(
            changed(&ShieldChange::Add(allow), &status_after),
            "node gw: 192.0.2.0/24 was blocked until 1970-01-01T00:00:00Z; now 192.0.2.0/24 is \
             allowed: scans\n"
        );
        let warned = ShieldStatus { warnings: vec!["it passes".into()], ..off };
        assert_eq!(changed(&change, &warned), done, "the warning tells why");
        let remove = ShieldChange::Remove { prefix: entry.prefix };
        let was = ShieldStatus { entry: Some(entry), ..status("[shield]\n", None) };
        assert_eq!(changed(&remove, &was), "node gw: 192.0.2.0/24 is no longer blocked\n");
    }

    #[test]
    fn the_shield_is_shown_with_lists_and_rules() {
        let none = render(&status("", None), false);
        assert_eq!(none, "node gw: the shield is off: the configuration has no [shield]\n");
        let shield = "[shield]\nlist = [{ name = \"drop\", file = \"/drop.txt\", action = \"block\" }]\n\
                      rule = [{ match = \"udp\", action = \"limit\", rate = \"10kpps\" }]\n\
                      limits = { packets = \"5kpps\", source = \"9pps\" }\n";
        let mut status = status(shield, None);
        let limits = &mut status.limits[0];
        let found = Arrivals { packets: 4712, over_source: 4715, learnt: 8, ..Arrivals::default() };
        limits.count(found);
        limits.arm(
            Limits { source: Some(RateLimit::new(7)), ..limits.limits() },
            Timestamp::default(),
        );
        limits.arrived_packets_per_second = Some(12_300.0);
        status.counted_since = Some(Timestamp(SystemTime::now() - Duration::from_secs(720)));
        status.heavy_source_count = 23;
        status.heavy_sources.push(heavy_source("192.0.2.0/24", Protocol::Udp));
        status.blocked = RuntimeCount { prefixes: 2, packets: 7, ..RuntimeCount::default() };
        status.rules[0].packets = 4711;
        status.rules[0].over_limit_packets = 4709;
        status.observed = [(Reason::Malformed, 3)].into();
        let shown = render(&status, false);
        for words in [
            "protects services; sanity checks on",
            "2 prefixes blocked, 7 packets, -/s",
            "would have dropped while it observed: 3 packets, malformed",
            "/drop.txt",
            "limit 10kpps",
            "rule 1",
            "4711",
            "-           4709  udp",
            " (12 min)",
            "web tcp     12.3 k            -        -     4712          0            0       8",
            "packets  5kpps     configuration                                0  drops -/s",
            "source   7pps      mitigation until 1970-01-01T00:00:00Z     4715  drops -/s",
            "192.0.2.0/24",
            "and 22 other heavy sources\n",
            "web udp",
            "18000",
        ] {
            assert!(shown.contains(words), "no {words} in {shown}");
        }
    }

    #[test]
    fn answers_to_syns_are_shown_with_their_secret() {
        let shield = "[shield]\nsyn = { always = true, secret = \"/etc/syn.secret\" }\n";
        let text = shield.to_owned() + &SERVICE.replace("port =", "syn = \"challenge\"\nport =");
        let config = ringway_config::parse(&text, "gw.toml").expect("valid");
        let mut status = ShieldStatus::new(&config, &RuntimeShield::default());
        let found = Arrivals {
            syns_answered: 900,
            answers_met: 31,
            answers_failed: 7,
            ..Arrivals::default()
        };
        status.limits.iter_mut().for_each(|limits| limits.count(found));
        let secrets = |is_shared| SynSecrets {
            present: "0123abcd".into(),
            former: Some("99999999".into()),
            is_shared,
            since: SystemTime::UNIX_EPOCH,
        };
        status.enter_secrets(&config, Some(secrets(true)));
        let shown = render(&status, false);
        let line = "SYNs are answered with the secret of /etc/syn.secret: fingerprint 0123abcd, since \
                    1970-01-01T00:00:00Z; 99999999, the one before, still counts\n";
        assert!(shown.contains(line), "{shown}");
        let words = row(&shown, "challenge");
        assert_eq!(words, ["web", "tcp", "challenge", "900", "-", "31", "-", "7", "-", "-"]);
        status.mode = ShieldMode::Observe;
        status.observed = [(Reason::SynAnswered, 741)].into();
        let shown = render(&status, false);
        for words in ["would answer: challenge ", "would answer: 741 packets, syn-answered\n"] {
            assert!(shown.contains(words), "no {words} in {shown}");
        }
        status.mode = ShieldMode::Enforce;
        status.limits[0].syn = "backend".into();
        status.limits[0].count(found);
        let shown = render(&status, false);
        let words = row(&shown, "backend");
        assert_eq!(words, ["web", "tcp", "backend", "900", "-", "-", "-", "-", "-", "-"]);
        status.limits[0].syn = "challenge".into();
        let offer = SynOffer { mss: 1460, stamps: false, sack: true, ecn: true };
        status.limits[0].promises = Some(offer.into());
        assert!(render(&status, false).contains("-  MSS 1460, SACK, ECN\n"), "{status:?}");
        status.limits[0].promises = Some(SynOffer::default().into());
        assert!(render(&status, false).contains("-  MSS unknown\n"), "{status:?}");
        status.enter_secrets(&config, Some(secrets(false)));
        assert!(render(&status, false).contains("a key of this node's own"));
        let none = super::tests::status("[shield]\nlimits = { source = \"9pps\" }\n", None);
        assert!(!render(&none, false).contains("answered"));
    }

    #[test]
    fn of_many_services_those_with_most_over_limits_are_shown() {
        let mut status = status("[shield]\nlimits = { source = \"9pps\" }\n", None);
        status.limits = (1..=20)
            .map(|n| LimitsStatus {
                service: format!("s{n}"),
                over_limit_packets: n,
                ..status.limits[0].clone()
            })
            .collect();
        let shown = render(&status, false);
        assert!(shown.contains("  s5 tcp") && !shown.contains("  s4 tcp"), "{shown}");
        assert!(shown.contains("4 services with less over limits"), "{shown}");
        assert!(shown.contains("heavy sources: none in the last minute"), "{shown}");
    }

    #[test]
    fn while_it_is_off_nothing_is_known() {
        let until = Timestamp::default();
        let over = |mode| Some(ModeOverride { mode, until, ends: None });
        let shield =
            "[shield]\nlimits = { source = \"9pps\" }\n[shield.mitigation]\nabove_baseline = 8\n";
        let shown = |mode| {
            let mut status = status(shield, over(mode));
            status.limits[0].arrived_packets_per_second = Some(0.0);
            render(&status, false)
        };
        let off = shown(ShieldMode::Off);
        assert!(off.contains("no packet is looked at") && !off.contains("is attacked"), "{off}");
        assert_eq!(row(&off, "web tcp")[2], "-");
        let observed = shown(ShieldMode::Observe);
        assert!(observed.contains("no service is attacked"), "{observed}");
        assert_eq!(row(&observed, "web tcp")[2], "0");
    }

    #[test]
    fn a_service_that_is_attacked_is_shown() {
        let mitigation = "[shield.mitigation]\nabove_baseline = 8\n";
        let mut status = status(&format!("[shield]\n{mitigation}"), None);
        assert!(render(&status, false).contains("automatic mitigation: no service is attacked\n"));
        let (measure, baseline) = (Some(Measure::NewFlows), Some(300));
        status.mitigation[0].attack = Some(AttackStatus { measure, baseline, ..attack() });
        let shown = render(&status, false);
        let want = "service web (tcp 203.0.113.10:80): attacked since 1970-01-01T00:00:00Z, armed \
                    until 1970-01-01T00:00:00Z: 412000 packets/s, 390000 new flows/s; usually 300 \
                    new flows/s\n";
        assert!(shown.contains(want) && !shown.contains("no service"), "{shown}");
        let attack = status.mitigation[0].attack.as_mut().unwrap();
        (attack.syn, attack.syns_answered_per_second) = ("proxy".into(), 389_000);
        let shown = render(&status, false);
        let want =
            "; usually 300 new flows/s; SYNs are answered (syn = \"proxy\"), 389000 a second\n";
        assert!(shown.contains(want), "{shown}");
        let attack = status.mitigation[0].attack.as_mut().unwrap();
        attack.syn = "off".into();
        (attack.ended, attack.new_flows_per_second) = (Some(Timestamp::default()), 7);
        let shown = render(&status, false);
        let want = "attacked from 1970-01-01T00:00:00Z to 1970-01-01T00:00:00Z, armed until \
                    1970-01-01T00:00:00Z if nothing more comes: now 412000 packets/s, 7 new flows/s\n";
        assert!(shown.contains(want), "{shown}");
    }

    #[test]
    fn what_was_typed_is_listed() {
        let listed = |shield: &str, running, prefixes: &[&str]| {
            let text = shield.to_owned() + SERVICE;
            let config = ringway_config::parse(&text, "gw.toml").unwrap();
            let all = prefixes.iter().map(|prefix| block(prefix)).collect();
            let runtime = RuntimeShield { entries: all, ..RuntimeShield::default() };
            entries(&Blocked::new(&config, running, &runtime), false)
        };
        let nothing = listed("[shield]\n", true, &[]);
        assert_eq!(nothing, "node gw: nothing was blocked or allowed at run time\n");
        let one = listed("[shield]\n", false, &["2001:db8::/32"]);
        for words in ["no daemon runs", "2001:db8::/32", "no end", "scans"] {
            assert!(one.contains(words), "{one}");
        }
        let idle = listed("", true, &["2001:db8::/32"]);
        assert!(idle.starts_with("node gw: not in force, as the configuration has no [shield]"));
    }
}
