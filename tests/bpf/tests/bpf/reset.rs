//! Nobody to talk to: resets that a client's stack will believe, moves, and drops.

use ringway_abi::raw::RW_IFACE_GENERIC;
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::serve_by;

/// The reset that answers a segment (RFC 9293 section 3.10.7.1).
fn reset(of: &Frame) -> Frame {
    let with_ack = of.flags & ACK != 0;
    let used =
        of.payload.len() as u32 + u32::from(of.flags & SYN != 0) + u32::from(of.flags & FIN != 0);
    let mut reset = Frame {
        src_mac: FRONT_MAC,
        dst_mac: of.src_mac,
        flags: if with_ack { RST } else { RST | ACK },
        seq: if with_ack { of.ack } else { 0 },
        ack: if with_ack { 0 } else { of.seq.wrapping_add(used) },
        ttl: 64,
        tos: 0,
        id: 0,
        window: 0,
        ..Frame::new(TCP, of.dst, of.src)
    };
    // Ethernet's minimum is 60 bytes.
    if of.family() == Family::V4 {
        reset.padding = 6;
    }
    reset
}

/// The reset must be this; there may be less padding, but nothing else.
fn check_reset(world: &World, what: &str, frame: &Frame, reason: Reason) {
    let seen = world.send(frame);
    let reason_name = reason.name();
    assert_eq!(seen.pair(), (Tx, reason), "{what}: {reason_name}");
    let expected = reset(frame);
    let len = expected.bytes().len() - expected.padding;
    assert_eq!(seen.frame[..len], expected.bytes()[..len], "{what}");
    assert!(seen.frame[len..].iter().all(|byte| *byte == 0), "{what}: padding");
    assert!(seen.frame.len() <= 74, "{what}: {} bytes", seen.frame.len());
}

fn segments(world: &mut World, family: Family, port: u16) -> Vec<(&'static str, Frame)> {
    let mut with = |tcp_flags: u8, payload: &[u8]| {
        let (src, dst) = world.ends(family, port);
        Frame::tcp(src, dst, tcp_flags).payload(payload)
    };
    vec![
        ("ACK", with(ACK, b"")),
        ("ACK with data", with(PSH | ACK, b"GET / HTTP/1.1\r\n\r\n")),
        ("one byte", with(ACK, b"x")),
        ("a full segment", with(ACK, &[7; 1400])),
        ("several buffers", with(ACK, &[7; 8000])),
        ("FIN", with(FIN | ACK, b"")),
        ("FIN without ACK", with(FIN, b"bye")),
        ("SYN-ACK", with(SYN | ACK, b"")),
        ("SYN and FIN", with(SYN | FIN, b"")),
        ("no flags", with(0, b"12345")),
        ("sequence number wraps", with(0, b"12345").with(|f| f.seq = u32::MAX - 1)),
        ("TCP options", with(ACK, b"data").with(|f| f.tcp_options = vec![1, 1, 1, 0])),
        ("padded", with(ACK, b"").with(|f| f.padding = 6)),
        ("TTL 1", with(ACK, b"").with(|f| f.ttl = 1)),
    ]
}

#[test]
fn unknown_flows() {
    needs_root!("unknown_flows");
    let mut world = World::new();
    for family in FAMILIES {
        for port in [ports::ACROSS, ports::SAME, ports::NONE_RESET, ports::CLIENT] {
            for (what, frame) in segments(&mut world, family, port) {
                check_reset(&world, what, &frame, ResetNoFlow);
            }
        }
    }
}

/// In the generic path a frame of several buffers cannot be cut: newer kernels free what is cut off
/// wrongly.
#[test]
fn long_segments_in_the_generic_path() {
    needs_root!("long_segments_in_the_generic_path");
    let mut world = World::new();
    world.change_iface(FRONT, |iface| iface.flags |= RW_IFACE_GENERIC as u16);
    for family in FAMILIES {
        for (len, reason) in [(1400, ResetNoFlow), (8000, ResetFailed)] {
            let (src, dst) = world.ends(family, ports::SAME);
            let seen = world.send(&Frame::tcp(src, dst, ACK).payload(&vec![7; len]));
            assert_eq!(seen.reason, reason, "{family:?} {len}");
        }
    }
}

/// RFC 9293: or two would never end.
#[test]
fn a_reset_is_never_answered() {
    needs_root!("a_reset_is_never_answered");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for port in [ports::ACROSS, ports::NONE_RESET, ports::NONE_DROP] {
            for tcp_flags in [RST, RST | ACK, RST | SYN, RST | FIN | ACK] {
                let (src, dst) = world.ends(family, port);
                rows.push(row("RST", Frame::tcp(src, dst, tcp_flags), Drop, NoFlow));
            }
        }
    }
    check(&world, &rows);
}

#[test]
fn no_backend() {
    needs_root!("no_backend");
    let mut world = World::new();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::NONE_RESET);
        let syn = Frame::tcp(src, dst, SYN).with(|f| f.tcp_options = vec![2, 4, 5, 0xb4]);
        check_reset(&world, "SYN", &syn, ResetNoBackend);
        check_reset(&world, "SYN with data", &syn.clone().payload(b"fast open"), ResetNoBackend);
        let dropped = Frame::tcp(src, (family.vip(), ports::NONE_DROP).into(), SYN);
        let rows = [
            row("TCP, when_none_healthy = \"drop\"", dropped, Drop, NoBackend),
            row("UDP has no reset", Frame::udp(src, dst), Drop, NoBackend),
        ];
        check(&world, &rows);
    }
}

/// TCP learns at once that its backend is gone, in whatever state.
#[test]
fn a_dead_backends_connections_are_reset() {
    needs_root!("a_dead_backends_connections_are_reset");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.connect(family, ports::ACROSS);
        let other = world.connect(family, ports::SAME);
        let half_open = world.open(family, TCP, ports::ACROSS);
        world.change_backend(&flow.backend, |row| row.up = false);
        for (what, tcp_flags) in [("ACK", ACK), ("data", PSH | ACK), ("FIN", FIN | ACK)] {
            check_reset(&world, what, &flow.next(tcp_flags), ResetBackendDown);
        }
        assert_eq!(world.state(&flow), FlowState::Closed);
        let rst = world.send(&flow.next(RST));
        assert_eq!(rst.pair(), (Drop, NoFlow));
        check_reset(&world, "handshake", &half_open.next(ACK), ResetBackendDown);
        // Its client knows; the backend learns it with its next segment. A reset ends it anyway.
        let answer = flow.answer(ACK);
        let seen = world.feed(flow.back_slot(), &answer.bytes());
        assert_eq!(seen.reason, ResetBackendDown);
        let expected = reset(&answer).with(|f| f.src_mac = mac_of(flow.back_slot()));
        let len = expected.bytes().len() - expected.padding;
        assert_eq!(seen.frame[..len], expected.bytes()[..len]);
        world.answer(&flow, RST);
        // Other backends' flows live.
        world.request(&other, ACK);
        world.change_backend(&flow.backend, |row| row.up = true);
    }
}

/// A backend whose checks fail has its connections still: what is on its way to the client arrives,
/// and the client's next segment is not refused.
#[test]
fn a_kept_backends_connections_go_on() {
    needs_root!("a_kept_backends_connections_go_on");
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::POOL);
    // A half-open one of the same backend.
    let half_open = loop {
        let other = world.open(Family::V4, TCP, ports::POOL);
        if other.backend.index == flow.backend.index {
            break other;
        }
    };
    world.change_backend(&flow.backend, |row| (row.up, row.kept) = (false, true));
    world.serve_without(&flow.backend);
    world.request(&flow, PSH | ACK);
    world.answer(&flow, ACK);
    world.request(&flow, FIN | ACK);
    // Its SYN was not answered: another backend may.
    let moved = world.open_with(FRONT, half_open.request.clone());
    assert_ne!(moved.backend.index, flow.backend.index);
    world.answer(&moved, SYN | ACK);
    // No more: client and backend learn it, each by its next segment.
    world.change_backend(&flow.backend, |row| row.kept = false);
    world.answer(&flow, ACK);
    check_reset(&world, "data", &flow.next(PSH | ACK), ResetBackendDown);
    let seen = world.feed(flow.back_slot(), &flow.answer(ACK).bytes());
    assert_eq!(seen.reason, ResetBackendDown);
}

#[test]
fn udp_and_syns_move_to_another_backend() {
    needs_root!("udp_and_syns_move_to_another_backend");
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let mut world = World::new();
        let flow = world.open(family, proto, ports::POOL);
        world.change_backend(&flow.backend, |row| row.up = false);
        world.serve_without(&flow.backend);
        let moved = world.open_with(FRONT, flow.request.clone());
        assert_ne!(moved.backend.index, flow.backend.index);
        world.answer(&moved, SYN | ACK);
        world.request(&moved, ACK);
        // The old source is free again and leads nowhere.
        let late = world.feed(flow.back_slot(), &flow.answer(ACK).bytes());
        assert_eq!(late.pair(), (Pass, NoService));
    }
}

/// A flow stays with its backend while that lives, whatever becomes of the ring.
#[test]
fn a_flow_stays_when_the_ring_changes() {
    needs_root!("a_flow_stays_when_the_ring_changes");
    let mut world = World::new();
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let flow = world.connect_or_open(family, proto, ports::POOL);
        world.serve_without(&flow.backend);
        world.request(&flow, PSH | ACK);
        world.answer(&flow, ACK);
    }
}

/// Drained or gone without a next hop: dropped with the reason, the flow kept.
#[test]
fn an_unresolved_next_hop_keeps_the_flow() {
    needs_root!("an_unresolved_next_hop_keeps_the_flow");
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::ACROSS);
    world.change_backend(&flow.backend, |row| row.next_hop = Option::None);
    let seen = world.send(&flow.next(ACK));
    assert_eq!((seen.pair(), seen.frame), ((Drop, NoNeighbour), flow.next(ACK).bytes()));
    assert_eq!(world.state(&flow), FlowState::Established);
    world.change_backend(&flow.backend, |row| row.next_hop = flow.backend.next_hop);
    world.request(&flow, ACK);
}

/// An index that another backend has now, be it at the same address (removed, and added again):
/// the former one's flows must not reach it.
#[test]
fn another_generation_is_another_backend() {
    needs_root!("another_generation_is_another_backend");
    let [tcp, udp] = [(Family::V4, TCP), (Family::V6, UDP)];
    for ((family, proto), n) in [(tcp, 9), (tcp, 1), (udp, 9), (udp, 1)] {
        let mut world = World::new();
        let flow = world.connect_or_open(family, proto, ports::ACROSS);
        let address = family.backend(n);
        world.change_backend(&flow.backend, |row| {
            row.generation += 1;
            row.address = address;
        });
        let reference = world.tables.backends[flow.backend.index as usize].reference();
        world.change(|tables| serve_by(tables, flow.backend.service, &[reference]));
        let late = world.feed(flow.back_slot(), &flow.answer(ACK).bytes());
        assert_eq!(late.pair(), (Verdict::Pass, Reason::NoService));
        if proto == TCP {
            check_reset(&world, "segment", &flow.next(ACK), ResetBackendDown);
        }
        let moved = world.open_with(FRONT, flow.request.clone());
        assert_eq!(moved.backend.address, address);
        world.answer(&moved, SYN | ACK);
    }
}

/// A ring that names a generation that is gone is as good as empty.
#[test]
fn a_ring_behind_the_times() {
    needs_root!("a_ring_behind_the_times");
    let mut world = World::new();
    let only = world.service(Family::V4, TCP, ports::ACROSS).backends.remove(0);
    world.change_backend(&only, |row| row.generation += 1);
    let (src, dst) = world.ends(Family::V4, ports::ACROSS);
    check_reset(&world, "SYN", &Frame::tcp(src, dst, SYN), ResetNoBackend);
}

/// RFC 9293 section 3.1: what was damaged on its way is no reason to reset anything.
#[test]
fn a_segment_with_a_bad_checksum_is_not_answered() {
    needs_root!("a_segment_with_a_bad_checksum_is_not_answered");
    let mut world = World::new();
    for family in FAMILIES {
        for (what, frame) in segments(&mut world, family, ports::ACROSS) {
            let mut bytes = frame.bytes();
            bytes[14 + family.header_len() + 7] ^= 1; // of its sequence number
            let seen = world.feed(FRONT, &bytes);
            assert_eq!(seen.pair(), (Drop, Malformed), "{family:?} {what}");
        }
    }
}

/// Rows are written before rings: a ring may name one that has just died, or was drained.
#[test]
fn no_new_flow_goes_to_a_backend_known_dead() {
    needs_root!("no_new_flow_goes_to_a_backend_known_dead");
    for (family, proto) in [(Family::V4, TCP), (Family::V6, UDP)] {
        let mut world = World::new();
        let backends = world.service(family, proto, ports::POOL).backends;
        world.change_backend(&backends[1], |row| row.up = false);
        world.change_backend(&backends[2], |row| row.weight = 0);
        for _ in 0..100 {
            let first = world.first(family, proto, ports::POOL);
            let seen = world.send(&first);
            assert_eq!(seen.reason, NatForward);
            let to = wire::check(&seen.frame).good().dst.ip();
            assert!([backends[0].address, backends[3].address].contains(&to), "{to}");
        }
    }
    let mut world = World::new();
    let only = world.service(Family::V6, TCP, ports::ACROSS).backends.remove(0);
    world.change_backend(&only, |row| row.up = false);
    let (src, dst) = world.ends(Family::V6, ports::ACROSS);
    check_reset(&world, "SYN", &Frame::tcp(src, dst, SYN), ResetNoBackend);
}
