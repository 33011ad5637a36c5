//! Endpoints, books, and who serves.

use super::*;

#[test]
fn a_backend_at_the_clients_port_is_its_address() {
    assert_eq!(backend_text("10.0.0.2", 0), "10.0.0.2");
    assert_eq!(backend_text("10.0.0.2", 80), "10.0.0.2:80");
    assert_eq!(backend_text("fd00::2", 0), "fd00::2");
    assert_eq!(backend_text("fd00::2", 80), "[fd00::2]:80");
}

#[test]
fn who_keeps_flows_from_a_backend_and_how_it_is_undone() {
    let backend = |drained, weight, file_weight| Backend {
        address: "10.0.0.2".into(),
        port: 80,
        drained,
        weight: Some(weight),
        file_weight,
        ..Backend::default()
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
    let backend = |address: &str, health, weight| Backend {
        address: address.into(),
        health,
        weight: Some(weight),
        next_hop: Some(NextHop::default()),
        ..Backend::default()
    };
    let backends = vec![
        backend("10.0.0.2", Health::Up, 1),
        backend("10.0.0.3", Health::Down, 1),
        backend("10.0.0.4", Health::Down, 0),
    ];
    let service = Service { name: "web".into(), backends, ..Service::default() };
    let status = Status { services: vec![service.clone(), service], ..Status::default() };
    assert_eq!(status.lacking(), (1, 2));
}
