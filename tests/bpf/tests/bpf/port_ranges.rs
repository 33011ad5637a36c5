//! Services of many ports: a port's own service goes before a range's, a range's before that of
//! "*"; a backend without a port of its own is asked at the one the client asked for.

use std::net::IpAddr;

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::backend_port_of;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{Forward, ServiceKey, Tables};

/// A service of these ports, whose backend has that one.
pub(crate) fn add(tables: &mut Tables, address: IpAddr, proto: u8, range: (u16, u16), port: u16) {
    let (family, protocol) = (Family::of(address), protocol(proto));
    tables.backends.push(new_backend(tables, family, 1, port, protocol));
    let key = ServiceKey { address, port: range.0, last_port: range.1, protocol };
    add_service(tables, key, Forward::Nat);
}

fn world() -> World {
    World::with(8192, |tables| {
        for (family, proto) in TRANSPORTS {
            add(tables, family.vip(), proto, (8000, 8100), 0);
            add(tables, family.vip(), proto, (8050, 8050), 9050);
            add(tables, family.vip(), proto, (40_000, 50_000), 9000);
        }
        for family in FAMILIES {
            add(tables, family.announced(), TCP, (1, 65_535), 0);
            add(tables, family.announced(), TCP, (30_000, 30_009), 9030);
            add(tables, family.announced(), UDP, (1, 65_534), 0);
        }
    })
}

/// A flow to this port must reach the backend at that one, and its answers the client from the
/// port it asked.
fn served(world: &mut World, address: IpAddr, proto: u8, port: u16, at: u16) -> Flow {
    let src = (Family::of(address).client(), world.client_port()).into();
    let request = Frame { proto, flags: SYN, ..Frame::udp(src, (address, port).into()) };
    served_as(world, request, at)
}

fn served_as(world: &mut World, request: Frame, at: u16) -> Flow {
    let seen = world.send(&request);
    assert_eq!(seen.pair(), (Redirect, NatForward), "{request:?}");
    let packet = wire::check(&seen.frame).good();
    assert_eq!(packet.dst.port(), at, "{request:?}");
    let mut backend = backend_port_of(world, packet.dst.ip(), ports::ACROSS);
    backend.port = at;
    let flow = Flow { request: request.clone(), slot: FRONT, backend, source: packet.src };
    assert_eq!(seen.frame, flow.forwarded(&request).bytes());
    world.answer(&flow, SYN | ACK);
    world.request(&flow, ACK);
    world.answer(&flow, ACK);
    flow
}

#[test]
fn ranges_are_served() {
    needs_root!("ranges_are_served");
    let mut world = world();
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for port in [8000, 8001, 8049, 8051, 8063, 8064, 8095, 8096, 8099, 8100] {
                served(&mut world, family.vip(), proto, port, port);
            }
            served(&mut world, family.vip(), proto, 8050, 9050);
            for port in [40_000, 40_001, 45_000, 49_999, 50_000] {
                served(&mut world, family.vip(), proto, port, 9000);
            }
        }
        for port in [1, 2, 79, 29_999, 30_010, 65_534, 65_535] {
            served(&mut world, family.announced(), TCP, port, port);
        }
        for port in [30_000, 30_007, 30_009] {
            served(&mut world, family.announced(), TCP, port, 9030);
        }
        served(&mut world, family.announced(), TCP, ports::ANNOUNCED, 8090);
        served(&mut world, family.announced(), UDP, 65_534, 65_534);
    }
}

#[test]
fn and_nothing_beside_them() {
    needs_root!("and_nothing_beside_them");
    let mut world = world();
    let mut rows = Vec::new();
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for port in [7999, 8101, 39_999, 50_001, 0] {
                let frame = world.first(family, proto, port);
                rows.push(row("beside a range", frame, Pass, NoService));
            }
        }
        let (src, _) = world.ends(family, 1);
        let frame = Frame::udp(src, (family.announced(), 65_535).into());
        rows.push(row("the one port that is left", frame, Pass, NoService));
    }
    check(&world, &rows);
}

/// One client port, two ports of one service: two flows, each answered from its own.
#[test]
fn flows_of_a_range_are_told_apart() {
    needs_root!("flows_of_a_range_are_told_apart");
    let mut world = world();
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let (src, _) = world.ends(family, 1);
        let to = |port| {
            let dst = (family.vip(), port).into();
            Frame { proto, flags: SYN, ..Frame::udp(src, dst) }
        };
        let flows = [8000, 8001, 8002].map(|port| served_as(&mut world, to(port), port));
        for flow in &flows {
            world.request(flow, ACK);
            world.answer(flow, ACK);
        }
        let same = [40_000, 40_001].map(|port| served_as(&mut world, to(port), 9000));
        for flow in &same {
            world.answer(flow, ACK);
        }
        assert_ne!(same[0].source, same[1].source);
    }
}

/// Fragments know their port from the first.
#[test]
fn fragments_to_a_range() {
    needs_root!("fragments_to_a_range");
    let mut world = world();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, 8033);
        let frame = Frame::udp(src, dst).payload(&[7; 4000]).with(|f| f.fragment = 0);
        for part in fragments(&frame.bytes(), 1480, 99) {
            assert_eq!(world.feed(FRONT, &part).pair(), (Redirect, NatForward));
        }
    }
}
