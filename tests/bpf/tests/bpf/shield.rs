//! The shield: what it drops, in which order, and what it leaves alone. Each frame is explained and
//! captured, too: both must tell the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringway_abi::Reason::{
    Blocked, FragmentOverlap, FragmentTiny, IpOptions, Land, Malformed, MartianSource, NatForward,
    NoService, OtherHost, RuleLimit, TcpFlags,
};
use ringway_abi::Verdict::{Drop, Redirect};
use ringway_abi::raw::RW_SHIELD_RUNTIME;
use ringway_abi::{RuleAction, ShieldMode};
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::watch::{seen, start};
use ringway_filter::{Filter, Instruction, OnMatch};
use ringway_kernel::shield::{Generation, Rule, RuntimePrefix};
use ringway_plan::prefix_list::{ListTables, Prefix, PrefixSet, parse};
use ringway_plan::tables::RateLimit;

use crate::sources::no_hosts;

/// What a generation is made from.
struct Shield {
    mode: ShieldMode,
    sanity: bool,
    protect_host: bool,
    lists: ListTables,
    rules: Vec<Rule>,
    program: Vec<Instruction>,
}

impl Default for Shield {
    fn default() -> Self {
        Self {
            mode: ShieldMode::Enforce,
            sanity: true,
            protect_host: false,
            lists: ListTables::default(),
            rules: Vec::new(),
            program: Vec::new(),
        }
    }
}

impl Shield {
    fn lists(allow: &str, block: &str) -> Self {
        let set = |text: &str| {
            let file = parse(text.as_bytes()).unwrap();
            assert_eq!(file.bad, []);
            PrefixSet::new([(0, &file.entries[..])]).unwrap()
        };
        Self { lists: ListTables::new(&set(allow), &set(block)), ..Self::default() }
    }

    fn rule(filter: &str, action: RuleAction, limit: Option<RateLimit>) -> Self {
        let program = Filter::compile(filter, 65_535).unwrap().translate_to_verdict(1, 0);
        let rules = vec![Rule { name: filter.to_owned(), action, limit }];
        Self { rules, program, ..Self::default() }
    }

    fn raise(&self, world: &mut World) {
        let generation = Generation {
            mode: self.mode,
            sanity: self.sanity,
            protect_host: self.protect_host,
            service_modes: false,
            answers: false,
            challenge_key: None,
            lists: &self.lists,
            list_names: &["list".to_owned()],
            rules: &self.rules,
            program: &self.program,
        };
        world.gateway.set_shield(Some(&generation)).unwrap();
    }
}

fn from(source: &str, to: SocketAddr) -> Frame {
    Frame::tcp(SocketAddr::new(source.parse().unwrap(), 40_000), to, SYN)
}

fn vip(family: Family) -> SocketAddr {
    SocketAddr::new(family.vip(), ports::ACROSS)
}

#[track_caller]
fn dropped(world: &World, frame: &Frame, reason: Reason) {
    assert_eq!(world.send(frame).pair(), (Drop, reason));
}

#[test]
fn flags_that_no_segment_has() {
    needs_root!("flags_that_no_segment_has");
    let mut world = World::watched();
    Shield::default().raise(&mut world);
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        for bits in 0..=u8::MAX {
            let frame = Frame::tcp(src, dst, bits);
            let ends = (bits & (SYN | RST | FIN)).count_ones();
            let fits = ends <= 1 && bits & (SYN | RST | ACK) != 0;
            let (verdict, reason) = world.send(&frame).pair();
            assert_eq!(fits, reason != TcpFlags, "{bits:#x}: {verdict} {reason}");
        }
        // To others than services anything may be sent.
        let host = Frame::tcp(src, SocketAddr::new(family.elsewhere(), 22), 0);
        assert_eq!(world.send(&host).reason, NoService);
    }
}

#[test]
fn sources_that_are_no_host() {
    needs_root!("sources_that_are_no_host");
    let mut world = World::watched();
    Shield::default().raise(&mut world);
    for source in FAMILIES.into_iter().flat_map(no_hosts) {
        dropped(&world, &from(&source.to_string(), vip(Family::of(source))), MartianSource);
    }
    for source in ["10.0.0.9", "100.64.0.1", "169.254.1.1", "172.16.0.1", "192.168.0.1"] {
        assert_ne!(world.send(&from(source, vip(Family::V4))).verdict, Drop, "{source}");
    }
    for source in ["fe80::1", "fc00::1", "2001:db8::9"] {
        assert_ne!(world.send(&from(source, vip(Family::V6))).verdict, Drop, "{source}");
    }
    for family in FAMILIES {
        let to = vip(family);
        dropped(&world, &from(&family.vip().to_string(), to), Land);
        dropped(&world, &from(&family.vip().to_string(), to).with(|f| f.proto = UDP), Land);
    }
}

/// A fragment of this datagram, at another place.
fn moved(part: &[u8], offset: u16, more: bool) -> Vec<u8> {
    let mut part = part.to_vec();
    if part[14] >> 4 == 4 {
        let word = (offset / 8) | if more { 0x2000 } else { 0 };
        part[20..22].copy_from_slice(&word.to_be_bytes());
        sum_ipv4(&mut part[14..]);
    } else {
        part[56..58].copy_from_slice(&(offset | u16::from(more)).to_be_bytes());
    }
    part
}

#[test]
fn fragments_that_no_stack_makes() {
    needs_root!("fragments_that_no_stack_makes");
    let mut world = World::watched();
    Shield::default().raise(&mut world);
    for (family, proto) in TRANSPORTS {
        let (src, dst) = world.ends(family, ports::ACROSS);
        let frame = Frame { proto, flags: ACK, ..Frame::udp(src, dst) };
        let frame = frame.payload(&[7; 3000]).with(|f| f.fragment = 0);
        let feed = |part: &[u8]| world.feed(FRONT, part).pair();
        let good = fragments(&frame.bytes(), 1480, 9);
        assert_ne!(feed(&good[0]).1, FragmentTiny);
        // The first has no room for its header.
        let tiny = fragments(&frame.bytes(), 8, 10);
        let expected = if proto == TCP { FragmentTiny } else { feed(&good[0]).1 };
        assert_eq!(feed(&tiny[0]).1, expected, "{family:?} {proto}");
        // A later one that would overwrite flags or ports.
        for offset in [8, 16] {
            let expected = if proto == TCP { FragmentOverlap } else { feed(&good[1]).1 };
            assert_eq!(feed(&moved(&good[1], offset, false)).1, expected);
        }
        assert_ne!(feed(&moved(&good[1], 24, false)).1, FragmentOverlap);
        // The last beyond the end of the longest datagram.
        assert_eq!(feed(&moved(&good[1], 65_528, false)), (Drop, FragmentOverlap));
        // More follow, and its length is no multiple of 8.
        let cut = fragments(&frame.clone().payload(&[7; 2963]).bytes(), 1480, 11);
        assert_eq!(feed(&moved(&cut[2], 2960, true)), (Drop, Malformed));
    }
}

#[test]
fn lists_come_in_their_order() {
    needs_root!("lists_come_in_their_order");
    let mut world = World::watched();
    let shield = Shield::lists(
        "198.51.100.7\n2001:db8:1::7\n",
        "198.51.100.0/24\n203.0.113.4/30\n0.0.0.0/8\n2001:db8:1::/48\n2001:db8:2::1/128\n",
    );
    shield.raise(&mut world);
    let (v4, v6) = (vip(Family::V4), vip(Family::V6));
    for source in ["198.51.100.0", "198.51.100.255", "203.0.113.4", "203.0.113.7"] {
        dropped(&world, &from(source, v4), Blocked);
        let ack = from(source, v4).with(|f| (f.flags, f.proto) = (ACK, TCP));
        dropped(&world, &ack, Blocked);
        dropped(&world, &Frame { proto: 1, ..from(source, v4).payload(&[8; 16]) }, Blocked);
    }
    for source in ["198.51.99.255", "198.51.101.0", "203.0.113.3", "203.0.113.8", "198.51.100.7"] {
        assert_eq!(world.send(&from(source, v4)).verdict, Redirect, "{source}");
    }
    for source in ["2001:db8:1::", "2001:db8:1:ffff:ffff:ffff:ffff:ffff", "2001:db8:2::1"] {
        dropped(&world, &from(source, v6), Blocked);
    }
    for source in ["2001:db8:0:ffff::", "2001:db8:2::", "2001:db8:2::2", "2001:db8:1::7"] {
        assert_eq!(world.send(&from(source, v6)).verdict, Redirect, "{source}");
    }
    // Sanity comes before lists.
    dropped(&world, &from("0.1.2.3", v4), MartianSource);
    // With a VLAN's tag, and to another host's MAC address.
    world.add_vlan(10, FRONT, &[(0x8100, 5)]);
    let tagged = from("198.51.100.9", v4).with(|f| f.vlans = vec![(0x8100, 5)]);
    dropped(&world, &tagged, Blocked);
    let other = from("198.51.100.9", v4).with(|f| f.dst_mac = STRANGER_MAC);
    assert_eq!(world.send(&other).reason, OtherHost);
    // What is not there any more is not blocked.
    Shield::default().raise(&mut world);
    assert_eq!(world.send(&from("198.51.100.9", v4)).verdict, Redirect);
    world.gateway.set_shield(None).unwrap();
    assert_eq!(world.send(&from("198.51.100.10", v4)).verdict, Redirect);
    assert_eq!(world.send(&from("0.1.2.3", v4)).reason, MartianSource);
}

#[test]
fn prefixes_at_run_time() {
    needs_root!("prefixes_at_run_time");
    let mut world = World::watched();
    Shield::lists("", "198.51.100.0/24\n").raise(&mut world);
    let now = world.now();
    let entry = |prefix: &str, allow, until| RuntimePrefix {
        prefix: prefix.parse().unwrap(),
        allow,
        until,
    };
    let (v4, v6) = (vip(Family::V4), vip(Family::V6));
    world
        .gateway
        .set_runtime_prefixes(&[
            entry("198.51.100.64/26", true, u32::MAX),
            entry("203.0.113.0/24", false, now + 2),
            // Ends before the one around it.
            entry("203.0.113.9/32", false, now + 1),
            entry("192.0.2.1/32", false, now + 1),
            entry("2001:db8::/32", false, u32::MAX),
        ])
        .unwrap();
    let sources = ["198.51.100.1", "198.51.100.64", "198.51.100.127", "203.0.113.9", "192.0.2.1"];
    let blocked = |world: &World| {
        sources.map(|source| world.send(&from(source, v4)).pair() == (Drop, Blocked))
    };
    for (around, single) in [(true, true), (true, false), (false, false)] {
        assert_eq!(blocked(&world), [true, false, false, around, single]);
        dropped(&world, &from("2001:db8:5::5", v6), Blocked);
        world.advance(1);
    }
    // All of IPv6, among which are the addresses that stand for IPv4 in here.
    for prefix in ["::/0", "::/80"] {
        world.gateway.set_runtime_prefixes(&[entry(prefix, false, u32::MAX)]).unwrap();
        assert_eq!(world.send(&from("203.0.113.1", v4)).verdict, Redirect, "{prefix}");
    }
    world.gateway.set_runtime_prefixes(&[entry("::/0", false, u32::MAX)]).unwrap();
    dropped(&world, &from("2001:db8:5::6", v6), Blocked);
    world.gateway.set_runtime_prefixes(&[]).unwrap();
    assert_eq!(world.send(&from("203.0.113.1", v4)).verdict, Redirect);
    dropped(&world, &from("198.51.100.64", v4), Blocked);
}

#[test]
fn full_maps_of_prefixes_can_be_changed() {
    needs_root!("full_maps_of_prefixes_can_be_changed");
    let mut world = World::watched();
    Shield::default().raise(&mut world);
    let entry = |n: u32, until| RuntimePrefix {
        prefix: Prefix::new(Ipv4Addr::from(0x0b00_0000 + n).into(), 32).unwrap(),
        allow: false,
        until,
    };
    let full: Vec<_> = (0..RW_SHIELD_RUNTIME).map(|n| entry(n, u32::MAX)).collect();
    world.gateway.set_runtime_prefixes(&full).unwrap();
    let counts = (0, RW_SHIELD_RUNTIME);
    // Another end for one, and others in place of several.
    world.gateway.change_runtime_prefixes(&[entry(7, u32::MAX - 1)], &[], counts).unwrap();
    let new = [1, 2, 3].map(|n| entry(RW_SHIELD_RUNTIME + n, u32::MAX));
    let gone = [1, 2, 3].map(|n| full[n].prefix);
    world.gateway.change_runtime_prefixes(&new, &gone, counts).unwrap();
    let to = vip(Family::V4);
    for source in ["11.0.0.7", "11.1.0.1", "11.1.0.3", "11.0.0.4"] {
        dropped(&world, &from(source, to), Blocked);
    }
    for source in ["11.0.0.1", "11.0.0.3"] {
        assert_eq!(world.send(&from(source, to)).verdict, Redirect, "{source}");
    }
}

#[test]
fn rules_drop_pass_and_count() {
    needs_root!("rules_drop_pass_and_count");
    let mut world = World::watched();
    let to = vip(Family::V4);
    let meant = from("192.0.2.1", to).with(|f| f.tos = 4);
    let other = from("192.0.2.2", to);
    for (action, expected) in [
        (RuleAction::Drop, (Drop, Reason::Rule)),
        (RuleAction::Pass, (Redirect, NatForward)),
        (RuleAction::Count, (Redirect, NatForward)),
    ] {
        Shield::rule("ip[1] = 4", action, None).raise(&mut world);
        assert_eq!(world.send(&meant).pair(), expected, "{action:?}");
        assert_eq!(world.send(&other).pair(), (Redirect, NatForward));
    }
}

/// The first rule that ends the search decides; those that count go on, and count no packet to
/// others than services.
#[test]
fn the_first_rule_decides() {
    needs_root!("the_first_rule_decides");
    let mut world = World::watched();
    let rules = [
        ("ip", RuleAction::Count, OnMatch::Note),
        ("ip[1] = 4", RuleAction::Pass, OnMatch::End),
        ("ip[1] & 4 != 0", RuleAction::Drop, OnMatch::End),
        ("tcp", RuleAction::Count, OnMatch::Note),
        ("ip[1] = 8", RuleAction::Drop, OnMatch::End),
    ];
    let filters = rules.map(|(text, ..)| Filter::compile(text, 65_535).unwrap());
    let program: Vec<_> =
        filters.iter().zip(rules).map(|(filter, rule)| (filter, rule.2)).collect();
    let rule = |(name, action, _): (&str, _, _)| Rule { name: name.into(), action, limit: None };
    let shield = Shield {
        program: ringway_filter::first_match(&program).unwrap(),
        rules: rules.map(rule).into(),
        ..Shield::default()
    };
    shield.raise(&mut world);
    let to = vip(Family::V4);
    for (tos, expected) in [
        (0, (Redirect, NatForward)),
        (4, (Redirect, NatForward)),
        (5, (Drop, Reason::Rule)),
        (8, (Drop, Reason::Rule)),
    ] {
        let sent = world.send(&from("192.0.2.7", to).with(|f| f.tos = tos));
        assert_eq!(sent.pair(), expected, "{tos}");
    }
    let elsewhere = SocketAddr::new(Family::V4.elsewhere(), 22);
    assert_eq!(world.send(&from("192.0.2.7", elsewhere).with(|f| f.tos = 8)).reason, NoService);
    let counted = world.gateway.view().shield_counts().unwrap().rules;
    let counted = rules.map(|(name, ..)| counted[name].packets);
    assert_eq!(counted, [4, 1, 1, 2, 1]);
}

#[test]
fn a_capture_knows_the_service_of_what_is_dropped() {
    needs_root!("a_capture_knows_the_service_of_what_is_dropped");
    let mut world = World::pinned();
    let rule = Shield::rule("tcp", RuleAction::Drop, None);
    Shield { lists: Shield::lists("", "192.0.2.0/24").lists, ..rule }.raise(&mut world);
    let service = world.service(Family::V4, TCP, ports::ACROSS).row.id;
    let mut captured = start(&world.gateway.view(), "", |w| w.service = Some(service)).unwrap();
    dropped(&world, &from("192.0.2.7", vip(Family::V4)), Blocked);
    dropped(&world, &from("198.51.100.7", vip(Family::V4)), Reason::Rule);
    let elsewhere = SocketAddr::new(Family::V4.vip(), 4_711);
    dropped(&world, &from("192.0.2.7", elsewhere), Blocked);
    let reasons: Vec<Reason> = seen(&mut captured).iter().map(|seen| seen.pair.1).collect();
    assert_eq!(reasons, [Blocked, Reason::Rule]);
}

#[test]
fn a_rule_has_a_rate() {
    needs_root!("a_rule_has_a_rate");
    let mut world = World::watched();
    let limit = RateLimit { packets_per_second: 1, burst: 5 };
    Shield::rule("tcp", RuleAction::Limit, Some(limit)).raise(&mut world);
    let to = vip(Family::V4);
    let counted = |world: &World| world.gateway.view().shield_counts().unwrap().rules["tcp"];
    let sent = |world: &World| {
        let before = counted(world);
        let sent = (0..20).map(|n| world.send(&from(&format!("192.0.2.{n}"), to)).pair());
        let sent: Vec<(Verdict, Reason)> = sent.collect();
        assert!(sent.iter().all(|pair| matches!(pair, (Redirect, _) | (Drop, RuleLimit))));
        let passed = sent.iter().filter(|pair| pair.0 == Redirect).count();
        let after = counted(world);
        assert_eq!(
            (after.packets - before.packets, after.over - before.over),
            (20, 20 - passed as u64)
        );
        passed
    };
    assert_eq!(sent(&world), 5);
    // Another generation goes on with the same budget.
    Shield::rule("tcp", RuleAction::Limit, Some(limit)).raise(&mut world);
    for (seconds, passed) in [(0, 0), (1, 1), (2, 2), (3_600, 5)] {
        world.advance(seconds);
        assert_eq!(sent(&world), passed, "{seconds} s later");
    }
}

#[test]
fn observing_drops_nothing() {
    needs_root!("observing_drops_nothing");
    let mut world = World::watched();
    let shield = Shield { mode: ShieldMode::Observe, ..Shield::lists("", "198.51.100.0/24\n") };
    shield.raise(&mut world);
    let (to, now) = (vip(Family::V4), world.now());
    let blocked = from("198.51.100.1", to);
    assert_eq!(world.send(&blocked).verdict, Redirect);
    assert_eq!(world.gateway.view().shield_counts().unwrap().observed.get(&Blocked), Some(&1));
    // A mode of the moment, and its end.
    world.gateway.set_shield_override(Some((ShieldMode::Enforce, now + 1))).unwrap();
    dropped(&world, &blocked, Blocked);
    world.advance(1);
    assert_eq!(world.send(&blocked).verdict, Redirect);
    Shield::lists("", "198.51.100.0/24\n").raise(&mut world);
    dropped(&world, &blocked, Blocked);
    world.gateway.set_shield_override(Some((ShieldMode::Off, now + 60))).unwrap();
    assert_eq!(world.send(&blocked).verdict, Redirect);
}

/// Each address, before, in and behind each prefix: the program finds what the tables have.
#[test]
fn the_program_searches_as_the_tables_say() {
    needs_root!("the_program_searches_as_the_tables_say");
    let mut world = World::pinned();
    let mut text = String::new();
    let mut random = Random::new(1);
    for n in 0..30_000u32 {
        let (bits, len) = (random.word() as u32, 12 + (random.word() % 21) as u8);
        let net = Ipv4Addr::from_bits(bits & (u32::MAX << (32 - len)));
        text += &format!("{net}/{len}\n");
        let high = if n % 2 == 0 { 0x2a00 << 112 } else { 0x2001_0db8 << 96 };
        let (bits, len) = (u128::from(random.word()) << 40, 33 + (random.word() % 96) as u8);
        let net = Ipv6Addr::from_bits((high | bits) & (u128::MAX << (128 - len)));
        text += &format!("{net}/{len}\n");
    }
    let shield = Shield::lists("", &text);
    assert!(!shield.lists.spans.is_empty());
    shield.raise(&mut world);
    let mut verdicts = [0usize; 2];
    for line in text.lines().step_by(7) {
        let prefix: Prefix = line.parse().unwrap();
        for source in around(prefix.addr(), prefix.length()) {
            let family = Family::of(source);
            let listed = shield.lists.blocked(source);
            let frame = from(&source.to_string(), vip(family)).bytes();
            let mut out = Vec::new();
            let before = world.ledger(FRONT);
            world.root(FRONT).run(&frame, &mut out).unwrap();
            let after = world.ledger(FRONT);
            let grew = |reason: &Reason| after.count(Drop, *reason) != before.count(Drop, *reason);
            let reason = Reason::all().find(grew);
            assert!(
                reason == Some(MartianSource) || (reason == Some(Blocked)) == listed.is_some(),
                "{source}: {reason:?}, and listed by {listed:?}"
            );
            verdicts[usize::from(listed.is_some())] += 1;
        }
    }
    assert!(verdicts[0] > 1_000 && verdicts[1] > 10_000, "{verdicts:?}");
}

/// The address before a prefix, its first and last, and the one behind it.
fn around(first: IpAddr, len: u8) -> Vec<IpAddr> {
    match first {
        IpAddr::V4(first) => {
            let first = first.to_bits();
            let last = first | u32::MAX.checked_shr(len.into()).unwrap_or(0);
            [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                .map(|bits| Ipv4Addr::from_bits(bits).into())
                .into()
        }
        IpAddr::V6(first) => {
            let first = first.to_bits();
            let last = first | u128::MAX.checked_shr(len.into()).unwrap_or(0);
            [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                .map(|bits| Ipv6Addr::from_bits(bits).into())
                .into()
        }
    }
}

/// The node's own addresses are let alone, unless they are protected; and even then what keeps
/// the link stays.
#[test]
fn the_host_is_protected_where_that_is_asked_for() {
    needs_root!("the_host_is_protected_where_that_is_asked_for");
    let own = FAMILIES.map(|family| family.elsewhere());
    let mut world = World::watched_with(8_192, |tables| tables.own_addresses.extend(own));
    let lists = || Shield::lists("", "192.0.2.128/25\n2001:db8:9::/48\n");
    for (family, source) in FAMILIES.into_iter().zip(["192.0.2.130", "2001:db8:9::1"]) {
        let to = SocketAddr::new(family.elsewhere(), 22);
        lists().raise(&mut world);
        assert_eq!(world.send(&from(source, to)).reason, NoService);
        Shield { protect_host: true, ..lists() }.raise(&mut world);
        dropped(&world, &from(source, to), Blocked);
        let udp = |port| {
            let to = SocketAddr::new(to.ip(), port);
            world.send(&from(source, to).with(|f| f.proto = UDP)).reason
        };
        assert_eq!((udp(68), udp(546), udp(69)), (NoService, NoService, Blocked));
        // A port that flows of nat have: what comes may be a backend's answer.
        assert_eq!((udp(10_500), udp(30_500)), (NoService, Blocked));
        // Options that make no sense are no way round.
        if family == Family::V4 {
            let options = from(source, to).with(|f| f.options = vec![7, 1, 0, 0]);
            dropped(&world, &options, IpOptions);
            Shield { protect_host: true, sanity: false, ..lists() }.raise(&mut world);
            dropped(&world, &options, Blocked);
        }
        // Neighbour discovery, which comes from the same link; else it is ICMP like any.
        if family == Family::V6 {
            let advertised = |ttl| {
                let frame = from(source, to).payload(&[136, 0, 0, 0, 0, 0, 0, 0]);
                world.send(&Frame { proto: 58, ttl, ..frame }).reason
            };
            assert_ne!(advertised(255), Blocked);
            assert_eq!(advertised(64), Blocked);
        }
    }
}
