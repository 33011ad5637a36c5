//! Health checks of dsr backends: marked packets in, the traffic's frames out.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ringway_abi::Forward;
use ringway_bpf_tests::prelude::*;
use ringway_kernel::{ProbeCounts, ProbeProgram, ProbeTarget};

const PORT: u16 = 6080;
const MARK: u32 = 0x7277_0001;
/// linux/pkt_cls.h
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;

fn target(forward: Forward, outer: Family) -> ProbeTarget {
    ProbeTarget {
        forward,
        ifindex: 1,
        mac: BACK_MAC,
        next_hop: backend_mac(0),
        outer: (outer.nat(), outer.backend(0)),
        gue_port: PORT,
    }
}

/// A check's packet as the kernel gives it to the device.
fn check(family: Family) -> Frame {
    let here = SocketAddr::new(family.nat(), 50_000);
    Frame::tcp(here, SocketAddr::new(family.vip(), 80), SYN).with(|f| {
        f.tcp_options = vec![2, 4, 5, 0xb4];
        f.ttl = 64;
    })
}

/// The expected packet, by RFC 2003, 2473 and 768 and GUE's variant 1.
fn carried(target: &ProbeTarget, packet: &Frame) -> Vec<u8> {
    let gue = target.forward == Forward::DsrGue;
    let ports = if gue { (0xc000 | (MARK & 0x3fff) as u16, PORT) } else { (0, 0) };
    let (src, dst) = target.outer;
    let carried = tunnel(gue, (src, ports.0).into(), (dst, ports.1).into(), packet).with(|f| {
        (f.src_mac, f.dst_mac) = (target.mac, target.next_hop);
        (f.ttl, f.id) = (64, 0);
    });
    carried.bytes()
}

#[test]
fn every_probe_target() {
    needs_root!("every_probe_target");
    let mut probe_program = ProbeProgram::load().unwrap();
    let program = Program::new(probe_program.program());
    for outer in FAMILIES {
        for family in FAMILIES {
            for forward in [Forward::DsrIpip, Forward::DsrGue] {
                let target = target(forward, outer);
                probe_program.set(&BTreeMap::from([(MARK, target)])).unwrap();
                let packet = check(family);
                let (action, out) = program.run_marked(&packet.bytes(), MARK);
                let name = format!("{forward}: {family:?} in {outer:?}");
                assert_eq!(action, TC_ACT_REDIRECT, "{name}");
                assert_eq!(out, carried(&target, &packet), "{name}");
                wire::check(&out).good();
                // IPv6 in UDP without a checksum is what RFC 6935 is about.
                if !(forward == Forward::DsrGue && outer == Family::V6) {
                    capture::sent(&out);
                }
            }
        }
    }
}

#[test]
fn the_frame_alone() {
    needs_root!("the_frame_alone");
    let mut probe_program = ProbeProgram::load().unwrap();
    let program = Program::new(probe_program.program());
    for family in FAMILIES {
        let target = target(Forward::DsrL2, family);
        probe_program.set(&BTreeMap::from([(MARK, target)])).unwrap();
        let packet = check(family);
        let (action, out) = program.run_marked(&packet.bytes(), MARK);
        let want = packet.with(|f| (f.src_mac, f.dst_mac) = (target.mac, target.next_hop)).bytes();
        assert_eq!((action, &out), (TC_ACT_REDIRECT, &want));
        capture::sent(&out);
    }
}

/// Nothing leaves that is no check's, or has no way any more; all of it is counted.
#[test]
fn what_has_no_way_goes_nowhere() {
    needs_root!("what_has_no_way_goes_nowhere");
    let mut probe_program = ProbeProgram::load().unwrap();
    let program = Program::new(probe_program.program());
    let packet = check(Family::V4).bytes();
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(program.run_marked(&packet, MARK).0, TC_ACT_SHOT);
    probe_program.set(&BTreeMap::from([(MARK, target(Forward::DsrIpip, Family::V4))])).unwrap();
    for (frame, mark) in [(&packet, 0), (&packet, MARK + 1), (&arp, MARK)] {
        let (action, out) = program.run_marked(frame, mark);
        assert_eq!((action, &out), (TC_ACT_SHOT, frame), "{mark:#x}");
    }
    assert_eq!(program.run_marked(&packet, MARK).0, TC_ACT_REDIRECT);
    probe_program.set(&BTreeMap::new()).unwrap();
    assert_eq!(program.run_marked(&packet, MARK).0, TC_ACT_SHOT);
    let counts = probe_program.counts().unwrap();
    assert_eq!(counts, ProbeCounts { sent: 1, unmarked: 5, failed: 0 });
}
