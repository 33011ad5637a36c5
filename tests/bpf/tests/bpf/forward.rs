//! Both directions of nat, byte by byte: [`World::open`], [`World::request`] and
//! [`World::answer`] compare whole frames with those built from scratch.

use ringway_abi::raw::RW_IFACE_REDIRECT;
use ringway_bpf_tests::prelude::*;

fn all() -> impl Iterator<Item = (Family, u8, u16)> {
    let ports = |(family, proto)| [ports::SAME, ports::ACROSS].map(|port| (family, proto, port));
    TRANSPORTS.into_iter().flat_map(ports)
}

#[test]
fn there_and_back() {
    needs_root!("there_and_back");
    all_there_and_back(World::new());
}

/// Without any source = "client" service, only destination ports of the nat pool may be answers.
#[test]
fn there_and_back_under_nat_alone() {
    needs_root!("there_and_back_under_nat_alone");
    all_there_and_back(World::with(8_192, |tables| {
        tables.services.iter_mut().for_each(|service| service.source_client = false);
        // The pool's first and last port must do.
        tables.nat_ports = (10_000, 40);
    }));
}

/// A service whose own port lies in the nat pool is still a service.
#[test]
fn a_service_port_inside_the_pool() {
    needs_root!("a_service_port_inside_the_pool");
    let mut world = World::with(8_192, |tables| {
        tables.services.iter_mut().for_each(|service| service.source_client = false);
        tables.nat_ports = (1, 40_000);
    });
    for (family, proto, port) in all() {
        let flow = world.connect_or_open(family, proto, port);
        world.answer(&flow, ACK);
    }
}

fn all_there_and_back(mut world: World) {
    for (family, proto, port) in all() {
        let flow = world.open(family, proto, port);
        assert!(flow.source.ip() == family.nat(), "{:?}", flow.source);
        assert!((10_000..30_000).contains(&flow.source.port()), "{:?}", flow.source);
        world.answer(&flow, SYN | ACK);
        world.request(&flow, ACK);
        world.request(&flow, PSH | ACK);
        world.answer(&flow, ACK);
        let traffic = world.traffic(&flow.backend);
        assert_eq!((traffic.packets, traffic.reply_packets, traffic.flows), (3, 2, 1));
        let bytes = flow.request.l3().len() + 2 * flow.next(ACK).l3().len();
        assert_eq!(traffic.bytes, bytes as u64);
        assert_eq!(traffic.reply_bytes, 2 * flow.answer(ACK).l3().len() as u64);
        assert_eq!(traffic.partial_checksums, 0);
    }
}

#[test]
fn every_length_up_to_a_jumbo_frame() {
    needs_root!("every_length_up_to_a_jumbo_frame");
    let mut world = World::new();
    for (family, proto, port) in all() {
        let mut flow = world.connect_or_open(family, proto, port);
        // Above some 3 500 bytes a test run has its data in several buffers.
        for len in (0..70).chain([255, 256, 1399, 1400, 1460, 3000, 4096, 8000, 8900]) {
            let payload: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
            flow.request.payload = payload.clone();
            world.request(&flow, ACK);
            world.returns(&flow, &flow.answer(ACK).payload(&payload));
        }
    }
}

#[test]
fn what_is_not_translated_stays() {
    needs_root!("what_is_not_translated_stays");
    let mut world = World::new();
    for (family, proto, port) in all() {
        type Change = (&'static str, fn(&mut Frame));
        let changes: [Change; 9] = [
            ("Ethernet padding", |f| f.padding = 18),
            ("type of service and ECN", |f| f.tos = 0xb9),
            ("another identification or flow label", |f| f.id = 0xffff),
            ("no don't-fragment flag", |f| f.fragment = 0),
            ("the last TTL that goes on", |f| f.ttl = 2),
            ("the first TTL", |f| f.ttl = 255),
            ("TCP options", |f| f.tcp_options = vec![2, 4, 5, 0xb4, 1, 3, 3, 7]),
            ("a window of 0", |f| f.window = 0),
            ("our other MAC address", |f| f.dst_mac = FRONT_ALT_MAC),
        ];
        for (what, change) in changes {
            println!("{family:?} {proto} {port}: {what}");
            let request = world.first(family, proto, port).with(change);
            world.open_with(FRONT, request);
        }
        println!("ECN set up by the SYN (RFC 3168)");
        let (src, dst) = world.ends(family, port);
        let ecn = Frame::tcp(src, dst, SYN | ECE | CWR).with(|f| f.proto = proto);
        world.open_with(FRONT, ecn);
    }
}

/// RFC 768: no checksum stays none; one that comes out as 0 is sent as ffff.
#[test]
fn the_two_zeros_of_udp() {
    needs_root!("the_two_zeros_of_udp");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.open(family, UDP, ports::ACROSS);
        let checksum = |frame: &[u8]| {
            let at = 14 + family.header_len() + 6;
            u16::from_be_bytes([frame[at], frame[at + 1]])
        };
        // RFC 8200, section 8.1: IPv6 has no UDP without a checksum; it is not ours to mend.
        let damaged = (family == Family::V6).then(|| capture::damaged("no checksum"));
        let none = |frame: Frame| frame.with(|f| f.no_checksum = true);
        assert_eq!(checksum(&world.forwards(&flow, &none(flow.next(0)))), 0);
        assert_eq!(checksum(&world.returns(&flow, &none(flow.answer(0)))), 0);
        drop(damaged);

        // The payload that makes the sum what it must be, in either direction.
        let find = |frame: Frame, leaves: &dyn Fn(&Frame) -> Frame| {
            let mut all = (0..=u16::MAX).map(|n| frame.clone().payload(&n.to_be_bytes()));
            all.find(|frame| checksum(&leaves(frame).bytes()) == 0xffff).unwrap()
        };
        world.forwards(&flow, &find(flow.next(0), &|f| flow.forwarded(f)));
        world.returns(&flow, &find(flow.answer(0), &|f| flow.returned(f)));
        // And one that came as ffff.
        world.forwards(&flow, &find(flow.next(0), &Frame::clone));
    }
}

/// RFC 768 lets the UDP length be less than IP's: what follows goes along.
#[test]
fn udp_shorter_than_its_packet() {
    needs_root!("udp_shorter_than_its_packet");
    let mut world = World::new();
    let flow = world.open(Family::V6, UDP, ports::ACROSS);
    let mut frame = flow.next(0).with(|f| f.no_checksum = true).payload(&[9; 20]).bytes();
    let mut expected =
        flow.forwarded(&flow.next(0)).with(|f| f.no_checksum = true).payload(&[9; 20]).bytes();
    for frame in [&mut frame, &mut expected] {
        frame[14 + 40 + 5] -= 8;
    }
    let _damaged = capture::damaged("IPv6 UDP without a checksum");
    assert_eq!(world.feed(FRONT, &frame).frame, expected);
}

/// Packets that are too big or too old are in refused.rs.
#[test]
fn what_cannot_leave_is_dropped_untouched() {
    needs_root!("what_cannot_leave_is_dropped_untouched");
    use {Reason::*, Verdict::Drop};
    let mut world = World::new();
    let mut rows = Vec::new();
    for (family, proto) in TRANSPORTS {
        let first = world.first(family, proto, ports::UNRESOLVED);
        rows.push(row("next hop unknown", first, Drop, NoNeighbour));
        let fits = vec![1; 1280 - first_payload(family, proto)];
        let fits = world.first(family, proto, ports::SMALL).payload(&fits);
        world.open_with(FRONT, fits);
    }
    check(&world, &rows);
}

fn first_payload(family: Family, proto: u8) -> usize {
    family.header_len() + if proto == TCP { 20 } else { 8 }
}

/// The frame is rewritten by then, but must not be counted as sent.
#[test]
fn a_way_out_without_device_is_a_counted_drop() {
    needs_root!("a_way_out_without_device_is_a_counted_drop");
    let mut world = World::new();
    let (src, dst) = world.ends(Family::V4, ports::NO_DEVICE);
    let seen = world.send(&Frame::udp(src, dst));
    assert_eq!(seen.pair(), (Verdict::Drop, Reason::NoDevice));
    let flow = world.open(Family::V4, UDP, ports::ACROSS);
    world.remove_device(FRONT);
    let seen = world.feed(BACK, &flow.answer(0).bytes());
    assert_eq!(seen.pair(), (Verdict::Drop, Reason::NoDevice));
}

#[test]
fn an_answer_too_big_for_the_clients_side() {
    needs_root!("an_answer_too_big_for_the_clients_side");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.open(family, UDP, ports::ACROSS);
        world.change_iface(FRONT, |iface| iface.mtu = 1400);
        let head = first_payload(family, UDP);
        let fits = flow.answer(0).payload(&vec![1; 1400 - head]);
        assert_eq!(world.feed(BACK, &fits.bytes()).pair(), (Verdict::Redirect, Reason::NatReply));
        let big = flow.answer(0).payload(&vec![1; 1400 - head + 1]);
        assert_eq!(world.feed(BACK, &big.bytes()).pair(), (Verdict::Tx, Reason::SentTooBig));
    }
}

/// On veth what goes back by the same interface is redirected to it: the same frames.
#[test]
fn back_by_redirect() {
    needs_root!("back_by_redirect");
    let redirecting = || {
        let world = World::new();
        world.change_iface(FRONT, |iface| iface.flags = RW_IFACE_REDIRECT as u16);
        world
    };
    let mut world = redirecting();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::SAME);
        let request = Frame::tcp(src, dst, SYN);
        let sent = world.send(&request);
        assert_eq!(sent.pair(), (Verdict::Redirect, Reason::NatForward));
        // Compared byte by byte, but for the port that was chosen.
        let flow = Flow::opened(&world, FRONT, request, &sent.frame);
        assert_eq!(sent.frame, flow.forwarded(&flow.request).bytes());
        let answer = flow.answer(SYN | ACK);
        let sent = world.feed(FRONT, &answer.bytes());
        assert_eq!(sent.pair(), (Verdict::Redirect, Reason::NatReply));
        assert_eq!(sent.frame, flow.returned(&answer).bytes());
        let reset = world.send(&Frame::tcp(src, (family.vip(), ports::NONE_RESET).into(), ACK));
        assert_eq!(reset.pair(), (Verdict::Redirect, Reason::ResetNoFlow));
    }
    // Without a device there it is not sent, and not counted as sent.
    world.remove_device(FRONT);
    let (src, dst) = world.ends(Family::V4, ports::NONE_RESET);
    let reset = world.send(&Frame::tcp(src, dst, ACK));
    assert_eq!(reset.pair(), (Verdict::Drop, Reason::NoDevice));
}

/// A sender with checksum offload leaves the pseudo-header's sum: counted, for nobody finishes it.
#[test]
fn unfinished_checksums_are_counted() {
    needs_root!("unfinished_checksums_are_counted");
    let mut world = World::new();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let syn = Frame::tcp(src, dst, SYN);
        let mut bytes = syn.bytes();
        let at = 14 + family.header_len() + 16;
        let sum = syn.pseudo_sum();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let _damaged = capture::damaged("an unfinished checksum");
        assert_eq!(world.feed(FRONT, &bytes).pair(), (Verdict::Drop, Reason::Malformed));
        let backend = world.chosen(&syn).unwrap();
        assert_eq!(world.traffic(&backend).partial_checksums, 1);
    }
}
