//! A status as people read it.

use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use ringway_abi::{Forward, Reason, Verdict};
use ringway_api::clock::Timestamp;
use ringway_api::documents::status::NextHop;
use ringway_plan::tables::{Protocol, ServiceKey};

use super::*;

fn backend(last: u8) -> Backend {
    Backend::new(SocketAddr::from(([10, 0, 0, last], 80)))
}

fn service(name: &str, backends: Vec<Backend>) -> Service {
    let key = ServiceKey::new([10, 9, 9, 9].into(), 80, Protocol::Tcp);
    Service { backends, ..Service::new(name, key, Forward::Nat) }
}

fn status() -> Status {
    let backend = Backend {
        weight: Some(1),
        health: Health::Down,
        reason: Some("connection refused by 10.0.0.2:80".into()),
        flows: 4,
        current_flows: Some(3),
        rates: Some(Rates { rate_bps: 1250.0, ..Rates::default() }),
        ..backend(2)
    };
    let counter = |interface: &str, packets| Counter {
        interface: interface.into(),
        verdict: Verdict::Redirect,
        reason: Reason::NatForward,
        packets,
        rate_pps: (interface == "eth0").then_some(1.5),
    };
    Status {
        node: "gw1".into(),
        problems: vec![Problem {
            error: "broken".into(),
            remedy: "mend it".into(),
            ..Problem::default()
        }],
        daemon: Daemon { running: true, pid: Some(7), ..Daemon::default() },
        services: vec![Service { answers: Some(Announce::Arp), ..service("web", vec![backend]) }],
        counters: vec![counter("eth0", 2), counter("eth1", 3)],
        ledger: Ledger::new(7, 5),
        interfaces: vec![Interface { sent_packets: 5, ..Interface::default() }],
        losses: vec![Loss {
            interface: "eth0".into(),
            reason: ringway_abi::Loss::DeviceDown,
            packets: 2,
            rate_pps: Some(0.0),
        }],
        ..Status::default()
    }
}

/// Its lines, with one blank in the place of several.
fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn short(status: &Status) -> String {
    render(status, false, Extent::Short, false)
}

#[test]
fn shows_what_is_wrong_first() {
    let text = render(&status(), true, Extent::Short, false);
    let mut lines = text.lines();
    assert!(lines.next().expect("heading").starts_with("node gw1: unhealthy, daemon running"));
    assert_eq!(lines.next(), Some("problem: broken"));
    assert_eq!(lines.next(), Some("  to do: mend it"));
    let squeezed = squeezed(&text);
    for line in [
        "web 10.9.9.9:80 tcp 0/1 up - - - - - - nat, Ringway answers ARP and ND",
        "10.0.0.2:80 down 1 3 0 0 1.25 k 0 0 since before this daemon began, \
         connection refused by 10.0.0.2:80",
        "web 10.9.9.9:80 tcp 4 0 0 0 0",
        // eth1's rate is not known, so neither is the sum.
        "redirect nat-forward 5 -",
        "all 7 5 2",
        "eth0 lost-device-down 2 0 ip link show; ip link set dev IFACE up",
        "of 5 packets sent on, 2 were dropped by the kernel afterwards",
    ] {
        assert!(squeezed.iter().any(|found| found == line), "{line} not in\n{text}");
    }
}

#[test]
fn degraded_is_healthy_and_said() {
    let mut status = Status { healthy: true, problems: Vec::new(), ..status() };
    status.findings =
        vec![Problem { error: "eth0: not known: its peer".into(), ..Problem::default() }];
    let text = short(&status);
    let words = "node gw1: healthy, degraded: 1 of 1 backends gets no traffic";
    assert!(text.starts_with(words), "{text}");
    assert!(text.contains("\nfinding: eth0: not known: its peer\n"), "{text}");
}

#[test]
fn what_cannot_be_known_does_not_lead() {
    let unknown = ProblemKind::CheckHostUnknown.problem("eth0: not known: its peer", "look there");
    let findings = vec![unknown, ProblemKind::CheckHost.problem("web: mtu", "")];
    let text = short(&Status { findings, ..status() });
    assert!(text.contains("\nfinding: web: mtu\n"), "{text}");
    let line = "\n1 host check could not be completed; `ringway check --host` lists it all\n";
    assert!(text.ends_with(line) && !text.contains("its peer"), "{text}");
}

#[test]
fn without_a_daemon_the_first_line_says_so_and_health_is_what_was_known_last() {
    let mut status = Status { from_pins: true, ..status() };
    let since = Timestamp(UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    status.daemon = Daemon { since: Some(since), ..Daemon::default() };
    let backend = &mut status.services[0].backends[0];
    (backend.health, backend.last_health) = (Health::Unknown, Some(Health::Up));
    backend.next_hop = Some(NextHop::default());
    let text = short(&status);
    assert!(text.starts_with("daemon not running since 2026-01-01T00:00:00Z\n"));
    assert!(!text.contains("difference"));
    let interface = text.lines().skip_while(|line| *line != "interfaces").nth(2).expect("a row");
    let cells: Vec<&str> = interface.split_whitespace().collect();
    assert_eq!(cells[..3], ["no", "-", "-"], "attached, link, faces in {interface}");
    assert!(text.contains("last known: up ") && text.contains("last known: 1/1 up"), "{text}");
    (status.daemon.running, status.daemon.pid) = (true, Some(7));
    let text = short(&status);
    assert!(text.starts_with("node gw1: its daemon does not answer, daemon running"), "{text}");
    status.daemon = Daemon { running: true, ..Daemon::default() };
    assert!(short(&status).starts_with("node gw1: its daemon is starting\n"));
}

#[test]
fn one_service_can_be_looked_at_alone() {
    let mut all = status();
    all.services.push(service("dns", Vec::new()));
    narrow(&mut all, "dns").expect("it is there");
    assert_eq!(all.services.len(), 1);
    let refused = narrow(&mut all, "web").expect_err("gone").to_string();
    assert!(refused.contains("no service \"web\""), "{refused}");
    assert!(refused.contains("there are: dns"), "{refused}");
}

#[test]
fn an_old_count_says_how_old_it_is() {
    let table = |age_ms| FlowTable { capacity_flows: 9, age_ms, ..FlowTable::default() };
    assert_eq!(flows(&table(999)), "0 of at most 9");
    assert_eq!(flows(&table(7_100)), "0 of at most 9, counted 7 s ago");
}

#[test]
fn who_is_drained_is_not_counted_as_down() {
    let hop = Some(NextHop::default());
    let up = Backend { health: Health::Up, weight: Some(1), next_hop: hop, ..backend(2) };
    let down = Backend { health: Health::Down, ..up.clone() };
    let drained = Backend { drained: true, weight: Some(0), file_weight: Some(1), ..up.clone() };
    let idle = Backend { weight: Some(0), ..up.clone() };
    for (backends, want) in [
        (vec![&up, &up], "2/2 up"),
        (vec![&up, &down], "1/2 up"),
        (vec![&up, &drained], "1/2 up, 1 drained"),
        (vec![&down, &drained], "0/2 up, 1 drained"),
        (vec![&drained, &drained], "2/2 drained"),
        (vec![&drained, &idle], "0/2 up, 1 drained, 1 of weight 0"),
        (vec![&idle], "1/1 of weight 0"),
    ] {
        assert_eq!(serving(backends.into_iter()), want);
    }
}

#[test]
fn connections_that_go_on_are_told_beside_the_health() {
    let text = |flows, last_health| {
        let down = Backend { health: Health::Down, kept: true, last_health, ..backend(2) };
        Backend { current_flows: flows, ..down }.health_text()
    };
    assert_eq!(text(Some(3), None), "down, its 3 connections go on");
    assert_eq!(text(Some(1), None), "down, its connection goes on");
    assert_eq!(text(Some(0), None), "down");
    assert_eq!(text(None, Some(Health::Down)), "last known: down, its connections go on");
}

/// So many services of four backends each; of every `nth` the last one is down.
fn many(services: usize, nth: usize) -> Status {
    let hop = Some(NextHop::default());
    let rates = Some(Rates { rate_pps: 2.0, ..Rates::default() });
    let service = |n: usize| {
        let backend = |last: u8| Backend {
            weight: Some(1),
            health: if last == 3 && n.is_multiple_of(nth) { Health::Down } else { Health::Up },
            next_hop: hop.clone(),
            packets: 5,
            ..Backend::new(SocketAddr::from(([10, 0, n as u8, last], 80)))
        };
        let key = ServiceKey::new([203, 0, 113, 1].into(), 80, Protocol::Tcp);
        Service {
            current_flows: Some(1),
            rates,
            backends: (0..4).map(backend).collect(),
            ..Service::new(&format!("s{n}"), key, Forward::Nat)
        }
    };
    Status {
        node: "gw1".into(),
        healthy: true,
        services: (0..services).map(service).collect(),
        ..Status::default()
    }
}

#[test]
fn a_thousand_services_fit_a_screen() {
    let well = short(&many(1000, 10_000));
    let lines = squeezed(&well);
    assert!(lines.len() < 24, "{well}");
    for beginning in [
        "s0 203.0.113.1:80 tcp 3/4 up 1 0 2",
        "10.0.0.3:80 down 1",
        "all 1000 services 3999/4000 up 1000 0 2.00 k",
        "… and 999 services, 3996 backends, all healthy (`--all`)",
        "all 1000 services 0 20000 0 0 0",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(beginning)), "{beginning} not in\n{well}");
    }
    let mut last_known = many(1000, 10_000);
    last_known.from_pins = true;
    let text = short(&last_known);
    assert!(text.contains("3996 backends, all up when last known (`--all`)"), "{text}");
    let ill = short(&many(1000, 2));
    assert!(ill.lines().count() < 40, "{ill}");
    assert!(
        ill.contains(
            "… and 492 services that need attention; and 500 services, 2000 backends, all healthy"
        ),
        "{ill}"
    );
    let whole = render(&many(1000, 2), false, Extent::Whole, false);
    assert_eq!(whole.lines().count(), 2 + 2 * (3 + 5000), "as it is without a bound");
}

#[test]
fn one_service_of_many_backends_is_summed_up() {
    let mut one = many(1, 1);
    let backend = one.services[0].backends[0].clone();
    one.services[0].backends.extend(vec![backend; 500]);
    let text = short(&one);
    assert!(text.contains("10.0.0.3:80") && text.contains("503/504 up"), "{text}");
    assert!(text.contains("… and 503 other backends of these (`--all`)"), "{text}");
}

#[test]
fn what_nobody_serves_comes_first() {
    let mut status = many(30, 1);
    for backend in &mut status.services[29].backends {
        backend.health = Health::Down;
    }
    let text = short(&status);
    let first = text.lines().skip_while(|line| *line != "services").nth(2).expect("a row");
    assert!(first.contains("s29") && first.contains("0/4 up"), "{text}");
}

#[test]
fn a_few_services_are_shown_whole() {
    let few = many(3, 10);
    let short = short(&few);
    assert_eq!(short, render(&few, false, Extent::Whole, false));
    assert!(short.contains("10.0.2.3:80") && !short.contains("(`--all`)"), "{short}");
}
