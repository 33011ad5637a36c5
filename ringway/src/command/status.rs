//! `ringway status`: a node as it stands.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringway_gateway::ask;
use ringway_gateway::health::Health;
use ringway_gateway::problem::Error;
use ringway_gateway::ready;
use ringway_gateway::status::{
    Backend, Capture, Daemon, FlowTable, Interface, Ledger, Loss, Problem, Rates, Service, Status,
    Tracked,
};
use ringway_gateway::trouble::Trouble;
use ringway_gateway::whom::Whom;

use crate::cli::{Output, StatusArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone, paint};
use crate::units;

/// Asks the daemon, or reads the pins when there is none.
pub fn main(args: &StatusArgs) -> anyhow::Result<Exit> {
    let whom = args.node.whom();
    if args.ready {
        return ready(args, &whom);
    }
    if args.memory {
        return super::memory::main(args);
    }
    let mut status = ask::status(&whom)?;
    if let Some(name) = &args.service {
        narrow(&mut status, name)?;
    }
    match args.output.output {
        Output::Json => table::json(&status)?,
        Output::Table => table::print(&render(&status, args.ledger, table::colour()))?,
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
fn ready(args: &StatusArgs, whom: &Whom<'_>) -> anyhow::Result<Exit> {
    let readiness = ready::ask(whom, args.service.as_deref());
    match args.output.output {
        Output::Json => table::json(&readiness)?,
        Output::Table => table::print(&format!("{}\n", readiness.line()))?,
    }
    Ok(if readiness.ready { Exit::Done } else { Exit::Unhealthy })
}

/// The whole status as text.
fn render(status: &Status, ledger: bool, colour: bool) -> String {
    let mut text = heading(status, colour);
    for problem in &status.problems {
        let mark = paint("problem", Tone::Bad, colour);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{mark}: {}\n  to do: {}", problem.error, problem.remedy);
    }
    // What this machine cannot tell is no news: it is said, but does not come before what is.
    let (unknown, known): (Vec<&Problem>, Vec<&Problem>) =
        status.findings.iter().partition(|f| f.kind == Trouble::CheckHostUnknown.name());
    for finding in known {
        let mark = paint("finding", Tone::Warn, colour);
        let _ = writeln!(text, "{mark}: {}", finding.error);
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "  to do: {}", finding.remedy);
        }
    }
    text += &section("interfaces", &interfaces(&status.interfaces), colour);
    text += &section("services", &services(&status.services), colour);
    text += &section("since it was loaded", &traffic(&status.services), colour);
    if let Some(table) = &status.flow_table {
        text += &format!("\nflows now: {}\n", flows(table));
    }
    if let Some(tracked) = status.tracked.as_ref().filter(|tracked| tracked.in_use()) {
        text += &format!("dsr flows with a record now: {}\n", records(tracked));
    }
    text += &section("packets", &counters(status), colour);
    text += &section("lost after our verdict", &losses(&status.losses), colour);
    text += &section("captures under way", &captures(&status.captures), colour);
    if ledger {
        text += &section("ledger", &books(status), colour);
        let (sent, lost) = status.sent_and_lost();
        text +=
            &format!("\nof {sent} packets sent on, {lost} were dropped by the kernel afterwards\n");
    }
    if !unknown.is_empty() {
        text += "\ncould not be found out (`ringway check --host` has each with what to do)\n";
    }
    for finding in unknown {
        let _ = writeln!(text, "  {}", paint(&finding.error, Tone::Dim, colour));
    }
    text
}

fn captures(all: &[Capture]) -> Table {
    let mut table = Table::new(&["process", "since", "matched", "lost", "command"]);
    for one in all {
        table.row(vec![
            Cell::number(one.pid),
            Cell::new(one.since.as_str()),
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
    let Daemon { running, pid, since, .. } = &status.daemon;
    let since = since.as_deref().unwrap_or("an unknown time");
    if !running {
        let first = paint(&format!("daemon not running since {since}"), Tone::Bad, colour);
        return format!("{first}\nnode {}; the packet path goes on as it was left\n", status.node);
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
    let mut table =
        Table::new(&["name", "attached", "mode", "packets", "per second", "why this mode"]);
    for interface in interfaces {
        let attached = match interface.attached {
            true => Cell::new("yes").tone(Tone::Good),
            false => Cell::new("no").tone(Tone::Bad),
        };
        table.row(vec![
            Cell::new(&interface.name),
            attached,
            Cell::new(&interface.mode),
            Cell::number(interface.ledger.seen_packets),
            Cell::number(units::rate(interface.rate_pps)),
            Cell::new(&interface.mode_reason).tone(Tone::Dim),
        ]);
    }
    table
}

fn services(services: &[Service]) -> Table {
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
    for service in services {
        let tone = if service.serving() == 0 { Tone::Bad } else { Tone::Plain };
        let last_known = service.backends.iter().any(|backend| backend.last_health.is_some());
        let last = if last_known { "last known: " } else { "" };
        let mut row = vec![
            Cell::new(&service.name),
            Cell::new(format!("{} {}", service.endpoint(), service.protocol)),
            Cell::new(format!("{last}{}", serving(service))).tone(tone),
            Cell::number(""),
            Cell::number(units::count(service.current_flows)),
        ];
        row.extend(rates(service.rates.as_ref()));
        row.push(Cell::new(remark(service)).tone(Tone::Dim));
        table.row(row);
        service.backends.iter().for_each(|backend| table.row(backend_row(backend)));
    }
    table
}

/// How many backends get traffic; those that an operator, or the file, keeps it from are no failures.
fn serving(service: &Service) -> String {
    let (up, all) = (service.serving(), service.backends.len());
    let withheld = service.backends.iter().filter(|backend| backend.withheld().is_some());
    let (drained, idle): (Vec<_>, Vec<_>) = withheld.partition(|backend| backend.drained);
    let count = |list: Vec<&Backend>, word: &str| match list.len() {
        0 => String::new(),
        n if n == all => format!("{n}/{all} {word}"),
        n => format!(", {n} {word}"),
    };
    let words = count(drained, "drained") + &count(idle, "of weight 0");
    if words.is_empty() || words.starts_with(',') { format!("{up}/{all} up{words}") } else { words }
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

/// What was counted since the packet path was loaded.
fn traffic(services: &[Service]) -> Table {
    let mut table =
        Table::new(&["service", "backend", "flows begun", "packets", "bytes", "replies", "bytes"]);
    let of: [fn(&Backend) -> u64; 5] =
        [|b| b.flows, |b| b.packets, |b| b.bytes, |b| b.reply_packets, |b| b.reply_bytes];
    for service in services {
        let sums = of.map(|of| Cell::number(service.backends.iter().map(of).sum::<u64>()));
        let mut row = vec![
            Cell::new(&service.name),
            Cell::new(format!("{} {}", service.endpoint(), service.protocol)),
        ];
        row.extend(sums);
        table.row(row);
        for backend in &service.backends {
            let mut row = vec![Cell::new(""), Cell::new(format!("  {}", backend.shown()))];
            row.extend(of.map(|of| Cell::number(of(backend))));
            table.row(row);
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
    let states = table.current_flows_by_state.iter();
    let states: Vec<String> = states.map(|(state, count)| format!("{count} {state}")).collect();
    let states =
        if states.is_empty() { String::new() } else { format!(" ({})", states.join(", ")) };
    let age = match table.age_ms / 1000 {
        0 => String::new(),
        seconds => format!(", counted {seconds} s ago"),
    };
    format!("{} of at most {}{states}{age}", table.current_flows, table.capacity_flows)
}

fn remark(service: &Service) -> String {
    let mut words = vec![service.forward.clone()];
    if service.source == "client" {
        words.push("source client".into());
    }
    words.push(match service.answers.as_str() {
        "kernel" => "the kernel answers".into(),
        "arp" => "Ringway answers ARP and ND".into(),
        "routed" => "routed to this node".into(),
        _ => String::new(),
    });
    words.retain(|word| !word.is_empty());
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
    let way = backend.next_hop.as_ref().map(|hop| match hop.mac.as_str() {
        "00:00:00:00:00:00" => hop.interface.clone(),
        mac => format!("{} via {mac}", hop.interface),
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
    let mut sums: BTreeMap<(&str, &str), (u64, Option<f64>)> = BTreeMap::new();
    for counter in &status.counters {
        let sum = sums.entry((&counter.verdict, &counter.reason)).or_insert((0, Some(0.0)));
        sum.0 += counter.packets;
        sum.1 = sum.1.zip(counter.rate_pps).map(|(sum, more)| sum + more);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (packets, _))| std::cmp::Reverse(*packets));
    let mut table = Table::new(&["verdict", "reason", "packets", "per second"]);
    for ((verdict, reason), (packets, rate)) in sums {
        let tone = match verdict {
            "drop" => Tone::Warn,
            "aborted" => Tone::Bad,
            _ => Tone::Plain,
        };
        table.row(vec![
            Cell::new(verdict).tone(tone),
            Cell::new(reason),
            Cell::number(packets),
            Cell::number(units::rate(rate)),
        ]);
    }
    table
}

/// What the kernel dropped of the packets sent on, each with what to do.
fn losses(losses: &[Loss]) -> Table {
    let mut table = Table::new(&["interface", "reason", "packets", "per second", "to do"]);
    for loss in losses {
        let next = ringway_abi::Loss::by_name(&loss.reason).map_or("", ringway_abi::Loss::next);
        table.row(vec![
            Cell::new(&loss.interface),
            Cell::new(&loss.reason).tone(Tone::Warn),
            Cell::number(loss.packets),
            Cell::number(units::rate(loss.rate_pps)),
            Cell::new(next).tone(Tone::Dim),
        ]);
    }
    table
}

fn books(status: &Status) -> Table {
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
