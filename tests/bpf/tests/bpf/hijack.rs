//! A nat port may pass on while its backend still has the former client's socket: nothing of that
//! reaches the next client, and no forged segment ends a connection.

use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::BackendRow;

/// Until the backend answers the SYN, its segments are of somebody else's connection.
#[test]
fn before_the_handshake_nothing_else_passes() {
    needs_root!("before_the_handshake_nothing_else_passes");
    let mut world = World::new();
    for family in FAMILIES {
        for port in [ports::SAME, ports::ACROSS, ports::CLIENT] {
            let flow = world.open(family, TCP, port);
            // A challenge ACK (RFC 5961), data, and the end of data.
            for flags in [ACK, PSH | ACK, FIN | ACK] {
                let answer = flow.answer(flags).with(|f| f.ack = 0x7777_0001);
                let seen = world.feed(flow.back_slot(), &answer.bytes());
                assert_eq!(seen.pair(), (Verdict::Tx, Reason::ResetStray), "{flags:#x}");
                let reset = wire::check(&seen.frame).good();
                assert_eq!((reset.src, reset.dst), (answer.dst, answer.src));
                assert_eq!(reset.l4[13], RST, "{flags:#x}");
                assert_eq!(reset.l4[4..8], answer.ack.to_be_bytes(), "{flags:#x}");
            }
            for flags in [ACK, PSH | ACK, FIN | ACK] {
                let seen = world.send(&flow.next(flags));
                assert_eq!(seen.pair(), (Verdict::Drop, Reason::OutOfState), "{flags:#x}");
            }
            assert_eq!(world.state(&flow), FlowState::Syn);
            // The handshake goes on: SYN again, with data too (TCP Fast Open), refused once,
            // answered at last.
            assert_eq!(world.send(&flow.request).reason, Reason::NatForward);
            world.forwards(&flow, &flow.request.clone().payload(b"early"));
            world.answer(&flow, RST | ACK);
            world.answer(&flow, SYN | ACK);
            world.request(&flow, ACK);
            assert_eq!(world.state(&flow), FlowState::Established);
        }
    }
}

/// A backend may still wait for the end of another client's handshake: that one is reset, too.
#[test]
fn another_handshakes_answer_does_not_pass() {
    needs_root!("another_handshakes_answer_does_not_pass");
    let mut world = World::new();
    let flow = world.open(Family::V4, TCP, ports::ACROSS);
    let other = flow.answer(SYN | ACK).payload(b"").with(|f| f.ack += 1);
    let seen = world.feed(flow.back_slot(), &other.bytes());
    assert_eq!(seen.pair(), (Verdict::Tx, Reason::ResetStray));
    // The same client begins anew, with another number.
    let again = flow.request.clone().with(|f| f.seq += 1);
    assert_eq!(world.send(&again).reason, Reason::NatForward);
    assert_eq!(world.feed(flow.back_slot(), &other.bytes()).reason, Reason::NatReply);
    assert_eq!(world.state(&flow), FlowState::SynAck);
}

/// Until the handshake ends: what the network delayed past the backend's SYN-ACK. That resets
/// nothing, as it may belong to this connection.
#[test]
fn late_data_does_not_pass() {
    needs_root!("late_data_does_not_pass");
    let mut world = World::new();
    let flow = world.open(Family::V6, TCP, ports::ACROSS);
    world.answer(&flow, SYN | ACK);
    for flags in [ACK, PSH | ACK, FIN | ACK] {
        let late = flow.answer(flags).with(|f| f.seq += 1);
        let seen = world.feed(flow.back_slot(), &late.bytes());
        assert_eq!(seen.pair(), (Verdict::Drop, Reason::OutOfState), "{flags:#x}");
        assert_eq!(world.state(&flow), FlowState::SynAck);
    }
    world.answer(&flow, PSH | ACK);
    assert_eq!(world.state(&flow), FlowState::Established);
}

/// A RST with a wrong sequence number: the backend answers with a challenge ACK, and the client
/// goes on.
#[test]
fn a_forged_reset_ends_nothing() {
    needs_root!("a_forged_reset_ends_nothing");
    const PORTS: u16 = 64;
    let mut world = World::with(2_000, |tables| tables.nat_ports = (20_000, PORTS));
    let flow = world.connect(Family::V4, ports::ACROSS);
    world.request(&flow, RST);
    assert_eq!(world.state(&flow), FlowState::Reset);
    // Its port is not given away for others' SYNs.
    for n in 0..4 * PORTS {
        let src = (Family::V4.nth_client(n), 7).into();
        world.send(&Frame::tcp(src, flow.request.dst, SYN));
    }
    world.answer(&flow, ACK);
    assert_eq!(world.state(&flow), FlowState::Established);
    world.request(&flow, ACK);
}

/// A FIN with a wrong sequence number: the client goes on, and its flow lives as long as any.
#[test]
fn a_forged_fin_ends_nothing() {
    needs_root!("a_forged_fin_ends_nothing");
    let mut world = World::new();
    let established = world.tables.timeouts.established;
    let flow = world.connect(Family::V4, ports::ACROSS);
    let forged = flow.next(FIN | ACK).with(|f| f.seq += 77_777);
    assert_eq!(world.send(&forged).reason, Reason::NatForward);
    world.answer(&flow, ACK);
    assert_eq!(world.state(&flow), FlowState::FinClient);
    let data = flow.next(PSH | ACK).payload(b"more");
    assert_eq!(world.send(&data).reason, Reason::NatForward);
    assert_eq!(world.state(&flow), FlowState::Established);
    assert!(world.record(&flow).confirmed);
    world.advance(established.into());
    world.answer(&flow, PSH | ACK);
    world.request(&flow, ACK);
}

/// Where clients come by the backends' interface, any of them may send in a backend's name: that
/// ends nothing, and the backend has the last word.
#[test]
fn an_end_in_a_backends_name_is_refuted() {
    needs_root!("an_end_in_a_backends_name_is_refuted");
    use FlowState::{Closed, Established, FinClient, Reset};
    let mut world = World::new();
    let flow = world.connect(Family::V6, ports::ACROSS);
    let forged = |world: &World, flags| {
        let frame = flow.answer(flags).payload(b"").with(|f| {
            f.src_mac[5] ^= 1;
            f.seq += 77_777;
        });
        assert_eq!(world.feed(flow.back_slot(), &frame.bytes()).reason, Reason::NatReply);
        world.state(&flow)
    };
    assert_eq!(forged(&world, FIN | ACK), Established);
    for flags in [RST, RST | ACK, RST] {
        assert_eq!(forged(&world, flags), Reset);
    }
    // And a SYN in the client's.
    let syn = flow.request.clone().with(|f| f.seq += 77_777);
    world.forwards(&flow, &syn);
    world.answer(&flow, ACK);
    assert_eq!(world.state(&flow), Established);
    world.request(&flow, FIN | ACK);
    assert_eq!(forged(&world, FIN | ACK), FinClient);
    assert_eq!(forged(&world, RST), Reset);
    assert!(world.record(&flow).confirmed);
    world.answer(&flow, RST);
    assert_eq!(world.state(&flow), Closed, "its own word");
}

/// Its backend takes nothing new, and somebody forges a RST, and the SYN of another connection: as
/// long as the backend may refute the RST, it is asked.
#[test]
fn a_forged_beginning_moves_no_connection() {
    needs_root!("a_forged_beginning_moves_no_connection");
    let leaves: [fn(&mut BackendRow); 2] =
        [|row| row.weight = 0, |row| (row.up, row.kept) = (false, true)];
    for (family, leave) in FAMILIES.into_iter().zip(leaves) {
        let mut world = World::new();
        let flow = world.connect(family, ports::POOL);
        world.change_backend(&flow.backend, leave);
        world.serve_without(&flow.backend);
        let syn = flow.request.clone().with(|f| f.seq += 77_777);
        for _ in 0..2 {
            world.request(&flow, RST);
            world.forwards(&flow, &syn);
            assert_eq!(world.state(&flow), FlowState::Reset);
            // A challenge ACK (RFC 5961).
            world.answer(&flow, ACK);
            assert_eq!(world.state(&flow), FlowState::Established);
            world.request(&flow, PSH | ACK);
        }
        // Nobody refutes this one: another backend has what begins.
        world.request(&flow, RST);
        world.advance(1);
        world.forwards(&flow, &syn);
        world.advance(2);
        assert_ne!(world.open_with(FRONT, syn).backend.index, flow.backend.index);
    }
}

/// Nobody believes a damaged segment, so we do not.
#[test]
fn a_damaged_segment_changes_nothing() {
    needs_root!("a_damaged_segment_changes_nothing");
    let mut world = World::new();
    let feed_damaged = |world: &World, flow: &Flow, bytes: Vec<u8>| {
        let _damaged = capture::damaged("a wrong checksum is what this is about");
        world.feed(flow.slot, &bytes);
        assert_eq!(world.state(flow), FlowState::Established, "{bytes:02x?}");
    };
    for family in FAMILIES {
        for (flags, payload, expected) in [
            (RST, &b""[..], FlowState::Reset),
            (RST | ACK, b"why", FlowState::Reset),
            (FIN | ACK, b"", FlowState::FinClient),
            (FIN | ACK, b"odd", FlowState::FinClient),
        ] {
            let flow = world.connect(family, ports::ACROSS);
            let frame = flow.next(flags).payload(payload);
            let l4 = if family == Family::V4 { 34 } else { 54 };
            let mut bytes = frame.bytes();
            bytes[l4 + 16] ^= 1;
            feed_damaged(&world, &flow, bytes);
            if family == Family::V4 {
                let mut bytes = frame.bytes();
                bytes[14 + 10] ^= 1;
                feed_damaged(&world, &flow, bytes);
            }
            world.feed(flow.slot, &frame.bytes());
            assert_eq!(world.state(&flow), expected, "{flags:#x} {payload:?}");
        }
    }
}

/// Neither does it show that a connection goes on, nor that another one begins.
#[test]
fn a_damaged_segment_revives_nothing() {
    needs_root!("a_damaged_segment_revives_nothing");
    let mut world = World::new();
    let damaged = |world: &World, flow: &Flow, slot: u32, frame: &Frame| {
        let _damaged = capture::damaged("a wrong checksum is what this is about");
        let before = world.state(flow);
        let mut bytes = frame.bytes();
        bytes[34 + 16] ^= 1;
        let seen = world.feed(slot, &bytes);
        assert_eq!(world.state(flow), before, "{frame:?}");
        seen.reason
    };
    let flow = world.connect(Family::V4, ports::ACROSS);
    world.request(&flow, FIN | ACK);
    damaged(&world, &flow, flow.slot, &flow.next(PSH | ACK).payload(b"more"));
    world.answer(&flow, FIN | ACK);
    let refused = damaged(&world, &flow, flow.slot, &flow.request);
    assert_eq!(refused, Reason::Malformed);
    damaged(&world, &flow, flow.back_slot(), &flow.answer(PSH | ACK).payload(b"more"));
    let reset = world.connect(Family::V4, ports::ACROSS);
    world.request(&reset, RST);
    damaged(&world, &reset, reset.back_slot(), &reset.answer(ACK));
}

/// Of UDP nothing tells whose an answer is: the port rests when its flow has expired.
#[test]
fn a_port_of_udp_rests() {
    needs_root!("a_port_of_udp_rests");
    const PORTS: u16 = 64;
    const REST: u32 = 5;
    pin(0);
    for (idle, is_taken) in [(REST, false), (REST + 1, true)] {
        let mut world = World::with(2_000, |tables| tables.nat_ports = (20_000, PORTS));
        let flow = world.open(Family::V4, UDP, ports::ACROSS);
        world.answer(&flow, 0);
        world.advance((world.tables.timeouts.udp + idle).into());
        let taken = (0..3 * PORTS).any(|n| {
            let src = (Family::V4.nth_client(n), 9).into();
            let seen = world.send(&Frame::udp(src, flow.request.dst));
            seen.reason == Reason::NatForward && wire::check(&seen.frame).good().src == flow.source
        });
        assert_eq!(taken, is_taken, "{idle} s after its time");
    }
}
