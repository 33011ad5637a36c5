//! `ringway explain`: what the loaded program would do with a packet, and why.

use ringway_abi::{Exemption, Reason, ShieldMode, Verdict};
use ringway_api::documents::shield::is_answered;
use ringway_api::error::Error;
use ringway_config::RateLimit;
use ringway_inspect::explain::{self, Explanation, Shape, What, tuple};

use crate::cli::{ExplainArgs, Output};
use crate::command::shield::rule_name;
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};

/// Backends shown of a service that has none for the packet; `-o json` has all.
const BACKENDS_SHOWN: usize = 8;

/// Asks the dry instance, and prints what it found.
pub fn main(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let selector = args.node.selector();
    let what = what(args)?;
    let explanation = explain::explain(&selector, &args.interface, &what)?;
    match args.output.output {
        Output::Json => table::json(&explanation)?,
        Output::Table => table::print(&render(&explanation, table::colour()))?,
    }
    Ok(Exit::Done)
}

fn what(args: &ExplainArgs) -> Result<What<'_>, Error> {
    if let Some(file) = &args.read {
        return Ok(What::Captured(file, args.number));
    }
    let shape = Shape {
        tcp_flags: tuple::flags(&args.flags)?,
        bytes: args.bytes,
        ttl: args.ttl,
        source_mac: args.source_mac,
        destination_mac: args.destination_mac,
        vlan: args.vlan,
    };
    let tuple = args.packet.join(" ").parse()?;
    Ok(What::Tuple(tuple, shape))
}

fn render(it: &Explanation, colour: bool) -> String {
    let mut steps = Table::new(&["step", "found"]);
    let mut step = |name: &str, found: Cell| steps.row(vec![Cell::new(name), found]);
    step("interface", Cell::new(format!("{}, slot {}", it.interface, it.slot)));
    step("service", service(it));
    if let Some(found) = &it.shield {
        step("shield", shield(found));
    }
    if it.service.is_some() {
        step("flow", Cell::new(flow(it)));
    }
    if let Some(ring) = &it.ring {
        step("ring slot", Cell::new(slot(ring)));
    }
    for backend in asked(it) {
        step("backend", health(backend));
    }
    if let Some(way) = &it.next_hop {
        let mac = way.mac.as_deref().unwrap_or("no MAC address");
        step("next hop", Cell::new(format!("{} via {mac}", way.interface)));
    }
    let tone = match it.verdict {
        Verdict::Drop | Verdict::Aborted => Tone::Bad,
        Verdict::Pass => Tone::Warn,
        Verdict::Tx | Verdict::Redirect => Tone::Good,
    };
    step("verdict", Cell::new(format!("{}, {}", it.verdict.name(), it.reason.name())).tone(tone));
    let mut text = format!(
        "what node {} would do with {}\n{}\n{}\n",
        it.node,
        it.packet,
        steps.render(colour),
        it.meaning
    );
    if let Some(next) = &it.next {
        text += &format!("  cause: {}\n  to do: {next}\n", it.cause);
    }
    text
}

/// The backend that it is meant for; where there is none, those that could have been.
fn asked(it: &Explanation) -> impl Iterator<Item = &explain::Backend> {
    let nobody = it.backend.is_none() && it.ring.is_some();
    let all = it.service.iter().filter(move |_| nobody).flat_map(|service| &service.backends);
    it.backend.iter().chain(all.take(BACKENDS_SHOWN))
}

fn service(it: &Explanation) -> Cell {
    match &it.service {
        Some(service) => {
            Cell::new(format!("{}, {}, {}", service.name, service.endpoint, service.forward))
        }
        None if it.services_there.is_empty() => Cell::new("none").tone(Tone::Warn),
        None => {
            let there = it.services_there.join("; ");
            Cell::new(format!("none; that address has {there}")).tone(Tone::Warn)
        }
    }
}

fn shield(it: &explain::Shield) -> Cell {
    let why = limited(it)
        .or_else(|| listed(it))
        .or_else(|| ruled(it))
        .or_else(|| it.reason.map(str::to_owned))
        .unwrap_or_else(|| "passed".to_owned());
    let answered = it.reason.and_then(Reason::by_name).is_some_and(is_answered);
    match (it.mode, it.reason) {
        (ShieldMode::Off, _) => Cell::new("off").tone(Tone::Warn),
        (_, None) => Cell::new(why).tone(Tone::Good),
        _ if it.dropped => Cell::new(why).tone(Tone::Bad),
        (ShieldMode::Observe, Some(_)) => {
            let done = if answered { "answered" } else { "dropped" };
            Cell::new(format!("{why}; would be {done}: observe mode")).tone(Tone::Warn)
        }
        _ if answered => Cell::new(why),
        _ => Cell::new(format!("{why}; not dropped: its connection is established")),
    }
}

/// The limit of its service that it is over, and what lets it pass all the same.
fn limited(it: &explain::Shield) -> Option<String> {
    let limit = it.limit?.name();
    let rate =
        it.limit_pps.map_or_else(String::new, |pps| format!(" {}", RateLimit::new(pps).rate()));
    let until = it.mitigation_until;
    let until = until.map_or_else(String::new, |until| format!(" of mitigation until {until}"));
    let over = format!("over {limit}{rate}{until}");
    match (it.reason, it.exempt) {
        (Some(reason), _) => Some(format!("{reason}: {over}")),
        (None, Some(Exemption::Learnt)) => {
            Some(format!("passed: its source is known, within allow_rate; {over}"))
        }
        (None, _) => Some(format!("passed: established flow, within flow_rate; {over}")),
    }
}

/// By whom its source is allowed or blocked.
fn listed(it: &explain::Shield) -> Option<String> {
    let (done, command) = match it.reason {
        Some(_) => ("blocked", "block"),
        None => ("allowed", "allow"),
    };
    if let Some(list) = &it.list {
        return Some(format!("{done} by list {list}"));
    }
    let about = it.entry.as_ref().map_or_else(String::new, |entry| {
        let until = entry.until.map_or_else(String::new, |until| format!(" until {until}"));
        let reason = if entry.reason.is_empty() { "" } else { ", " };
        format!(" ({}{until}{reason}{})", entry.prefix, entry.reason)
    });
    it.at_run_time.then(|| format!("{done} by `ringway {command}`{about}"))
}

/// The rule that decided, and what it does.
fn ruled(it: &explain::Shield) -> Option<String> {
    let (rule, action) = (it.rule.as_ref()?, it.rule_action.unwrap_or("unknown"));
    let rate = match it.reason {
        Some(reason) if reason == Reason::RuleLimit.name() => ": over its rate",
        None if action == "limit" => ": within its rate",
        _ => "",
    };
    Some(format!("{}, {action}{rate}", rule_name(rule)))
}

fn flow(it: &Explanation) -> String {
    let begins = match &it.begins_as {
        Some(source) => format!("it begins one; its backend sees {source}, or another free port"),
        None => String::new(),
    };
    let Some(flow) = &it.flow else {
        return if begins.is_empty() { "none".into() } else { format!("none: {begins}") };
    };
    let explain::Flow { state, client, idle_s, .. } = flow;
    let source = flow.source.as_deref().unwrap_or("an address that is gone");
    let backend = flow.backend.as_deref().unwrap_or("a backend that is gone");
    let probation =
        if flow.on_probation { ", on probation: a new flow may take its place" } else { "" };
    let over = if begins.is_empty() { String::new() } else { format!("; that is over: {begins}") };
    format!("{state}, {client} as {source} to {backend}, seen {idle_s} s ago{probation}{over}")
}

fn slot(ring: &explain::Ring) -> String {
    let name = |address: &Option<String>| address.clone().unwrap_or_else(|| "nobody".into());
    let current = name(&ring.current);
    match (ring.changing, ring.tracked) {
        (false, _) => format!("{}: {current}", ring.slot),
        (true, true) => format!("{} is changing, but this flow has a record", ring.slot),
        (true, false) => format!(
            "{} is changing: {current} gets new flows, {} those without a record",
            ring.slot,
            name(&ring.former)
        ),
    }
}

fn health(backend: &explain::Backend) -> Cell {
    let (word, tone) = match (backend.up, backend.withheld) {
        (true, None) => ("up".to_owned(), Tone::Good),
        (true, Some(why)) => (format!("up, but {why}"), Tone::Warn),
        (false, _) if backend.kept => ("down, its connections go on".to_owned(), Tone::Warn),
        (false, _) => ("down".to_owned(), Tone::Bad),
    };
    let reason = backend.reason.as_ref().map_or_else(String::new, |reason| format!(", {reason}"));
    let way = match &backend.next_hop {
        Some(_) => "",
        None => ", no way to it is known",
    };
    Cell::new(format!("{}, {word}{reason}{way}", backend.address)).tone(tone)
}

#[cfg(test)]
mod tests {
    use ringway_abi::Limit;
    use ringway_api::clock::Timestamp;

    use super::explain::Shield;
    use super::*;

    #[test]
    fn the_shield_is_told_with_what_it_goes_by() {
        let none = Shield {
            mode: ShieldMode::Enforce,
            dropped: false,
            reason: None,
            list: None,
            at_run_time: false,
            entry: None,
            rule: None,
            rule_action: None,
            limit: None,
            limit_pps: None,
            mitigation_until: None,
            exempt: None,
            limits: None,
        };
        let told = |it: &Shield| {
            let mut table = Table::new(&["found"]);
            table.row(vec![shield(it)]);
            table.render(false).lines().nth(1).unwrap_or_default().trim().to_owned()
        };
        let limit = Shield { rule: Some("dns".into()), rule_action: Some("limit"), ..none.clone() };
        let unnamed = Shield { rule: Some("rule 2".into()), ..limit.clone() };
        let over = Some(Reason::RuleLimit.name());
        let dropped = Shield { reason: over, dropped: true, ..limit.clone() };
        let observed = Shield { mode: ShieldMode::Observe, dropped: false, ..dropped.clone() };
        let spared = Shield {
            limit: Some(Limit::Source),
            limit_pps: Some(1500),
            exempt: Some(Exemption::Learnt),
            rule: Some("web".into()),
            rule_action: Some("pass"),
            ..none.clone()
        };
        let established = Shield { exempt: Some(Exemption::Established), ..spared.clone() };
        let over_limit = Shield {
            reason: Some(Reason::SourceLimit.name()),
            dropped: true,
            exempt: None,
            mitigation_until: Some(Timestamp::default()),
            ..spared.clone()
        };
        let untold = Shield { limit_pps: None, mitigation_until: None, ..over_limit.clone() };
        let land = Shield { reason: Some("land"), ..none.clone() };
        let off = Shield { mode: ShieldMode::Off, ..none.clone() };
        let (mode, reason) = (ShieldMode::Observe, Some(Reason::SynAnswered.name()));
        let would_answer = Shield { mode, reason, ..none.clone() };
        let answered = Shield { reason, ..none.clone() };
        // What was typed is not known without its file.
        let typed = Shield { at_run_time: true, ..none.clone() };
        for (it, want) in [
            (none, "passed"),
            (off, "off"),
            (typed, "allowed by `ringway allow`"),
            (limit, "rule dns, limit: within its rate"),
            (dropped, "rule dns, limit: over its rate"),
            (would_answer, "syn-answered; would be answered: observe mode"),
            (observed, "rule dns, limit: over its rate; would be dropped: observe mode"),
            (
                over_limit,
                "source-limit: over source 1500pps of mitigation until 1970-01-01T00:00:00Z",
            ),
            (untold, "source-limit: over source"),
            (spared, "passed: its source is known, within allow_rate; over source 1500pps"),
            (established, "passed: established flow, within flow_rate; over source 1500pps"),
            (unnamed, "rule 2, limit: within its rate"),
            (land, "land; not dropped: its connection is established"),
            (answered, "syn-answered"),
        ] {
            assert_eq!(told(&it), want);
        }
    }
}
