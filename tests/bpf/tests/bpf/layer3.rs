//! Devices without an Ethernet header. Their packets are written here as any other's, and fed and
//! compared from the IP header on.

use ringway_abi::{Reason, Slot, Verdict};
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Frame, TCP, UDP, flags};
use ringway_bpf_tests::icmp::{Says, complaint, echo, frame as icmp_frame};
use ringway_bpf_tests::run::foreign_program;
use ringway_bpf_tests::{Flow, World, ports, wire};
use ringway_plan::tables::{Forward, Tunnel};

use crate::needs_root;

const PASSED: (Verdict, Reason) = (Verdict::Pass, Reason::PassRewritten);
const HEADER: usize = 14;

/// A world in which the interfaces of these slots have no Ethernet header.
fn world_with_layer3(slots: &[u32]) -> World {
    without_headers(World::new(), slots)
}

fn without_headers(mut world: World, slots: &[u32]) -> World {
    slots.iter().for_each(|slot| world.make_layer3(*slot));
    world
}

fn bare(frame: &Frame) -> Vec<u8> {
    frame.bytes().split_off(HEADER)
}

fn first(world: &mut World, family: Family, proto: u8, port: u16) -> Frame {
    let (src, dst) = world.ends(family, port);
    Frame { proto, flags: flags::SYN, ..Frame::udp(src, dst) }
}

/// The packet that the kernel routes on, behind the frame's header, with the hop left to it.
fn routed(came: &Frame, leaves: Frame) -> Vec<u8> {
    bare(&leaves.with(|f| f.ttl = came.ttl))
}

/// The flow that this packet opened, by what became of it.
fn opened(world: &World, slot: u32, request: &Frame, left: &[u8]) -> Flow {
    let mut frame = request.bytes();
    frame.truncate(HEADER);
    frame.extend(left);
    let source = wire::check(&frame).good().src;
    let backend = world.chosen(request).unwrap();
    Flow { request: request.clone(), slot, backend, source }
}

/// No redirect enters such a device, from wherever; what comes out of it is redirected as always.
#[test]
fn backends_behind_one() {
    needs_root!("backends_behind_one");
    for generic in [false, true] {
        let mut world = world_with_layer3(&[BACK]);
        world.gateway.set_generic(FRONT, generic).unwrap();
        for family in FAMILIES {
            for proto in [TCP, UDP] {
                let request = first(&mut world, family, proto, ports::ACROSS);
                let seen = world.send(&request);
                assert_eq!(seen.pair(), PASSED, "{request:?}");
                // Still addressed to us, for the kernel to take it.
                assert_eq!(seen.frame[..HEADER], request.bytes()[..HEADER]);
                let flow = opened(&world, FRONT, &request, &seen.frame[HEADER..]);
                assert_eq!(seen.frame[HEADER..], routed(&request, flow.forwarded(&request)));

                let answer = flow.answer(flags::SYN | flags::ACK);
                let seen = world.feed(BACK, &bare(&answer));
                assert_eq!(seen.pair(), (Verdict::Redirect, Reason::NatReply), "{answer:?}");
                assert_eq!(seen.frame, flow.returned(&answer).bytes());
            }
        }
    }
}

/// Requests are redirected, with a header; answers are passed up.
#[test]
fn clients_behind_one() {
    needs_root!("clients_behind_one");
    let mut world = without_headers(World::watched(), &[FRONT]);
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            let request = first(&mut world, family, proto, ports::ACROSS);
            let seen = world.feed(FRONT, &bare(&request));
            assert_eq!(seen.pair(), (Verdict::Redirect, Reason::NatForward), "{request:?}");
            let flow = opened(&world, FRONT, &request, &seen.frame[HEADER..]);
            assert_eq!(seen.frame, flow.forwarded(&request).bytes());

            let answer = flow.answer(flags::SYN | flags::ACK);
            let seen = world.feed(BACK, &answer.bytes());
            assert_eq!(seen.pair(), PASSED, "{answer:?}");
            assert_eq!(seen.frame[..HEADER], answer.bytes()[..HEADER]);
            assert_eq!(seen.frame[HEADER..], routed(&answer, flow.returned(&answer)));
        }
    }
}

/// By the one it came in by, a packet goes back, without a header.
#[test]
fn clients_and_backends_behind_one() {
    needs_root!("clients_and_backends_behind_one");
    let mut world = world_with_layer3(&[FRONT]);
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            let request = first(&mut world, family, proto, ports::SAME);
            let seen = world.feed(FRONT, &bare(&request));
            assert_eq!(seen.pair(), (Verdict::Tx, Reason::NatForward), "{request:?}");
            let flow = opened(&world, FRONT, &request, &seen.frame);
            assert_eq!(seen.frame, bare(&flow.forwarded(&request)));

            let answer = flow.answer(flags::SYN | flags::ACK);
            let seen = world.feed(FRONT, &bare(&answer));
            assert_eq!(seen.pair(), (Verdict::Tx, Reason::NatReply), "{answer:?}");
            assert_eq!(seen.frame, bare(&flow.returned(&answer)));
        }
    }
}

/// Two of them: in by one, out by the other is the kernel's path.
#[test]
fn from_one_to_another() {
    needs_root!("from_one_to_another");
    let mut world = world_with_layer3(&[FRONT, BACK]);
    for family in FAMILIES {
        let request = first(&mut world, family, TCP, ports::ACROSS);
        let seen = world.feed(FRONT, &bare(&request));
        assert_eq!(seen.pair(), PASSED);
        let flow = opened(&world, FRONT, &request, &seen.frame);
        assert_eq!(seen.frame, routed(&request, flow.forwarded(&request)));
        let answer = flow.answer(flags::SYN | flags::ACK);
        let seen = world.feed(BACK, &bare(&answer));
        assert_eq!(seen.pair(), PASSED);
        assert_eq!(seen.frame, routed(&answer, flow.returned(&answer)));
    }
}

#[test]
fn our_own_answers_go_back() {
    needs_root!("our_own_answers_go_back");
    let mut world = without_headers(World::watched(), &[FRONT]);
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let stray = Frame::tcp(src, dst, flags::ACK);
        let seen = world.feed(FRONT, &bare(&stray));
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::ResetNoFlow));
        assert_eq!(seen.frame.len(), family.header_len() + 20);
        assert_eq!(seen.frame[family.header_len() + 13], flags::RST);

        let ping = icmp_frame(src.ip(), dst.ip(), echo(family, false, b"anybody?"));
        let seen = world.feed(FRONT, &bare(&ping));
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::EchoReply));
        let answer = icmp_frame(dst.ip(), src.ip(), echo(family, true, b"anybody?"));
        assert_eq!(
            seen.frame,
            bare(&answer.with(|f| (f.ttl, f.id, f.tos) = (64, ping.id, ping.tos)))
        );

        let tired = Frame::udp(src, dst).with(|f| f.ttl = 1);
        let seen = world.feed(FRONT, &bare(&tired));
        assert_eq!(seen.pair(), (Verdict::Tx, Reason::SentTimeExceeded));
        assert_eq!(seen.frame, bare(&complaint(&tired, dst.ip(), Says::TimeExceeded)));
    }
}

/// As it came, whoever gets it.
#[test]
fn what_is_not_ours_is_passed_as_it_came() {
    needs_root!("what_is_not_ours_is_passed_as_it_came");
    let mut world = world_with_layer3(&[FRONT]);
    for family in FAMILIES {
        for dst in [family.elsewhere(), family.vip()] {
            let src = (family.client(), world.client_port()).into();
            let other = bare(&Frame::udp(src, (dst, 9).into()));
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
    let elsewhere = bare(&first(&mut world, Family::V4, UDP, 9));
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
    let mut world = World::with(8_192, |tables| {
        for service in tables.services.iter_mut().filter(|s| s.key.port == ports::ACROSS) {
            service.forward = forward;
            let family = if service.key.address.is_ipv4() { Family::V4 } else { Family::V6 };
            let port = if forward == Forward::DsrGue { 6080 } else { 0 };
            for backend in tables.backends.iter_mut().filter(|b| b.service == service.id) {
                backend.tunnel = Some(Tunnel { source: family.nat(), port });
            }
        }
    });
    world.make_layer3(BACK);
    world
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
                let request = first(&mut world, family, UDP, ports::ACROSS);
                let came = if clients { bare(&request) } else { request.bytes() };
                let seen = world.feed(FRONT, &came);
                assert_eq!(seen.pair(), PASSED, "{forward} {request:?}");
                let outer = if clients { &seen.frame[..] } else { &seen.frame[HEADER..] };
                let head = family.header_len() + if forward == Forward::DsrGue { 8 } else { 0 };
                // The kernel takes a hop of the outer header, which began with 64.
                assert_eq!(outer[if family == Family::V4 { 8 } else { 7 }], 65);
                let inner = bare(&request.clone().with(|f| f.ttl -= 1));
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
    for family in FAMILIES {
        let request = first(&mut world, family, TCP, ports::ACROSS);
        assert_eq!(world.send(&request).pair(), (Verdict::Drop, Reason::NoDevice));
        let back = world.feed(BACK, &bare(&request));
        assert_eq!(back.pair(), (Verdict::Drop, Reason::NoDevice));
    }
}
