//! Every length that can be wrong, by one; and frames cut at every byte.

use std::net::SocketAddr;

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;

const IP: usize = 14;

fn plain(world: &mut World, family: Family, proto: u8) -> Frame {
    let frame = world.first(family, proto, ports::ACROSS);
    if proto == TCP { frame.with(|f| f.tcp_options = vec![2, 4, 5, 0xb4]) } else { frame }
}

/// A change to a frame's bytes, with the IPv4 checksum made right again.
fn changed(frame: &Frame, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = frame.bytes();
    change(&mut bytes);
    let header = 4 * usize::from(bytes[IP] & 15);
    if frame.family() == Family::V4 && header >= 20 && bytes.len() >= IP + header {
        sum_ipv4(&mut bytes[IP..]);
    }
    bytes
}

fn add(bytes: &mut [u8], at: usize, n: i32) {
    let value = i32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]])) + n;
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// Where the length of layer 3 stands, and how much the header adds to it.
fn length_at(family: Family) -> usize {
    if family == Family::V4 { IP + 2 } else { IP + 4 }
}

#[test]
fn lengths_that_disagree() {
    needs_root!("lengths_that_disagree");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        let frame = plain(&mut world, family, proto);
        let (l4, at) = (IP + family.header_len(), length_at(family));
        let mut bad = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let name = format!("{family:?} {proto}: {what}");
            rows.push(row(&name, changed(&frame, change), Drop, Malformed));
        };
        bad("one byte more than the frame", &|b| add(b, at, 1));
        bad("most of all", &|b| b[at..at + 2].fill(0xff));
        bad("version 5", &|b| b[IP] = b[IP] & 15 | 0x50);
        bad("the other family's version", &|b| b[IP] ^= 0x20);
        if family == Family::V4 {
            bad("a header of 16 bytes", &|b| b[IP] = 0x44);
            bad("no header", &|b| b[IP] = 0x40);
            bad("less than its header", &|b| b[at..at + 2].copy_from_slice(&[0, 19]));
            bad("length 0", &|b| b[at..at + 2].fill(0));
            bad("a header longer than the packet", &|b| {
                b[IP] = 0x4f;
                b[at..at + 2].copy_from_slice(&[0, 56]);
            });
        }
        if proto == TCP {
            bad("a TCP header of 16 bytes", &|b| b[l4 + 12] = 4 << 4);
            bad("a TCP header of none", &|b| b[l4 + 12] = 0);
            bad("one word more than the segment", &|b| {
                let words = (b.len() - l4) / 4;
                b[l4 + 12] = ((words + 1) as u8) << 4
            });
            bad("19 bytes for TCP", &|b| {
                let len = b.len() as i32;
                add(b, at, l4 as i32 + 19 - len);
            });
        } else {
            bad("UDP length 7", &|b| b[l4 + 4..l4 + 6].copy_from_slice(&[0, 7]));
            bad("UDP length 0", &|b| b[l4 + 4..l4 + 6].fill(0));
            bad("UDP one byte more than the packet", &|b| add(b, l4 + 4, 1));
            bad("the packet one byte less than UDP", &|b| add(b, at, -1));
            bad("7 bytes for UDP", &|b| {
                let len = b.len() as i32;
                add(b, at, l4 as i32 + 7 - len);
            });
        }
    }
    check(&world, &rows);
}

/// The lengths right on the edge are no error.
#[test]
fn lengths_that_just_agree() {
    needs_root!("lengths_that_just_agree");
    let mut world = World::new();
    for (family, proto) in TRANSPORTS {
        let bare = plain(&mut world, family, proto).with(|f| {
            f.tcp_options.clear();
            f.payload.clear();
        });
        world.open_with(FRONT, bare);
        let options_fill_it = plain(&mut world, family, proto).with(|f| {
            f.tcp_options = vec![1; 40];
            f.payload.clear();
        });
        world.open_with(FRONT, options_fill_it);
    }
}

#[test]
fn cut_at_every_byte() {
    needs_root!("cut_at_every_byte");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        let frame = plain(&mut world, family, proto);
        let bytes = frame.bytes();
        for len in IP..bytes.len() {
            let name = format!("{family:?} {proto}: {len} of {} bytes", bytes.len());
            rows.push(row(&name, bytes[..len].to_vec(), Drop, Malformed));
        }
    }
    check(&world, &rows);
}

/// The same, IP saying truly how much is left: nothing may be read beyond it.
#[test]
fn cut_at_every_byte_and_owned_up_to() {
    needs_root!("cut_at_every_byte_and_owned_up_to");
    let mut world = World::new();
    for (family, proto) in TRANSPORTS {
        let mut frame = plain(&mut world, family, proto);
        if proto == TCP {
            let flow = world.connect(family, ports::ACROSS);
            frame = flow.next(ACK).with(|f| f.tcp_options = frame.tcp_options);
        }
        let (whole, at) = (frame.bytes().len(), length_at(family));
        let l4 = IP + family.header_len();
        for len in l4..whole {
            let bytes = changed(&frame, |b| {
                b.truncate(len);
                add(b, at, len as i32 - whole as i32);
            });
            let _damaged = capture::damaged("TCP's checksum covers what was cut off");
            let seen = world.feed(FRONT, &bytes);
            // TCP is as long as IP says: with its header whole, nothing is known to be wrong.
            let enough = proto == TCP && len >= l4 + 24;
            let expected = if enough { NatForward } else { Malformed };
            assert_eq!(seen.reason, expected, "{family:?} {proto}: {len} of {whole} bytes");
            // A sound packet must be forwarded; a damaged one must not gain a right checksum.
            assert!(!wire::check(&seen.frame).is_good(), "{family:?} {proto}: {len}");
        }
    }
}

/// A checksum that was wrong stays wrong: the backend must notice.
#[test]
fn damage_is_not_mended() {
    needs_root!("damage_is_not_mended");
    let mut world = World::new();
    for (family, proto) in TRANSPORTS {
        let flow = world.connect_or_open(family, proto, ports::ACROSS);
        let mut bytes = flow.next(ACK).bytes();
        *bytes.last_mut().unwrap() ^= 1;
        let _damaged = capture::damaged("a byte changed under way");
        let seen = world.feed(FRONT, &bytes);
        assert_eq!(seen.reason, NatForward);
        assert_eq!(wire::check(&seen.frame), wire::Checked::Bad("layer-4 checksum"));
        if family == Family::V4 {
            let mut bytes = flow.next(ACK).bytes();
            bytes[IP + 4] ^= 1; // the identification
            let seen = world.feed(FRONT, &bytes);
            assert_eq!(wire::check(&seen.frame), wire::Checked::Bad("IPv4 checksum"));
        }
    }
}

/// In here an IPv4 address is held as ::ffff:a.b.c.d: no IPv6 packet may pass for one of IPv4.
#[test]
fn mapped_addresses_in_ipv6() {
    needs_root!("mapped_addresses_in_ipv6");
    let mut world = World::new();
    let mapped = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => unreachable!(),
    };
    let flow = world.connect(Family::V4, ports::ACROSS);
    let (client, service) = (mapped(flow.request.src), mapped(flow.request.dst));
    let (src, dst) = world.ends(Family::V6, ports::ACROSS);
    let mut rows: Vec<Row> = Vec::new();
    for (what, src, dst) in
        [("both", client, service), ("the source", client, dst), ("the destination", src, service)]
    {
        for (kind, frame) in [
            ("SYN", Frame::tcp(src, dst, SYN)),
            ("RST", Frame::tcp(src, dst, RST)),
            ("ACK behind an extension", Frame::tcp(src, dst, ACK).extended(&[60])),
            ("UDP", Frame::udp(src, dst)),
            ("ping", icmp::frame(src.ip(), dst.ip(), icmp::echo(Family::V6, false, b"data"))),
        ] {
            rows.push(row(&format!("{what}, {kind}"), frame, Drop, Malformed));
        }
    }
    // Quoted by an error, as if the client had been sent it.
    let quoted = Frame::tcp(service, client, ACK);
    let error = icmp::error(Family::V6, Says::Unreachable, &icmp::quote(&quoted, 100));
    let quoting = icmp::frame(Family::V6.client(), Family::V6.vip(), error);
    rows.push(row("quoted", quoting, Drop, Malformed));
    check(&world, &rows);
    assert_eq!(world.state(&flow), FlowState::Established);
}
