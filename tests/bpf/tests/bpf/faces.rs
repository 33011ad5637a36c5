//! Hosts on one interface that speak for those on another.

use ringway_abi::raw::{RW_IFACE_BACKENDS, RW_IFACE_CLIENTS, RW_IFACE_WAY_OUT};
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::NextHop;

const VLAN: u32 = 10;

fn flows(world: &mut World) -> Vec<Flow> {
    let open = |port| TRANSPORTS.map(|(family, proto)| world.connect_or_open(family, proto, port));
    [ports::ACROSS, ports::CLIENT].into_iter().flat_map(open).collect()
}

/// The client's next packet, as a stranger sends it by another interface.
fn spoofed(flow: &Flow, slot: u32) -> Frame {
    flow.next(PSH | ACK).with(|f| (f.src_mac, f.dst_mac) = (STRANGER_MAC, mac_of(slot)))
}

fn set_flags(world: &World, slot: u32, flags: u32) {
    world.change_iface(slot, |iface| iface.flags |= flags as u16);
}

/// One TCP flow and one of UDP.
fn two_flows(world: &mut World) -> [Flow; 2] {
    [(Family::V4, TCP), (Family::V6, UDP)]
        .map(|(family, proto)| world.connect_or_open(family, proto, ports::ACROSS))
}

/// By whichever interface, and whoever's it was before.
#[test]
fn one_packet_moves_no_flow() {
    needs_root!("one_packet_moves_no_flow");
    pin(0);
    let mut world = World::new();
    world.add_vlan(VLAN, FRONT, &[(0x8100, 100)]);
    let flows = flows(&mut world);
    for round in 0..3 {
        for flow in &flows {
            for vlans in [vec![], vec![(0x8100, 100)]] {
                let mac = [2, 0, 0, 0, 0x80 + vlans.len() as u8, round];
                let forged = spoofed(flow, FRONT).with(|f| (f.src_mac, f.vlans) = (mac, vlans));
                assert_eq!(world.send(&forged).pair(), (Redirect, NatForward));
                world.answer(flow, ACK);
            }
        }
        world.advance(1);
    }
}

/// A host that sends a client's packets from the backends' interface gets none of its answers.
#[test]
fn a_host_on_the_backends_link_moves_no_flow() {
    needs_root!("a_host_on_the_backends_link_moves_no_flow");
    pin(0);
    let mut world = World::new();
    let flows = flows(&mut world);
    for _ in 0..2 {
        for flow in &flows {
            for tcp_flags in [ACK, SYN, PSH | ACK] {
                let forged = spoofed(flow, BACK).with(|f| f.flags = tcp_flags);
                let seen = world.feed(BACK, &forged.bytes());
                assert_eq!(seen.pair(), (Tx, NatForward), "{flow:?}");
                world.answer(flow, ACK);
            }
            world.request(flow, ACK);
            world.answer(flow, ACK);
        }
        world.advance(1);
    }
}

/// A client that has two ways to the gateway is followed: to an interface by which no backend is
/// reached, or to one that is declared as clients'.
#[test]
fn a_flow_moves_between_clients_interfaces() {
    needs_root!("a_flow_moves_between_clients_interfaces");
    pin(0);
    for declared in [false, true] {
        let mut world = World::new();
        world.add_vlan(VLAN, FRONT, &[(0x8100, 100)]);
        if declared {
            // A backend was there once.
            set_flags(&world, VLAN, RW_IFACE_CLIENTS | RW_IFACE_WAY_OUT);
        }
        for flow in two_flows(&mut world) {
            let other = flow.next(ACK).with(|f| {
                (f.src_mac, f.vlans) = (OTHER_CLIENT_MAC, vec![(0x8100, 100)]);
            });
            for _ in 0..2 {
                assert_eq!(world.send(&other).pair(), (Redirect, NatForward));
                world.answer(&flow, ACK);
            }
            world.advance(1);
            assert_eq!(world.send(&other).pair(), (Redirect, NatForward));
            let answer = flow.answer(ACK);
            let seen = world.feed(BACK, &answer.bytes());
            assert_eq!(seen.pair(), (Redirect, NatReply));
            let wanted = flow.returned(&answer).with(|f| {
                (f.dst_mac, f.vlans) = (OTHER_CLIENT_MAC, vec![(0x8100, 100)]);
            });
            assert_eq!(seen.frame, wanted.bytes());
        }
    }
}

/// An interface by which a backend of any service is reached, or was, moves no flow, be that
/// backend's next hop known or not.
#[test]
fn an_interface_of_any_backend_moves_no_flow() {
    needs_root!("an_interface_of_any_backend_moves_no_flow");
    pin(0);
    let mut world = World::new();
    world.add_vlan(VLAN, FRONT, &[(0x8100, 100)]);
    let backend = world.service(Family::V4, TCP, ports::POOL).backends.remove(3);
    let hop = backend.next_hop.map(|hop| NextHop { iface: VLAN, ..hop });
    world.change_backend(&backend, |row| row.next_hop = hop);
    world.change_backend(&backend, |row| row.next_hop = Option::None);
    // Described anew, as when its MTU changes.
    world.add_vlan(VLAN, FRONT, &[(0x8100, 100)]);
    let flows = flows(&mut world);
    for _ in 0..2 {
        for flow in &flows {
            let other = spoofed(flow, FRONT).with(|f| f.vlans = vec![(0x8100, 100)]);
            assert_eq!(world.send(&other).pair(), (Redirect, NatForward));
            world.answer(flow, ACK);
        }
        world.advance(1);
    }
}

/// VRRP: the router's successor has another MAC address, on the same interface.
#[test]
fn a_flow_follows_its_clients_router() {
    needs_root!("a_flow_follows_its_clients_router");
    pin(0);
    let mut world = World::new();
    for flow in two_flows(&mut world) {
        let mut moved = flow.clone();
        moved.request.src_mac = OTHER_CLIENT_MAC;
        for _ in 0..2 {
            world.request(&moved, ACK);
            world.answer(&flow, ACK);
        }
        world.advance(1);
        world.request(&moved, ACK);
        world.answer(&moved, ACK);
    }
}

/// Two routers that take turns: the record is written once a second, not with each packet.
#[test]
fn routers_that_take_turns_dirty_nothing() {
    needs_root!("routers_that_take_turns_dirty_nothing");
    pin(0);
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let frames = [CLIENT_MAC, OTHER_CLIENT_MAC].map(|mac| flow.next(ACK).with(|f| f.src_mac = mac));
    let mut mac = world.record(&flow).client_mac;
    for second in 0..4 {
        let mut writes = 0;
        for frame in frames.iter().cycle().take(10) {
            world.send(frame);
            let new = world.record(&flow).client_mac;
            writes += u32::from(std::mem::replace(&mut mac, new) != new);
        }
        // Whoever is met first has to be met again in a later one.
        assert_eq!(writes, u32::from(second > 0), "second {second}");
        world.advance(1);
    }
}

/// A backend's address proves nothing: its answers come by the interface that leads to it.
#[test]
fn answers_come_by_the_backends_own_way() {
    needs_root!("answers_come_by_the_backends_own_way");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut flows = flows(&mut world);
    for flow in &flows {
        for tcp_flags in [ACK, RST, FIN | ACK, PSH | ACK] {
            let forged =
                flow.answer(tcp_flags).with(|f| (f.src_mac, f.dst_mac) = (STRANGER_MAC, FRONT_MAC));
            rows.push(row("by the clients' interface", forged, Drop, WrongInterface));
        }
    }
    for family in FAMILIES {
        let flow = world.connect(family, ports::SAME);
        let forged = flow.answer(RST).with(|f| f.dst_mac = BACK_MAC);
        rows.push(row("by another backend's", forged, Drop, WrongInterface).on(BACK));
        flows.push(flow);
    }
    check(&world, &rows);
    for flow in &flows {
        if flow.request.proto == TCP {
            assert_eq!(world.state(flow), FlowState::Established);
        }
        world.answer(flow, ACK);
    }
}

/// Where answers take another way than requests, the configuration must say so.
#[test]
fn answers_come_by_every_interface_that_faces_backends() {
    needs_root!("answers_come_by_every_interface_that_faces_backends");
    let mut world = World::new();
    let flow = world.connect(Family::V6, ports::SAME);
    let answer = flow.answer(ACK).with(|f| f.dst_mac = BACK_MAC);
    assert_eq!(world.feed(BACK, &answer.bytes()).pair(), (Drop, WrongInterface));
    set_flags(&world, BACK, RW_IFACE_BACKENDS);
    assert_eq!(world.feed(BACK, &answer.bytes()).pair(), (Redirect, NatReply));
    world.change_iface(BACK, |iface| iface.flags &= !RW_IFACE_BACKENDS as u16);
}

/// A backend without a known next hop is reached by no interface, the first one least of all.
#[test]
fn nobody_answers_for_a_backend_that_is_not_reached() {
    needs_root!("nobody_answers_for_a_backend_that_is_not_reached");
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::ACROSS);
    world.change_backend(&flow.backend, |row| row.next_hop = Option::None);
    for slot in [FRONT, BACK] {
        let answer = flow.answer(ACK).with(|f| f.dst_mac = mac_of(slot));
        assert_eq!(world.feed(slot, &answer.bytes()).pair(), (Drop, WrongInterface));
    }
}

/// No client is behind an interface that faces backends only: whoever says so lies.
#[test]
fn no_request_comes_by_an_interface_that_faces_backends() {
    needs_root!("no_request_comes_by_an_interface_that_faces_backends");
    let mut world = World::new();
    let flows = flows(&mut world);
    set_flags(&world, BACK, RW_IFACE_BACKENDS);
    let mut rows = Vec::new();
    for flow in &flows {
        for tcp_flags in [SYN, ACK, RST] {
            let forged = spoofed(flow, BACK).with(|f| f.flags = tcp_flags);
            rows.push(row("of a flow", forged, Drop, WrongInterface).on(BACK));
        }
        let new = flow.request.clone().with(|f| {
            f.dst_mac = BACK_MAC;
            f.src.set_port(99);
        });
        rows.push(row("new", new, Drop, WrongInterface).on(BACK));
    }
    check(&world, &rows);
    flows.iter().for_each(|flow| world.answer(flow, ACK));
}

/// ICMP errors are believed as what they quote is.
#[test]
fn errors_by_the_wrong_interface() {
    needs_root!("errors_by_the_wrong_interface");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for flow in flows(&mut world) {
        let family = flow.request.family();
        let error = |to, quoted: &Frame, slot| {
            let quote = icmp::quote(quoted, usize::MAX);
            icmp::frame(family.elsewhere(), to, icmp::error(family, Says::TooBig(1400), &quote))
                .with(|f| (f.src_mac, f.dst_mac) = (STRANGER_MAC, mac_of(slot)))
        };
        let request = flow.forwarded(&flow.next(ACK));
        let about_request = error(flow.source.ip(), &request, FRONT);
        rows.push(row("about a request", about_request, Drop, WrongInterface));
        let reply = flow.returned(&flow.answer(ACK));
        let about_reply = error(flow.request.dst.ip(), &reply, BACK);
        rows.push(row("about a reply", about_reply, Drop, WrongInterface).on(BACK));
    }
    set_flags(&world, BACK, RW_IFACE_BACKENDS);
    check(&world, &rows);
}
