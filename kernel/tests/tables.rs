//! ringway-kernel against the running kernel: loading, tables, test runs.

#![allow(clippy::unwrap_used)] // tests

mod common;

use std::os::fd::AsRawFd;

use ringway_abi::{Reason, Verdict};
use ringway_kernel::{Applied, Error, Frame, GatewayOptions};
use ringway_plan::tables::{Protocol, ServiceRow, Tables};
use ringway_testnet::root_or_skip;
use ringway_wire::{Builder, Ethernet, Ipv4, Mac, Udp, ethertype, protocol};

use common::tables::{add_service, empty, ip, key, web, wide};
use common::{CLIENT_MAC, GATEWAY_MAC, gateway, open, options};

fn web_and_names() -> Tables {
    let mut tables = web(&["10.0.0.2:8080", "10.0.0.3:8080"]);
    let names = key("2001:db8::10", 53, Protocol::Udp);
    add_service(&mut tables, names, &["[fd00::2]:53".parse().unwrap()]);
    tables
}

/// So many services, each with a backend.
fn services(count: u16) -> Tables {
    let mut tables = empty();
    for port in 0..count {
        let backend = format!("10.0.0.2:{}", 8000 + port).parse().unwrap();
        add_service(&mut tables, key("203.0.113.10", 80 + port, Protocol::Tcp), &[backend]);
    }
    tables
}

/// A UDP datagram to an address that is no service's.
fn stranger() -> Vec<u8> {
    let ip = Ipv4::new(protocol::UDP, [198, 51, 100, 1].into(), [203, 0, 113, 99].into());
    let ethernet = Ethernet::new(Mac(GATEWAY_MAC), Mac(CLIENT_MAC), ethertype::IPV4);
    let mut buffer = [0; 64];
    let mut packet = Builder::new(&mut buffer, 42).unwrap();
    packet.append(b"hello").unwrap().udp(Udp::new(5000, 5001), Some(ip.pseudo())).unwrap();
    packet.ipv4(ip, &[]).unwrap().ethernet(ethernet).unwrap();
    packet.packet().to_vec()
}

#[test]
fn a_frame_is_seen_and_counted_once() {
    let Some(mut gateway) = gateway("a_frame_is_seen_and_counted_once") else { return };
    gateway.apply(&web_and_names()).unwrap();
    let frame = stranger();
    for slot in [0, 1, 1] {
        let run = gateway.test_run(slot, Frame::new(&frame)).unwrap();
        assert_eq!((run.verdict, &run.data), (Verdict::Pass, &frame));
    }
    for (slot, seen) in [(0, 1), (1, 2)] {
        let ledger = gateway.view().ledger(slot).unwrap();
        assert_eq!((ledger.seen, ledger.sum(), ledger.difference()), (seen, seen, 0));
    }
    // The frame carries the MAC address of slot 0.
    assert_eq!(gateway.view().ledger(0).unwrap().count(Verdict::Pass, Reason::NoService), 1);
}

#[test]
fn tables_are_read_back_as_written() {
    let Some(mut gateway) = gateway("tables_are_read_back_as_written") else { return };
    let tables = web_and_names();
    let applied = gateway.apply(&tables).unwrap();
    // Two services, two addresses.
    assert_eq!(applied, Applied { services: 4, backends: 3, rings: 2, removed: 0, settings: true });
    let existing = gateway.existing().unwrap();
    assert_eq!(existing.services, tables.services);
    assert_eq!(existing.nat_addresses, tables.nat_addresses);
    let mut backends = tables.backends.clone();
    backends.iter_mut().for_each(|backend| backend.weight = 0);
    assert_eq!(existing.backends, backends);
    assert_eq!(existing.ifaces, [(0, 1), (1, 1)]);
    let view = gateway.view();
    assert_eq!(view.services().unwrap().len(), 2);
    assert_eq!(view.settings().unwrap().port_first, 10_000);
    assert_eq!(view.flows().unwrap().total(), 0);
    assert!(view.flows().unwrap().capacity >= 4096);
}

#[test]
fn only_what_changed_is_written() {
    let Some(mut gateway) = gateway("only_what_changed_is_written") else { return };
    let mut tables = web_and_names();
    gateway.apply(&tables).unwrap();
    assert!(gateway.apply(&tables).unwrap().is_unchanged());

    tables.backends[0].up = false;
    tables.rings[0].slots = vec![0; tables.rings[0].slots.count()].into();
    let applied = gateway.apply(&tables).unwrap();
    assert_eq!(applied, Applied { backends: 1, rings: 1, ..Applied::default() });
}

#[test]
fn what_is_gone_is_removed_and_its_generation_kept() {
    let Some(mut gateway) = gateway("what_is_gone_is_removed_and_its_generation_kept") else {
        return;
    };
    let mut tables = web_and_names();
    gateway.apply(&tables).unwrap();
    tables.services.pop();
    tables.rings.pop();
    tables.backends.pop();
    // The service, its address, its ring, its backend.
    assert_eq!(gateway.apply(&tables).unwrap(), Applied { removed: 4, ..Applied::default() });
    let existing = gateway.existing().unwrap();
    assert_eq!((existing.services.len(), existing.backends.len()), (1, 2));
    assert_eq!(existing.retired, [(2, 1)]);
    assert!(gateway.apply(&tables).unwrap().is_unchanged());
}

#[test]
fn tables_without_room_change_nothing() {
    let Some(mut gateway) = gateway("tables_without_room_change_nothing") else { return };
    let good = web_and_names();
    gateway.apply(&good).unwrap();
    let mut too_many = good.clone();
    too_many.nat_addresses = vec![ip("10.0.0.9"); 65];
    let mut no_ring = good.clone();
    no_ring.rings.clear();
    let mut short_ring = good.clone();
    short_ring.rings[0].slots = vec![0; 10].into();
    let mut many_members = good.clone();
    for n in 2..4096 {
        let key = key(&format!("10.0.{}.{}", n >> 8, n & 0xff), 1, Protocol::Tcp);
        let (ring, members) = (many_members.rings[0].id, vec![n; 1024]);
        let service = ServiceRow { id: n as u16, key, ring, members, ..good.services[0].clone() };
        many_members.services.push(service);
    }
    for bad in [too_many, no_ring, short_ring, many_members] {
        let error = gateway.apply(&bad).unwrap_err().to_string();
        assert!(error.contains("nothing changed"), "{error}");
        gateway.arrivals().unwrap();
    }
    assert!(gateway.apply(&good).unwrap().is_unchanged());
}

/// Packets would go by what was in force before.
#[test]
fn services_that_could_not_be_put_in_force_are_put_again() {
    let Some(mut gateway) = gateway("services_that_could_not_be_put_in_force_are_put_again") else {
        return;
    };
    let index = gateway.map("service_index").unwrap().try_clone_to_owned().unwrap();
    // SAFETY: the descriptor is open, and a call that takes a number reads no memory of ours.
    assert_eq!(unsafe { libbpf_rs::libbpf_sys::bpf_map_freeze(index.as_raw_fd()) }, 0);
    for _ in 0..2 {
        let error = gateway.apply(&web_and_names()).unwrap_err().to_string();
        assert!(error.contains("service_index"), "{error}");
        // Not an empty answer: what was learnt of services would be forgotten.
        let error = gateway.arrivals().unwrap_err();
        assert!(matches!(error, Error::TablesUnknown), "{error}");
    }
}

/// 4096 services of 30 blocks of ports each: there is no room for two such sets at a time, and in a
/// gateway made for fewer not for one.
#[test]
fn a_table_nearly_full_takes_the_place_of_another() {
    let test = "a_table_nearly_full_takes_the_place_of_another";
    let Some(mut small) = gateway(test) else { return };
    let error = small.apply(&wide(10, 4096)).unwrap_err().to_string();
    assert!(error.contains("126976 rows") && error.contains("restart the daemon"), "{error}");
    let mut gateway = open(&GatewayOptions { services: 2 * 4096 * 31, ..options() });
    for network in [10, 11, 10] {
        let applied = gateway.apply(&wide(network, 4096)).unwrap();
        assert_eq!(applied.services, 4096 * 31);
    }
    assert_eq!(gateway.existing().unwrap().services.len(), 4096);
}

#[test]
fn a_slot_that_is_not_in_use_is_an_error() {
    let Some(mut gateway) = gateway("a_slot_that_is_not_in_use_is_an_error") else { return };
    let error = gateway.test_run(7, Frame::new(&stranger())).unwrap_err().to_string();
    assert!(error.contains("slot 7 is not in use"), "{error}");
}

/// All rings are swapped together.
#[test]
fn many_rings_are_swapped() {
    let Some(mut gateway) = gateway("many_rings_are_swapped") else { return };
    let mut tables = services(200);
    gateway.apply(&tables).unwrap();
    for ring in &mut tables.rings {
        ring.slots = vec![1; ring.slots.count()].into();
    }
    assert_eq!(gateway.apply(&tables).unwrap(), Applied { rings: 200, ..Applied::default() });
}

/// Services that shared a ring get one each, in more than one batch: the shared one stays until the
/// last has left it.
#[test]
fn services_part() {
    let Some(mut gateway) = gateway("services_part") else { return };
    let mut tables = services(300);
    let apart = tables.clone();
    tables.rings.truncate(1);
    tables.services.iter_mut().for_each(|service| service.ring = 0);
    gateway.apply(&tables).unwrap();
    let removed = gateway.apply(&apart).unwrap();
    assert_eq!(removed, Applied { services: 299, rings: 299, ..Applied::default() });
    assert_eq!(gateway.existing().unwrap().services, apart.services);
    // And back, while nobody can be on the way to a ring that is gone.
    let removed = gateway.apply(&tables).unwrap();
    assert_eq!(removed, Applied { services: 299, removed: 299, ..Applied::default() });
    assert_eq!(gateway.existing().unwrap().services, tables.services);
}

/// Memory of all maps of tracked flows, over the flows there is room for: IPv4 and IPv6 alike.
#[test]
fn tracked_flows_are_small() {
    if !root_or_skip("tracked_flows_are_small") {
        return;
    }
    for tracked in [1 << 20, 10_000_000] {
        let gateway = open(&GatewayOptions { tracked, ..options() });
        let memlock = |name: &str| -> u64 {
            let fd = gateway.map(name).unwrap().as_raw_fd();
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            let line = info.lines().find_map(|line| line.strip_prefix("memlock:")).unwrap();
            line.trim().parse().unwrap()
        };
        let all: u64 =
            ["tracked", "track_quotas", "untracked", "tracking"].into_iter().map(memlock).sum();
        let capacity = gateway.view().tracked_counts().unwrap().capacity;
        println!("{capacity} tracked flows: {:.1} bytes each", all as f64 / capacity as f64);
        assert!(capacity >= tracked.into() && all <= 32 * capacity, "{all} for {capacity}");
    }
}
