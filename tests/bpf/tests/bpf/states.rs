//! The life of a flow, read from its record.

use std::time::Duration;

use ringway_bpf_tests::prelude::*;

/// A segment: its sender and flags.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Client(u8),
    Backend(u8),
}
use Sent::{Backend, Client};

fn step(world: &World, flow: &Flow, from: Sent) {
    match from {
        Client(tcp_flags) => world.request(flow, tcp_flags),
        Backend(tcp_flags) => world.answer(flow, tcp_flags),
    }
}

#[test]
fn tcp_states() {
    needs_root!("tcp_states");
    use FlowState::*;
    const SHAKE: [(Sent, FlowState); 2] =
        [(Backend(SYN | ACK), SynAck), (Client(ACK), Established)];
    let walks: [(&str, &[(Sent, FlowState)]); 13] = [
        ("data", &[(Client(PSH | ACK), Established), (Backend(PSH | ACK), Established)]),
        (
            "the client closes",
            &[
                (Client(FIN | ACK), FinClient),
                (Client(FIN | ACK), FinClient),
                (Backend(ACK), FinClient),
                (Backend(PSH | ACK), FinClient),
                (Backend(FIN | ACK), Closed),
                (Client(ACK), Closed),
                (Client(FIN | ACK), Closed),
                (Backend(FIN | ACK), Closed),
            ],
        ),
        (
            "the backend closes",
            &[
                (Backend(FIN | ACK), FinBackend),
                (Backend(FIN | ACK), FinBackend),
                (Client(ACK), FinBackend),
                (Client(FIN | ACK), Closed),
            ],
        ),
        (
            "the client resets, and the backend says otherwise",
            &[(Client(RST), Reset), (Client(ACK), Reset), (Backend(ACK), Established)],
        ),
        (
            "the client resets, and connects again",
            &[(Client(RST), Reset), (Client(SYN), Reset), (Backend(SYN | ACK), SynAck)],
        ),
        (
            "the client resets, and the backend agrees",
            &[(Client(RST), Reset), (Backend(RST), Closed)],
        ),
        (
            "data after a FIN",
            &[(Backend(FIN | ACK), FinBackend), (Backend(PSH | ACK), Established)],
        ),
        ("a FIN without ACK", &[(Client(FIN), Established)]),
        ("the backend resets", &[(Backend(RST | ACK), Closed), (Backend(ACK), FinClient)]),
        ("reset while closing", &[(Client(FIN | ACK), FinClient), (Backend(RST), Closed)]),
        ("SYN in an open connection", &[(Client(SYN), Established)]),
        (
            "SYN-ACK again",
            &[
                (Backend(SYN | ACK), SynAck),
                (Client(ACK), Established),
                (Backend(ACK), Established),
                (Backend(SYN | ACK), Established),
            ],
        ),
        ("FIN and RST at once", &[(Client(FIN | RST | ACK), Reset)]),
    ];
    let early: [(&str, &[(Sent, FlowState)]); 6] = [
        ("SYN again", &[(Client(SYN), Syn)]),
        (
            "simultaneous open",
            &[
                (Backend(SYN), SynAck),
                (Client(SYN | ACK), SynAck),
                (Backend(SYN | ACK), SynAck),
                (Client(ACK), Established),
            ],
        ),
        ("refused", &[(Backend(RST | ACK), Syn)]),
        ("given up", &[(Client(RST), Syn)]),
        ("SYN again after the answer", &[(Backend(SYN | ACK), SynAck), (Client(SYN), SynAck)]),
        (
            "FIN with the handshake's ACK",
            &[(Backend(SYN | ACK), SynAck), (Client(FIN | ACK), FinClient)],
        ),
    ];
    let mut world = World::new();
    let mut walk = |what: &str, steps: &[(Sent, FlowState)]| {
        let flow = world.open(Family::V6, TCP, ports::ACROSS);
        assert_eq!(world.state(&flow), Syn);
        for (from, expected) in steps {
            step(&world, &flow, *from);
            assert_eq!(world.state(&flow), *expected, "{what}: {from:?}");
        }
    };
    for (what, steps) in walks {
        walk(what, &[&SHAKE, steps].concat());
    }
    for (what, steps) in early {
        walk(what, steps);
    }
}

#[test]
fn udp_states() {
    needs_root!("udp_states");
    let mut world = World::new();
    let flow = world.open(Family::V4, UDP, ports::ACROSS);
    assert_eq!(world.state(&flow), FlowState::UdpNew);
    for (from, expected) in
        [(Client(0), FlowState::UdpNew), (Backend(0), FlowState::Udp), (Client(0), FlowState::Udp)]
    {
        step(&world, &flow, from);
        assert_eq!(world.state(&flow), expected);
    }
}

/// State that TCP left on a CPU does not affect the datagrams that follow there.
#[test]
fn udp_states_beside_connections_that_end() {
    needs_root!("udp_states_beside_connections_that_end");
    pin(0);
    let mut world = World::new();
    for (family, end) in FAMILIES.into_iter().flat_map(|f| [FIN | ACK, RST].map(|end| (f, end))) {
        let flow = world.open(family, UDP, ports::ACROSS);
        world.answer(&flow, 0);
        let tcp = world.connect(family, ports::ACROSS);
        world.request(&tcp, end);
        world.request(&flow, 0);
        assert_eq!(world.state(&flow), FlowState::Udp, "{family:?} {end:#x}");
        world.answer(&tcp, end);
        world.answer(&flow, 0);
        assert_eq!(world.state(&flow), FlowState::Udp, "{family:?} {end:#x}");
    }
}

/// A finished connection's tuple may begin anew at once: another record, another source.
#[test]
fn a_closed_tuple_begins_anew() {
    needs_root!("a_closed_tuple_begins_anew");
    let mut world = World::new();
    let old = world.connect(Family::V4, ports::ACROSS);
    world.answer(&old, RST);
    let new = world.open_with(FRONT, old.request.clone());
    assert_ne!(old.source, new.source);
    assert_eq!(world.state(&new), FlowState::Syn);
    // Packets that the backend still sends on the old connection reach nobody.
    let late = world.feed(old.back_slot(), &old.answer(ACK).bytes());
    assert_eq!(late.pair(), (Verdict::Pass, Reason::NoService));
    // A SYN-ACK or RST begins nothing.
    world.answer(&new, SYN | ACK);
    world.request(&new, ACK);
    world.answer(&new, RST);
    for tcp_flags in [SYN | ACK, RST, SYN | RST, ACK] {
        world.request(&new, tcp_flags);
        assert_eq!(world.state(&new), FlowState::Closed);
    }
}

/// Idle for exactly its timeout a flow lives, for a second more it does not. Both directions.
#[test]
fn each_state_has_its_timeout() {
    needs_root!("each_state_has_its_timeout");
    let mut world = World::new();
    let timeouts = world.tables.timeouts;
    let cases: [(&str, u8, &[Sent], u32); 9] = [
        ("SYN", TCP, &[], timeouts.syn),
        ("SYN-ACK", TCP, &[Backend(SYN | ACK)], timeouts.syn),
        ("established", TCP, &[Backend(SYN | ACK), Client(ACK)], timeouts.established),
        ("FIN of the client", TCP, &[Backend(SYN | ACK), Client(FIN | ACK)], timeouts.closing),
        (
            "FIN of the backend",
            TCP,
            &[Backend(SYN | ACK), Client(ACK), Backend(FIN | ACK)],
            timeouts.closing,
        ),
        (
            "closed",
            TCP,
            &[Backend(SYN | ACK), Client(FIN | ACK), Backend(FIN | ACK)],
            timeouts.closed,
        ),
        ("reset", TCP, &[Backend(SYN | ACK), Client(ACK), Client(RST)], timeouts.closed),
        ("UDP unanswered", UDP, &[], timeouts.udp_new),
        ("UDP", UDP, &[Backend(0)], timeouts.udp),
    ];
    for (what, proto, steps, timeout) in cases {
        for (idle, lives) in [(timeout, true), (timeout + 1, false)] {
            let [answered, asked] = [(); 2].map(|()| {
                let flow = world.open(Family::V4, proto, ports::ACROSS);
                steps.iter().for_each(|from| step(&world, &flow, *from));
                flow
            });
            let (opened, state) = (world.now(), world.state(&asked));
            world.advance(idle.into());

            let flags = if state == FlowState::Syn { SYN | ACK } else { ACK };
            let answer = world.feed(answered.back_slot(), &answered.answer(flags).bytes());
            let expected = if lives { Reason::NatReply } else { Reason::NoService };
            assert_eq!(answer.reason, expected, "{what}, {idle} s, answer");
            let seen = world.record(&answered).seen;
            assert_eq!(seen, if lives { world.now() } else { opened }, "{what}: after an answer");

            let flags = if state == FlowState::Syn { SYN } else { ACK };
            let request = world.feed(asked.slot, &asked.next(flags).bytes());
            let expected = match (lives, proto) {
                (false, TCP) if flags == ACK => Reason::ResetNoFlow,
                // UDP begins anew.
                _ => Reason::NatForward,
            };
            assert_eq!(request.reason, expected, "{what}, {idle} s, request");
            if lives {
                assert_eq!(world.record(&asked).seen, world.now(), "{what}: after a request");
            }
        }
    }
}

/// Another CPU's clock may be a second ahead: such a flow is not 136 years old.
#[test]
fn a_record_from_the_future_lives() {
    needs_root!("a_record_from_the_future_lives");
    let mut world = World::new();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let clock = world.gateway.clock();
    for send in [World::answer, World::request] {
        clock.set(clock.now() - Duration::from_secs(1)).unwrap();
        send(&world, &flow, ACK);
    }
}
