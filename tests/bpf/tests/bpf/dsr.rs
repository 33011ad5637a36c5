//! dsr-l2, dsr-ipip and dsr-gue, byte by byte: what leaves is built a second time here, from the
//! RFCs. decap.rs opens such packets.

use std::collections::HashSet;
use std::net::SocketAddr;

use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{BackendRow, Forward, NextHop, ServiceKey, ServiceRow, Tables, Tunnel};

const GUE_PORT: u16 = 6080;
const MTU: u16 = 1500;

/// A forwarding mode, the service's family and the backend's.
type Way = (Forward, Family, Family);

const WAYS: [Way; 10] = [
    (Forward::DsrL2, Family::V4, Family::V4),
    (Forward::DsrL2, Family::V6, Family::V6),
    (Forward::DsrIpip, Family::V4, Family::V4),
    (Forward::DsrIpip, Family::V4, Family::V6),
    (Forward::DsrIpip, Family::V6, Family::V4),
    (Forward::DsrIpip, Family::V6, Family::V6),
    (Forward::DsrGue, Family::V4, Family::V4),
    (Forward::DsrGue, Family::V4, Family::V6),
    (Forward::DsrGue, Family::V6, Family::V4),
    (Forward::DsrGue, Family::V6, Family::V6),
];

fn each_way() -> impl Iterator<Item = (Way, u8)> {
    WAYS.into_iter().flat_map(|way| [(way, TCP), (way, UDP)])
}

/// The special property of a way's service: the last digit of its port.
const PLAIN: u16 = 0;
const JUMBO: u16 = 1;
const CLAMPED: u16 = 2;
const POOL: u16 = 3;
const UNRESOLVED: u16 = 4;
const NONE: u16 = 5;

const CLAMP: u16 = 1400;

fn port(way: Way, kind: u16) -> u16 {
    1000 + 10 * WAYS.iter().position(|w| *w == way).unwrap() as u16 + kind
}

pub(crate) fn world() -> World {
    World::with(8_192, |tables| {
        tables.own_addresses = FAMILIES.map(Family::nat).into();
        for (way, proto) in each_way() {
            for kind in [PLAIN, JUMBO, CLAMPED, POOL, UNRESOLVED, NONE] {
                add(tables, way, proto, kind);
            }
        }
    })
}

/// A service of each mode, its tunnel of the same IP version.
pub(crate) fn plain(family: Family) -> impl Iterator<Item = (String, SocketAddr)> {
    let same = WAYS.into_iter().filter(move |way| (way.1, way.2) == (family, family));
    same.map(move |way| (way.0.to_string(), SocketAddr::new(family.vip(), port(way, PLAIN))))
}

fn add(tables: &mut Tables, way: Way, proto: u8, kind: u16) {
    let (forward, inner, outer) = way;
    let (port, protocol) = (port(way, kind), protocol(proto));
    let count = match kind {
        NONE => 0,
        POOL => 4,
        _ => 1,
    };
    let mtu = if kind == JUMBO { 9000 } else { MTU };
    let gue_port = if forward == Forward::DsrGue { GUE_PORT } else { 0 };
    let tunnel = Tunnel { source: outer.nat(), port: gue_port };
    for n in 0..count {
        let hop = NextHop { iface: BACK, mac: backend_mac(n), mtu };
        tables.backends.push(BackendRow {
            next_hop: (kind != UNRESOLVED).then_some(hop),
            nat: (0, 0),
            tunnel: forward.is_tunnel().then_some(tunnel),
            mss: if kind == CLAMPED { CLAMP } else { 0 },
            ..new_backend(tables, outer, n, port, protocol)
        });
    }
    add_service(tables, ServiceKey::new(inner.vip(), port, protocol), forward);
}

fn packet(world: &mut World, way: Way, proto: u8, kind: u16, tcp_flags: u8) -> Frame {
    let src = SocketAddr::new(way.1.client(), world.client_port());
    let dst = SocketAddr::new(way.1.vip(), port(way, kind));
    match proto {
        TCP => Frame::tcp(src, dst, tcp_flags),
        _ => Frame::udp(src, dst),
    }
}

/// The frame that the backend's link should carry. `seen` only gives the hash of the flow: UDP
/// source port and flow label, which may be anything.
fn sent(way: Way, request: &Frame, backend: &BackendRow, seen: &[u8]) -> Vec<u8> {
    let (forward, inner, outer) = way;
    let mac = backend.next_hop.unwrap().mac;
    let inside =
        request.clone().with(|f| (f.ttl, f.src_mac, f.dst_mac) = (f.ttl - 1, BACK_MAC, mac));
    if forward == Forward::DsrL2 {
        return inside.bytes();
    }
    let hash_port = match outer {
        Family::V4 => u16::from_be_bytes([seen[34], seen[35]]),
        Family::V6 => u16::from_be_bytes([seen[54], seen[55]]),
    };
    let (source, dest) = (backend.tunnel.unwrap().source, backend.address);
    let gue = forward == Forward::DsrGue;
    let (from, to) = if gue { (hash_port, GUE_PORT) } else { (0, 0) };
    let outside = tunnel(gue, (source, from).into(), (dest, to).into(), &inside).with(|f| {
        (f.src_mac, f.dst_mac) = (BACK_MAC, mac);
        (f.ttl, f.tos, f.padding) = (64, request.tos, request.padding);
        // Nothing is ever fragmented: an identification means nothing, and IPv6 has none to copy.
        f.id = if inner == Family::V4 { request.id } else { 0 };
    });
    let mut bytes = outside.bytes();
    if outer == Family::V6 {
        bytes[15] = bytes[15] & 0xf0 | seen[15] & 0x0f;
        bytes[16..18].copy_from_slice(&seen[16..18]);
    }
    bytes
}

fn reason(way: Way) -> Reason {
    match way.0 {
        Forward::Nat => unreachable!(),
        Forward::DsrL2 => Reason::DsrL2,
        Forward::DsrIpip => Reason::DsrIpip,
        Forward::DsrGue => Reason::DsrGue,
    }
}

/// Bytes that the mode puts before the packet.
fn overhead(way: Way) -> usize {
    usize::from(way.0.overhead(way.2 == Family::V6))
}

/// Feeds the packet; it must leave for the service's only backend as it should.
fn check(world: &World, way: Way, request: &Frame) -> Summary {
    let service = world.service(way.1, request.proto, request.dst.port());
    let seen = world.send(request);
    assert_eq!(seen.pair(), (Verdict::Redirect, reason(way)), "{way:?} {request:?}");
    let expected = sent(way, request, &service.backends[0], &seen.frame);
    assert!(seen.frame == expected, "{way:?} {request:?}\n{:02x?}\n{expected:02x?}", seen.frame);
    seen
}

#[test]
fn every_mode_and_family() {
    needs_root!("every_mode_and_family");
    let mut world = world();
    for way in WAYS {
        for (proto, tcp_flags) in [(TCP, SYN), (TCP, ACK), (TCP, RST), (UDP, 0)] {
            let request = packet(&mut world, way, proto, PLAIN, tcp_flags);
            check(&world, way, &request);
            let service = world.service(way.1, proto, request.dst.port());
            let traffic = world.traffic(&service.backends[0]);
            assert!(traffic.packets > 0 && traffic.bytes >= request.l3().len() as u64);
        }
        let tcp = world.service(way.1, TCP, port(way, PLAIN));
        let traffic = world.traffic(&tcp.backends[0]);
        assert_eq!((traffic.packets, traffic.flows), (3, 1), "{way:?}: one SYN in three");
        let udp = world.service(way.1, UDP, port(way, PLAIN));
        assert_eq!(world.traffic(&udp.backends[0]).packets, 1);
    }
    assert!(ringway_bpf_tests::audit::records(&world).is_empty(), "dsr keeps no nat flows");
}

#[test]
fn what_the_client_wrote_arrives() {
    needs_root!("what_the_client_wrote_arrives");
    let mut world = world();
    type Change = (&'static str, fn(&mut Frame));
    let changes: [Change; 11] = [
        ("Ethernet padding", |f| f.padding = 18),
        ("every bit of DSCP and ECN", |f| f.tos = 0xff),
        ("ECT(0)", |f| f.tos = 2),
        ("expedited forwarding, congestion experienced", |f| f.tos = 46 << 2 | 3),
        ("another identification or flow label", |f| f.id = 0xffff),
        ("no don't-fragment flag", |f| f.fragment = 0),
        ("the last TTL that goes on", |f| f.ttl = 2),
        ("the first TTL", |f| f.ttl = 255),
        ("our other MAC address", |f| f.dst_mac = FRONT_ALT_MAC),
        ("UDP without a checksum", |f| f.no_checksum = f.proto == UDP && f.dst.is_ipv4()),
        ("no payload", |f| f.payload.clear()),
    ];
    for (way, proto) in each_way() {
        for (what, change) in changes {
            println!("{way:?} {proto}: {what}");
            let request = packet(&mut world, way, proto, PLAIN, ACK).with(change);
            check(&world, way, &request);
        }
    }
}

#[test]
fn every_length_up_to_a_jumbo_frame() {
    needs_root!("every_length_up_to_a_jumbo_frame");
    let mut world = world();
    for (way, proto) in each_way() {
        let request = packet(&mut world, way, proto, JUMBO, ACK);
        // Above some 3 500 bytes a test run has its data in several buffers.
        for len in (0..40).chain([255, 256, 1399, 1400, 3000, 4096, 8000, 8800]) {
            let payload: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
            check(&world, way, &request.clone().payload(&payload));
        }
    }
}

/// To the byte: what fits with its outer header goes, one byte more does not.
#[test]
fn the_longest_packet() {
    needs_root!("the_longest_packet");
    let mut world = world();
    for (way, proto) in each_way() {
        let request = packet(&mut world, way, proto, PLAIN, ACK).payload(&[]);
        let room = usize::from(MTU) - overhead(way) - request.l3().len();
        check(&world, way, &request.clone().payload(&vec![1; room]));
        let seen = world.send(&request.clone().payload(&vec![1; room + 1]));
        assert_eq!(seen.reason, Reason::SentTooBig, "{way:?} {proto}");
        // The size that fits, as the sender counts: RFC 1191 section 4, RFC 4443 section 3.2.
        let answer = wire::check(&seen.frame).good();
        let fits = match way.1 {
            Family::V4 => u32::from(u16::from_be_bytes([answer.l4[6], answer.l4[7]])),
            Family::V6 => u32::from_be_bytes(answer.l4[4..8].try_into().unwrap()),
        };
        assert_eq!(fits as usize, usize::from(MTU) - overhead(way), "{way:?} {proto}");
    }
}

/// Every hop counts, also this one.
#[test]
fn ttl_ends_here() {
    needs_root!("ttl_ends_here");
    let mut world = world();
    for way in WAYS {
        for ttl in [0, 1] {
            let request = packet(&mut world, way, TCP, PLAIN, ACK).with(|f| f.ttl = ttl);
            let seen = world.send(&request);
            let told = [Reason::SentTimeExceeded, Reason::TtlExpired, Reason::IcmpLimited];
            assert!(told.contains(&seen.reason), "{way:?}: {}", seen.reason);
        }
    }
}

/// A flow's outer headers are alike from packet to packet, and those of many flows are not.
#[test]
fn outer_headers_spread_flows() {
    needs_root!("outer_headers_spread_flows");
    let mut world = world();
    for way in WAYS {
        let (mut ports, mut labels) = (HashSet::new(), HashSet::new());
        for n in 0..256 {
            let request = packet(&mut world, way, TCP, PLAIN, SYN)
                .with(|f| f.src.set_ip(way.1.nth_client(n)));
            let first = check(&world, way, &request).frame;
            let second = check(&world, way, &request.with(|f| f.flags = ACK)).frame;
            let at = if way.2 == Family::V4 { 34 } else { 54 };
            assert_eq!(first[at..at + 2], second[at..at + 2], "{way:?}: source port");
            assert_eq!(first[15..18], second[15..18], "{way:?}: flow label or length");
            let port = u16::from_be_bytes([first[at], first[at + 1]]);
            assert!(way.0 != Forward::DsrGue || port >= 0xc000, "{port}");
            ports.insert(port);
            labels.insert([first[15] & 15, first[16], first[17]]);
        }
        assert!(way.0 != Forward::DsrGue || ports.len() > 240, "{way:?}: {} ports", ports.len());
        let labelled = way.0.is_tunnel() && way.2 == Family::V6;
        assert!(!labelled || labels.len() > 250, "{way:?}: {} labels", labels.len());
    }
}

/// Every segment of a flow goes to the ring's backend; no state is needed for that.
#[test]
fn flows_go_by_the_ring_alone() {
    needs_root!("flows_go_by_the_ring_alone");
    let mut world = world();
    for way in WAYS {
        let mut met = HashSet::new();
        for proto in [TCP, UDP] {
            for _ in 0..32 {
                let request = packet(&mut world, way, proto, POOL, ACK);
                let backend = world.chosen(&request).unwrap();
                met.insert(backend.index);
                for tcp_flags in [ACK, SYN, FIN | ACK, RST] {
                    let request = request.clone().with(|f| f.flags = tcp_flags);
                    let seen = world.send(&request);
                    assert_eq!(seen.pair(), (Verdict::Redirect, reason(way)));
                    assert!(seen.frame == sent(way, &request, &backend, &seen.frame), "{way:?}");
                }
            }
        }
        assert_eq!(met.len(), 8, "{way:?}: four backends under TCP, four under UDP");
    }
}

#[test]
fn every_mss_option_is_lowered() {
    needs_root!("every_mss_option_is_lowered");
    let mut world = world();
    let mss = |bytes: u16| [vec![2, 4], bytes.to_be_bytes().to_vec()].concat();
    let two = |first, second| [mss(first), mss(second)].concat();
    // The places of what is lowered.
    let cases: [(&str, Vec<u8>, &[usize]); 19] = [
        ("alone", mss(1460), &[2]),
        ("to the byte", mss(CLAMP + 1), &[2]),
        ("small enough", mss(CLAMP), &[]),
        ("much smaller", mss(536), &[]),
        ("the largest", mss(u16::MAX), &[2]),
        (
            "as Linux sends it",
            [mss(1460), vec![4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 3, 7]].concat(),
            &[2],
        ),
        ("behind one byte", [vec![1], mss(1460), vec![1, 1, 1]].concat(), &[3]),
        ("behind three bytes", [vec![1, 1, 1], mss(1460), vec![0]].concat(), &[5]),
        ("behind an odd option", [vec![3, 3, 7], mss(1460), vec![0]].concat(), &[5]),
        ("at the very end", [vec![34, 34], vec![7; 32], vec![1; 2], mss(1460)].concat(), &[38]),
        ("behind many fillers", [vec![1; 15], mss(1460), vec![1]].concat(), &[17]),
        ("behind too many", [vec![1; 16], mss(1460)].concat(), &[]),
        ("behind the end", [vec![0, 0, 0, 0], mss(1460)].concat(), &[]),
        ("none", vec![1, 1, 4, 2], &[]),
        ("an option of no length", [vec![8, 0, 1, 1], mss(1460)].concat(), &[]),
        ("of another length", [vec![2, 3, 5], mss(1460), vec![0]].concat(), &[5]),
        // Linux takes the last.
        ("two", two(1460, 1460), &[2, 6]),
        ("the second", two(512, 1460), &[6]),
        ("the first", two(1460, 512), &[2]),
    ];
    for way in WAYS {
        for (what, options, at) in &cases {
            let request = packet(&mut world, way, TCP, CLAMPED, SYN)
                .with(|f| f.tcp_options = options.clone());
            let lowered = request.clone().with(|f| {
                for at in *at {
                    f.tcp_options[*at..at + 2].copy_from_slice(&CLAMP.to_be_bytes());
                }
            });
            let service = world.service(way.1, TCP, request.dst.port());
            // The bytes behind the end of options are padding, of zeros (RFC 9293 section 3.1).
            let _damaged = (*what == "behind the end").then(|| capture::damaged("TCP padding"));
            let seen = world.send(&request);
            assert_eq!(seen.reason, reason(way), "{way:?} {what}");
            let expected = sent(way, &lowered, &service.backends[0], &seen.frame);
            assert!(seen.frame == expected, "{way:?} {what}\n{:02x?}\n{expected:02x?}", seen.frame);
        }
        // Only a SYN has one, whatever it looks like.
        let request =
            packet(&mut world, way, TCP, CLAMPED, ACK).with(|f| f.tcp_options = mss(1460));
        check(&world, way, &request);
        // And it is left alone where nothing is to be lowered.
        let request = packet(&mut world, way, TCP, PLAIN, SYN).with(|f| f.tcp_options = mss(9000));
        check(&world, way, &request);
    }
}

#[test]
fn what_cannot_be_sent() {
    needs_root!("what_cannot_be_sent");
    let mut world = world();
    for (way, proto) in each_way() {
        let request = packet(&mut world, way, proto, UNRESOLVED, SYN);
        let seen = world.send(&request);
        assert_eq!(seen.pair(), (Verdict::Drop, Reason::NoNeighbour), "{way:?} {proto}");
        let request = packet(&mut world, way, proto, NONE, SYN);
        let expected = match proto {
            TCP => (Verdict::Tx, Reason::ResetNoBackend),
            _ => (Verdict::Drop, Reason::NoBackend),
        };
        assert_eq!(world.send(&request).pair(), expected, "{way:?} {proto}");
    }
}

/// A CPU's memory of the services that it has met ends with every change.
#[test]
fn services_change_at_once() {
    needs_root!("services_change_at_once");
    let mut world = world();
    let way = (Forward::DsrIpip, Family::V4, Family::V4);
    let request = packet(&mut world, way, TCP, PLAIN, ACK);
    let service = world.service(way.1, TCP, port(way, PLAIN)).row;
    let with_mode = |forward| ServiceRow { forward, ..service.clone() };
    let elsewhere = ServiceKey::new(way.1.vip(), 9, service.key.protocol);
    for _ in 0..3 {
        assert_eq!(world.send(&request).reason, Reason::DsrIpip);
        world.change(|t| t.services[usize::from(service.id)] = with_mode(Forward::DsrGue));
        assert_eq!(world.send(&request).reason, Reason::DsrGue);
        // Others stay, and the ids of all.
        world.change(|t| t.services[usize::from(service.id)].key = elsewhere);
        assert_eq!(world.send(&request).reason, Reason::NoService);
        world.change(|t| t.services[usize::from(service.id)] = with_mode(Forward::DsrIpip));
    }
}

/// A backend that lacks the service address sends the packet on to where the address is: here.
#[test]
fn no_loops() {
    needs_root!("no_loops");
    let mut world = world();
    for (way, proto) in each_way() {
        let request = packet(&mut world, way, proto, PLAIN, SYN);
        let ours = request.clone().with(|f| f.src.set_ip(f.dst.ip()));
        assert_eq!(world.send(&ours).pair(), (Verdict::Drop, Reason::Loop), "{way:?} {proto}");
        // A health check, which a backend without the service address has sent on.
        let check = request.clone().with(|f| {
            f.src.set_ip(way.1.nat());
            (f.src_mac, f.dst_mac, f.ttl) = (backend_mac(7), BACK_MAC, f.ttl - 1);
        });
        let seen = world.feed(BACK, &check.bytes());
        assert_eq!(seen.pair(), (Verdict::Drop, Reason::Loop), "{way:?} {proto}");
        let back =
            request.with(|f| (f.src_mac, f.dst_mac, f.ttl) = (backend_mac(0), BACK_MAC, f.ttl - 1));
        let seen = world.feed(BACK, &back.bytes());
        let expected = match way.0 {
            Forward::DsrL2 => (Verdict::Drop, Reason::Loop),
            // Behind a tunnel the same next hop may well be the clients' router.
            _ => (Verdict::Tx, reason(way)),
        };
        assert_eq!(seen.pair(), expected, "{way:?} {proto}");
    }
}

/// An error about what a backend answered past us.
fn error(way: Way, request: &Frame, len: usize) -> Frame {
    let answer = request.clone().with(|f| {
        (f.src, f.dst, f.ttl) = (request.dst, request.src, 7);
        f.payload = vec![0x5a; 100];
    });
    let message = icmp::error(way.1, Says::TooBig(1300), &icmp::quote(&answer, len));
    icmp::frame(way.1.elsewhere(), way.1.vip(), message)
}

/// An ICMP error goes, as it is, where the flow goes whose packet it quotes: else path MTU
/// discovery would not work.
#[test]
fn errors_follow_their_flow() {
    needs_root!("errors_follow_their_flow");
    let mut world = world();
    for way in WAYS {
        let mut met = HashSet::new();
        for proto in [TCP, UDP] {
            for _ in 0..16 {
                let request = packet(&mut world, way, proto, POOL, ACK);
                let backend = world.chosen(&request).unwrap();
                met.insert(backend.index);
                for len in [way.1.header_len() + 8, usize::MAX] {
                    let error = error(way, &request, len);
                    let seen = world.send(&error);
                    assert_eq!(seen.pair(), (Verdict::Redirect, reason(way)), "{way:?}");
                    assert!(seen.frame == sent(way, &error, &backend, &seen.frame), "{way:?}");
                }
            }
        }
        assert!(met.len() > 4, "{way:?}: {met:?}");
    }
}

/// An error that cannot go on is not answered with another.
#[test]
fn errors_are_the_cause_of_none() {
    needs_root!("errors_are_the_cause_of_none");
    let mut world = world();
    for way in WAYS {
        let about = |world: &mut World, kind| {
            let request = packet(world, way, UDP, kind, 0);
            error(way, &request, usize::MAX)
        };
        let frame = about(&mut world, UNRESOLVED);
        let unresolved = world.send(&frame);
        assert_eq!(unresolved.pair(), (Verdict::Drop, Reason::NoNeighbour), "{way:?}");
        let frame = about(&mut world, NONE);
        let none = world.send(&frame);
        assert_eq!(none.pair(), (Verdict::Drop, Reason::NoBackend), "{way:?}");
        let old = about(&mut world, PLAIN).with(|f| f.ttl = 1);
        assert_eq!(world.send(&old).pair(), (Verdict::Drop, Reason::TtlExpired), "{way:?}");
        let big = about(&mut world, PLAIN).with(|f| f.payload.resize(usize::from(MTU), 1));
        assert_eq!(world.send(&big).pair(), (Verdict::Drop, Reason::TooBig), "{way:?}");
    }
}

/// The last fragment of a datagram may hold a few bytes only, and a device that pads nothing hands
/// it over as it is.
#[test]
fn the_shortest_fragments() {
    needs_root!("the_shortest_fragments");
    let mut world = world();
    for way in WAYS {
        for tail in 1..=8 {
            let request = packet(&mut world, way, UDP, PLAIN, 0)
                .payload(&vec![7; 40 - 8 + tail])
                .with(|f| f.fragment = 0);
            let parts = fragments(&request.bytes(), 40, 0x77);
            for part in &parts {
                let seen = world.feed(FRONT, part);
                assert_eq!(seen.pair(), (Verdict::Redirect, reason(way)), "{way:?} {tail}");
                assert_eq!(seen.frame.len(), part.len() + overhead(way), "{way:?} {tail}");
            }
        }
    }
}

/// A trailer behind the packet does not make a tunnel packet too long for the way out.
#[test]
fn a_trailer_does_not_count() {
    needs_root!("a_trailer_does_not_count");
    let mut world = world();
    for way in WAYS.into_iter().filter(|way| way.0.is_tunnel()) {
        let request = packet(&mut world, way, TCP, PLAIN, ACK).payload(&[]);
        let room = usize::from(MTU) - overhead(way) - request.l3().len();
        for (len, trailer) in [(room, 1), (room, 46), (room - 20, 46), (room - 46, 47)] {
            let long = request.clone().payload(&vec![1; len]);
            let seen = world.feed(FRONT, &long.clone().with(|f| f.padding = trailer).bytes());
            let service = world.service(way.1, TCP, request.dst.port());
            let expected = sent(way, &long, &service.backends[0], &seen.frame);
            assert!(seen.frame == expected, "{way:?} {len} {trailer}: {}", seen.frame.len());
        }
    }
}
