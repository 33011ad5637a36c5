//! Endpoints, the ledger, and who serves.

use std::time::{Duration, UNIX_EPOCH};

use ringway_plan::tables::SynOffer;

use super::*;
use crate::problem_kind::ProblemKind;

/// What a node says of itself, key by key: whoever reads it outside must not have to change.
#[test]
fn the_document_stays_what_it_is() {
    let key = ServiceKey {
        address: "2001:db8::9".parse().expect("an address"),
        port: 80,
        last_port: 90,
        protocol: Protocol::Udp,
    };
    let since = Timestamp(UNIX_EPOCH + Duration::from_secs(951_782_400));
    let next_hop =
        NextHop { interface: "eth1".into(), mac: Mac([2, 0, 0xab, 0, 0, 1]), mtu_bytes: 1500 };
    let backend = Backend {
        health: Health::Up,
        since: Some(since),
        offers: Some(SynOffer { mss: 1440, stamps: true, sack: true, ecn: false }.into()),
        next_hop: Some(next_hop),
        ..Backend::new("[fd00::2]:80".parse().expect("an address"))
    };
    let service = Service {
        source: SourceMode::Client,
        answers: Some(Announce::Routed),
        backends: vec![backend],
        ..Service::new("dns", key, Forward::DsrIpip)
    };
    let interface = Interface {
        name: "eth0".into(),
        faces: Some(Faces::Clients),
        mode: Some(XdpMode::Native),
        ..Interface::default()
    };
    let counter = |verdict, reason| Counter {
        interface: "eth0".into(),
        verdict,
        reason,
        packets: 2,
        rate_pps: Some(0.5),
    };
    let loss = Loss {
        interface: "eth0".into(),
        reason: ringway_abi::Loss::TooBig,
        packets: 1,
        rate_pps: None,
    };
    let status = Status {
        schema: SCHEMA.into(),
        problems: vec![ProblemKind::InterfaceDown.of_interface("eth0", "down", "up")],
        interfaces: vec![interface, Interface::default()],
        services: vec![service],
        last_reload: Some(Reload { at: since, ..Reload::default() }),
        checks_not_made: [(Lack::Descriptors, 1), (Lack::Address, 2)].into(),
        counters: vec![counter(Verdict::Drop, Reason::NatExhausted)],
        losses: vec![loss],
        flow_table: Some(FlowTable {
            current_flows_by_state: [(FlowState::Syn, 1), (FlowState::Established, 2)].into(),
            ..FlowTable::default()
        }),
        ..Status::default()
    };
    let text = serde_json::to_string_pretty(&status).expect("JSON") + "\n";
    assert_eq!(text, include_str!("status.json"), "status.json should be:\n{text}");
    let read: Status = serde_json::from_str(&text).expect("a status");
    assert_eq!(serde_json::to_string_pretty(&read).expect("JSON") + "\n", text);
    // A reason, and a kind, that a later version has.
    let newer = text.replace("nat-exhausted", "nat-novel").replace("interface-down", "novel");
    let read: Status = serde_json::from_str(&newer).expect("a status");
    assert!(read.counters.is_empty() && read.problems[0].kind == ProblemKind::Unknown);
}

#[test]
fn who_keeps_flows_from_a_backend_and_how_it_is_undone() {
    let backend = |drained, weight, file_weight| Backend {
        drained,
        weight: Some(weight),
        file_weight,
        ..Backend::new(SocketAddr::from(([10, 0, 0, 2], 80)))
    };
    for (backend, why, command) in [
        (backend(true, 0, Some(1)), "drained by an operator", "undrain web 10.0.0.2:80"),
        (backend(false, 0, Some(1)), "weight 0 by an operator", "weight web 10.0.0.2:80 1"),
        (backend(false, 0, None), "weight 0 in the file", "weight web 10.0.0.2:80 1"),
    ] {
        assert!(backend.withheld().is_some_and(|said| said.contains(why)), "{backend:?}");
        assert_eq!(backend.release("web"), format!("ringway backend {command}"));
    }
    assert_eq!(backend(false, 1, None).withheld(), None);
}

#[test]
fn ledger_differences_have_a_sign() {
    assert_eq!(Ledger::new(5, 3).difference_packets, 2);
    let mut all = Ledger::new(3, 5);
    assert_eq!(all.difference_packets, -2);
    all.add(Ledger::new(2, 0));
    assert_eq!(all, Ledger::new(5, 5));
}

#[test]
fn a_backend_without_traffic_is_lacking_once() {
    let backend = |last: u8, health, weight| Backend {
        health,
        weight: Some(weight),
        next_hop: Some(NextHop::default()),
        ..Backend::new(SocketAddr::from(([10, 0, 0, last], 80)))
    };
    let backends =
        vec![backend(2, Health::Up, 1), backend(3, Health::Down, 1), backend(4, Health::Down, 0)];
    let key = ServiceKey::new(backends[0].address, 80, Protocol::Tcp);
    let service = Service { backends, ..Service::new("web", key, Forward::Nat) };
    let status = Status { services: vec![service.clone(), service], ..Status::default() };
    assert_eq!(status.lacking(), (1, 2));
}
