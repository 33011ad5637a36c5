//! Devices without an Ethernet header. Their packets are written here as any other's, and fed and
//! compared from the IP header on.

use ringway_abi::Slot;
use ringway_bpf_tests::icmp::{complaint, echo, frame as icmp_frame};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::Forward;

const HEADER: usize = 14;

/// The interfaces of these slots have no Ethernet header.
fn without_headers(mut world: World, slots: &[u32]) -> World {
    slots.iter().for_each(|slot| world.make_layer3(*slot));
    world
}

/// Devices without a header, and the way that a flow takes there and back.
struct Way {
    slots: &'static [u32],
    port: u16,
    requests: Verdict,
    answers: Verdict,
}

impl Way {
    fn is_bare(&self, slot: u32) -> bool {
        self.slots.contains(&slot)
    }

    fn there_and_back(&self, world: &mut World, family: Family, proto: u8) {
        let request = world.first(family, proto, self.port);
        let left = self.feed(world, FRONT, &request, self.requests, Reason::NatForward);
        let framed = match left.len() == request.bytes().len() {
            true => left.clone(),
            false => [&request.bytes()[..HEADER], &left].concat(),
        };
        let flow = Flow::opened(world, FRONT, request, &framed);
        let forwarded = flow.forwarded(&flow.request);
        assert_eq!(left, self.expected(FRONT, &flow.request, forwarded, self.requests));

        let answer = flow.answer(SYN | ACK);
        let left = self.feed(world, flow.back_slot(), &answer, self.answers, Reason::NatReply);
        let returned = flow.returned(&answer);
        assert_eq!(left, self.expected(flow.back_slot(), &answer, returned, self.answers));
    }

    fn feed(
        &self,
        world: &World,
        slot: u32,
        frame: &Frame,
        verdict: Verdict,
        sent: Reason,
    ) -> Vec<u8> {
        let came = if self.is_bare(slot) { frame.l3() } else { frame.bytes() };
        let seen = world.feed(slot, &came);
        let reason = if verdict == Verdict::Pass { Reason::PassRewritten } else { sent };
        assert_eq!(seen.pair(), (verdict, reason), "{frame:?}");
        seen.frame
    }

    /// A packet that is passed up is still addressed to us: the kernel takes it, and a hop of it.
    fn expected(&self, slot: u32, came: &Frame, leaves: Frame, verdict: Verdict) -> Vec<u8> {
        match verdict {
            Verdict::Redirect => leaves.bytes(),
            Verdict::Tx => leaves.l3(),
            _ => {
                let (src_mac, dst_mac, ttl) = (came.src_mac, came.dst_mac, came.ttl);
                let passed = Frame { src_mac, dst_mac, ttl, ..leaves };
                if self.is_bare(slot) { passed.l3() } else { passed.bytes() }
            }
        }
    }
}

/// No redirect enters such a device, from wherever; what comes out of it is redirected as always,
/// with a header. A packet that goes back by it has none.
#[test]
fn there_and_back() {
    needs_root!("there_and_back");
    use Verdict::{Pass, Redirect, Tx};
    let way = |slots, port, requests, answers| Way { slots, port, requests, answers };
    let backends = || way(&[BACK], ports::ACROSS, Pass, Redirect);
    for (what, world, generic, way) in [
        ("backends behind one", World::new as fn() -> World, false, backends()),
        ("the same, from a generic interface", World::new, true, backends()),
        ("clients behind one", World::watched, false, way(&[FRONT], ports::ACROSS, Redirect, Pass)),
        ("both behind the same", World::new, false, way(&[FRONT], ports::SAME, Tx, Tx)),
        ("from one to another", World::new, false, way(&[FRONT, BACK], ports::ACROSS, Pass, Pass)),
    ] {
        println!("{what}");
        let mut world = without_headers(world(), way.slots);
        world.gateway.set_generic(FRONT, generic).unwrap();
        for (family, proto) in TRANSPORTS {
            way.there_and_back(&mut world, family, proto);
        }
        world.gateway.set_generic(FRONT, false).unwrap();
    }
}

#[test]
fn our_own_answers_go_back() {
    needs_root!("our_own_answers_go_back");
    let mut world = without_headers(World::watched(), &[FRONT]);
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let stray = Frame::tcp(src, dst, ACK);
        let seen = world.feed(FRONT, &stray.l3());
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::ResetNoFlow));
        assert_eq!(seen.frame.len(), family.header_len() + 20);
        assert_eq!(seen.frame[family.header_len() + 13], RST);

        let ping = icmp_frame(src.ip(), dst.ip(), echo(family, false, b"anybody?"));
        let seen = world.feed(FRONT, &ping.l3());
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::EchoReply));
        let answer = icmp_frame(dst.ip(), src.ip(), echo(family, true, b"anybody?"));
        assert_eq!(
            seen.frame,
            answer.with(|f| (f.ttl, f.id, f.tos) = (64, ping.id, ping.tos)).l3()
        );

        let tired = Frame::udp(src, dst).with(|f| f.ttl = 1);
        let seen = world.feed(FRONT, &tired.l3());
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::SentTimeExceeded));
        assert_eq!(seen.frame, complaint(&tired, dst.ip(), Says::TimeExceeded).l3());
    }
}

/// As it came, whoever gets it.
#[test]
fn what_is_not_ours_is_passed_as_it_came() {
    needs_root!("what_is_not_ours_is_passed_as_it_came");
    let mut world = without_headers(World::new(), &[FRONT]);
    for family in FAMILIES {
        for dst in [family.elsewhere(), family.vip()] {
            let src = (family.client(), world.client_port()).into();
            let other = Frame::udp(src, (dst, 9).into()).l3();
            let seen = world.feed(FRONT, &other);
            assert_eq!(seen.pair(), (Verdict::Pass, Reason::NoService));
            assert_eq!(seen.frame, other);
        }
    }
    // MPLS, say; ARP of a tap without header; nothing that the version tells.
    for start in [0x00, 0x0f, 0x30, 0x50, 0x80, 0xff] {
        let strange = [&[start][..], &[0x5a; 60]].concat();
        let seen = world.feed(FRONT, &strange);
        assert_eq!(seen.pair(), (Verdict::Pass, Reason::NotIp));
        assert_eq!(seen.frame, strange);
    }
    for start in [0x45, 0x60] {
        let cut = [&[start][..], &[0; 13]].concat();
        assert_eq!(world.feed(FRONT, &cut).pair(), (Verdict::Drop, Reason::Malformed));
    }
    // The user's program and a node without a balancer see what the device gave.
    let elsewhere = world.first(Family::V4, UDP, 9).l3();
    let dropping = foreign_program(Verdict::Drop, true).unwrap();
    world.set_stage(Slot::OnPass, Some(&dropping), true);
    let stopped = world.root(FRONT).run(&elsewhere, &mut Vec::new()).unwrap();
    assert_eq!(stopped, Verdict::Drop);
    world.set_stage(Slot::OnPass, None, false);
    if world.is_watched() {
        return; // a balancer stands in
    }
    world.set_stage(Slot::Balance, None, false);
    let seen = world.feed(FRONT, &elsewhere);
    assert_eq!(seen.pair(), (Verdict::Pass, Reason::NoStage));
    assert_eq!(seen.frame, elsewhere);
}

fn dsr(forward: Forward) -> World {
    let world = World::with(8_192, |tables| forward_across(tables, forward));
    without_headers(world, &[BACK])
}

/// The outer packet is what another world, without such a device, redirects.
#[test]
fn tunnels_into_one() {
    needs_root!("tunnels_into_one");
    for forward in [Forward::DsrIpip, Forward::DsrGue] {
        let mut world = dsr(forward);
        for family in FAMILIES {
            for clients in [false, true] {
                if clients {
                    world.make_layer3(FRONT);
                }
                let request = world.first(family, UDP, ports::ACROSS);
                let came = if clients { request.l3() } else { request.bytes() };
                let seen = world.feed(FRONT, &came);
                let passed = (Verdict::Pass, Reason::PassRewritten);
                assert_eq!(seen.pair(), passed, "{forward} {request:?}");
                let outer = if clients { &seen.frame[..] } else { &seen.frame[HEADER..] };
                let head = family.header_len() + if forward == Forward::DsrGue { 8 } else { 0 };
                // The kernel takes a hop of the outer header, which began with 64.
                assert_eq!(outer[if family == Family::V4 { 8 } else { 7 }], 65);
                let inner = request.clone().with(|f| f.ttl -= 1).l3();
                assert_eq!(outer[head..], inner, "{forward} {request:?}");
            }
            world = dsr(forward);
        }
    }
}

/// There is no frame to rewrite.
#[test]
fn dsr_l2_ends() {
    needs_root!("dsr_l2_ends");
    let mut world = dsr(Forward::DsrL2);
    let request = world.first(Family::V4, TCP, ports::ACROSS);
    assert_eq!(world.send(&request).pair(), (Verdict::Drop, Reason::NoDevice));
    let back = world.feed(BACK, &request.l3());
    assert_eq!(back.pair(), (Verdict::Drop, Reason::NoDevice));
}
