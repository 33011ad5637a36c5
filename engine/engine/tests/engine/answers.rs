//! Answers of apps, and the reasons for none.

use std::net::IpAddr;

use ringway_engine::App;
use ringway_engine::apps::{Answer, Bid, Icmp, L2fwd, Macs, Sink, Source, UdpEcho};
use ringway_wire::{
    Arp, Ethernet, Frame, FromBytes as _, Header as _, Icmpv6, IntoBytes as _, Ip, Ipv4, Mac, Udp,
    UdpChecksum, checksum, nd, protocol,
};
use ringway_xsk::Pool;

use crate::bench_of::{Bench, pool_with_headroom};
use crate::frames::*;

/// The frame's addresses and its IP packet, whose header is right.
fn ip(frame: &[u8]) -> (Ethernet, Ip<&[u8]>) {
    let frame = Frame::parse(frame).unwrap();
    if let Ok(v4) = Ipv4::parse(frame.payload) {
        assert!(v4.checksum_is_right());
    }
    (*frame.ethernet, Ip::parse(frame.payload).unwrap())
}

#[test]
fn arp_is_answered() {
    for question in [arp(), tagged(&arp())] {
        let mut bench = Bench::new(Icmp::new(host()));
        let answer = bench.ask(question.clone()).unwrap();
        let frame = Frame::parse(&answer[..]).unwrap();
        assert_eq!((frame.ethernet.destination, frame.ethernet.source), (THEM, US));
        let arp = Arp::parse(frame.payload).unwrap().header;
        assert_eq!((arp.operation.get(), arp.sender_mac, arp.sender), (2, US, OUR_V4.octets()));
        assert_eq!(answer.len(), question.len());
        bench.end();
    }
}

#[test]
fn pings_are_answered() {
    let mut bench = Bench::new(Icmp::new(host()));
    for frame in [ping(), tagged(&ping())] {
        let answer = bench.ask(frame).unwrap();
        let (ethernet, ip) = ip(&answer);
        assert_eq!((ethernet.destination, ethernet.source), (THEM, US));
        assert_eq!((ip.source(), ip.destination()), (OUR_V4.into(), THEIR_V4.into()));
        let icmp = ringway_wire::Icmp::parse(ip.payload).unwrap();
        assert!(icmp.checksum_is_right() && icmp.header.kind == 0 && icmp.payload == b"ping");
    }
    let answer = bench.ask(ping_v6()).unwrap();
    let (_, ip) = ip(&answer);
    assert_eq!((ip.source(), ip.destination()), (OUR_V6.into(), THEIR_V6.into()));
    let icmp = Icmpv6::parse(ip.payload).unwrap();
    assert!(icmp.checksum_is_right(ip.pseudo()) && icmp.header.kind == Icmpv6::ECHO_REPLY);
    bench.end();
}

#[test]
fn neighbours_are_answered() {
    for tags in 0..3 {
        for source in [THEIR_V6, std::net::Ipv6Addr::UNSPECIFIED] {
            let mut bench = Bench::new(Icmp::new(host()));
            let question = (0..tags).fold(solicitation(source), |frame, _| tagged(&frame));
            let answer = bench.ask(question).unwrap();
            let (ethernet, ip) = ip(&answer);
            let to_all = source.is_unspecified();
            let mac = if to_all { "33:33:00:00:00:01".parse().unwrap() } else { THEM };
            assert_eq!((ethernet.destination, ethernet.source), (mac, US));
            assert_eq!(ip.ttl(), 255);
            let icmp = Icmpv6::parse(ip.payload).unwrap();
            assert!(icmp.checksum_is_right(ip.pseudo()));
            assert_eq!(icmp.header.kind, Icmpv6::NEIGHBOUR_ADVERTISEMENT);
            assert_eq!(icmp.header.word.get() & nd::flags::SOLICITED == 0, to_all);
            let neighbour = nd::Neighbour::parse(icmp.payload).unwrap();
            assert_eq!(neighbour.header.target, OUR_V6.octets());
            let option = nd::NdOptions::new(neighbour.payload).next().unwrap().unwrap();
            assert_eq!(option, nd::NdOption::TargetLinkLayer(US));
            assert_eq!(Frame::parse(&answer[..]).unwrap().tags.iter().flatten().count(), tags);
            bench.end();
        }
    }
}

#[test]
fn datagrams_come_back() {
    let mut bench = Bench::new(UdpEcho::new(host(), PORT));
    for frame in [udp(b"hello"), udp_v6(b"hello"), tagged(&udp(b"hello"))] {
        let answer = bench.ask(frame).unwrap();
        let (ethernet, ip) = ip(&answer);
        assert_eq!((ethernet.destination, ethernet.source), (THEM, US));
        let udp = Udp::parse(ip.payload).unwrap();
        assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::Right);
        assert_eq!((udp.header.source.get(), udp.header.destination.get()), (PORT, 4711));
        assert_eq!(udp.payload, b"hello");
    }
    assert!(bench.ask(arp()).is_some() && bench.ask(ping()).is_some(), "it can be reached");
    bench.end();
}

#[test]
fn datagrams_to_another_port_are_told_apart() {
    let mut bench = Bench::new(UdpEcho::new(host(), PORT + 1));
    assert!(bench.ask(udp(b"hello")).is_none());
    assert_eq!(bench.worker.status().packets.dropped[0].name, "other-port");
    bench.end();
}

#[test]
fn bids() {
    let mut bench = Bench::new(Bid::new(host(), PORT, offers(), 4));
    for (segment, floor, price) in [(SEGMENT, 1000, 1000), (SEGMENT, 1001, 0), (1, 0, 0)] {
        for v6 in [false, true] {
            let request = request(3, segment, floor);
            let frame = if v6 { udp_v6(request.as_bytes()) } else { udp(request.as_bytes()) };
            let answer = bench.ask(frame.clone()).unwrap();
            assert_eq!(answer.len(), frame.len() - 20, "30 bytes for 50");
            let (_, ip) = ip(&answer);
            let udp = Udp::parse(ip.payload).unwrap();
            assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::Right);
            let answer = Answer::ref_from_bytes(udp.payload).unwrap();
            assert_eq!((answer.id.get(), answer.client.get()), (4242, 3));
            assert_eq!((answer.price.get(), answer.bid), (price, u8::from(price > 0)));
            assert_eq!(answer.creative.get(), if price > 0 { 5 } else { 0 });
        }
    }
    assert_eq!(bench.ask(udp(request(4, SEGMENT, 0).as_bytes())), None);
    assert_eq!(bench.dropped("unknown-client"), 1);
    for payload in [&[0_u8; 50][..], &[0; 49], &[0; 51], &[]] {
        assert_eq!(bench.ask(udp(payload)), None);
    }
    assert_eq!(bench.dropped("bad-request"), 4);
    let bid = bench.end();
    let counted = [("client 3: requests".into(), 6), ("client 3: bids".into(), 2)];
    assert_eq!(App::<Pool>::statistics(&bid), counted);
}

/// A datagram without a checksum has none in its answer, either.
#[test]
fn no_checksum() {
    let mut frame = udp(request(0, SEGMENT, 0).as_bytes());
    frame[14 + 20 + 6..][..2].fill(0);
    let mut bench = Bench::new(Bid::new(host(), PORT, offers(), 1));
    let answer = bench.ask(frame).unwrap();
    let (_, ip) = ip(&answer);
    assert_eq!(Udp::parse(ip.payload).unwrap().verify(ip.pseudo()), UdpChecksum::None);
    let mut frame = udp_v6(request(0, SEGMENT, 0).as_bytes());
    frame[14 + 40 + 6..][..2].fill(0);
    assert_eq!(bench.ask(frame), None, "over IPv6 there must be one");
    assert_eq!(bench.dropped("bad-checksum"), 1);
    bench.end();
}

#[test]
fn why_there_is_no_answer() {
    fn changed(mut frame: Vec<u8>, at: usize, to: u8) -> Vec<u8> {
        frame[at] = to;
        frame
    }
    /// With another source address, and the checksum of the header mended.
    fn from(mut frame: Vec<u8>, source: [u8; 4]) -> Vec<u8> {
        let header = Ipv4::mut_from_bytes(&mut frame[14..34]).unwrap();
        let (old, mut sum) = (header.source, header.checksum);
        checksum::replace(&mut sum, &old, &source);
        (header.source, header.checksum) = (source, sum);
        frame
    }
    let all = all();
    for (frame, reason) in [
        (changed(ping(), 5, 9), "other-mac"),
        (changed(ping(), 12, 9), "other-protocol"),
        (changed(arp(), 14 + 27, 9), "other-address"),
        (changed(arp(), 14 + 1, 9), "malformed-arp"),
        (arp()[..41].to_vec(), "malformed-arp"),
        (changed(ping(), 14, 0x65), "malformed-ipv6"),
        (changed(ping(), 14, 0x44), "malformed-ipv4"),
        (changed(ping(), 14 + 3, 200), "malformed-ipv4"),
        (changed(ping(), 14 + 8, 63), "bad-checksum"),
        (changed(ping(), 14 + 25, 63), "bad-checksum"),
        (changed(ping_v6(), 14 + 45, 63), "bad-checksum"),
        (changed(ping_v6(), 14 + 5, 200), "malformed-ipv6"),
        (changed(ping_v6(), 14 + 39, 9), "other-address"),
        (changed(solicitation(THEIR_V6), 14 + 7, 254), "malformed-icmpv6"),
        (changed(solicitation(THEIR_V6), 14 + 43, 1), "bad-checksum"),
        (from(ping(), [0, 0, 0, 0]), "bad-source"),
        (from(ping(), [224, 0, 0, 1]), "bad-source"),
        (from(ping(), [127, 0, 0, 1]), "bad-source"),
        (tagged(&ping())[..16].to_vec(), "malformed-vlan"),
        (tcp(), "other-protocol"),
        (udp(b"x"), "other-protocol"),
        (all[10].clone(), "options"),
        (all[11].clone(), "fragment"),
        (all[12].clone(), "options"),
    ] {
        let mut bench = Bench::new(Icmp::new(host()));
        assert_eq!(bench.ask(frame.clone()), None, "{reason}");
        let dropped = bench.worker.status().packets.dropped;
        assert_eq!(dropped.len(), 1, "{dropped:?}");
        assert_eq!(dropped[0].name, reason, "{frame:02x?}");
        bench.end();
    }
    // Long enough for its length field, and too long for one frame.
    let mut bench = Bench::new(Icmp::new(host()));
    assert_eq!(bench.ask([ping(), vec![0; 3000]].concat()), None);
    assert_eq!(bench.dropped("several-frames"), 1);
    bench.end();
}

/// Wherever frames end, at an odd place or an even one; and nothing that is damaged, behind the
/// first frame or in it.
#[test]
fn what_takes_several_frames_is_answered() {
    for (headroom, len) in [(0, 2000), (0, 8001), (1, 2000), (1, 8001)] {
        let payload: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
        for (question, sums) in [
            (ping_of(&payload), 14 + 20 + 2),
            (tagged(&ping_v6_of(&payload)), 18 + 40 + 2),
            (udp(&payload), 14 + 20 + 6),
            (tagged(&udp_v6(&payload)), 18 + 40 + 6),
        ] {
            let ask = |frame: Vec<u8>| {
                let pool = pool_with_headroom(512, headroom);
                let mut bench = Bench::of_pool(UdpEcho::new(host(), PORT), pool);
                let answer = bench.ask(frame);
                let dropped = bench.worker.status().packets.dropped;
                bench.end();
                answer.ok_or_else(|| dropped[0].name)
            };
            let answer = ask(question.clone()).unwrap();
            let (ethernet, ip) = ip(&answer);
            assert_eq!((ethernet.destination, ethernet.source), (THEM, US));
            let (ours, theirs) = match ip.source().is_ipv4() {
                true => (OUR_V4.into(), THEIR_V4.into()),
                false => (IpAddr::from(OUR_V6), THEIR_V6.into()),
            };
            assert_eq!((ip.source(), ip.destination(), ip.ttl()), (ours, theirs, 64));
            match (ip.protocol, ip.payload[0]) {
                (protocol::UDP, _) => {
                    let udp = Udp::parse(ip.payload).unwrap();
                    assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::Right);
                    assert_eq!((udp.header.source.get(), udp.header.destination.get()), (7, 4711));
                }
                (protocol::ICMP, 0) => {
                    assert!(ringway_wire::Icmp::parse(ip.payload).unwrap().checksum_is_right());
                }
                (_, kind) => {
                    let icmp = Icmpv6::parse(ip.payload).unwrap();
                    assert!(icmp.checksum_is_right(ip.pseudo()) && kind == Icmpv6::ECHO_REPLY);
                }
            }
            assert_eq!(ip.payload[8..], payload);
            let last = question.len() - 1;
            let changed = |at: usize| {
                let mut frame = question.clone();
                frame[at] ^= 0x40;
                ask(frame).unwrap_err()
            };
            for at in [sums, 100, last] {
                assert_eq!(changed(at), "bad-checksum", "{at} of {last}");
            }
            assert_eq!(changed(0), "other-mac");
            // IP's length is more or less than that of the packet.
            assert_eq!(ask([question.clone(), vec![0; 2]].concat()).unwrap_err(), "several-frames");
            assert_eq!(ask(question[..last].to_vec()).unwrap_err(), "several-frames");
        }
    }
    let mut bench = Bench::new(Bid::new(host(), PORT, offers(), 4));
    assert_eq!(bench.ask(udp(&[0; 3000])), None);
    assert_eq!(bench.dropped("several-frames"), 1);
    assert!(bench.ask(ping_of(&[0; 3000])).is_some());
    bench.end();
}

#[test]
fn what_is_forwarded_and_how() {
    let other = Mac([2, 0, 0, 0, 0, 9]);
    for (macs, want) in [
        (Macs::AsIs, (US, THEM)),
        (Macs::Swap, (THEM, US)),
        (Macs::Static { destination: other, source: US }, (other, US)),
    ] {
        let mut bench = Bench::new(L2fwd::new(macs));
        let frame = ping();
        let forwarded = bench.ask(frame.clone()).unwrap();
        let ethernet = Ethernet::parse(&forwarded[..]).unwrap().header;
        assert_eq!((ethernet.destination, ethernet.source), want);
        assert_eq!(forwarded[12..], frame[12..]);
        let long = [udp(b"long"), vec![5; 5000]].concat();
        assert_eq!(bench.ask(long.clone()).unwrap()[12..], long[12..]);
        // As it is, nobody looks at it: ports refuse what they cannot send.
        let short = (macs == Macs::AsIs).then(|| frame[..13].to_vec());
        assert_eq!(bench.ask(frame[..13].to_vec()), short);
        assert_eq!(bench.dropped("malformed-ethernet"), u64::from(short.is_none()));
        bench.end();
    }
}

#[test]
fn where_packets_begin_and_end() {
    let mut bench = Bench::new(Source::new(ping(), 100, 32));
    let mut came = 0;
    while !bench.worker.is_finished() {
        let frames = bench.round();
        assert!(frames.iter().all(|frame| *frame == ping()));
        came += frames.len();
    }
    assert_eq!(came, 100);
    bench.send(&[udp(b"x")]);
    assert!(bench.round().is_empty());
    assert_eq!(bench.dropped("consumed"), 1);
    bench.end();

    let mut bench = Bench::new(Sink::default());
    bench.send(&all());
    assert!(bench.round().is_empty());
    let status = bench.worker.status();
    assert_eq!(bench.dropped("consumed"), all().len() as u64);
    let port = status.ports[0].statistics;
    assert_eq!(port.received_packets, all().len() as u64);
    let bytes: usize = all().iter().map(Vec::len).sum();
    assert_eq!(App::<Pool>::statistics(&bench.end()), [("bytes".into(), bytes as u64)]);
}
