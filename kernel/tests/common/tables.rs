//! Tables for tests, without Maglev: slot k of a ring belongs to backend k modulo their number.

use std::net::{IpAddr, SocketAddr};

use ringway_abi::raw::{RW_NO_MEMBER, RW_RING_SLOTS};
use ringway_plan::tables::{
    BackendRow, Forward, NextHop, Protocol, RingRow, ServiceKey, ServiceRow, Tables, Timeouts,
};

/// Tables without services: nat address 10.0.0.1, ports 10000 to 29999, short timeouts.
pub fn empty() -> Tables {
    Tables {
        nat_addresses: vec![ip("10.0.0.1")],
        nat_ports: (10_000, 20_000),
        timeouts: Timeouts {
            syn: 10,
            established: 3600,
            closing: 60,
            closed: 10,
            udp_new: 30,
            udp: 120,
        },
        ..Tables::default()
    }
}

/// Adds a service with its backends, all healthy and reachable by interface slot 1.
pub fn add_service(tables: &mut Tables, key: ServiceKey, backends: &[SocketAddr]) {
    let id = tables.services.len() as u16;
    let first = tables.backends.len();
    for (n, endpoint) in backends.iter().enumerate() {
        let index = (first + n) as u32;
        tables.backends.push(BackendRow {
            index,
            generation: 1,
            service: id,
            address: endpoint.ip(),
            port: endpoint.port(),
            protocol: key.protocol,
            weight: 1,
            up: true,
            kept: false,
            next_hop: Some(NextHop { iface: 1, mac: backend_mac(index), mtu: 1500 }),
            nat: (0, 1),
            tunnel: None,
            mss: 0,
        });
    }
    let references = tables.backends[first..].iter().map(BackendRow::reference).collect();
    let slots = ring_slots(backends.len());
    tables.rings.push(RingRow { id: id.into(), slots, pairs: [].into() });
    tables.services.push(ServiceRow {
        id,
        key,
        name: format!("service-{id}"),
        ring: id.into(),
        members: references,
        affinity_source: false,
        forward: Forward::Nat,
        source_client: false,
        announce: false,
        reset_when_none: true,
        shield: None,
        policy: None,
    });
}

/// One service, 203.0.113.10:80, with these backends.
pub fn web(backends: &[&str]) -> Tables {
    let mut tables = empty();
    let backends: Vec<_> = backends.iter().map(|text| text.parse().expect("an endpoint")).collect();
    add_service(&mut tables, key("203.0.113.10", 80, Protocol::Tcp), &backends);
    tables
}

/// So many services of almost all ports, without backends, whose addresses begin with `network`.
pub fn wide(network: u8, count: u16) -> Tables {
    let mut tables = empty();
    for n in 0..count {
        let mut key = key(&format!("{network}.0.{}.{}", n >> 8, n & 0xff), 1, Protocol::Tcp);
        key.last_port = 65_534;
        add_service(&mut tables, key, &[]);
    }
    tables.services.iter_mut().for_each(|service| service.ring = 0);
    tables.rings.truncate(1);
    tables
}

pub fn key(address: &str, port: u16, protocol: Protocol) -> ServiceKey {
    ServiceKey::new(ip(address), port, protocol)
}

pub fn backend_mac(index: u32) -> [u8; 6] {
    let [_, _, high, low] = index.to_be_bytes();
    [0x02, 0, 0, 0xbb, high, low]
}

fn ring_slots(members: usize) -> ringway_plan::tables::Slots {
    let owner = |slot: usize| match members {
        0 => RW_NO_MEMBER as u16,
        members => (slot % members) as u16,
    };
    (0..RW_RING_SLOTS as usize).map(owner).collect()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("tests write good addresses")
}
