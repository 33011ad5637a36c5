//! source = "client": the client's address and port stay.

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;

/// Any port: below, in and above the nat pool.
#[test]
fn the_clients_port_may_be_any() {
    needs_root!("the_clients_port_may_be_any");
    let mut world = World::new();
    for family in FAMILIES {
        for port in [1, 80, 9_999, 10_000, 29_999, 30_000, 65_535] {
            let (src, dst) = ((family.client(), port).into(), (family.vip(), ports::CLIENT).into());
            let flow = world.open_with(FRONT, Frame::tcp(src, dst, SYN));
            assert_eq!(flow.source, src);
            world.answer(&flow, SYN | ACK);
            world.request(&flow, ACK);
        }
    }
}

#[test]
fn a_backend_as_client_is_refused() {
    needs_root!("a_backend_as_client_is_refused");
    let mut world = World::new();
    let mut rows = Vec::new();
    for (family, proto) in TRANSPORTS {
        let (_, dst) = world.ends(family, ports::CLIENT);
        let src = (family.backend(4), 40_000).into();
        let frame = Frame { proto, flags: SYN, ..Frame::udp(src, dst) };
        rows.push(row("hairpin", frame, Drop, Hairpin));
    }
    check(&world, &rows);
    // With the node's address instead it works.
    for family in FAMILIES {
        let src = (family.backend(1), 40_000).into();
        let dst = (family.vip(), ports::ACROSS).into();
        let flow = world.open_with(BACK, Frame::tcp(src, dst, SYN).with(|f| f.dst_mac = BACK_MAC));
        world.answer(&flow, SYN | ACK);
        world.request(&flow, ACK);
    }
}

/// Two services, one backend: its answers to one client port could be for either.
#[test]
fn one_client_port_for_two_services_is_a_conflict() {
    needs_root!("one_client_port_for_two_services_is_a_conflict");
    let mut world = World::new();
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let first = world.connect_or_open(family, proto, ports::CLIENT);
        let second = first.request.clone().with(|f| f.dst.set_port(ports::CLIENT_TOO));
        let seen = world.send(&second);
        assert_eq!((seen.pair(), seen.frame), ((Drop, NatConflict), second.bytes()));
        world.answer(&first, ACK);
        // Another protocol, another client or another port is none.
        let mut udp = second.clone();
        (udp.proto, udp.flags) = (if proto == TCP { UDP } else { TCP }, SYN);
        udp.src.set_port(second.src.port() + 20_000);
        world.open_with(FRONT, udp);
        let other = second.clone().with(|f| f.src.set_ip(family.nth_client(99)));
        world.open_with(FRONT, other);
        // When the first has ended the second may have it.
        let timeouts = &world.tables.timeouts;
        world.advance(if proto == TCP { timeouts.established } else { timeouts.udp }.into());
        assert_eq!(world.send(&second).pair(), (Drop, NatConflict));
        world.advance(1);
        world.open_with(FRONT, second);
    }
}

/// A client that closed and opens again with the same port finds its own old record, dead.
#[test]
fn the_same_port_again() {
    needs_root!("the_same_port_again");
    let mut world = World::new();
    let flow = world.connect(Family::V6, ports::CLIENT);
    world.answer(&flow, RST);
    let again = world.open_with(FRONT, flow.request.clone());
    assert_eq!(again.source, flow.source);
    world.answer(&again, SYN | ACK);
    assert_eq!(world.state(&again), FlowState::SynAck);
}

/// Many clients with one port each, whose records may meet in a bucket: none is lost.
#[test]
fn clients_with_the_same_port_do_not_meet() {
    needs_root!("clients_with_the_same_port_do_not_meet");
    let mut world = World::new();
    let mut flows = Vec::new();
    for n in 0..2_000 {
        let src = (Family::V4.nth_client(n), 40_000).into();
        let dst = (Family::V4.vip(), ports::CLIENT).into();
        flows.push(world.open_with(FRONT, Frame::udp(src, dst)));
    }
    for flow in &flows {
        world.answer(flow, 0);
        world.request(flow, 0);
    }
}
