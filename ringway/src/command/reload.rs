//! `ringway reload`: the configuration file in force, or what it would change.

use std::fmt::Write as _;

use ringway_api::client::requests;
use ringway_api::documents::changes::{
    BackendChange, Changes, FlowChange, NewBackend, RingChange, What,
};
use ringway_api::error::Error;
use ringway_api::overrides::OverriddenBackend;
use ringway_api::text::counted;
use ringway_config::endpoint_text;

use crate::cli::{Output, ReloadArgs};
use crate::exit::Exit;
use crate::table::{self, Tone, paint};

/// Asks the daemon, and shows what it says.
pub fn main(args: &ReloadArgs) -> anyhow::Result<Exit> {
    let selector = args.node.selector();
    if args.strict {
        let would = requests::reload(&selector, true)?;
        if !would.warnings.is_empty() {
            show(&would, args.output.output)?;
            return Err(refused(would.warnings.len()).into());
        }
    }
    let changes = requests::reload(&selector, args.dry_run)?;
    show(&changes, args.output.output)?;
    Ok(Exit::Done)
}

fn refused(warnings: usize) -> Error {
    Error::failed(
        format!("not reloaded: --strict, and the file comes with {}", counted(warnings, "warning")),
        "correct what they report, or reload without --strict",
    )
}

/// Prints what has changed, or would.
pub fn show(changes: &Changes, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => table::json(changes)?,
        Output::Table => table::print(&render(changes, table::colour()))?,
    }
    Ok(())
}

fn render(changes: &Changes, colour: bool) -> String {
    let mut text = heading(changes);
    let mut line = |what: What, rest: String| {
        let (mark, tone) = match what {
            What::Added => ("+", Tone::Good),
            What::Removed => ("-", Tone::Bad),
            What::Changed => ("~", Tone::Warn),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {} {rest}", paint(mark, tone, colour));
    };
    for settings in &changes.settings {
        let details = match settings.as_str() {
            "shield" => format!(": {}", changes.shield.join(", ")),
            _ => String::new(),
        };
        line(What::Changed, format!("[{settings}]{details}"));
    }
    if let Some(secret) = &changes.syn_secret {
        line(What::Changed, secret.to_string());
    }
    for service in &changes.services {
        let keys = if service.keys.is_empty() { String::new() } else { ": ".into() };
        line(
            service.change,
            format!("service {}{keys}{}", service.service, service.keys.join(", ")),
        );
    }
    for backend in &changes.backends {
        line(backend.change, in_words(backend));
    }
    for RingChange { service, protocol, moved_slots, slots, once_up } in &changes.rings {
        let percent = *moved_slots as f64 * 100.0 / *slots as f64;
        line(
            What::Changed,
            format!(
                "ring of {service} {protocol}: {moved_slots} of {slots} slots move ({percent:.1} %){}",
                if *once_up { " once its new backends are up" } else { "" }
            ),
        );
    }
    for lost in &changes.lost_endpoints {
        let mark = paint("lost", Tone::Bad, colour);
        let _ = writeln!(text, "{mark}: clients of {lost}: nobody serves it any more");
    }
    if !changes.ended_services.is_empty() {
        let names = changes.ended_services.join(", ");
        let _ = writeln!(text, "all flows of {names} end{}", ended(&changes.flows));
    }
    if changes.changed && changes.backend.is_none() {
        text += &flows(&changes.flows, !changes.ended_services.is_empty());
    }
    for service in &changes.unserved_services {
        let mark = paint("warning", Tone::Bad, colour);
        let _ = writeln!(
            text,
            "{mark}: no backend of {service} takes new connections: `ringway status` says why"
        );
    }
    if !changes.dry_run {
        text += &idle(&changes.no_traffic_yet, colour);
    }
    for warning in &changes.warnings {
        let _ = writeln!(text, "{}: {}", paint("warning", Tone::Warn, colour), warning.short());
        if !warning.remedy.is_empty() {
            let _ = writeln!(text, "  to do: {}", warning.remedy);
        }
    }
    for orphan in &changes.orphaned_overrides {
        let mark = paint("warning", Tone::Warn, colour);
        let _ = writeln!(
            text,
            "{mark}: override for {orphan} no longer applies: the configuration has no such backend; \
             `ringway overrides clear` removes it"
        );
    }
    text
}

/// New backends that were asked, and get nothing.
fn idle(backends: &[NewBackend], colour: bool) -> String {
    const SHOWN: usize = 10;
    let mark = paint("no traffic yet", Tone::Warn, colour);
    let line = |new: &NewBackend| {
        let backend = endpoint_text((new.address, new.port).into());
        format!("{mark}: {} {backend} {}\n", new.service, new.reason)
    };
    let mut text: String = backends.iter().take(SHOWN).map(line).collect();
    if backends.len() > SHOWN {
        let more = backends.len() - SHOWN;
        text += &format!("{mark}: {more} more: `ringway status` says why\n");
    }
    text
}

fn heading(changes: &Changes) -> String {
    let Changes { node, file, took_ms, .. } = changes;
    let told = changes.backend.as_ref().map(backend_line);
    if let Some(cleared) = changes.cleared_overrides {
        let what = if cleared == 1 { "override is" } else { "overrides are" };
        let told = told.unwrap_or_default();
        return format!("node {node}: {cleared} {what} cleared (took {took_ms} ms)\n{told}");
    }
    if let Some(told) = told {
        return told;
    }
    match (changes.changed, changes.dry_run) {
        (false, _) => format!("node {node}: {file} changes nothing\n"),
        (true, true) => format!("node {node}: {file} would change this; nothing has changed\n"),
        (true, false) => format!("node {node}: {file} is in force (took {took_ms} ms)\n"),
    }
}

/// The backend after the change.
fn backend_line(change: &OverriddenBackend) -> String {
    let OverriddenBackend { service, weight, flows, .. } = change;
    let backend = endpoint_text((change.address, change.port).into());
    let goes = if *flows == 1 { "goes" } else { "go" };
    let flows = counted(*flows, "flow");
    let more =
        if change.some_are_not_counted { " (dsr flows without a record not counted)" } else { "" };
    let what = match (change.drained, weight) {
        (true, _) => {
            return format!(
                "{service}: {backend} is drained: no new flows; {flows} {goes} on{more}; weight \
                 {weight} once it is undrained\n"
            );
        }
        (false, 0) => format!("has weight 0: no new flows; {flows} {goes} on{more}"),
        (false, weight) => format!("gets new flows by weight {weight}; {flows} {goes} on{more}"),
    };
    format!("{service}: {backend} {what}\n")
}

fn in_words(backend: &BackendChange) -> String {
    let BackendChange { service, address, port, weight_before, weight_after, .. } = backend;
    let backend = endpoint_text((*address, *port).into());
    let weight = match (weight_before, weight_after) {
        (Some(before), Some(after)) => format!(", weight {before} becomes {after}"),
        (None, Some(weight)) | (Some(weight), None) => format!(", weight {weight}"),
        (None, None) => String::new(),
    };
    format!("backend {backend} of {service}{weight}")
}

/// How many flows of services end whose flows all end.
fn ended(flows: &FlowChange) -> String {
    let (tcp, others) = (flows.ended_reset_flows, flows.ended_flows);
    let tcp = (tcp > 0).then(|| format!("{} of nat with a reset", counted(tcp, "TCP flow")));
    let others =
        (others > 0).then(|| format!("{} without one", counted(others, "UDP or dsr flow")));
    let parts: Vec<String> = tcp.into_iter().chain(others).collect();
    let colon = if parts.is_empty() { "" } else { ": " };
    format!("{colon}{}", parts.join(", "))
}

/// Those of other services.
fn flows(flows: &FlowChange, ended: bool) -> String {
    let FlowChange { reset_flows, ended_reset_flows, moved_flows, moved_tracked_flows, .. } = flows;
    let mut words = Vec::new();
    for (count, what, [one, many]) in [
        (
            reset_flows.saturating_sub(*ended_reset_flows),
            "TCP flow",
            ["of nat ends with a reset", "of nat end with a reset"],
        ),
        (*moved_flows, "UDP flow", ["of nat moves", "of nat move"]),
        (*moved_tracked_flows, "dsr flow", ["with a record moves", "with a record move"]),
    ] {
        if count > 0 {
            let does = if count == 1 { one } else { many };
            words.push(format!("{} {does}", counted(count, what)));
        }
    }
    if flows.some_are_not_counted {
        words.push("dsr flows without a record move or end uncounted".into());
    }
    match words.is_empty() {
        true if ended => "every other flow stays with its backend\n".into(),
        true => "every flow stays with its backend\n".into(),
        false => format!("{}; every other flow stays with its backend\n", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_api::documents::changes::ServiceChange;
    use ringway_api::documents::status::Problem;

    fn half_a_ring(service: &str) -> RingChange {
        RingChange {
            service: service.into(),
            protocol: "tcp".into(),
            moved_slots: 32_768,
            slots: 65_537,
            once_up: false,
        }
    }

    fn changes() -> Changes {
        let (node, file) = ("gw1".into(), "gw.toml".into());
        Changes { node, file, changed: true, ..Changes::default() }
    }

    #[test]
    fn changes_in_words() {
        let service = |name: &str, change, keys: &[&str]| ServiceChange {
            service: name.into(),
            change,
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..ServiceChange::default()
        };
        let planned = Changes {
            dry_run: true,
            services: vec![
                service("a", What::Added, &[]),
                service("b", What::Changed, &["check", "affinity 5-tuple becomes source"]),
            ],
            backends: vec![BackendChange {
                service: "b".into(),
                address: "fd00::2".parse().expect("an address"),
                port: 80,
                change: What::Changed,
                weight_before: Some(1),
                weight_after: Some(0),
            }],
            rings: vec![half_a_ring("b")],
            flows: FlowChange { reset_flows: 3, ..FlowChange::default() },
            ..changes()
        };
        assert_eq!(
            render(&planned, false),
            "node gw1: gw.toml would change this; nothing has changed\n  \
             + service a\n  ~ service b: check, affinity 5-tuple becomes source\n  \
             ~ backend [fd00::2]:80 of b, weight 1 becomes 0\n  \
             ~ ring of b tcp: 32768 of 65537 slots move (50.0 %)\n\
             3 TCP flows of nat end with a reset; every other flow stays with its backend\n"
        );
        let moved = Changes {
            lost_endpoints: vec!["a 203.0.113.1:80 tcp".into()],
            ended_services: vec!["a".into()],
            ..changes()
        };
        assert_eq!(
            render(&moved, false),
            "node gw1: gw.toml is in force (took 0 ms)\n\
             lost: clients of a 203.0.113.1:80 tcp: nobody serves it any more\n\
             all flows of a end\nevery other flow stays with its backend\n"
        );
        let (reset_flows, ended_reset_flows, ended_flows) = (4, 3, 1999);
        let flows =
            FlowChange { reset_flows, ended_reset_flows, ended_flows, ..FlowChange::default() };
        let counted = render(&Changes { flows, ..moved.clone() }, false);
        let want = "all flows of a end: 3 TCP flows of nat with a reset, 1999 UDP or dsr flows \
                    without one\n1 TCP flow of nat ends with a reset; every other flow stays with \
                    its backend\n";
        assert!(counted.ends_with(want), "{counted}");
        let orphaned_overrides = vec!["a 10.2.0.11:80 (drained)".into()];
        let renamed = Changes { orphaned_overrides, ..moved };
        let last = render(&renamed, false);
        let last = last.lines().last().expect("lines");
        assert!(
            last.starts_with("warning: override for a 10.2.0.11:80 (drained) no longer applies")
        );
        let nothing = Changes { changed: false, ..changes() };
        assert_eq!(render(&nothing, false), "node gw1: gw.toml changes nothing\n");
    }

    #[test]
    fn new_backends_that_get_nothing_are_named() {
        let new = |n: u16| NewBackend {
            service: "a".into(),
            address: [10, 2, 0, 13].into(),
            port: n,
            reason: "connection refused on port 80".into(),
        };
        let mut changes = Changes {
            rings: vec![half_a_ring("a")],
            warnings: vec![Problem {
                error: "a 10.9.0.1:80: no route".into(),
                remedy: "ip route add 10.9.0.1/32 via ROUTER".into(),
                ..Problem::default()
            }],
            ..changes()
        };
        changes.note((1..13).map(new).collect());
        let said = render(&changes, false);
        assert!(said.contains("slots move (50.0 %) once its new backends are up\n"), "{said}");
        let first = "no traffic yet: a 10.2.0.13:1 connection refused on port 80\n";
        assert!(said.contains(first) && said.contains("no traffic yet: 2 more: "), "{said}");
        let warned =
            "warning: a 10.9.0.1:80: no route\n  to do: ip route add 10.9.0.1/32 via ROUTER\n";
        assert!(said.ends_with(warned), "{said}");
        changes.dry_run = true;
        let told = render(&changes, false);
        assert!(told.contains("once its new") && !told.contains("no traffic yet"), "{told}");
    }

    #[test]
    fn what_was_said_of_a_backend_is_answered() {
        let told = |drained, weight, flows| Changes {
            changed: true,
            backend: Some(OverriddenBackend {
                service: "web".into(),
                address: [10, 2, 0, 11].into(),
                port: 80,
                drained,
                weight,
                flows,
                some_are_not_counted: false,
            }),
            ..Changes::default()
        };
        let last = Changes { unserved_services: vec!["web".into()], ..told(true, 1, 0) };
        assert!(render(&last, false).ends_with(
            "\nwarning: no backend of web takes new connections: `ringway status` says why\n"
        ));
        for (changes, want) in [
            (
                told(true, 5, 12),
                "is drained: no new flows; 12 flows go on; weight 5 once it is undrained",
            ),
            (told(false, 5, 1), "gets new flows by weight 5; 1 flow goes on"),
            (told(false, 0, 0), "has weight 0: no new flows; 0 flows go on"),
        ] {
            assert_eq!(render(&changes, false), format!("web: 10.2.0.11:80 {want}\n"));
        }
        let cleared =
            Changes { node: "gw1".into(), cleared_overrides: Some(2), ..Changes::default() };
        assert_eq!(render(&cleared, false), "node gw1: 2 overrides are cleared (took 0 ms)\n");
        let one = Changes { node: "gw1".into(), cleared_overrides: Some(1), ..told(false, 1, 2) };
        assert_eq!(
            render(&one, false),
            "node gw1: 1 override is cleared (took 0 ms)\n\
             web: 10.2.0.11:80 gets new flows by weight 1; 2 flows go on\n"
        );
    }
}
