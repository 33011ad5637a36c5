//! Packets that do not fit or are too old: their senders get errors, at a limited rate.

use std::net::IpAddr;
use std::time::Duration;

use ringway_abi::raw::RW_IFACE_REDIRECT;
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::icmp::complaint;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::NextHop;

/// A world that answers without end.
fn unlimited() -> World {
    let world = World::new();
    world.change_settings(|set| (set.icmp_gap_us, set.icmp_prefix_gap_us) = (0, 0));
    world
}

/// A first packet of this many bytes of layer 3.
fn first(world: &mut World, family: Family, proto: u8, port: u16, len: usize) -> Frame {
    let head = family.header_len() + if proto == TCP { 20 } else { 8 };
    let payload: Vec<u8> = (0..len - head).map(|n| (n * 7) as u8).collect();
    world.first(family, proto, port).payload(&payload)
}

#[test]
fn the_sender_of_what_is_too_big_learns_what_fits() {
    needs_root!("the_sender_of_what_is_too_big_learns_what_fits");
    let mut world = unlimited();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        for len in [1281, 1282, 1283, 1284, 1400, 3000, 8000] {
            let big = first(&mut world, family, proto, ports::SMALL, len);
            let answer = complaint(&big, family.vip(), Says::TooBig(1280));
            let name = format!("{family:?} {proto}: {len} bytes");
            rows.push(row(&name, big.clone(), Tx, SentTooBig).gives(answer.clone()));
            let padded = big.clone().with(|f| f.padding = 18);
            rows.push(row(&name, padded, Tx, SentTooBig).gives(answer));
            if family == Family::V4 {
                let may = big.with(|f| f.fragment = 0);
                rows.push(row("may be fragmented", may, Drop, TooBig));
            }
        }
    }
    check(&world, &rows);
}

/// A backend gets errors from an address of ours, which the client's own is not.
fn reporter(flow: &Flow) -> IpAddr {
    let is_ours = flow.source.ip() != flow.request.src.ip();
    if is_ours { flow.source.ip() } else { flow.request.dst.ip() }
}

/// A backend with an open flow, both directions.
#[test]
fn established_flows_learn_it_too() {
    needs_root!("established_flows_learn_it_too");
    let mut world = unlimited();
    for (family, proto) in TRANSPORTS {
        for port in [ports::SAME, ports::ACROSS, ports::CLIENT] {
            let flow = world.connect_or_open(family, proto, port);
            let payload = vec![0x5a; 1500];
            let back = flow.back_slot();
            let (request, answer) =
                (flow.next(ACK).payload(&payload), flow.answer(ACK).payload(&payload));
            let set = |world: &mut World, mtu| {
                let hop = flow.backend.next_hop.map(|hop| NextHop { mtu, ..hop });
                world.change_backend(&flow.backend, |row| row.next_hop = hop);
                world.change_iface(flow.slot, |iface| iface.mtu = mtu);
            };
            set(&mut world, 1300);
            let told = complaint(&request, family.vip(), Says::TooBig(1300));
            let backend_told = complaint(&answer, reporter(&flow), Says::TooBig(1300));
            let rows = [
                row("request", request, Tx, SentTooBig).gives(told),
                row("answer", answer, Tx, SentTooBig).gives(backend_told).on(back),
            ];
            check(&world, &rows);
            set(&mut world, 9000);
            world.request(&flow, ACK);
            world.answer(&flow, ACK);
        }
    }
}

/// RFC 8200 section 5: IPv6 makes no packet smaller than 1280 bytes, and needs not be told to.
#[test]
fn no_ipv6_host_is_told_less_than_1280() {
    needs_root!("no_ipv6_host_is_told_less_than_1280");
    let mut world = unlimited();
    let flow = world.open(Family::V6, UDP, ports::ACROSS);
    world.change_iface(FRONT, |iface| iface.mtu = 1200);
    let fitting = flow.answer(0).payload(&vec![1; 1280 - 48]);
    let big = flow.answer(0).payload(&vec![1; 1281 - 48]);
    let told = complaint(&big, flow.source.ip(), Says::TooBig(1280));
    let rows = [
        row("1280 bytes", fitting, Drop, TooBig).on(BACK),
        row("1281 bytes", big, Tx, SentTooBig).gives(told).on(BACK),
    ];
    check(&world, &rows);
    let flow = world.open(Family::V4, UDP, ports::ACROSS);
    world.change_iface(FRONT, |iface| iface.mtu = 600);
    let big = flow.answer(0).payload(&vec![1; 601 - 28]);
    let told = complaint(&big, flow.source.ip(), Says::TooBig(600));
    check(&world, &[row("IPv4: 601 bytes", big, Tx, SentTooBig).gives(told).on(BACK)]);
}

#[test]
fn the_sender_of_what_is_too_old_learns_it() {
    needs_root!("the_sender_of_what_is_too_old_learns_it");
    let mut world = unlimited();
    let mut rows: Vec<Row> = Vec::new();
    for (family, proto) in TRANSPORTS {
        for port in [ports::SAME, ports::ACROSS, ports::CLIENT] {
            let flow = world.connect_or_open(family, proto, port);
            let name = |what| format!("{family:?} {proto} {port}: {what}");
            for ttl in [0, 1] {
                for len in [0, 1, 2, 3, 4, 500, 900, 1300] {
                    let old = |frame: Frame| {
                        frame.payload(&vec![7; len]).with(|f| (f.ttl, f.fragment) = (ttl, 0))
                    };
                    let request = old(flow.next(ACK));
                    let told = complaint(&request, family.vip(), Says::TimeExceeded);
                    let sent = row(&name("request"), request, Tx, SentTimeExceeded);
                    rows.push(sent.gives(told));
                    let answer = old(flow.answer(ACK));
                    let told = complaint(&answer, reporter(&flow), Says::TimeExceeded);
                    let sent = row(&name("answer"), answer, Tx, SentTimeExceeded);
                    rows.push(sent.gives(told).on(flow.back_slot()));
                }
            }
            let new = first(&mut world, family, proto, port, 100).with(|f| f.ttl = 1);
            let told = complaint(&new, family.vip(), Says::TimeExceeded);
            rows.push(row(&name("first packet"), new, Tx, SentTimeExceeded).gives(told));
        }
    }
    check(&world, &rows);
}

/// The answer goes back by the interface it came by, also where that takes a redirect.
#[test]
fn told_by_redirect() {
    needs_root!("told_by_redirect");
    let mut world = unlimited();
    world.change_iface(FRONT, |iface| iface.flags = RW_IFACE_REDIRECT as u16);
    for family in FAMILIES {
        let big = first(&mut world, family, UDP, ports::SMALL, 1400);
        let told = complaint(&big, family.vip(), Says::TooBig(1280));
        let ping = icmp::frame(family.client(), family.vip(), icmp::echo(family, false, b"data"));
        let rows = [row("too big", big, Redirect, SentTooBig).gives(told)];
        check(&world, &rows);
        assert_eq!(world.send(&ping).pair(), (Redirect, EchoReply));
    }
    world.remove_device(FRONT);
    let big = first(&mut world, Family::V4, UDP, ports::SMALL, 1400);
    assert_eq!(world.send(&big).pair(), (Drop, NoDevice));
}

fn outcomes(world: &mut World, family: Family, client: u16, times: usize) -> Vec<Reason> {
    let feed = |_| {
        let big = first(world, family, UDP, ports::SMALL, 1400)
            .with(|f| f.src.set_ip(family.nth_client(client)));
        world.send(&big).reason
    };
    (0..times).map(feed).collect()
}

/// One prefix uses up its own budget, not the others'; everyone together has one, too.
#[test]
fn answers_are_limited() {
    needs_root!("answers_are_limited");
    pin(0);
    let mut world = World::new();
    let expected = [[SentTooBig; 5].as_slice(), &[IcmpLimited; 3]].concat();
    world.change_settings(|set| {
        (set.icmp_gap_us, set.icmp_prefix_gap_us, set.icmp_burst) = (0, 1, 5);
    });
    for family in FAMILIES {
        assert_eq!(outcomes(&mut world, family, 0x0101, 8), expected);
        // Same /24, or /56.
        assert_eq!(outcomes(&mut world, family, 0x0102, 1), [IcmpLimited]);
        if family == Family::V4 {
            assert_eq!(outcomes(&mut world, family, 0x0201, 8), expected);
        }
    }
    world.change_settings(|set| (set.icmp_gap_us, set.icmp_prefix_gap_us) = (1, 0));
    let told: Vec<Reason> =
        (0..8).flat_map(|n| outcomes(&mut world, Family::V4, n << 8, 1)).collect();
    assert_eq!(told, expected);
}

/// Every kind of answer, to one prefix and to everyone, has a budget of its own: what one flood
/// uses up is there for the others, path MTU discovery first of all.
#[test]
fn each_kind_of_answer_has_its_budget() {
    needs_root!("each_kind_of_answer_has_its_budget");
    pin(0);
    let mut world = World::new();
    for gaps in [(0, 1), (1, 0)] {
        world.change_settings(|set| {
            (set.icmp_gap_us, set.icmp_prefix_gap_us) = gaps;
            set.icmp_burst = 2;
        });
        let family = Family::V4;
        let mut feed = |answer: Reason, limited: Reason, times: usize, sent: usize| {
            let seen: Vec<Reason> =
                (0..times).map(|_| world_answer(&mut world, family, answer)).collect();
            let (first, rest) = seen.split_at(sent);
            assert!(first.iter().all(|reason| *reason == answer), "{answer}: {seen:?}");
            assert!(rest.iter().all(|reason| *reason == limited), "{answer}: {seen:?}");
        };
        // Ten pings and resets for each error.
        feed(SentTimeExceeded, IcmpLimited, 6, 2);
        feed(EchoReply, IcmpLimited, 30, 20);
        feed(ResetNoFlow, ResetLimited, 30, 20);
        feed(SentTooBig, IcmpLimited, 6, 2);
        feed(ResetStray, ResetLimited, 30, 20);
    }
}

/// Feeds what this would be the answer to, from a fresh port.
fn world_answer(world: &mut World, family: Family, answer: Reason) -> Reason {
    let frame = match answer {
        SentTimeExceeded => first(world, family, UDP, ports::SAME, 100).with(|f| f.ttl = 1),
        SentTooBig => first(world, family, UDP, ports::SMALL, 1400),
        ResetNoFlow => first(world, family, TCP, ports::SAME, 100).with(|f| f.flags = ACK),
        // Of a connection that had the port before.
        ResetStray => {
            let flow = world.open(family, TCP, ports::SAME);
            return world.feed(flow.back_slot(), &flow.answer(ACK).bytes()).reason;
        }
        _ => icmp::frame(family.client(), family.vip(), icmp::echo(family, false, b"data")),
    };
    world.send(&frame).reason
}

/// Of a /56 in IPv6, hosts and networks share a budget; another /56 has its own.
#[test]
fn a_prefix_is_a_site() {
    needs_root!("a_prefix_is_a_site");
    pin(0);
    let mut world = World::new();
    world.change_settings(|set| {
        (set.icmp_gap_us, set.icmp_prefix_gap_us, set.icmp_burst) = (0, 1, 1);
    });
    let mut from = |source: &str| {
        let big = first(&mut world, Family::V6, UDP, ports::SMALL, 1400)
            .with(|f| f.src.set_ip(source.parse().unwrap()));
        world.send(&big).reason
    };
    assert_eq!(from("2001:db8:1:2300::1"), SentTooBig);
    assert_eq!(from("2001:db8:1:23ff::2"), IcmpLimited);
    assert_eq!(from("2001:db8:1:2400::1"), SentTooBig);
    assert_eq!(from("2001:db9:1:2300::1"), SentTooBig);
}

/// Full again after a pause, and at the rate that is set.
#[test]
fn the_budget_comes_back() {
    needs_root!("the_budget_comes_back");
    const GAP_US: u32 = 200_000;
    pin(0);
    let mut world = World::new();
    for gaps in [(0, GAP_US), (GAP_US, 0)] {
        world.change_settings(|set| {
            (set.icmp_gap_us, set.icmp_prefix_gap_us) = gaps;
            set.icmp_burst = 2;
        });
        let gap = Duration::from_micros(GAP_US.into());
        let microsecond = Duration::from_micros(1);
        // Two at once, then one each 200 ms.
        for (time, sent) in [
            (Duration::ZERO, 2),
            (gap - microsecond, 0),
            (microsecond, 1),
            (gap, 1),
            (3 * gap, 2),
            (Duration::from_secs(3_600), 2),
        ] {
            world.advance_by(time);
            let told = outcomes(&mut world, Family::V6, 7, 4);
            let expected = [vec![SentTooBig; sent], vec![IcmpLimited; 4 - sent]].concat();
            assert_eq!(told, expected, "{gaps:?}: {time:?} later");
        }
    }
}
