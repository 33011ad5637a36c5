//! Headers between Ethernet and layer 4: IPv4 options and IPv6 extension headers are skipped; a
//! packet is dropped if they route it elsewhere or hide its ports.

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;

const ROUTING: u8 = 43;

fn plain(world: &mut World, family: Family, proto: u8) -> Frame {
    world.first(family, proto, ports::ACROSS)
}

/// To a service: dropped for this. To nobody, or to another host: passed.
fn refused(rows: &mut Vec<Row>, what: &str, frame: &Frame, reason: Reason) {
    let elsewhere = (frame.family().elsewhere(), frame.dst.port()).into();
    rows.extend([
        row(what, frame, Drop, reason),
        row(what, frame.clone().with(|f| f.dst = elsewhere), Pass, NoService),
        row(what, frame.clone().with(|f| f.dst_mac = STRANGER_MAC), Pass, OtherHost),
    ]);
}

/// A flow opened by such a packet, and everything after it with the same options both ways.
fn served(world: &mut World, frame: Frame) {
    let mut flow = world.open_with(FRONT, frame.clone());
    world.answer(&flow, SYN | ACK);
    world.request(&flow, ACK);
    let answer = flow.answer(ACK).with(|f| {
        f.options = frame.options.clone();
        f.first_extension = frame.first_extension;
    });
    world.returns(&flow, &answer);
    flow.request.options.clear();
    world.request(&flow, ACK);
}

#[test]
fn ipv4_options_are_served() {
    needs_root!("ipv4_options_are_served");
    let mut world = World::new();
    for options in [
        vec![1, 1, 1, 0],
        vec![0x94, 4, 0, 0],                        // router alert
        [vec![7, 39, 4], vec![0; 37]].concat(),     // record route
        [vec![68, 12, 13, 0], vec![0; 8]].concat(), // timestamp
        [vec![0], vec![131, 200, 1]].concat(),      // whatever follows the end
    ] {
        let frame = plain(&mut world, Family::V4, TCP).with(|f| f.options = options);
        served(&mut world, frame);
    }
    for words in 1..=10 {
        let frame = plain(&mut world, Family::V4, TCP);
        served(&mut world, frame.with(|f| f.options = vec![1; 4 * words]));
    }
}

#[test]
fn ipv4_options_that_are_not() {
    needs_root!("ipv4_options_that_are_not");
    let mut world = World::new();
    let mut rows = Vec::new();
    let frame = plain(&mut world, Family::V4, UDP);
    let with = |options: &[u8]| frame.clone().with(|f| f.options = options.to_vec());
    for kind in [131, 137] {
        let route = with(&[kind, 7, 4, 192, 0, 2, 1, 0]);
        refused(&mut rows, "source route", &route, SourceRoute);
        let last = with(&[1, kind, 3, 4]);
        refused(&mut rows, "source route, at the end", &last, SourceRoute);
    }
    for (what, options) in [
        ("an option of length 0", [7, 0, 0, 0]),
        ("an option of length 1", [7, 1, 0, 0]),
        ("an option longer than the header", [7, 5, 4, 0]),
        ("an option without its length", [1, 1, 1, 7]),
    ] {
        rows.push(row(what, with(&options), Drop, IpOptions));
    }
    check(&world, &rows);
}

#[test]
fn ipv6_extensions_are_served() {
    needs_root!("ipv6_extensions_are_served");
    let mut world = World::new();
    for types in
        [&[0][..], &[60], &[ROUTING], &[44], &[0, 60, ROUTING, 60], &[0, 60, 44, 60], &[60; 8]]
    {
        let frame = plain(&mut world, Family::V6, UDP).extended(types);
        served(&mut world, frame);
    }
    // One of 256 bytes, twice.
    for n in [1, 2] {
        let long = |next| [vec![next, 31, 1, 252], vec![0; 252]].concat();
        let headers = if n == 1 { long(UDP) } else { [long(60), long(UDP)].concat() };
        let frame = plain(&mut world, Family::V6, UDP);
        served(&mut world, frame.with(|f| (f.first_extension, f.options) = (60, headers)));
    }
}

#[test]
fn ipv6_extensions_that_are_not() {
    needs_root!("ipv6_extensions_that_are_not");
    let mut world = World::new();
    let mut rows = Vec::new();
    let frame = plain(&mut world, Family::V6, TCP);
    let with = |(first, headers): (u8, Vec<u8>)| {
        frame.clone().with(|f| (f.first_extension, f.options) = (first, headers))
    };
    for (what, kind) in
        [("authentication", 51), ("mobility", 135), ("host identity", 139), ("shim6", 140)]
    {
        refused(&mut rows, what, &frame.clone().extended(&[kind]), Ipv6Extension);
        refused(&mut rows, what, &frame.clone().extended(&[0, 60, kind]), Ipv6Extension);
    }
    refused(&mut rows, "nine headers", &frame.clone().extended(&[60; 9]), Ipv6Extension);
    let long = |next| [vec![next, 31, 1, 252], vec![0; 252]].concat();
    let three = (60, [long(60), long(60), long(TCP)].concat());
    refused(&mut rows, "768 bytes of headers", &with(three), Ipv6Extension);
    for kind in [0, 2, 3, 4] {
        let route = vec![TCP, 2, kind, 1, 0, 0, 0, 0];
        let route = [route, vec![0x20; 16]].concat();
        refused(&mut rows, "segments left", &with((ROUTING, route)), SourceRoute);
    }
    let beyond = (60, vec![TCP, 200, 1, 4, 0, 0, 0, 0]);
    rows.push(row("a header beyond the packet", with(beyond), Drop, Malformed));
    // The packet ends in the header.
    let mut cut = frame.clone().extended(&[60]).bytes();
    cut.truncate(14 + 40 + 5);
    cut[18..20].copy_from_slice(&[0, 5]);
    rows.push(row("a header cut", cut, Drop, Malformed));
    check(&world, &rows);
}

/// A reset answers a segment with options by one without.
#[test]
fn resets_know_where_layer_4_is() {
    needs_root!("resets_know_where_layer_4_is");
    let mut world = World::new();
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let plain = Frame::tcp(src, dst, SYN | FIN).payload(b"twelve bytes");
        let expected = world.send(&plain);
        assert_eq!(expected.reason, ResetNoFlow);
        let longer = match family {
            Family::V4 => plain.with(|f| f.options = vec![1; 8]),
            Family::V6 => plain.extended(&[0, 60]),
        };
        let seen = world.send(&longer);
        // Behind the reset, up to Ethernet's shortest frame, lies what lay there.
        let end = 14 + family.header_len() + 20;
        assert_eq!(seen.pair(), expected.pair());
        assert_eq!(seen.frame[..end], expected.frame[..end]);
    }
}
