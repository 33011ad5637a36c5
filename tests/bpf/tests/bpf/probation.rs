//! New flows are on probation: a flood of them displaces itself, and no flow that is established.

use ringway_abi::Verdict::*;
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Frame, TCP, UDP, flags::*};
use ringway_bpf_tests::{Flow, World, audit, ports};

use crate::needs_root;

/// Seconds, as the packet path counts them.
fn now() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse).tv_sec as u32
}

/// Returns at the start of a second.
fn await_tick() {
    let before = now();
    while now() == before {
        std::thread::yield_now();
    }
}

/// Makes a flow look older.
fn age(world: &World, flow: &Flow, seconds: i64) {
    audit::age(world, world.record(flow).place, seconds);
}

#[test]
fn packets_a_second_apart_end_it() {
    needs_root!("packets_a_second_apart_end_it");
    let mut world = World::new();
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for port in [ports::ACROSS, ports::CLIENT] {
                let flow = world.connect_or_open(family, proto, port);
                let began = world.record(&flow);
                // A clock that counts seconds may move on by one within a millisecond: it is set
                // between two ticks.
                await_tick();
                audit::age(&world, began.place, i64::from(began.seen) - i64::from(now()) + 1);
                world.request(&flow, ACK);
                let record = world.record(&flow);
                assert!(!record.kept && record.seen < now(), "{began:?}, {record:?}");
                age(&world, &flow, 2);
                world.request(&flow, ACK);
                let record = world.record(&flow);
                assert!(record.kept && record.seen >= began.seen, "{began:?}, {record:?}");
                // From then on every second counts.
                age(&world, &flow, 1);
                world.request(&flow, ACK);
                assert!(world.record(&flow).seen >= record.seen);
            }
        }
    }
}

/// Answers count as well: who only listens is no flood.
#[test]
fn answers_end_it() {
    needs_root!("answers_end_it");
    let mut world = World::new();
    for (proto, port) in [(TCP, ports::SAME), (UDP, ports::ACROSS)] {
        let flow = world.connect_or_open(Family::V6, proto, port);
        age(&world, &flow, 3);
        world.answer(&flow, ACK);
        assert!(world.record(&flow).kept);
    }
}

#[test]
fn a_handshake_without_end_stays_on_it() {
    needs_root!("a_handshake_without_end_stays_on_it");
    let mut world = World::new();
    let flow = world.open(Family::V4, TCP, ports::ACROSS);
    for flags in [SYN, SYN] {
        age(&world, &flow, 3);
        world.request(&flow, flags);
        assert!(!world.record(&flow).kept);
    }
    world.answer(&flow, SYN | ACK);
    age(&world, &flow, 3);
    world.answer(&flow, SYN | ACK);
    assert!(!world.record(&flow).kept);
}

/// First packets from many clients.
fn flood(world: &World, family: Family, proto: u8, port: u16, packets: u32) -> u32 {
    let (mut out, mut sent) = (Vec::new(), 0);
    for n in 0..packets {
        let src = (family.nth_client(n as u16), 7).into();
        let frame = Frame { proto, flags: SYN, ..Frame::udp(src, (family.vip(), port).into()) };
        let verdict = world.root(FRONT).run(&frame.bytes(), &mut out).unwrap();
        sent += u32::from(matches!(verdict, Tx | Redirect));
    }
    sent
}

#[test]
fn a_flood_displaces_itself() {
    needs_root!("a_flood_displaces_itself");
    const FLOOD: u32 = 3_000;
    for (port, proto) in
        [(ports::ACROSS, TCP), (ports::ACROSS, UDP), (ports::CLIENT, TCP), (ports::CLIENT, UDP)]
    {
        for family in FAMILIES {
            let mut world = World::with(200, |tables| tables.nat_ports = (20_000, 64));
            let established: Vec<Flow> =
                (0..24).map(|_| world.connect_or_open(family, proto, port)).collect();
            audit::keep_all(&world);
            let sent = flood(&world, family, proto, port, FLOOD);
            assert!(sent > FLOOD * 9 / 10, "only {sent} of {FLOOD} found a place");
            for flow in &established {
                world.request(flow, ACK);
                world.answer(flow, ACK);
            }
            // Who comes now is served as well.
            let late = world.connect_or_open(family, proto, port);
            world.request(&late, ACK);
            world.answer(&late, ACK);
            assert!(audit::audit(&world).live > established.len());
        }
    }
}

/// A flow that is over gives way, whatever it was before.
#[test]
fn closed_flows_give_way() {
    needs_root!("closed_flows_give_way");
    let mut world = World::with(1_000, |tables| tables.nat_ports = (20_000, 1));
    let first = world.connect(Family::V4, ports::ACROSS);
    audit::keep_all(&world);
    let next = Frame { dst_mac: FRONT_MAC, ..first.request.clone() };
    let next = Frame { src: (Family::V4.nth_client(1), 7).into(), ..next };
    assert_eq!(world.send(&next).verdict, Drop);
    world.request(&first, FIN | ACK);
    world.answer(&first, FIN | ACK);
    assert!(matches!(world.send(&next).verdict, Tx | Redirect));
}
