//! Ways that a redirect from native XDP cannot enter: rewritten, and passed to the kernel.

use ringway_abi::Slot;
use ringway_abi::raw::RW_IFACE_GENERIC;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::Forward;

const PASSED: (Verdict, Reason) = (Verdict::Pass, Reason::PassRewritten);

/// A world in which these interfaces run us in the generic path.
fn world_with_generic(slots: &[u32]) -> World {
    let world = World::new();
    for slot in slots {
        world.change_iface(*slot, |iface| iface.flags |= RW_IFACE_GENERIC as u16);
    }
    world
}

/// As it would leave, but addressed to us still and with the hop left to the kernel.
fn passed(came: &Frame, leaves: Frame) -> Vec<u8> {
    let (src_mac, dst_mac, ttl) = (came.src_mac, came.dst_mac, came.ttl);
    let frame = Frame { src_mac, dst_mac, ttl, ..leaves }.bytes();
    wire::check(&frame).good();
    frame
}

/// Opens a flow whose first packet must be passed up rewritten.
fn open_passed(world: &World, request: Frame) -> Flow {
    let seen = world.send(&request);
    assert_eq!(seen.pair(), PASSED, "{request:?}");
    let flow = Flow::opened(world, FRONT, request, &seen.frame);
    assert_eq!(seen.frame, passed(&flow.request, flow.forwarded(&flow.request)), "{flow:?}");
    flow
}

#[test]
fn requests_are_passed_and_answers_redirected() {
    needs_root!("requests_are_passed_and_answers_redirected");
    let mut world = world_with_generic(&[BACK]);
    for (family, proto) in TRANSPORTS {
        // Every value of the checksum's carry comes up.
        for ttl in (2..=255).step_by(11) {
            let request = world.first(family, proto, ports::ACROSS).with(|f| f.ttl = ttl);
            let flow = open_passed(&world, request);
            world.answer(&flow, SYN | ACK);
            let next = flow.next(ACK).payload(&[7; 33]);
            let seen = world.send(&next);
            assert_eq!(seen.pair(), PASSED);
            assert_eq!(seen.frame, passed(&next, flow.forwarded(&next)));
            assert_eq!(world.traffic(&flow.backend).packets % 2, 0);
        }
    }
}

/// The same for clients that are behind such an interface.
#[test]
fn answers_are_passed_and_requests_redirected() {
    needs_root!("answers_are_passed_and_requests_redirected");
    let mut world = world_with_generic(&[FRONT]);
    for (family, proto) in TRANSPORTS {
        let flow = world.open(family, proto, ports::ACROSS);
        let answer = flow.answer(SYN | ACK);
        let seen = world.feed(BACK, &answer.bytes());
        assert_eq!(seen.pair(), PASSED);
        assert_eq!(seen.frame, passed(&answer, flow.returned(&answer)));
    }
}

/// From the generic path a redirect leads anywhere, and back by the same interface always.
#[test]
fn nothing_is_passed_that_can_be_redirected() {
    needs_root!("nothing_is_passed_that_can_be_redirected");
    for generic in [&[FRONT, BACK][..], &[FRONT], &[BACK]] {
        let mut world = world_with_generic(generic);
        let flow = world.open(Family::V6, TCP, ports::SAME);
        world.answer(&flow, SYN | ACK);
        if generic.len() == 2 {
            let flow = world.open(Family::V6, TCP, ports::ACROSS);
            world.answer(&flow, SYN | ACK);
        }
    }
}

/// The kernel routes by the outer header, and takes a hop of that.
#[test]
fn tunnels_are_passed() {
    needs_root!("tunnels_are_passed");
    for forward in [Forward::DsrIpip, Forward::DsrGue] {
        let mut world = World::with(8_192, |tables| forward_across(tables, forward));
        for (family, proto) in TRANSPORTS {
            let request = world.first(family, proto, ports::ACROSS);
            let generic = |flags: &mut u16| *flags ^= RW_IFACE_GENERIC as u16;
            let redirected = world.send(&request);
            assert_eq!(redirected.verdict, Verdict::Redirect);
            world.change_iface(BACK, |iface| generic(&mut iface.flags));
            let seen = world.send(&request);
            world.change_iface(BACK, |iface| generic(&mut iface.flags));
            assert_eq!(seen.pair(), PASSED, "{forward} {request:?}");
            let mut wanted = redirected.frame;
            wanted[..6].copy_from_slice(&request.dst_mac);
            wanted[6..12].copy_from_slice(&request.src_mac);
            one_hop_more(&mut wanted, family);
            assert_eq!(seen.frame, wanted, "{forward} {request:?}");
            wire::check(&seen.frame).good();
        }
    }
}

/// One more in the outer header of a frame.
fn one_hop_more(frame: &mut [u8], family: Family) {
    if family == Family::V6 {
        frame[14 + 7] += 1;
        return;
    }
    frame[14 + 8] += 1;
    sum_ipv4(&mut frame[14..]);
}

/// There is no rewrite that the kernel would follow.
#[test]
fn dsr_l2_is_not_passed() {
    needs_root!("dsr_l2_is_not_passed");
    let mut world = World::with(8_192, |tables| forward_across(tables, Forward::DsrL2));
    world.change_iface(BACK, |iface| iface.flags |= RW_IFACE_GENERIC as u16);
    let request = world.first(Family::V6, TCP, ports::ACROSS);
    assert_eq!(world.send(&request).pair(), (Verdict::Drop, Reason::NoDevice));
}

/// Packets that the kernel would drop silently are dropped here, with a reason.
#[test]
fn what_cannot_leave_is_not_passed() {
    needs_root!("what_cannot_leave_is_not_passed");
    let mut world = world_with_generic(&[BACK]);
    let request = world.first(Family::V4, UDP, ports::ACROSS).with(|f| f.ttl = 1);
    assert_ne!(world.send(&request).verdict, Verdict::Pass);
    let (src, dst) = world.ends(Family::V4, ports::SMALL);
    let big = Frame::udp(src, dst).payload(&[1; 1300]);
    assert_ne!(world.send(&big).verdict, Verdict::Pass);
    let (src, dst) = world.ends(Family::V4, ports::UNRESOLVED);
    let nowhere = world.send(&Frame::udp(src, dst));
    assert_eq!(nowhere.pair(), (Verdict::Drop, Reason::NoNeighbour));
}

/// It is a service's traffic, not what the user's own program is there for.
#[test]
fn the_users_program_does_not_get_it() {
    needs_root!("the_users_program_does_not_get_it");
    let mut world = world_with_generic(&[BACK]);
    let dropping = foreign_program(Verdict::Drop, true).unwrap();
    world.set_stage(Slot::OnPass, Some(&dropping), true);
    let request = world.first(Family::V4, TCP, ports::ACROSS);
    open_passed(&world, request);
}
