//! Unfinished checksums, which stacks on this machine leave to a device (CHECKSUM_PARTIAL): they
//! leave finished, or with the sum of the new pseudo-header where somebody finishes them.

use ringway_abi::raw::{RW_IFACE_GENERIC, RW_IFACE_LOCAL, RW_IFACE_RAW};
use ringway_bpf_tests::frame::sum;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::Forward;

const LOCAL: u32 = RW_IFACE_LOCAL;
const GENERIC: u32 = RW_IFACE_GENERIC | RW_IFACE_LOCAL;
const RAW: u32 = GENERIC | RW_IFACE_RAW;

/// Flags of the interface that a packet comes in by, and of the one it leaves by; whether somebody
/// behind us finishes its checksum.
const WAYS: [(&str, u32, u32, bool); 5] = [
    ("generic, to a card or veth that finishes", GENERIC, GENERIC, true),
    ("generic, to a device that does not", GENERIC, RAW, false),
    ("native veth, which forgets what is unfinished", LOCAL, LOCAL, false),
    ("native veth, to a card", LOCAL, 0, false),
    ("native veth, to a generic device by the kernel", LOCAL, RAW, true),
];

fn set(world: &World, slot: u32, flags: u32) {
    world.change_iface(slot, |iface| iface.flags = flags as u16);
}

fn check_at(frame: &Frame) -> usize {
    14 + frame.family().header_len() + if frame.proto == TCP { 16 } else { 6 }
}

/// As the sender's stack hands it to its device.
fn unfinished(frame: &Frame) -> Vec<u8> {
    let (mut bytes, at) = (frame.bytes(), check_at(frame));
    bytes[at..at + 2].copy_from_slice(&frame.pseudo_sum().to_be_bytes());
    bytes
}

/// As it must leave. What the kernel forwards keeps its frame and its hop.
fn left(frame: &Frame, came: &Frame, later: bool, passed: bool) -> Vec<u8> {
    let frame = frame.clone().with(|f| {
        if passed {
            (f.src_mac, f.dst_mac, f.ttl) = (came.src_mac, came.dst_mac, came.ttl);
        }
    });
    if later { unfinished(&frame) } else { frame.bytes() }
}

/// Lengths around the chunks that are summed at once, and odd ones.
const LENGTHS: [usize; 9] = [0, 1, 7, 491, 492, 493, 1003, 1023, 1460];

#[test]
fn under_nat_both_ways() {
    needs_root!("under_nat_both_ways");
    let mut world = World::new();
    for (what, came_by, leaves_by, later) in WAYS {
        let passed = came_by == LOCAL && leaves_by == RAW;
        for (family, proto) in TRANSPORTS {
            let flow = world.connect_or_open(family, proto, ports::ACROSS);
            for len in LENGTHS {
                let name = format!("{what}: {family:?} {proto} {len}");
                let payload: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();

                let request = flow.next(ACK).payload(&payload);
                set(&world, FRONT, came_by);
                set(&world, BACK, leaves_by);
                // One that is finished stays so.
                let seen = world.feed(FRONT, &request.bytes());
                let expected = left(&flow.forwarded(&request), &request, false, passed);
                assert!(seen.frame == expected, "{name}, finished: {:02x?}", seen.frame);
                let _damaged = later.then(|| capture::damaged("an unfinished checksum"));
                let seen = world.feed(FRONT, &unfinished(&request));
                let expected = left(&flow.forwarded(&request), &request, later, passed);
                assert!(seen.frame == expected, "{name}: {:02x?}", seen.frame);

                let answer = flow.answer(ACK).payload(&payload);
                set(&world, BACK, came_by);
                set(&world, FRONT, leaves_by);
                let seen = world.feed(BACK, &unfinished(&answer));
                let expected = left(&flow.returned(&answer), &answer, later, passed);
                assert!(seen.frame == expected, "{name}, answer: {:02x?}", seen.frame);
            }
            set(&world, BACK, 0);
            set(&world, FRONT, 0);
        }
    }
}

/// One checksum in 65536 looks unfinished and is not: over the whole packet it is right.
#[test]
fn a_checksum_that_happens_to_be_the_pseudo_headers_sum() {
    needs_root!("a_checksum_that_happens_to_be_the_pseudo_headers_sum");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.connect(family, ports::ACROSS);
        let request = flow.next(ACK).payload(&[0, 0]);
        // Two bytes of payload make the sum what they like: here, minus twice the pseudo-header's.
        let (at, bytes) = (check_at(&request), request.bytes());
        let here = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let payload = sum(&[here.to_be_bytes(), (!request.pseudo_sum()).to_be_bytes()].concat(), 0);
        let request = request.payload(&payload.to_be_bytes());
        assert_eq!(request.bytes(), unfinished(&request), "it looks unfinished");
        for flags in [LOCAL, GENERIC, RAW] {
            set(&world, FRONT, flags);
            set(&world, BACK, flags);
            world.forwards(&flow, &request);
        }
        set(&world, FRONT, 0);
        set(&world, BACK, 0);
    }
}

/// Under dsr the packet is the client's, its checksum as well; a lowered MSS is not in an
/// unfinished one.
#[test]
fn under_dsr() {
    needs_root!("under_dsr");
    let mut world = World::with(8_192, |tables| {
        forward_across(tables, Forward::DsrL2);
        tables.backends.iter_mut().for_each(|backend| backend.mss = 1000);
    });
    for (what, came_by, leaves_by, later) in WAYS {
        // dsr-l2 cannot be forwarded by the kernel.
        if came_by == LOCAL && leaves_by == RAW {
            continue;
        }
        set(&world, FRONT, came_by);
        set(&world, BACK, leaves_by);
        for family in FAMILIES {
            let (src, dst) = world.ends(family, ports::ACROSS);
            let backend = world.service(family, TCP, ports::ACROSS).backends.remove(0);
            let syn = Frame::tcp(src, dst, SYN).with(|f| f.tcp_options = [2, 4, 0x05, 0xb4].into());
            let _damaged = later.then(|| capture::damaged("an unfinished checksum"));
            let seen = world.feed(FRONT, &unfinished(&syn));
            let expected = syn.clone().with(|f| {
                f.tcp_options = [2, 4, 0x03, 0xe8].into();
                (f.src_mac, f.dst_mac) = (BACK_MAC, backend.next_hop.unwrap().mac);
                f.ttl -= 1;
            });
            assert_eq!(seen.pair(), (Verdict::Redirect, Reason::DsrL2), "{what}");
            assert_eq!(seen.frame, left(&expected, &syn, later, false), "{what} {family:?}");
        }
    }
}
