//! The first fragment decides, the others follow; what comes before it is dropped and counted.

use ringway_abi::raw::{RW_FRAGMENT_BUCKETS, RW_FRAGMENT_TIMEOUT};
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::frame::reassemble;
use ringway_bpf_tests::prelude::*;

const PROTOCOLS: [u8; 2] = [TCP, UDP];

fn long(world: &mut World, family: Family, proto: u8) -> Frame {
    let (src, dst) = world.ends(family, ports::ACROSS);
    let payload: Vec<u8> = (0..4000u32).map(|n| (n * 7) as u8).collect();
    let frame = Frame { proto, flags: SYN, ..Frame::udp(src, dst) };
    frame.payload(&payload).with(|f| f.fragment = 0)
}

/// The next datagram or segment of a flow, as long as the first.
fn next(flow: &Flow, first: &Frame) -> Frame {
    flow.next(ACK).with(|f| {
        f.fragment = 0;
        f.payload = first.payload.clone();
    })
}

/// Every fragment must be sent on as this verdict; what they make together.
fn sent(world: &World, slot: u32, parts: &[Vec<u8>], verdict: Verdict) -> Vec<u8> {
    let one = |part: &Vec<u8>| {
        let seen = world.feed(slot, part);
        assert_eq!(seen.verdict, verdict, "{}", seen.reason);
        assert_eq!(seen.frame.len(), part.len());
        seen.frame
    };
    reassemble(&parts.iter().map(one).collect::<Vec<_>>())
}

/// Opens a flow by fragments, or, for TCP, by a SYN before them.
fn open(world: &mut World, family: Family, proto: u8, id: u32) -> (Flow, Frame) {
    let request = long(world, family, proto);
    let opening = if proto == TCP { request.clone().payload(b"") } else { request.clone() };
    let flow = world.open_with(FRONT, opening.clone().with(|f| f.payload.truncate(64)));
    if proto == TCP {
        world.answer(&flow, SYN | ACK);
    }
    let request = next(&flow, &request);
    let parts = fragments(&request.bytes(), 1480, id);
    assert_eq!(parts.len(), 3);
    let expected = flow.forwarded(&request).with(|f| f.id = header_id(family, id, f.id)).bytes();
    assert_eq!(sent(world, FRONT, &parts, Redirect), expected, "{family:?} {proto}");
    (flow, request)
}

/// IPv4 has the identification in its header; IPv6 not.
fn header_id(family: Family, id: u32, was: u16) -> u16 {
    if family == Family::V4 { id as u16 } else { was }
}

#[test]
fn the_others_follow_the_first_both_ways() {
    needs_root!("the_others_follow_the_first_both_ways");
    let mut world = World::new();
    for family in FAMILIES {
        for (n, proto) in (1..).zip(PROTOCOLS) {
            let (flow, request) = open(&mut world, family, proto, 0x1000 + n);
            let answer = flow.answer(ACK).with(|f| {
                f.fragment = 0;
                f.payload = request.payload.clone();
            });
            let parts = fragments(&answer.bytes(), 1480, 0x2000 + n);
            let back = flow.returned(&answer);
            let back = back.with(|f| f.id = header_id(family, 0x2000 + n, f.id)).bytes();
            assert_eq!(sent(&world, flow.back_slot(), &parts, Redirect), back);
        }
    }
}

/// A flow begins with a datagram in fragments; the last of it may be a single byte.
#[test]
fn a_first_fragment_opens_a_flow() {
    needs_root!("a_first_fragment_opens_a_flow");
    let mut world = World::new();
    for family in FAMILIES {
        for len in [1480 - 8 + 1, 2960 - 8, 4000, 8952] {
            let request = long(&mut world, family, UDP).with(|f| f.payload.resize(len, 0x5a));
            let before = audit::records(&world).len();
            let parts = fragments(&request.bytes(), 1480, len as u32);
            let out = sent(&world, FRONT, &parts, Redirect);
            let packet = wire::check(&out).good();
            assert_eq!(packet.dst.port(), 8081);
            assert_eq!(audit::records(&world).len(), before + 1);
        }
    }
}

/// Two datagrams under way at once, and the same identification from elsewhere.
#[test]
fn datagrams_are_not_mixed_up() {
    needs_root!("datagrams_are_not_mixed_up");
    let mut world = World::new();
    for family in FAMILIES {
        let a = long(&mut world, family, UDP);
        let b = long(&mut world, family, UDP).with(|f| f.src.set_ip(family.nth_client(9)));
        let c = long(&mut world, family, UDP);
        let cut = |frame: &Frame, id| fragments(&frame.bytes(), 1480, id);
        let all = [cut(&a, 7), cut(&b, 7), cut(&c, 8)];
        let mut out = [const { Vec::new() }; 3];
        for n in 0..3 {
            for (parts, out) in all.iter().zip(&mut out) {
                out.push(world.feed(FRONT, &parts[n]).frame);
            }
        }
        let sources = out.map(|parts| wire::check(&reassemble(&parts)).good().src.port());
        assert!(sources[0] != sources[1] && sources[1] != sources[2] && sources[0] != sources[2]);
    }
}

/// A host that forges the first fragment of another client's answer, with its own port, gets none
/// of the rest.
#[test]
fn a_forged_first_leads_nobodys_fragments_away() {
    needs_root!("a_forged_first_leads_nobodys_fragments_away");
    let mut world = World::new();
    for family in FAMILIES {
        let victim = world.open(family, UDP, ports::ACROSS);
        let attacker = world
            .open_with(FRONT, Frame::udp((family.nth_client(9), 7).into(), victim.request.dst));
        let cut = |flow: &Flow, slot, mac| {
            let answer = flow.answer(0).with(|f| {
                (f.fragment, f.src_mac, f.dst_mac) = (0, mac, mac_of(slot));
                f.payload = vec![7; 4000];
            });
            fragments(&answer.bytes(), 1480, 0x77)
        };
        let own = victim.backend.next_hop.unwrap().mac;
        let answer = cut(&victim, victim.back_slot(), own);
        for (slot, mac, reason) in
            [(FRONT, own, WrongInterface), (victim.back_slot(), [2, 0, 0, 0, 9, 9], NatReply)]
        {
            let forged = &cut(&attacker, slot, mac)[0];
            assert_eq!(world.feed(victim.back_slot(), &answer[0]).reason, NatReply);
            assert_eq!(world.feed(slot, forged).reason, reason);
            for part in &answer[1..] {
                let to = wire::check(&world.feed(victim.back_slot(), part).frame).good().dst.ip();
                assert_eq!(to, victim.request.src.ip(), "{reason}");
            }
        }
    }
}

/// Under nat a backend may put two clients' fragments together: then a checksum must tell.
#[test]
fn fragments_of_a_datagram_without_checksum() {
    needs_root!("fragments_of_a_datagram_without_checksum");
    let mut world = World::new();
    let bare = long(&mut world, Family::V4, UDP).with(|f| f.no_checksum = true);
    let seen = world.feed(FRONT, &fragments(&bare.bytes(), 1480, 5)[0]);
    assert_eq!((seen.verdict, seen.reason), (Drop, Fragment));
    let whole = bare.payload(b"short");
    assert_eq!(world.send(&whole).reason, NatForward);
}

#[test]
fn early_and_late_ones() {
    needs_root!("early_and_late_ones");
    let mut world = World::new();
    let mut rows = Vec::new();
    for family in FAMILIES {
        for proto in PROTOCOLS {
            let frame = long(&mut world, family, proto);
            let parts = fragments(&frame.bytes(), 1480, 77);
            for (what, part) in [("middle", &parts[1]), ("last", &parts[2])] {
                rows.push(row(what, part.clone(), Drop, FragmentEarly));
                let mut stranger = part.clone();
                stranger[..6].copy_from_slice(&STRANGER_MAC);
                rows.push(row(what, stranger, Pass, OtherHost));
            }
            let elsewhere = frame.with(|f| f.dst.set_ip(family.elsewhere()));
            for part in fragments(&elsewhere.bytes(), 1480, 77) {
                rows.push(row("to nobody", part, Pass, NoService));
            }
        }
        // A ping in fragments, to an address of ours: none is noted, so that none is too early.
        let frame = long(&mut world, family, UDP).with(|f| f.proto = family.icmp());
        for part in fragments(&frame.bytes(), 1480, 78) {
            rows.push(row("ICMP", part, Drop, Fragment));
        }
    }
    check(&world, &rows);
}

/// The first cuts off the ports' header: nothing follows it.
#[test]
fn tiny_first_fragments() {
    needs_root!("tiny_first_fragments");
    let mut world = World::new();
    let mut rows = Vec::new();
    for family in FAMILIES {
        let frame = long(&mut world, family, TCP);
        let parts = fragments(&frame.bytes(), 8, 79);
        rows.push(row("8 bytes of TCP", parts[0].clone(), Drop, Malformed));
        rows.push(row("the rest of it", parts[1].clone(), Drop, FragmentEarly));
    }
    check(&world, &rows);
}

/// Thirty seconds later the first is forgotten; a flood of others may push it out before, the oldest
/// of a bucket first, which is counted too. Nothing grows.
#[test]
fn forgotten_firsts() {
    needs_root!("forgotten_firsts");
    let mut world = World::new();
    let frame = long(&mut world, Family::V6, UDP);
    let parts = fragments(&frame.bytes(), 1480, 80);
    assert_eq!(world.feed(FRONT, &parts[0]).reason, NatForward);
    world.advance(RW_FRAGMENT_TIMEOUT.into());
    assert_eq!(world.feed(FRONT, &parts[1]).reason, NatForward);
    world.advance(1);
    assert_eq!(world.feed(FRONT, &parts[2]).pair(), (Drop, FragmentEarly));
    // Of 40 000 datagrams under way, 32 768 have room at most, and most of these find it.
    let flow = world.open(Family::V6, UDP, ports::ACROSS);
    let bytes = next(&flow, &frame).bytes();
    let run = |id: u32, part: usize| {
        world.root(FRONT).run(&fragments(&bytes, 1480, id)[part], &mut Vec::new()).unwrap()
    };
    let range = 100_000..140_000;
    let last = range.end - RW_FRAGMENT_BUCKETS..range.end;
    range.clone().for_each(|id| _ = run(id, 0));
    let kept: Vec<u32> = range.filter(|id| run(*id, 2) == Redirect).collect();
    assert!((25_000..=32_768).contains(&kept.len()), "{}", kept.len());
    // One to a bucket: few meet three more in theirs, and only these push anything out.
    let kept_of_last = kept.iter().filter(|id| last.contains(id)).count();
    assert!(kept_of_last > last.len() * 49 / 50, "{kept_of_last}");
}
