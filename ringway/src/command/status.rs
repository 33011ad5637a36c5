//! `ringway status`: a node as it stands.

mod extent;
mod problems;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway_abi::Faces;
use ringway_api::client::node_selector::NodeSelector;
use ringway_api::client::{ready, status_query};
use ringway_api::documents::forward::ForwardStatus;
use ringway_api::documents::health::Health;
use ringway_api::documents::status::{
    Backend, Capture, Counter, Daemon, FlowTable, Interface, Ledger, Loss, Problem, Rates, Service,
    Status, Tracked,
};
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::counted;
use ringway_config::{Announce, SourceMode};
use ringway_kernel::XdpMode;

use crate::cli::{Output, StatusArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone, paint};
use crate::top::verdict_tone;
use crate::units;

use extent::{Extent, Shown};

/// Asks the daemon, or reads the pins when there is none.
pub fn main(args: &StatusArgs) -> anyhow::Result<Exit> {
    let selector = args.node.selector();
    if args.ready {
        return ready(args, &selector);
    }
    if args.memory {
        return super::memory::main(args);
    }
    let mut status = status_query::status(&selector)?;
    if let Some(name) = &args.service {
        narrow(&mut status, name)?;
    }
    match args.output.output {
        Output::Json => table::json(&status)?,
        Output::Table => {
            let whole = args.all || args.service.is_some();
            let extent = if whole { Extent::Whole } else { Extent::Short };
            table::print(&render(&status, args.ledger, extent, table::colour()))?;
        }
    }
    Ok(if status.healthy { Exit::Done } else { Exit::Unhealthy })
}

/// Leaves the services of this name; the node's own state stays what it is.
fn narrow(status: &mut Status, name: &str) -> Result<(), Error> {
    if !status.services.iter().any(|service| service.name == name) {
        let mut names: Vec<&str> = status.services.iter().map(|s| s.name.as_str()).collect();
        names.dedup();
        return Err(Error::configuration(
            format!("there is no service {name:?}"),
            format!("there are: {}", names.join(", ")),
        ));
    }
    status.services.retain(|service| service.name == name);
    Ok(())
}

/// Never fails: whoever asks takes another exit code for an answer, too.
fn ready(args: &StatusArgs, selector: &NodeSelector<'_>) -> anyhow::Result<Exit> {
    let readiness = ready::ask(selector, args.service.as_deref());
    match args.output.output {
        Output::Json => table::json(&readiness)?,
        Output::Table => table::print(&format!("{}\n", readiness.line()))?,
    }
    Ok(if readiness.ready { Exit::Done } else { Exit::Unhealthy })
}

fn render(status: &Status, ledger: bool, extent: Extent, colour: bool) -> String {
    let mut text = heading(status, colour);
    // What this machine cannot tell is no news: it is counted, below what is.
    let (unknown, known): (Vec<&Problem>, Vec<&Problem>) =
        status.findings.iter().partition(|f| f.kind == ProblemKind::CheckHostUnknown);
    let all: Vec<&Problem> = status.problems.iter().collect();
    text += &problems::render("problem", Tone::Bad, &all, extent, colour);
    text += &problems::render("finding", Tone::Warn, &known, extent, colour);
    text += &part("interfaces", interfaces(&status.interfaces), extent, colour);
    if let Some(forward) = &status.forward {
        text += &section(&forward_title(forward), &forward_table(forward), colour);
    }
    let shown = extent::services(status, extent);
    text += &section("services", &services(status, &shown), colour);
    text += &shown.rest().map_or_else(String::new, |rest| format!("  {rest}\n"));
    text += &section("since it was loaded", &traffic(status, &shown), colour);
    if let Some(table) = status.flow_table.as_ref().filter(|_| !status.only_forwards()) {
        text += &format!("\nflows now: {}\n", flows(table));
    }
    if let Some(tracked) = status.tracked.as_ref().filter(|tracked| tracked.in_use()) {
        text += &format!("dsr flows with a record now: {}\n", records(tracked));
    }
    text += &part("packets", counters(status), extent, colour);
    text += &part("lost after our verdict", losses(&status.losses), extent, colour);
    text += &part("captures under way", captures(&status.captures), extent, colour);
    if ledger {
        text += &section("ledger", &ledgers(status), colour);
        let (sent, lost) = status.sent_and_lost();
        text +=
            &format!("\nof {sent} packets sent on, {lost} were dropped by the kernel afterwards\n");
    }
    text + &unknowns(&unknown, extent, colour)
}

fn unknowns(unknown: &[&Problem], extent: Extent, colour: bool) -> String {
    if unknown.is_empty() {
        return String::new();
    }
    let count: usize = unknown.iter().map(|finding| finding.subjects.len().max(1)).sum();
    let checks = counted(count, "host check");
    let mut text =
        format!("\n{checks} could not be completed; `ringway check --host` lists it all\n");
    for finding in unknown.iter().filter(|_| extent == Extent::Whole) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}", paint(&finding.error, Tone::Dim, colour));
    }
    text
}

/// A table of which a screen takes the first rows.
fn part(title: &str, mut table: Table, extent: Extent, colour: bool) -> String {
    let all = table.len();
    let shown = extent.rows(all);
    table.keep(shown);
    let text = section(title, &table, colour);
    if shown == all { text } else { format!("{text}  … and {} more (`--all`)\n", all - shown) }
}

fn forward_title(forward: &ForwardStatus) -> String {
    let beside = match (&forward.bridge, forward.mode.as_str()) {
        (None, "bridge") if forward.interfaces.is_empty() => "beside a bridge".to_owned(),
        (Some(bridge), _) => format!("beside bridge {bridge}"),
        (None, "bridge") => "beside a bridge that is not there".to_owned(),
        (None, _) => "beside the kernel's routes".to_owned(),
    };
    let known = forward.stations.map_or_else(String::new, |stations| {
        format!(", {} known", counted(stations as usize, "station"))
    });
    let left_out = match forward.stations_left_out.unwrap_or_default() {
        0 => String::new(),
        stations => format!(", {stations} without room"),
    };
    format!("forwarding {beside}{known}{left_out}")
}

fn forward_table(forward: &ForwardStatus) -> Table {
    let mut table = Table::new(&["interface", "forwards", "why not"]);
    for port in &forward.interfaces {
        let why = match forward.suspended {
            true if port.reason.is_empty() => "suspended: see the problem above",
            _ => &port.reason,
        };
        let (word, tone) = if port.forwards { ("yes", Tone::Good) } else { ("no", Tone::Warn) };
        table.row(vec![
            Cell::new(port.interface.as_str()),
            Cell::new(word).tone(tone),
            Cell::new(why),
        ]);
    }
    table
}

fn captures(all: &[Capture]) -> Table {
    let mut table = Table::new(&["process", "since", "matched", "lost", "command"]);
    for one in all {
        table.row(vec![
            Cell::number(one.pid),
            Cell::new(one.since.to_string()),
            Cell::number(one.matched_packets),
            Cell::number(one.lost_packets),
            Cell::new(one.command.as_str()),
        ]);
    }
    table
}

fn section(title: &str, table: &Table, colour: bool) -> String {
    if table.is_empty() { String::new() } else { format!("\n{title}\n{}", table.render(colour)) }
}

fn heading(status: &Status, colour: bool) -> String {
    let Daemon { running, pid, .. } = &status.daemon;
    let since = status.daemon.since_text();
    if !running {
        let first = paint(&format!("daemon not running since {since}"), Tone::Bad, colour);
        let goes_on = match status.only_forwards() {
            true => "its programs pass every packet to the kernel, until it is started again",
            false => "the packet path goes on as it was left",
        };
        return format!("{first}\nnode {}; {goes_on}\n", status.node);
    }
    if pid.is_none() && status.from_pins {
        let word = paint("its daemon is starting", Tone::Warn, colour);
        return format!("node {}: {word}\n", status.node);
    }
    let (word, tone) = match status.from_pins {
        true => ("its daemon does not answer".to_owned(), Tone::Bad),
        false => health(status),
    };
    let pid = pid.map_or_else(String::new, |pid| format!(" as process {pid}"));
    let word = paint(&word, tone, colour);
    format!("node {}: {word}, daemon running since {since}{pid}\n", status.node)
}

fn health(status: &Status) -> (String, Tone) {
    match (status.healthy, status.lacking()) {
        (false, _) => ("unhealthy".into(), Tone::Bad),
        (true, (0, _)) => ("healthy".into(), Tone::Good),
        (true, (lacking, all)) => {
            let verb = if lacking == 1 { "gets" } else { "get" };
            (
                format!("healthy, degraded: {lacking} of {all} backends {verb} no traffic"),
                Tone::Warn,
            )
        }
    }
}

fn interfaces(interfaces: &[Interface]) -> Table {
    let mut table = Table::new(&[
        "name",
        "attached",
        "link",
        "faces",
        "mode",
        "packets",
        "per second",
        "why this mode",
    ]);
    for interface in interfaces {
        let attached = match interface.attached {
            true => Cell::new("yes").tone(Tone::Good),
            false => Cell::new("no").tone(Tone::Bad),
        };
        let link = Some(interface.link_id).filter(|id| *id != 0);
        table.row(vec![
            Cell::new(&interface.name),
            attached,
            // Without a daemon neither is known.
            Cell::number(link.map_or_else(|| "-".to_owned(), |id| id.to_string())),
            Cell::new(interface.faces.map_or("-", Faces::name)),
            Cell::new(interface.mode.map_or("", XdpMode::name)),
            Cell::number(interface.ledger.seen_packets),
            Cell::number(units::rate(interface.rate_pps)),
            Cell::new(&interface.mode_reason).tone(Tone::Dim),
        ]);
    }
    table
}

fn services(status: &Status, shown: &Shown<'_>) -> Table {
    let mut table = Table::new(&[
        "service",
        "backend",
        "health",
        "weight",
        "flows now",
        "new/s",
        "packets/s",
        "bits/s",
        "replies/s",
        "bits/s",
        "remark",
    ]);
    for (service, backends) in &shown.services {
        let tone = if service.serving() == 0 { Tone::Bad } else { Tone::Plain };
        let mut row = vec![
            Cell::new(&service.name),
            Cell::new(format!("{} {}", service.key().endpoint(), service.protocol)),
            Cell::new(health_of(service.backends.iter())).tone(tone),
            Cell::number(""),
            Cell::number(units::count(service.current_flows)),
        ];
        row.extend(rates(service.rates.as_ref()));
        row.push(Cell::new(remark(service)).tone(Tone::Dim));
        table.row(row);
        backends.iter().for_each(|backend| table.row(backend_row(backend)));
    }
    if shown.rest().is_some() {
        let all = || status.services.iter();
        // As far as they are known.
        let flows = all().filter_map(|service| service.current_flows);
        let mut sum: Option<Rates> = None;
        let known = all().filter_map(|service| service.rates.as_ref());
        known.for_each(|rates| sum.get_or_insert_default().add(rates));
        let mut row = vec![
            Cell::new("all"),
            Cell::new(counted(status.services.len(), "service")),
            Cell::new(health_of(all().flat_map(|service| &service.backends))),
            Cell::number(""),
            Cell::number(units::count(flows.reduce(|sum, more| sum + more))),
        ];
        row.extend(rates(sum.as_ref()));
        table.row(row);
    }
    table
}

fn health_of<'b>(backends: impl Iterator<Item = &'b Backend> + Clone) -> String {
    let last_known = backends.clone().any(|backend| backend.last_health.is_some());
    format!("{}{}", if last_known { "last known: " } else { "" }, serving(backends))
}

/// How many backends get traffic; those that an operator, or the file, keeps it from are no
/// failures.
fn serving<'b>(backends: impl Iterator<Item = &'b Backend> + Clone) -> String {
    let up = backends.clone().filter(|backend| backend.serves()).count();
    let all = backends.clone().count();
    let withheld = backends.filter(|backend| backend.withheld().is_some());
    let (drained, idle): (Vec<_>, Vec<_>) = withheld.partition(|backend| backend.drained);
    let counts = [(drained.len(), "drained"), (idle.len(), "of weight 0")];
    let counts = counts.iter().filter(|(n, _)| *n > 0);
    match counts.clone().find(|(n, _)| *n == all) {
        Some((_, word)) => format!("{all}/{all} {word}"),
        None => {
            counts.fold(format!("{up}/{all} up"), |text, (n, word)| format!("{text}, {n} {word}"))
        }
    }
}

/// New flows, packets and bits there, packets and bits back; per second.
fn rates(rates: Option<&Rates>) -> [Cell; 5] {
    let of: [fn(&Rates) -> f64; 5] = [
        |r| r.new_flows_per_s,
        |r| r.rate_pps,
        |r| r.rate_bps,
        |r| r.reply_rate_pps,
        |r| r.reply_rate_bps,
    ];
    of.map(|of| Cell::number(units::rate(rates.map(of))))
}

/// Counters since the packet path was loaded.
fn traffic(status: &Status, shown: &Shown<'_>) -> Table {
    let mut table =
        Table::new(&["service", "backend", "flows begun", "packets", "bytes", "replies", "bytes"]);
    let of: [fn(&Backend) -> u64; 5] =
        [|b| b.flows, |b| b.packets, |b| b.bytes, |b| b.reply_packets, |b| b.reply_bytes];
    let mut sums = |name: &str, what: String, backends: &mut dyn Iterator<Item = &Backend>| {
        let backends: Vec<&Backend> = backends.collect();
        let sum = |of: fn(&Backend) -> u64| backends.iter().map(|backend| of(backend)).sum::<u64>();
        let mut row = vec![Cell::new(name), Cell::new(what)];
        row.extend(of.map(|of| Cell::number(sum(of))));
        table.row(row);
    };
    if shown.rest().is_some() {
        let all = status.services.iter().flat_map(|service| &service.backends);
        sums("all", counted(status.services.len(), "service"), &mut { all });
        return table;
    }
    for (service, backends) in &shown.services {
        let what = format!("{} {}", service.key().endpoint(), service.protocol);
        sums(&service.name, what, &mut service.backends.iter());
        for backend in backends {
            sums("", format!("  {}", backend.shown()), &mut std::iter::once(*backend));
        }
    }
    table
}

fn records(tracked: &Tracked) -> String {
    let Tracked { capacity_flows, promoted_flows, probation_flows, .. } = tracked;
    let refused = tracked.refused_full_flows + tracked.refused_quota_flows;
    format!(
        "{} of at most {capacity_flows} ({probation_flows} on probation, so new flows may take their place; \
         {refused} refused so far)",
        promoted_flows + probation_flows
    )
}

fn flows(table: &FlowTable) -> String {
    let states: BTreeMap<&str, u64> =
        table.current_flows_by_state.iter().map(|(state, count)| (state.name(), *count)).collect();
    let states: Vec<String> =
        states.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    let states =
        if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
    let age = match table.age_ms / 1000 {
        0 => String::new(),
        seconds => format!(", counted {seconds} s ago"),
    };
    format!("{} of at most {}{states}{age}", table.current_flows, table.capacity_flows)
}

fn remark(service: &Service) -> String {
    let mut words = vec![service.forward.name()];
    if service.source == SourceMode::Client {
        words.push("source client");
    }
    words.extend(service.answers.map(|answers| match answers {
        Announce::Kernel => "the kernel answers",
        Announce::Arp => "Ringway answers ARP and ND",
        Announce::Routed => "routed to this node",
    }));
    words.join(", ")
}

fn backend_row(backend: &Backend) -> Vec<Cell> {
    let tone = match backend.health {
        _ if backend.serves() && backend.last_health.is_none() => Tone::Good,
        _ if backend.serves() => Tone::Warn,
        Health::Up | Health::Unchecked => Tone::Warn,
        Health::Unknown | Health::Down => Tone::Bad,
    };
    let mut row = vec![
        Cell::new(""),
        Cell::new(format!("  {}", backend.shown())),
        Cell::new(backend.health_text()).tone(tone),
        Cell::number(backend.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string())),
        Cell::number(units::count(backend.current_flows)),
    ];
    row.extend(rates(backend.rates.as_ref()));
    row.push(Cell::new(backend_remark(backend)).tone(Tone::Dim));
    row
}

fn backend_remark(backend: &Backend) -> String {
    let way = backend.next_hop.as_ref().map(|hop| match hop.mac.is_zero() {
        true => hop.interface.clone(),
        false => format!("{} via {}", hop.interface, hop.mac),
    });
    // Only a daemon knows weights; what it took over it did not see change.
    let inherited = matches!(backend.health, Health::Up | Health::Down) && backend.weight.is_some();
    let since = match &backend.since {
        Some(since) => Some(format!("since {since}")),
        None => inherited.then(|| "since before this daemon began".to_owned()),
    };
    let words = [weight_remark(backend), since, backend.reason.clone(), way];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Where its weight is not simply what the file says.
fn weight_remark(backend: &Backend) -> Option<String> {
    let slow = backend.slow_start_percent.map(|percent| format!("slow start: {percent} %"));
    let Some(file) = backend.file_weight else { return slow };
    let drained = if backend.drained { "drained, " } else { "" };
    let slow = slow.map_or_else(String::new, |slow| format!(", {slow}"));
    Some(format!("{drained}override; file says {file}{slow}"))
}

/// All interfaces together, most frequent first.
fn counters(status: &Status) -> Table {
    let mut sums: BTreeMap<_, (&Counter, u64, Option<f64>)> = BTreeMap::new();
    for counter in &status.counters {
        let names = (counter.verdict.name(), counter.reason.name());
        let sum = sums.entry(names).or_insert((counter, 0, Some(0.0)));
        sum.1 += counter.packets;
        sum.2 = sum.2.zip(counter.rate_pps).map(|(sum, more)| sum + more);
    }
    let mut sums: Vec<_> = sums.into_values().collect();
    sums.sort_by_key(|(_, packets, _)| std::cmp::Reverse(*packets));
    let mut table = Table::new(&["verdict", "reason", "packets", "per second"]);
    for (Counter { verdict, reason, .. }, packets, rate) in sums {
        table.row(vec![
            Cell::new(verdict.name()).tone(verdict_tone(*verdict)),
            Cell::new(reason.name()),
            Cell::number(packets),
            Cell::number(units::rate(rate)),
        ]);
    }
    table
}

/// Packets that the kernel dropped after they were sent on, each with its remedy.
fn losses(losses: &[Loss]) -> Table {
    let mut table = Table::new(&["interface", "reason", "packets", "per second", "to do"]);
    for loss in losses {
        table.row(vec![
            Cell::new(&loss.interface),
            Cell::new(loss.reason.name()).tone(Tone::Warn),
            Cell::number(loss.packets),
            Cell::number(units::rate(loss.rate_pps)),
            Cell::new(loss.reason.next()).tone(Tone::Dim),
        ]);
    }
    table
}

fn ledgers(status: &Status) -> Table {
    let mut table = Table::new(&["interface", "seen", "sum of verdicts", "difference"]);
    let each = status.interfaces.iter().map(|each| (each.name.as_str(), each.ledger));
    for (name, ledger) in each.chain([("all", status.ledger)]) {
        let Ledger { seen_packets, sum_packets, difference_packets } = ledger;
        let tone = if difference_packets == 0 { Tone::Good } else { Tone::Bad };
        table.row(vec![
            Cell::new(name),
            Cell::number(seen_packets),
            Cell::number(sum_packets),
            Cell::number(difference_packets).tone(tone),
        ]);
    }
    table
}

#[cfg(test)]
mod tests;
