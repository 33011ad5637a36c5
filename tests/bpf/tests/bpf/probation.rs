//! New flows are on probation: a flood of them displaces itself, and no flow that is established.

use std::net::IpAddr;

use ringway_abi::Verdict::*;
use ringway_bpf_tests::prelude::*;

/// The client's ACK names the backend's sequence number: whoever forges its address has not seen
/// it.
#[test]
fn a_finished_handshake_ends_it() {
    needs_root!("a_finished_handshake_ends_it");
    let mut world = World::new();
    for port in [ports::ACROSS, ports::CLIENT] {
        let flow = world.connect(Family::V6, port);
        assert!(world.record(&flow).confirmed);
        let forged = world.open(Family::V6, TCP, port);
        world.answer(&forged, SYN | ACK);
        let guess = forged.next(ACK).with(|f| f.ack += 64);
        assert_eq!(world.send(&guess).reason, Reason::NatForward);
        // Nobody tries all numbers.
        world.request(&forged, ACK);
        assert!(!world.record(&forged).confirmed);
        assert_eq!(world.state(&forged), FlowState::SynAck);
        // It may have been the client all the same: the backend knows.
        world.answer(&forged, PSH | ACK);
        assert!(!world.record(&forged).confirmed);
        assert_eq!(world.state(&forged), FlowState::Established);
    }
}

/// A client that guesses the number that ends a handshake, or has it dropped on its way to the
/// backend, keeps nothing: a backend that has not seen the end sends nothing more, or its SYN
/// again.
#[test]
fn a_guessed_handshake_confirms_nothing() {
    needs_root!("a_guessed_handshake_confirms_nothing");
    let mut world = World::new();
    let flow = world.open(Family::V4, TCP, ports::ACROSS);
    for _ in 0..2 {
        world.answer(&flow, SYN | ACK);
        assert_eq!(world.state(&flow), FlowState::SynAck);
        world.request(&flow, ACK);
        assert_eq!(world.state(&flow), FlowState::Established);
        assert!(!world.record(&flow).confirmed);
    }
    let anothers = flow.answer(ACK).with(|f| f.src_mac[5] ^= 1);
    assert_eq!(world.feed(flow.back_slot(), &anothers.bytes()).reason, Reason::NatReply);
    world.request(&flow, PSH | ACK);
    assert!(!world.record(&flow).confirmed, "by an answer that may be anybody's");
    world.answer(&flow, ACK);
    assert!(world.record(&flow).confirmed);
}

/// A wrong acknowledgement that was sent before a client connects does not count against it.
#[test]
fn a_spoilt_handshake_begins_anew() {
    needs_root!("a_spoilt_handshake_begins_anew");
    let mut world = World::new();
    let flow = world.open(Family::V6, TCP, ports::ACROSS);
    world.answer(&flow, SYN | ACK);
    for guess in [64, 65] {
        let wrong = flow.next(ACK).with(|f| f.ack += guess);
        assert_eq!(world.send(&wrong).reason, Reason::NatForward);
    }
    world.request(&flow, SYN);
    world.answer(&flow, SYN | ACK);
    world.request(&flow, ACK);
    world.answer(&flow, ACK);
    assert!(world.record(&flow).confirmed);
}

/// A confirmed flow is noted each second in which it is used, and so is a handshake; any other
/// flow on probation every other second.
#[test]
fn flows_are_seen_once_a_second_or_two() {
    needs_root!("flows_are_seen_once_a_second_or_two");
    let mut world = World::new();
    let confirmed = world.connect(Family::V4, ports::ACROSS);
    let half_open = world.open(Family::V4, TCP, ports::ACROSS);
    let datagrams = world.open(Family::V4, UDP, ports::ACROSS);
    for second in 1..5 {
        world.advance(1);
        world.request(&confirmed, ACK);
        world.request(&half_open, SYN);
        world.request(&datagrams, 0);
        let idle = |flow: &Flow| world.now() - world.record(flow).seen;
        let idle = [&confirmed, &half_open, &datagrams].map(idle);
        assert_eq!(idle, [0, 0, second % 2], "second {second}");
    }
}

/// Datagrams of both sides, and not the first ones: a question alone, or its answer, is no proof.
#[test]
fn datagrams_of_both_sides_end_it() {
    needs_root!("datagrams_of_both_sides_end_it");
    let mut world = World::new();
    for (family, port) in [(Family::V4, ports::ACROSS), (Family::V6, ports::CLIENT)] {
        let flow = world.open(family, UDP, port);
        for _ in 0..3 {
            world.advance(2);
            world.request(&flow, 0);
            assert!(!world.record(&flow).confirmed, "by questions alone");
        }
        let flow = world.open(family, UDP, port);
        for _ in 0..3 {
            world.answer(&flow, 0);
            world.advance(2);
            assert!(!world.record(&flow).confirmed, "by answers alone");
        }
        let flow = world.open(family, UDP, port);
        for second in 0..3 {
            world.request(&flow, 0);
            world.answer(&flow, 0);
            assert_eq!(world.record(&flow).confirmed, second == 2, "second {second}");
            world.advance(1);
        }
    }
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
    for (port, proto, family) in [
        (ports::ACROSS, TCP, Family::V4),
        (ports::CLIENT, TCP, Family::V6),
        (ports::CLIENT, UDP, Family::V4),
    ] {
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
        // A client that comes now is served as well.
        let late = world.connect_or_open(family, proto, port);
        world.request(&late, ACK);
        world.answer(&late, ACK);
        assert!(audit::audit(&world).live > established.len());
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

/// A port of UDP rests: what the backend still sends for its last client goes to nobody else. So
/// flows without an answer take half of the ports, and who comes too fast finds none.
#[test]
fn unanswered_datagrams_take_half_of_the_ports() {
    needs_root!("unanswered_datagrams_take_half_of_the_ports");
    const PORTS: u32 = 256;
    const ESTABLISHED: u32 = 24;
    const FLOOD: u32 = 5_000;
    // A search looks at four places in the order of the ring.
    const ROUND: u32 = PORTS / 4;
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS as u16));
    let held = |world: &World, what: FlowState| {
        audit::records(world).iter().filter(|record| record.key.state == what).count() as u32
    };
    let flood = |world: &World, packets| flood(world, Family::V4, UDP, ports::ACROSS, packets);
    let established: Vec<Flow> =
        (0..ESTABLISHED).map(|_| world.open(Family::V4, UDP, ports::ACROSS)).collect();
    audit::keep_all(&world);
    assert_eq!(flood(&world, FLOOD), PORTS - ESTABLISHED);
    // So a flow has some seconds for its first answer, however many come.
    assert_eq!(held(&world, FlowState::UdpNew), PORTS / 2 + ESTABLISHED);
    assert_eq!(held(&world, FlowState::Resting), PORTS / 2 - ESTABLISHED);
    for flow in &established {
        world.request(flow, 0);
        world.answer(flow, 0);
    }
    // Until they have rested, no port is found in the whole ring. The next is the first that rests.
    world.advance(5);
    let vain = FLOOD - (PORTS - ESTABLISHED);
    assert_eq!(flood(&world, 2 * ROUND - vain % ROUND), 0);
    // Then the next flows are served, at the expense of the flood.
    world.advance(1);
    assert_eq!(flood(&world, 100), 100);
    let late = world.open(Family::V4, UDP, ports::ACROSS);
    world.answer(&late, 0);
}

/// Syslog: nobody answers, and every message finds its way, beside as many new flows as have room
/// while ports rest.
#[test]
fn one_way_datagrams_go_on_beside_a_flood() {
    needs_root!("one_way_datagrams_go_on_beside_a_flood");
    const PORTS: u16 = 256;
    // Of half of the ports a flow each, which rests for five seconds and one that has begun.
    const A_SECOND: u32 = PORTS as u32 / 2 / 6;
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
    let log = world.open(Family::V4, UDP, ports::ACROSS);
    for second in 0..40 {
        for n in 0..A_SECOND {
            let src = (Family::V4.nth_client(n as u16), 1_000 + second).into();
            let seen = world.send(&Frame::udp(src, log.request.dst));
            assert_eq!(seen.reason, Reason::NatForward, "second {second}");
        }
        let seen = world.send(&log.request);
        assert_eq!(seen.reason, Reason::NatForward, "second {second}");
        world.advance(1);
    }
}

/// Under a flood of SYNs a new flow lives for as many of them as there are ports.
#[test]
fn the_oldest_half_open_flow_gives_way() {
    needs_root!("the_oldest_half_open_flow_gives_way");
    const PORTS: u32 = 256;
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS as u16));
    let idle: Vec<Flow> = (0..24).map(|_| world.connect(Family::V4, ports::ACROSS)).collect();
    flood(&world, Family::V4, TCP, ports::ACROSS, 2 * PORTS);
    let young = world.open(Family::V4, TCP, ports::ACROSS);
    let sent = flood(&world, Family::V4, TCP, ports::ACROSS, PORTS / 2);
    assert_eq!(sent, PORTS / 2);
    world.answer(&young, SYN | ACK);
    let evicted: u64 = world.traffic(&young.backend).evicted;
    assert!(evicted >= u64::from(PORTS), "{evicted}");
    for flow in &idle {
        world.request(flow, ACK);
    }
}

/// A SYN that is sent again ends no handshake. A SYN-ACK is no answer to what a client asked, nor is
/// a segment without data.
#[test]
fn forged_segments_keep_no_flow() {
    needs_root!("forged_segments_keep_no_flow");
    let mut world = World::new();
    for flags in [SYN | ACK, ACK] {
        let flow = world.open(Family::V4, TCP, ports::ACROSS);
        world.advance(2);
        world.forwards(&flow, &flow.request);
        assert!(!world.record(&flow).confirmed);
        world.answer(&flow, SYN | ACK);
        {
            let _damaged = capture::damaged("a handshake's last ACK");
            let mut ack = flow.next(ACK).bytes();
            *ack.last_mut().unwrap() ^= 1;
            world.feed(flow.slot, &ack);
        }
        for _ in 0..3 {
            world.advance(2);
            world.request(&flow, SYN);
            let answer = flow.answer(flags).payload(b"");
            assert_eq!(world.feed(flow.back_slot(), &answer.bytes()).reason, Reason::NatReply);
        }
        assert!(!world.record(&flow).confirmed);
        assert_eq!(world.state(&flow), FlowState::SynAck);
    }
}

/// Forged senders of questions that a backend answers, of any number of prefixes together.
#[test]
fn forged_questions_keep_half_of_the_ports() {
    needs_root!("forged_questions_keep_half_of_the_ports");
    const PORTS: u16 = 256;
    // Another CPU would pass ports over, and all are needed.
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
    for prefix in 0..4 {
        let open = |_| {
            let (src, dst) = world.ends(Family::V4, ports::ACROSS);
            let src = (std::net::Ipv4Addr::new(198, 18, prefix, 1), src.port()).into();
            let flow = world.open_with(FRONT, Frame::udp(src, dst));
            world.answer(&flow, 0);
            flow
        };
        let flows: Vec<Flow> = (0..PORTS / 4).map(open).collect();
        world.advance(2);
        for flow in &flows {
            world.request(flow, 0);
            world.answer(flow, 0);
        }
    }
    let confirmed = audit::records(&world).iter().filter(|record| record.confirmed).count();
    assert_eq!(confirmed, usize::from(PORTS) / 2);
}

/// Ten rounds through all ports, of which each takes a flood of SYNs but these.
#[test]
fn idle_connections_outlive_a_flood() {
    needs_root!("idle_connections_outlive_a_flood");
    let mut world = World::new();
    let idle: Vec<Flow> = (0..400).map(|_| world.connect(Family::V4, ports::ACROSS)).collect();
    let pool = u32::from(world.tables.nat_ports.1);
    assert!(flood(&world, Family::V4, TCP, ports::ACROSS, 10 * pool) >= 9 * pool);
    for flow in &idle {
        assert!(world.record(flow).confirmed);
        world.answer(flow, ACK);
    }
}

/// Where none gives way the search is short; a flow that ends is found all the same.
#[test]
fn a_confirmed_pool_is_searched_in_short() {
    needs_root!("a_confirmed_pool_is_searched_in_short");
    const PORTS: u16 = 256;
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
    let flows: Vec<Flow> = (0..PORTS).map(|_| world.connect(Family::V4, ports::ACROSS)).collect();
    audit::keep_all(&world);
    for ended in &flows[..3] {
        world.advance(1);
        assert_eq!(flood(&world, Family::V4, TCP, ports::ACROSS, 100), 0);
        // Places of the ring that ten searches look at, of some forty that each may.
        let looked_at = || world.traffic(&ended.backend).ports as u32;
        let before = looked_at();
        assert_eq!(flood(&world, Family::V4, TCP, ports::ACROSS, 10), 0);
        assert_eq!(looked_at().wrapping_sub(before), 20);
        world.answer(ended, RST);
        let found = flood(&world, Family::V4, TCP, ports::ACROSS, u32::from(PORTS));
        assert!(found > 0);
        audit::keep_all(&world);
    }
}

/// One prefix keeps half of a backend's ports: who comes by other prefixes is not shut out by it.
#[test]
fn one_prefix_keeps_half_of_the_ports() {
    needs_root!("one_prefix_keeps_half_of_the_ports");
    const PORTS: u16 = 256;
    pin(0);
    let mut world = World::with(8_192, |tables| tables.nat_ports = (20_000, PORTS));
    let greedy: Vec<Flow> = (0..PORTS).map(|_| world.connect(Family::V4, ports::ACROSS)).collect();
    let confirmed = audit::records(&world).iter().filter(|record| record.confirmed).count();
    assert_eq!(confirmed, usize::from(PORTS) / 2);
    // Eight searches for half-open flows are in vain; then finished ones give way.
    assert_eq!(flood(&world, Family::V4, TCP, ports::ACROSS, 8), 0);
    assert_eq!(flood(&world, Family::V4, TCP, ports::ACROSS, 1), 1);
    // Flows that have ended are not counted any more.
    let live = |flow: &Flow| audit::records(&world).iter().any(|r| r.client == flow.request.src);
    let over: Vec<&Flow> = greedy.iter().filter(|flow| live(flow)).take(100).collect();
    for flow in over {
        world.request(flow, FIN | ACK);
        world.answer(flow, FIN | ACK);
    }
    for _ in 0..10 {
        let flow = world.connect(Family::V4, ports::ACROSS);
        assert!(world.record(&flow).confirmed);
    }
}

/// Hosts of one /24, of IPv6 one /64, keep half of a backend's ports together; its neighbour has
/// its own half.
#[test]
fn hosts_of_a_prefix_share_its_half() {
    needs_root!("hosts_of_a_prefix_share_its_half");
    const PORTS: u16 = 64;
    let mut world = World::new();
    world.change(|tables| tables.nat_ports = (20_000, PORTS));
    for family in FAMILIES {
        let mut is_confirmed = |prefix: u8, host: u8| {
            let src = match family {
                Family::V4 => IpAddr::from([198, 18, prefix, host]),
                Family::V6 => {
                    let [prefix, host] = [prefix, host].map(u16::from);
                    IpAddr::from([0x2001, 0xdb8, 5, prefix, host << 8, 0, 0, host])
                }
            };
            let dst = (family.vip(), ports::ACROSS).into();
            let flow = world.open_with(FRONT, Frame::tcp((src, 7).into(), dst, SYN));
            world.answer(&flow, SYN | ACK);
            world.request(&flow, ACK);
            world.answer(&flow, ACK);
            world.record(&flow).confirmed
        };
        let confirmed = (1..41).filter(|host| is_confirmed(1, *host)).count();
        assert_eq!(confirmed, usize::from(PORTS) / 2, "{family:?}");
        assert!(is_confirmed(2, 1) && is_confirmed(0, 1), "{family:?}");
        assert!(!is_confirmed(1, 41), "{family:?}");
    }
}
