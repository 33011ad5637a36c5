//! What filters mean, and what is said to those that mean nothing.

use super::super::Nat;
use super::super::names::{Backend, Service};
use super::*;

fn names() -> FlowNames {
    let mut names = FlowNames::default();
    let service = |name: &str| Service {
        name: name.to_owned(),
        address: "203.0.113.10".parse().expect("address"),
        forward: "nat",
    };
    names.services = [(1, service("web")), (2, service("dns")), (3, service("dns"))].into();
    names.service_names = vec!["dns".into(), "web".into()];
    let backend =
        |address: &str, service| Backend { address: address.parse().expect("address"), service };
    names.backends = [(7, backend("10.0.0.2:0", 1)), (8, backend("[fd00::2]:53", 2))].into();
    names
}

fn flow() -> Flow {
    let nat = Nat {
        client: "192.0.2.7:4711".parse().expect("address"),
        port: 80,
        source: 0,
        source_port: 10_000,
        service: 1,
        iface: 0,
    };
    let state = FlowState::Established;
    Flow { state, backend: 7, idle_s: 30, on_probation: false, nat: Some(nat) }
}

fn dsr() -> Flow {
    Flow { state: FlowState::Udp, backend: 8, idle_s: 5, on_probation: true, nat: None }
}

fn fits(text: &str, flow: &Flow) -> bool {
    let names = names();
    Filter::parse(text, &names).unwrap_or_else(|e| panic!("{e}")).lets_through(flow, &names)
}

#[test]
fn every_term_lets_through_what_it_says() {
    let fitting = "tcp, not udp, ipv4, service web, backend 10.0.0.2, backend 10.0.0.2:80, \
                   backend 10.0.0.0/8, client 192.0.2.7, client 192.0.2.0/24:4711, \
                   client 0.0.0.0/0, port 80, state established, idle > 29s, idle>29s, \
                   idle < 1m, not probation, not dsr, \
                   service web and tcp and client 192.0.2.0/24 and idle < 1h and not state closed";
    for yes in fitting.split(", ").chain(["", "  "]) {
        assert!(fits(yes, &flow()), "{yes}");
    }
    let others = "udp, not tcp, ipv6, service dns, backend 10.0.0.3, backend 10.0.0.2:81, \
                  client 192.0.2.8, client 192.0.2.7:4712, client ::/0, port 81, state syn, \
                  idle > 30s, idle < 30s, probation, dsr, tcp and port 81";
    for no in others.split(", ") {
        assert!(!fits(no, &flow()), "{no}");
    }
    let fitting = "dsr, udp, service dns, backend [fd00::/16]:53, backend fd00::2, probation, \
                   not client 192.0.2.7, not ipv4";
    for yes in fitting.split(", ") {
        assert!(fits(yes, &dsr()), "{yes}");
    }
    for no in ["client ::/0", "ipv6", "port 53", "not service dns"] {
        assert!(!fits(no, &dsr()), "{no}");
    }
}

#[test]
fn nonsense_is_told_where_and_what_to_write() {
    for (text, column, words) in [
        ("stat established", 1, "did you mean state?"),
        ("tcp udp", 5, "\"udp\" where and belongs"),
        ("tcp or udp", 5, "there is no or"),
        ("tcp and", 8, "it ends where a term belongs"),
        ("service webb", 9, "did you mean web?"),
        ("service", 8, "it ends where the name of a service belongs"),
        ("état x", 1, "begins no term"),
        ("tcp and ésolé", 9, "begins no term"),
        ("state establish", 7, "did you mean established?"),
        ("state claimed", 7, "is no state"),
        ("idle 30s", 6, "where < or > belongs"),
        ("idle >= 30s", 6, "\">=\" where < or > belongs"),
        ("idle > 30", 8, "has no unit: write 30s"),
        ("idle > 99999999d", 8, "longer than any flow"),
        ("client 192.0.2.7/24", 8, "write 192.0.2.0/24"),
        ("client 192.0.2.0/33", 8, "no prefix length"),
        ("client host.example", 8, "names are not looked up"),
        ("client 192.0.2.7:0", 8, "is no port"),
        ("client [::1", 8, "no closing bracket"),
        ("port 70000", 6, "1 to 65535"),
        ("> 3", 1, "begins no term"),
    ] {
        let error = Filter::parse(text, &names()).expect_err(text);
        let place = format!("column {column}:");
        assert!(error.what.contains(&place) && error.what.contains(words), "{text}: {error}");
        let lines: Vec<&str> = error.what.lines().collect();
        assert_eq!(lines[2].chars().count(), column + 2, "{error}");
    }
}

#[test]
fn what_can_never_fit_is_refused() {
    let never = "tcp and udp, udp and state established, state udp and tcp, ipv4 and ipv6, \
                 service web and service dns, idle > 30s and idle < 10s, \
                 idle < 31s and idle > 30s, tcp and not tcp, dsr and client 192.0.2.7, \
                 port 80 and port 81, client 192.0.2.7 and client 192.0.2.8, \
                 client 192.0.2.0/24 and client 198.51.100.0/25, \
                 client 192.0.2.7:1 and client 192.0.2.7:2, \
                 backend 10.0.0.2 and backend fd00::2, ipv6 and client 192.0.2.7, idle < 0s";
    for text in never.split(", ") {
        let error = Filter::parse(text, &names()).expect_err(text);
        assert!(error.what.contains("can never fit"), "{text}: {error}");
    }
    for text in [
        "client 192.0.2.0/24 and client 192.0.2.7:1",
        "idle > 30s and idle < 32s",
        "service web and not service dns",
        "not tcp and not udp",
    ] {
        assert!(Filter::parse(text, &names()).is_ok(), "{text}");
    }
}

#[test]
fn the_guide_knows_every_term_and_state() {
    let guide = include_str!("../../../../../docs/observing.md");
    let states = FlowState::all().skip(2).map(FlowState::name);
    for word in TERMS.into_iter().chain(states) {
        let known = guide.contains(&format!("`{word}`")) || guide.contains(&format!("`{word} "));
        assert!(known, "docs/observing.md lacks {word}");
    }
}
