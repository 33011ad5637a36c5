//! One tag and two: taken off on the way in, put on as the way out wants them, given back to what
//! is passed on.

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{NextHop, Tables};

const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;

/// Interface slots: on the front device VLAN 100, 200 in a service VLAN 7; on the back device 300.
const ONE: u32 = 10;
const TWO: u32 = 11;
const BEHIND: u32 = 12;

fn tags(slot: u32) -> Vec<(u16, u16)> {
    match slot {
        ONE => vec![(Q, 100)],
        TWO => vec![(AD, 7), (Q, 200)],
        BEHIND => vec![(Q, 300)],
        _ => vec![],
    }
}

/// Backends of [`ports::ACROSS`] behind this slot.
fn world(way_out: u32) -> World {
    with_vlans(World::with(8192, backends_behind(way_out)))
}

fn backends_behind(way_out: u32) -> impl FnOnce(&mut Tables) {
    move |tables| {
        let across: Vec<u16> =
            tables.services.iter().filter(|s| s.key.port == ports::ACROSS).map(|s| s.id).collect();
        for backend in tables.backends.iter_mut().filter(|b| across.contains(&b.service)) {
            let hop = backend.next_hop.unwrap();
            backend.next_hop = Some(NextHop { iface: way_out, ..hop });
        }
    }
}

fn with_vlans(mut world: World) -> World {
    world.add_vlan(ONE, FRONT, &tags(ONE));
    world.add_vlan(TWO, FRONT, &tags(TWO));
    world.add_vlan(BEHIND, BACK, &tags(BEHIND));
    world
}

fn device(slot: u32) -> u32 {
    if slot == BACK || slot == BEHIND { BACK } else { FRONT }
}

fn tagged(frame: &Frame, slot: u32) -> Frame {
    frame.clone().with(|f| f.vlans = tags(slot))
}

fn mac(slot: u32) -> [u8; 6] {
    mac_of(device(slot))
}

/// Any tags in, any out, both families, both ways.
#[test]
fn every_way_in_and_out() {
    needs_root!("every_way_in_and_out");
    for out in [FRONT, BACK, ONE, TWO, BEHIND] {
        let mut world = world(out);
        for slot in [FRONT, ONE, TWO] {
            for (family, proto) in TRANSPORTS {
                let plain = world.first(family, proto, ports::ACROSS);
                let verdict = |from| if device(from) == device(out) { Tx } else { Redirect };
                let what = format!("{family:?} {proto}: from {slot} to {out}");

                let seen = world.feed(FRONT, &tagged(&plain, slot).bytes());
                assert_eq!(seen.pair(), (verdict(slot), NatForward), "{what}");
                let flow = Flow::opened(&world, slot, plain.clone(), &untag(&seen.frame, out));
                let expected = flow.forwarded(&plain).with(|f| f.src_mac = mac(out));
                assert_eq!(seen.frame, tagged(&expected, out).bytes(), "{what}");

                let answer = flow.answer(SYN | ACK).with(|f| f.dst_mac = mac(out));
                let seen = world.feed(device(out), &tagged(&answer, out).bytes());
                assert_eq!(seen.pair(), (verdict(slot), NatReply), "{what}");
                let expected = flow.returned(&answer).with(|f| f.src_mac = mac(slot));
                assert_eq!(seen.frame, tagged(&expected, slot).bytes(), "{what}");
            }
        }
    }
}

fn untag(frame: &[u8], slot: u32) -> Vec<u8> {
    [&frame[..12], &frame[12 + 4 * tags(slot).len()..]].concat()
}

/// A priority tag alone is no VLAN: the device's own frame.
#[test]
fn priority_tags() {
    needs_root!("priority_tags");
    let mut world = world(BEHIND);
    for family in FAMILIES {
        for (vlans, slot) in
            [(vec![(Q, 0xe000)], FRONT), (vec![(Q, 0xe064)], ONE), (vec![(Q, 0), (Q, 100)], ONE)]
        {
            let (src, dst) = world.ends(family, ports::NONE_RESET);
            let segment = Frame::tcp(src, dst, SYN).with(|f| f.vlans = vlans);
            let seen = world.send(&segment);
            assert_eq!(seen.pair(), (Tx, ResetNoBackend));
            // The answer has the tags of the interface, without a priority.
            assert_eq!(wire::check(&untag(&seen.frame, slot)).good().dst, src);
            assert_eq!(seen.frame[12..14] == [0x81, 0], slot == ONE);
        }
    }
}

/// A packet that is passed on leaves as it came, with its priority.
#[test]
fn what_is_passed_on() {
    needs_root!("what_is_passed_on");
    let mut world = world(BACK);
    let mut rows = Vec::new();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let frame = Frame::udp(src, dst);
        for vlans in [vec![(Q, 0x2064)], vec![(AD, 0x4007), (Q, 0xf0c8)], vec![(Q, 0x2000)]] {
            let with = |change: fn(&mut Frame)| {
                frame.clone().with(|f| f.vlans = vlans.clone()).with(change)
            };
            rows.extend([
                row("no service on that port", with(|f| f.dst.set_port(79)), Pass, NoService),
                row("another host", with(|f| f.dst_mac = STRANGER_MAC), Pass, OtherHost),
                row("OSPF", with(|f| f.proto = 89), Pass, OtherProtocol),
            ]);
        }
        // Tags that nobody here has, or too many.
        for vlans in [
            vec![(Q, 101)],
            vec![(AD, 100)],
            vec![(Q, 100), (Q, 100)],
            vec![(Q, 7), (Q, 200)],
            vec![(AD, 7)],
            vec![(AD, 7), (Q, 200), (Q, 1)],
            vec![(Q, 300)],
        ] {
            rows.push(row("unknown tags", frame.clone().with(|f| f.vlans = vlans), Pass, Vlan));
        }
    }
    let tagged = world.first(Family::V4, UDP, 9).with(|f| f.vlans = tags(ONE)).bytes();
    let mut lldp = tagged.clone();
    lldp[16..18].copy_from_slice(&[0x88, 0xcc]);
    rows.push(row("LLDP in a VLAN", lldp, Pass, NotIp));
    for len in 14..18 {
        rows.push(row("a tag cut", tagged[..len].to_vec(), Pass, Vlan));
    }
    check(&world, &rows);
}

/// The gateway's own answers go back with the tags of the question.
#[test]
fn own_answers() {
    needs_root!("own_answers");
    let world = world(BACK);
    for slot in [ONE, TWO] {
        let mut ask = Arp::who_has(Family::V4.announced()).bytes();
        let mut put = Vec::new();
        for (kind, id) in tags(slot) {
            put.extend(kind.to_be_bytes());
            put.extend(id.to_be_bytes());
        }
        ask.splice(12..12, put.clone());
        let seen = world.feed(FRONT, &ask);
        assert_eq!(seen.pair(), (Tx, ArpReply));
        assert_eq!(seen.frame[12..12 + put.len()], put);
        assert_eq!(seen.frame[..6], CLIENT_MAC);
        assert_eq!(seen.frame.len(), ask.len());
    }
}

/// ICMP of our own, and ICMP errors that are translated: each in the VLAN it belongs to.
#[test]
fn icmp_in_a_vlan() {
    needs_root!("icmp_in_a_vlan");
    let world = with_vlans(World::watched_with(8192, backends_behind(BEHIND)));
    world.change_settings(|set| (set.icmp_gap_us, set.icmp_prefix_gap_us) = (0, 0));
    for (slot, family) in [ONE, TWO].into_iter().flat_map(|slot| FAMILIES.map(|f| (slot, f))) {
        let ping = icmp::frame(family.client(), family.vip(), icmp::echo(family, false, b"data"));
        let answer = icmp::frame(family.vip(), family.client(), icmp::echo(family, true, b"data"))
            .with(|f| (f.src_mac, f.dst_mac, f.ttl) = (FRONT_MAC, CLIENT_MAC, 64));
        let big = Frame::udp((family.client(), 7).into(), (family.vip(), ports::SMALL).into())
            .payload(&[7; 1400]);
        let told = icmp::complaint(&big, family.vip(), Says::TooBig(1280));
        let src = (family.client(), 7 + slot as u16).into();
        let old = Frame::udp(src, (family.vip(), ports::ACROSS).into()).with(|f| f.ttl = 1);
        let told_old = icmp::complaint(&old, family.vip(), Says::TimeExceeded);
        let rows = [
            row("ping", tagged(&ping, slot), Tx, EchoReply).gives(tagged(&answer, slot)),
            row("too big", tagged(&big, slot), Tx, SentTooBig).gives(tagged(&told, slot)),
            row("too old", tagged(&old, slot), Tx, SentTimeExceeded).gives(tagged(&told_old, slot)),
        ];
        check(&world, &rows);

        // The client in its VLAN, the backend in another; the port unreachable comes from there.
        let request = tagged(&old.with(|f| f.ttl = 61), slot);
        let sent = world.feed(FRONT, &request.bytes());
        assert_eq!(sent.pair(), (Redirect, NatForward));
        let l3 = &untag(&sent.frame, BEHIND)[14..];
        let seen = untag(&sent.frame, BEHIND);
        let seen = wire::check(&seen).good();
        let (nat, backend) = (seen.src.ip(), seen.dst.ip());
        let error = icmp::frame(backend, nat, icmp::error(family, Says::NoPort, l3))
            .with(|f| f.dst_mac = BACK_MAC);
        let back = world.feed(BACK, &tagged(&error, BEHIND).bytes());
        assert_eq!(back.pair(), (Redirect, IcmpToClient));
        let quoted = request.clone().with(|f| (f.vlans, f.ttl) = (vec![], 60));
        let quote = icmp::quote(&quoted, usize::MAX);
        let wanted =
            icmp::frame(family.vip(), family.client(), icmp::error(family, Says::NoPort, &quote))
                .with(|f| (f.src_mac, f.dst_mac, f.ttl) = (FRONT_MAC, CLIENT_MAC, 60));
        assert_eq!(back.frame, tagged(&wanted, slot).bytes());
    }
}

/// Fragments, options and VLANs at once.
#[test]
fn fragments_in_a_vlan() {
    needs_root!("fragments_in_a_vlan");
    let mut world = world(BEHIND);
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let frame = Frame::udp(src, dst).payload(&[7; 4000]).with(|f| f.fragment = 0);
        for mut part in fragments(&frame.bytes(), 1480, 99) {
            part.splice(12..12, [0x81, 0, 0, 100]);
            let seen = world.feed(FRONT, &part);
            assert_eq!(seen.pair(), (Redirect, NatForward));
            assert_eq!(seen.frame[12..16], [0x81, 0, 0x01, 0x2c]);
            assert_eq!(seen.frame.len(), part.len());
        }
    }
}
