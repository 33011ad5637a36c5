//! ICMP and ICMPv6 that arrive: echo, and errors by the flow that they quote.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::NextHop;

use crate::sources::no_hosts;

const SERVICES: [u16; 3] = [ports::SAME, ports::ACROSS, ports::CLIENT];
const FULL: usize = usize::MAX;

fn there(from: u32, to: u32) -> Verdict {
    if from == to { Tx } else { Redirect }
}

/// A packet after some routers, which have lowered its TTL.
fn travelled(frame: &Frame) -> Frame {
    frame.clone().with(|f| f.ttl = 3)
}

/// An error about what the client got, and what the backend should get for it. `quoted` is the
/// packet as the backend sent it.
fn about_reply(flow: &Flow, from: IpAddr, says: Says, quoted: &Frame, len: usize) -> [Frame; 2] {
    let (family, vip) = (flow.request.family(), flow.request.dst.ip());
    let hop = flow.backend.next_hop.unwrap();
    let seen = travelled(&flow.returned(quoted));
    let came = icmp::frame(from, vip, icmp::error(family, says, &icmp::quote(&seen, len)))
        .with(|f| (f.src_mac, f.dst_mac) = (flow.request.src_mac, mac_of(flow.slot)));
    let kept = flow.source.ip() == flow.request.src.ip();
    let src = if kept { from } else { flow.source.ip() };
    let quote = icmp::quote(&travelled(quoted), len);
    let goes =
        icmp::frame(src, flow.backend.address, icmp::error(family, says, &quote)).with(|f| {
            (f.src_mac, f.dst_mac, f.ttl) = (mac_of(hop.iface), hop.mac, came.ttl - 1);
        });
    [came, goes]
}

/// An error about what the backend was sent, and what the client should get for it.
fn about_request(flow: &Flow, from: IpAddr, says: Says, quoted: &Frame, len: usize) -> [Frame; 2] {
    let (family, vip) = (flow.request.family(), flow.request.dst.ip());
    let hop = flow.backend.next_hop.unwrap();
    let seen = travelled(&flow.forwarded(quoted));
    let quote = icmp::quote(&seen, len);
    let came = icmp::frame(from, flow.source.ip(), icmp::error(family, says, &quote))
        .with(|f| (f.src_mac, f.dst_mac) = (hop.mac, mac_of(hop.iface)));
    let quote = icmp::quote(&travelled(quoted), len);
    let goes =
        icmp::frame(vip, flow.request.src.ip(), icmp::error(family, says, &quote)).with(|f| {
            (f.src_mac, f.dst_mac) = (mac_of(flow.slot), flow.request.src_mac);
            f.ttl = came.ttl - 1;
        });
    [came, goes]
}

#[test]
fn a_ping_is_answered() {
    needs_root!("a_ping_is_answered");
    let world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for address in [family.vip(), family.announced()] {
            // Of zeroes and nothing else the sum is -0: 0xffff.
            let zeroes = [false, true].map(|reply| {
                let mut message = icmp::echo(family, reply, &[0; 8]);
                message[4..8].fill(0);
                message
            });
            let counted = |len: u16| {
                let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
                [false, true].map(|reply| icmp::echo(family, reply, &data))
            };
            for [ping, pong] in [0, 1, 7, 56, 1400, 8000].map(counted).into_iter().chain([zeroes]) {
                let name = format!("{family:?}: {} bytes", ping.len());
                let asked = icmp::frame(family.client(), address, ping)
                    .with(|f| (f.tos, f.id) = (0x20, 0xbeef));
                let answer = icmp::frame(address, family.client(), pong).with(|f| {
                    (f.src_mac, f.dst_mac) = (FRONT_MAC, CLIENT_MAC);
                    (f.tos, f.id, f.ttl) = (0x20, 0xbeef, 64);
                });
                rows.push(row(&name, asked, Tx, EchoReply).gives(answer));
            }
        }
    }
    check(&world, &rows);
}

#[test]
fn what_is_no_ping_of_a_host_is_not_answered() {
    needs_root!("what_is_no_ping_of_a_host_is_not_answered");
    let world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        let from = |src: IpAddr| icmp::frame(src, family.vip(), icmp::echo(family, false, b"data"));
        for source in no_hosts(family) {
            rows.push(row(&source.to_string(), from(source), Drop, MartianSource));
        }
        rows.push(row("from a service address", from(family.announced()), Drop, Loop));
        let ping = from(family.client());
        let other = |f: &mut Frame| f.dst_mac = STRANGER_MAC;
        rows.push(row("another host's", ping.clone().with(other), Pass, OtherHost));
        let broadcast = |f: &mut Frame| f.dst_mac = BROADCAST_MAC;
        rows.push(row("to everyone on the link", ping.clone().with(broadcast), Pass, OtherHost));
        let elsewhere = |f: &mut Frame| f.dst = (family.elsewhere(), 0).into();
        rows.push(row("of another address", ping.clone().with(elsewhere), Pass, NoService));
        let reply = icmp::echo(family, true, b"data");
        rows.push(row("an answer", ping.clone().payload(&reply), Pass, Icmp));
        for len in 0..8 {
            let cut = ping.clone().payload(&icmp::echo(family, false, b"")[..len]);
            rows.push(row(&format!("{len} bytes of ICMP"), cut, Drop, Malformed));
        }
        // RFC 1122 section 3.2.2, RFC 4443 section 2.4: discarded, not answered as badly.
        for len in [0, 1, 56, 1400, 8000] {
            let mut bytes = ping.clone().payload(&icmp::echo(family, false, &vec![1; len])).bytes();
            *bytes.last_mut().unwrap() ^= 0x10;
            rows.push(row(&format!("a bad checksum over {len} bytes"), bytes, Drop, Malformed));
        }
        let timestamp = if family == Family::V4 { 13 } else { 139 };
        let asked = [&[timestamp, 0, 0, 0][..], &[0; 16]].concat();
        rows.push(row("another question", ping.clone().payload(&asked), Pass, Icmp));
        let (optional, reason) = match family {
            Family::V4 => (ping.clone().with(|f| f.options = vec![7, 4, 4, 0]), IpOptions),
            Family::V6 => (ping.clone().extended(&[60]), Ipv6Extension),
        };
        rows.push(row("with options", optional, Drop, reason));
        let fragment = |f: &mut Frame| match family {
            Family::V4 => f.fragment = 0x2000,
            Family::V6 => (f.options, f.first_extension) = (vec![58, 0, 0, 1, 0, 0, 0, 7], 44),
        };
        rows.push(row("a first fragment", ping.clone().with(fragment), Drop, Fragment));
    }
    check(&world, &rows);
    let mut bytes = {
        let echo = icmp::echo(Family::V4, false, b"data");
        icmp::frame(Family::V4.client(), Family::V4.vip(), echo).bytes()
    };
    bytes[14 + 10] ^= 1;
    let _damaged = capture::damaged("a wrong checksum is what this is about");
    assert_eq!(world.feed(FRONT, &bytes).pair(), (Drop, Malformed), "its IPv4 header's checksum");
}

/// Under nat, both directions, every kind, whatever was quoted of the packet.
#[test]
fn errors_are_translated() {
    needs_root!("errors_are_translated");
    let mut world = World::new();
    for (family, proto) in TRANSPORTS {
        for port in SERVICES {
            let flow = world.connect_or_open(family, proto, port);
            let mut rows = Vec::new();
            let (request, answer) = (flow.next(PSH | ACK), flow.answer(PSH | ACK));
            let routers = [family.elsewhere(); 2];
            let head = family.header_len();
            for says in icmp::ALL {
                // RFC 792 asks for 8 bytes of layer 4; TCP's checksum is the 17th and 18th,
                // and left alone where half of it is quoted.
                for len in [head + 8, head + 9, head + 16, head + 18, head + 20, FULL] {
                    rows.extend(both_ways(&flow, routers, says, [&request, &answer], len));
                }
            }
            // From the very ends of the flow, not from a router between.
            let ends = [flow.request.src.ip(), flow.backend.address];
            rows.extend(both_ways(&flow, ends, Says::NoPort, [&request, &answer], FULL));
            check(&world, &rows);
        }
    }
}

/// Both errors as rows, from these two: about an answer, about a request.
fn both_ways(
    flow: &Flow,
    [client, backend]: [IpAddr; 2],
    says: Says,
    [request, answer]: [&Frame; 2],
    len: usize,
) -> [Row; 2] {
    let Frame { proto, dst, .. } = flow.request;
    let back = flow.back_slot();
    let name = |what| format!("{proto}, {dst}: {what}");
    let [came, goes] = about_reply(flow, client, says, answer, len);
    let to_backend =
        row(&name("to the backend"), came, there(flow.slot, back), IcmpToBackend).gives(goes);
    let [came, goes] = about_request(flow, backend, says, request, len);
    let to_client = row(&name("to the client"), came, there(back, flow.slot), IcmpToClient);
    [to_backend.on(flow.slot), to_client.on(back).gives(goes)]
}

#[test]
fn quotes_of_every_shape() {
    needs_root!("quotes_of_every_shape");
    let mut world = World::new();
    for (family, proto) in TRANSPORTS {
        for port in SERVICES {
            let flow = world.connect_or_open(family, proto, port);
            let (mut rows, routers) = (Vec::new(), [family.elsewhere(); 2]);
            type Change = (&'static str, fn(&mut Frame));
            let mut shapes: Vec<Change> = vec![
                ("no checksum", |f| f.no_checksum = true),
                ("one byte of data", |f| f.payload = vec![0xff]),
                ("odd", |f| f.payload = vec![0x5a; 333]),
                ("type of service", |f| f.tos = 0xff),
            ];
            if family == Family::V4 {
                shapes.push(("options", |f| f.options = vec![0x94, 4, 0, 0, 1, 1, 1, 0]));
                shapes.push(("all options", |f| f.options = vec![1; 40]));
                shapes.push(("a first fragment", |f| f.fragment = 0x2000));
            } else {
                shapes.push(("destination options", |f| {
                    f.options = vec![f.proto, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                    f.first_extension = 60;
                }));
                shapes.push(("a first fragment", |f| {
                    f.options = vec![f.proto, 0, 0, 1, 0, 0, 0, 9];
                    f.first_extension = 44;
                }));
            }
            for (what, shape) in shapes {
                if what == "no checksum" && proto == TCP {
                    continue;
                }
                let request = flow.next(ACK).with(shape);
                let answer = flow.answer(ACK).with(shape);
                let head = request.bytes().len() - 14 - l4_len(&request);
                for len in [head + 8, FULL] {
                    let says = Says::TooBig(1300);
                    rows.extend(both_ways(&flow, routers, says, [&request, &answer], len));
                }
            }
            check(&world, &rows);
        }
    }
}

fn l4_len(frame: &Frame) -> usize {
    frame.payload.len() + if frame.proto == TCP { 20 + frame.tcp_options.len() } else { 8 }
}

/// Of errors with options or extension headers of their own, the quote is translated just so.
#[test]
fn errors_with_options() {
    needs_root!("errors_with_options");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.connect(family, ports::ACROSS);
        let (says, router) = (Says::TooBig(1400), family.elsewhere());
        let pairs = [
            about_reply(&flow, router, says, &flow.answer(ACK), FULL),
            about_request(&flow, router, says, &flow.next(ACK), FULL),
        ];
        let pairs = pairs.map(|pair| {
            pair.map(|frame| match family {
                Family::V4 => frame.with(|f| f.options = vec![0x94, 4, 0, 0]),
                Family::V6 => frame.extended(&[60]),
            })
        });
        let [[came, goes], [came_back, goes_back]] = pairs;
        let rows = [
            row("to the backend", came, Redirect, IcmpToBackend).gives(goes),
            row("to the client", came_back, Redirect, IcmpToClient).on(BACK).gives(goes_back),
        ];
        check(&world, &rows);
    }
}

/// A quote whose lengths or place are wrong: dropped when it was for a service's address, passed
/// when it may be for the node itself.
#[test]
fn quotes_that_are_wrong() {
    needs_root!("quotes_that_are_wrong");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        let flow = world.connect_or_open(family, proto, ports::ACROSS);
        let (says, router) = (Says::TooBig(1400), family.elsewhere());
        let [reply, _] = about_reply(&flow, router, says, &flow.answer(ACK), FULL);
        let [request, _] = about_request(&flow, router, says, &flow.next(ACK), FULL);
        let mut both = |what: &str, reason: Reason, change: &dyn Fn(&mut Vec<u8>)| {
            let name = format!("{family:?} {proto}: {what}");
            let with = |frame: &Frame| frame.clone().with(|f| change(&mut f.payload));
            rows.push(row(&name, with(&reply), Drop, reason));
            rows.push(row(&name, with(&request), Pass, NoService).on(BACK));
        };
        let head = family.header_len();
        let source = if family == Family::V4 { 12 } else { 8 };
        for len in 0..head + 8 {
            let what = format!("{len} bytes quoted");
            both(&what, Malformed, &|m| m.truncate(8 + len));
        }
        both("version 5", Malformed, &|m| m[8] = m[8] & 15 | 0x50);
        both("the other family's version", Malformed, &|m| m[8] ^= 0x20);
        let length = if family == Family::V4 { 8 + 2 } else { 8 + 4 };
        let least = if family == Family::V4 { head + 7 } else { 7 };
        both("less than ports", Malformed, &|m| {
            m[length..length + 2].copy_from_slice(&(least as u16).to_be_bytes());
        });
        both("length 0", Malformed, &|m| m[length..length + 2].fill(0));
        both("another port", IcmpNoFlow, &|m| m[8 + head + 3] ^= 1);
        both("another host", IcmpNoFlow, &|m| m[8 + head - 1] ^= 1);
        // The quoted source is not whom the error was sent to.
        both("a forged source", IcmpNoFlow, &|m| m[8 + source + 3] ^= 1);
        if family == Family::V4 {
            both("a header of 16 bytes", Malformed, &|m| m[8] = 0x44);
            both("a header beyond the quote", Malformed, &|m| {
                m[8] = 0x4f;
                m.truncate(8 + 60 + 7);
            });
            both("a later fragment", IcmpNoFlow, &|m| m[8 + 7] = 0x10);
        } else {
            let extension = |next: u8, rest: [u8; 7]| {
                move |m: &mut Vec<u8>| {
                    let proto = m[8 + 6];
                    m[8 + 6] = next;
                    let header = [&[proto], &rest[..]].concat();
                    m.splice(8 + 40..8 + 40, header).for_each(drop);
                }
            };
            let later = extension(44, [0, 0, 0x10, 0, 0, 0, 7]);
            both("a later fragment", IcmpNoFlow, &later);
            let long = extension(60, [200, 1, 4, 0, 0, 0, 0]);
            both("an extension beyond the quote", Malformed, &long);
        }
    }
    check(&world, &rows);
}

/// Errors about what is nobody's flow, or about other protocols.
#[test]
fn errors_that_belong_to_no_flow() {
    needs_root!("errors_that_belong_to_no_flow");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            let mut flow = world.connect_or_open(family, proto, ports::ACROSS);
            flow.request.src.set_port(1);
            flow.source.set_port(29_999);
            for says in icmp::ALL {
                let [came, _] = about_reply(&flow, family.client(), says, &flow.answer(ACK), FULL);
                rows.push(row("about a reply", came, Drop, IcmpNoFlow));
                let [came, _] =
                    about_request(&flow, flow.backend.address, says, &flow.next(ACK), FULL);
                rows.push(row("about a request", came, Pass, NoService).on(BACK));
            }
            // A socket of the node's own at the service address.
            let own = flow.answer(ACK).with(|f| {
                (f.src, f.dst) = ((family.vip(), 22).into(), flow.request.src);
            });
            let error = icmp::error(family, Says::Unreachable, &icmp::quote(&own, FULL));
            let error = icmp::frame(family.client(), family.vip(), error);
            rows.push(row("no service's port", error, Pass, Icmp));
        }
        let ping = icmp::frame(family.vip(), family.client(), icmp::echo(family, true, b"data"));
        let error = icmp::error(family, Says::Unreachable, &icmp::quote(&ping, FULL));
        let error = icmp::frame(family.client(), family.vip(), error);
        rows.push(row("about an echo reply", error, Pass, Icmp));
        let redirect = if family == Family::V4 { [5, 1] } else { [137, 0] };
        let redirect = [&redirect[..], &[0; 46]].concat();
        let redirect = icmp::frame(family.client(), family.vip(), redirect);
        rows.push(row("a redirect", redirect, Pass, Icmp));
    }
    check(&world, &rows);
}

/// A nat port had another connection before: what is said of that one is nothing to the new one.
#[test]
fn errors_about_a_former_connection_go_to_nobody() {
    needs_root!("errors_about_a_former_connection_go_to_nobody");
    let mut world = World::new();
    for (family, port) in FAMILIES.into_iter().flat_map(|f| SERVICES.map(|port| (f, port))) {
        let flow = world.open(family, TCP, port);
        let (before, back) = (world.record(&flow), flow.back_slot());
        let former = flow.request.clone().with(|f| f.seq -= 1);
        let mut rows: Vec<Row> = Vec::new();
        for (says, len) in
            icmp::ALL.into_iter().flat_map(|says| [(says, FULL), (says, family.header_len() + 8)])
        {
            let from = flow.backend.address;
            let [came, _] = about_request(&flow, from, says, &former, len);
            rows.push(row("about a former one", came, Drop, IcmpNoFlow).on(back));
            let [came, goes] = about_request(&flow, from, says, &flow.request, len);
            let verdict = there(back, flow.slot);
            rows.push(row("about this one", came, verdict, IcmpToClient).on(back).gives(goes));
        }
        check(&world, &rows);
        assert_eq!(world.record(&flow), before);
    }
}

/// An error is never the cause of another.
#[test]
fn errors_that_cannot_go_on() {
    needs_root!("errors_that_cannot_go_on");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.connect(family, ports::ACROSS);
        let (says, router) = (Says::TimeExceeded, family.elsewhere());
        let big = flow.answer(ACK).payload(&[1; 500]);
        let [reply, _] = about_reply(&flow, router, says, &big, FULL);
        let [request, _] = about_request(&flow, router, says, &big, FULL);
        let mut rows = Vec::new();
        for ttl in [0, 1] {
            let old = |frame: &Frame| frame.clone().with(|f| f.ttl = ttl);
            rows.push(row("old", old(&reply), Drop, TtlExpired));
            rows.push(row("old", old(&request), Drop, TtlExpired).on(BACK));
        }
        check(&world, &rows);
        let hop = flow.backend.next_hop;
        let narrow = hop.map(|hop| NextHop { mtu: 500, ..hop });
        world.change_backend(&flow.backend, |row| row.next_hop = narrow);
        world.change_iface(FRONT, |iface| iface.mtu = 500);
        let rows = [
            row("too big", reply.clone(), Drop, TooBig),
            row("too big", request, Drop, TooBig).on(BACK),
        ];
        check(&world, &rows);
        world.change_backend(&flow.backend, |row| row.next_hop = Option::None);
        check(&world, &[row("no neighbour", reply, Drop, NoNeighbour)]);
        world.change_backend(&flow.backend, |row| row.next_hop = hop);
        world.change_iface(FRONT, |iface| iface.mtu = 9000);
    }
}

/// A wrong checksum stays wrong, in the error and in its quote.
#[test]
fn damage_is_not_mended() {
    needs_root!("damage_is_not_mended");
    let mut world = World::new();
    for family in FAMILIES {
        let flow = world.connect(family, ports::ACROSS);
        let [came, goes] =
            about_reply(&flow, family.client(), Says::NoPort, &flow.answer(ACK), FULL);
        let (mut came, mut goes) = (came.bytes(), goes.bytes());
        for frame in [&mut came, &mut goes] {
            *frame.last_mut().unwrap() ^= 1;
        }
        let _damaged = capture::damaged("a byte changed under way");
        assert_eq!(world.feed(FRONT, &came).frame, goes);
        assert!(!wire::check(&goes).is_good());
    }
}

/// A quote of a translated packet is translated back to the original: any packet, any length of
/// quote, in both directions.
#[test]
fn there_and_back_is_the_original() {
    needs_root!("there_and_back_is_the_original");
    let mut world = World::new();
    let mut flows = Vec::new();
    for (family, proto) in TRANSPORTS {
        flows.extend(SERVICES.map(|port| world.connect_or_open(family, proto, port)));
    }
    let packet = (
        prop::collection::vec(any::<u8>(), 0..700),
        (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>()),
        (any::<u8>(), any::<bool>(), 3..=255u8),
    );
    let strategy = (0..flows.len(), any::<bool>(), 0..700usize, packet);
    let mut runner = TestRunner::new(Config {
        cases: 3_000,
        failure_persistence: Option::None,
        ..Config::default()
    });
    let result = runner.run(&strategy, |(n, backward, extra, packet)| {
        let flow = &flows[n];
        let (payload, (seq, ack, window, id), (tos, no_checksum, ttl)) = packet;
        let original = if backward { flow.answer(ACK) } else { flow.next(ACK) };
        let original = original.with(|f| {
            (f.payload, f.seq, f.ack, f.window, f.id) = (payload, seq, ack, window, id);
            (f.tos, f.ttl) = (tos, ttl);
            // IPv6 has no UDP without a checksum (RFC 8200, section 8.1).
            f.no_checksum = no_checksum && f.proto == UDP && f.dst.is_ipv4();
        });
        let (from, at) =
            if backward { (flow.back_slot(), flow.slot) } else { (flow.slot, flow.back_slot()) };
        let sent = world.feed(from, &original.bytes()).frame;
        let len = flow.request.family().header_len() + 8 + extra;
        let quote = &sent[14..sent.len().min(14 + len)];
        let family = flow.request.family();
        let to = wire::check(&sent).good().src.ip();
        let error = icmp::frame(family.elsewhere(), to, icmp::error(family, Says::NoPort, quote))
            .with(|f| f.dst_mac = mac_of(at));
        let back = world.feed(at, &error.bytes());
        let expected = if backward { IcmpToBackend } else { IcmpToClient };
        prop_assert_eq!(back.reason, expected);
        let quoted = wire::check(&back.frame).good().l4[8..].to_vec();
        let mut wanted = icmp::quote(&original.clone().with(|f| f.ttl -= 1), len);
        if original.proto == TCP && extra == 9 {
            // Half a checksum.
            *wanted.last_mut().unwrap() = *quoted.last().unwrap();
        }
        prop_assert_eq!(quoted, wanted);
        Ok(())
    });
    result.unwrap();
}

/// Under nat all clients share an address towards the backend: none may shrink its path for all.
#[test]
fn no_client_tells_a_backend_of_a_tiny_mtu() {
    needs_root!("no_client_tells_a_backend_of_a_tiny_mtu");
    let mut world = World::new();
    for family in FAMILIES {
        let least = if family == Family::V4 { 576 } else { 1280 };
        for port in [ports::ACROSS, ports::CLIENT] {
            let flow = world.connect(family, port);
            let quoted = flow.answer(ACK);
            for mtu in [0, 68, least - 1, least] {
                let says = Says::TooBig(mtu);
                let [came, goes] = about_reply(&flow, family.elsewhere(), says, &quoted, FULL);
                let name = format!("{family:?} {port}: MTU {mtu}");
                // With source = "client" the path is the client's own.
                let told = mtu >= least || port == ports::CLIENT;
                let one = if told {
                    row(&name, came, Redirect, IcmpToBackend).gives(goes)
                } else {
                    row(&name, came, Drop, Malformed)
                };
                check(&world, &[one]);
            }
        }
    }
}
