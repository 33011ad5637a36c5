//! The services that every test finds: one for every case.

use ringway_abi::raw::{RW_NO_MEMBER, RW_RING_SLOTS};
use ringway_plan::tables::{
    BackendRow, Forward, NextHop, Protocol, RingRow, ServiceKey, ServiceRow, Tables, Timeouts,
    Tunnel,
};

use crate::cast::{BACK, FAMILIES, FRONT, Family, backend_mac};

/// The nat pool of [`crate::world::World::new`]: first port, number of ports.
pub const NAT_PORTS: (u16, u16) = (10_000, 20_000);

/// A service's port says what is special about it. All exist for both families, TCP and UDP.
pub mod ports {
    /// One backend, out by the interface requests come in by.
    pub const SAME: u16 = 80;
    /// One backend, out by the other interface.
    pub const ACROSS: u16 = 81;
    /// No backend: reset.
    pub const NONE_RESET: u16 = 82;
    /// No backend: drop.
    pub const NONE_DROP: u16 = 83;
    /// A backend whose next hop is not known.
    pub const UNRESOLVED: u16 = 84;
    /// A backend behind an MTU of 1280.
    pub const SMALL: u16 = 85;
    /// `source = "client"`.
    pub const CLIENT: u16 = 86;
    /// The same backend, address and port, for another service.
    pub const CLIENT_TOO: u16 = 87;
    /// Four backends.
    pub const POOL: u16 = 88;
    /// A backend by an interface slot without a device.
    pub const NO_DEVICE: u16 = 89;
    /// On the announced address.
    pub const ANNOUNCED: u16 = 90;
}

/// Everything in [`ports`].
pub(crate) fn standard_tables() -> Tables {
    let mut tables = Tables {
        nat_addresses: FAMILIES.map(Family::nat).to_vec(),
        nat_ports: NAT_PORTS,
        timeouts: Timeouts {
            syn: 600,
            established: 3600,
            closing: 900,
            closed: 1200,
            udp_new: 1500,
            udp: 1800,
        },
        ..Default::default()
    };
    for family in FAMILIES {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut add = |port, real_port, backends: &[(u8, Option<u32>)]| {
                add_standard(&mut tables, family, protocol, port, real_port, backends)
            };
            add(ports::SAME, 8080, &[(0, Some(FRONT))]);
            add(ports::ACROSS, 8081, &[(1, Some(BACK))]);
            add(ports::NONE_RESET, 8082, &[]);
            add(ports::NONE_DROP, 8083, &[]);
            add(ports::UNRESOLVED, 8084, &[(2, None)]);
            add(ports::SMALL, 8085, &[(3, Some(BACK))]);
            add(ports::CLIENT, 8086, &[(4, Some(BACK))]);
            add(ports::CLIENT_TOO, 8086, &[(4, Some(BACK))]);
            let four = [0, 1, 5, 6].map(|n| (n, Some(if n == 0 { FRONT } else { BACK })));
            add(ports::POOL, 8088, &four);
            add(ports::NO_DEVICE, 8089, &[(7, Some(2))]);
            add(ports::ANNOUNCED, 8090, &[(1, Some(BACK))]);
        }
    }
    tables
}

fn add_standard(
    tables: &mut Tables,
    family: Family,
    protocol: Protocol,
    port: u16,
    real_port: u16,
    backends: &[(u8, Option<u32>)],
) {
    let mtu = if port == ports::SMALL { 1280 } else { 9000 };
    for (n, iface) in backends {
        let row = new_backend(tables, family, *n, real_port, protocol);
        let next_hop = iface.map(|iface| NextHop { iface, mac: backend_mac(*n), mtu });
        tables.backends.push(BackendRow { next_hop, ..row });
    }
    let announce = port == ports::ANNOUNCED;
    let address = if announce { family.announced() } else { family.vip() };
    let service = add_service(tables, ServiceKey::new(address, port, protocol), Forward::Nat);
    service.source_client = matches!(port, ports::CLIENT | ports::CLIENT_TOO);
    service.announce = announce;
    service.reset_when_none = port != ports::NONE_DROP;
}

/// The nth backend, on the back interface, for the service that is added next.
pub fn new_backend(
    tables: &Tables,
    family: Family,
    n: u8,
    port: u16,
    protocol: Protocol,
) -> BackendRow {
    BackendRow {
        index: tables.backends.len() as u32,
        generation: 3,
        service: tables.services.len() as u16,
        address: family.backend(n),
        port,
        protocol,
        weight: 1,
        up: true,
        kept: false,
        next_hop: Some(NextHop { iface: BACK, mac: backend_mac(n), mtu: 9000 }),
        nat: (u32::from(family == Family::V6), 1),
        tunnel: None,
        mss: 0,
    }
}

/// Adds a service to which the backends belong that were added for it, in turn.
pub fn add_service(tables: &mut Tables, key: ServiceKey, forward: Forward) -> &mut ServiceRow {
    let id = tables.services.len() as u16;
    let own = tables.backends.iter().filter(|backend| backend.service == id);
    let members: Vec<u32> = own.map(BackendRow::reference).collect();
    tables.rings.push(ring(id.into(), members.len()));
    tables.services.push(ServiceRow {
        id,
        key,
        name: format!("service-{id}"),
        ring: id.into(),
        members,
        affinity_source: false,
        forward,
        source_client: false,
        announce: false,
        reset_when_none: true,
        shield: None,
        policy: None,
    });
    tables.services.last_mut().unwrap()
}

/// The services of [`ports::ACROSS`] are forwarded like this.
pub fn forward_across(tables: &mut Tables, forward: Forward) {
    for service in tables.services.iter_mut().filter(|s| s.key.port == ports::ACROSS) {
        service.forward = forward;
        let source = Family::of(service.key.address).nat();
        let port = if forward == Forward::DsrGue { 6080 } else { 0 };
        for backend in tables.backends.iter_mut().filter(|b| b.service == service.id) {
            backend.tunnel = forward.is_tunnel().then_some(Tunnel { source, port });
        }
    }
}

/// A service (by its id) with these members, in turn.
pub fn serve_by(tables: &mut Tables, id: u16, members: &[u32]) {
    let service = tables.services.iter_mut().find(|s| s.id == id).unwrap();
    service.members = members.to_vec();
    let old = tables.rings.iter_mut().find(|r| r.id == service.ring).unwrap();
    *old = ring(service.ring, members.len());
}

/// A stable ring whose slots take so many members in turn.
pub fn ring(id: u32, members: usize) -> RingRow {
    let slot = |slot: usize| match members {
        0 => RW_NO_MEMBER as u16,
        n => (slot % n) as u16,
    };
    RingRow { id, slots: (0..RW_RING_SLOTS as usize).map(slot).collect(), pairs: [].into() }
}
