//! Packets from addresses that no host has, and from our own: nothing is opened, sent on or
//! answered for them.

use std::net::{IpAddr, SocketAddr};

use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::Forward;

/// RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5.2, 2.5.3 and 2.7.
pub(crate) fn no_hosts(family: Family) -> Vec<IpAddr> {
    let all: &[&str] = match family {
        Family::V4 => &[
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ],
        Family::V6 => &["::", "::1", "ff02::1", "ff0e::1"],
    };
    all.iter().map(|address| address.parse().unwrap()).collect()
}

fn segments(src: SocketAddr, dst: SocketAddr) -> [(&'static str, Frame); 6] {
    [
        ("SYN", Frame::tcp(src, dst, SYN)),
        ("ACK", Frame::tcp(src, dst, ACK)),
        ("FIN", Frame::tcp(src, dst, FIN | ACK)),
        ("UDP", Frame::udp(src, dst)),
        ("TTL 1", Frame::udp(src, dst).with(|f| f.ttl = 1)),
        ("too big", Frame::udp(src, dst).payload(&[7; 1400])),
    ]
}

#[test]
fn no_host_opens_a_flow_or_is_reset() {
    needs_root!("no_host_opens_a_flow_or_is_reset");
    let world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for source in no_hosts(family) {
            for port in
                [ports::ACROSS, ports::SMALL, ports::NONE_RESET, ports::NONE_DROP, ports::CLIENT]
            {
                for (what, frame) in segments((source, 7).into(), (family.vip(), port).into()) {
                    rows.push(row(&format!("{what} from {source}"), frame, Drop, MartianSource));
                }
            }
        }
    }
    check(&world, &rows);
}

#[test]
fn no_host_is_a_client_of_dsr() {
    needs_root!("no_host_is_a_client_of_dsr");
    let world = World::with(8_192, |tables| forward_across(tables, Forward::DsrL2));
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for source in no_hosts(family) {
            let ends = ((source, 7).into(), (family.vip(), ports::ACROSS).into());
            for (what, frame) in segments(ends.0, ends.1) {
                rows.push(row(&format!("{what} from {source}"), frame, Drop, MartianSource));
            }
        }
    }
    // To itself (LAND).
    for family in FAMILIES {
        let own = (family.vip(), ports::ACROSS).into();
        for (what, frame) in segments((family.vip(), 7).into(), own) {
            rows.push(row(&format!("{what} from {own}"), frame, Drop, Loop));
        }
    }
    check(&world, &rows);
    let ends = ((Family::V4.client(), 7).into(), (Family::V4.vip(), ports::ACROSS).into());
    assert_eq!(world.send(&Frame::tcp(ends.0, ends.1, ACK)).pair(), (Redirect, DsrL2));
}

/// A sender that uses our address gets no reset, no ICMP error and no echo reply.
#[test]
fn our_own_addresses_get_no_answer() {
    needs_root!("our_own_addresses_get_no_answer");
    let world =
        World::with(8_192, |tables| tables.own_addresses = FAMILIES.map(Family::nat).into());
    let mut rows: Vec<Row> = Vec::new();
    for family in FAMILIES {
        for source in [family.vip(), family.announced(), family.nat()] {
            // A nat address may begin a flow (unbalanced.rs).
            let is_refused = |what: &str| source != family.nat() || what == "ACK";
            for port in [ports::ACROSS, ports::SMALL, ports::NONE_RESET] {
                let all = segments((source, 7).into(), (family.vip(), port).into());
                for (what, frame) in all.into_iter().filter(|(what, _)| is_refused(what)) {
                    rows.push(row(&format!("{what} from {source}"), frame, Drop, Loop));
                }
            }
            let ping = icmp::frame(source, family.vip(), icmp::echo(family, false, b"data"));
            rows.push(row("ping", ping, Drop, Loop));
        }
    }
    check(&world, &rows);
}

/// Errors are sent on in both directions, but not from there.
#[test]
fn errors_of_no_host_are_not_sent_on() {
    needs_root!("errors_of_no_host_are_not_sent_on");
    let mut world = World::new();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        let flow = world.connect_or_open(family, proto, ports::ACROSS);
        let own = (family.announced(), Loop);
        let martians = no_hosts(family).into_iter().map(|from| (from, MartianSource));
        for (from, why) in martians.chain([own]) {
            rows.extend(errors(&flow, from, why));
        }
    }
    check(&world, &rows);
}

fn errors(flow: &ringway_bpf_tests::Flow, from: IpAddr, why: Reason) -> [Row; 2] {
    let family = flow.request.family();
    let error = |to, quoted: &Frame| {
        let quote = icmp::quote(quoted, usize::MAX);
        icmp::frame(from, to, icmp::error(family, Says::TooBig(1400), &quote))
    };
    let about_reply = error(flow.request.dst.ip(), &flow.returned(&flow.answer(ACK)));
    let about_request =
        error(flow.source.ip(), &flow.forwarded(&flow.next(ACK))).with(|f| f.dst_mac = BACK_MAC);
    [
        row(&format!("about a reply, from {from}"), about_reply, Drop, why),
        // To an address that may be the node's own: its kernel's to judge.
        row(&format!("about a request, from {from}"), about_request, Pass, NoService).on(BACK),
    ]
}
