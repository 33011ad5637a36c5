//! `ringway engine --steer_rules`: which packets come to user space; all others go to the kernel.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use ringway_abi::Verdict::{Drop, Pass, Redirect};
use ringway_abi::raw::RW_MAX_STEER_RULES;
use ringway_bpf_tests::prelude::*;
use ringway_kernel::{Steer, SteerRule};
use ringway_xsk::SocketMap;
use rustix::net::{AddressFamily, SocketType, socket};

const ICMP_ECHO: [u8; 8] = [8, 0, 0, 0, 0, 1, 0, 1];

/// The program, with a socket on queue 0, which is what frames of a test run come in by.
struct Steered {
    program: Program,
    _socket: OwnedFd,
    _map: SocketMap,
}

impl Steered {
    fn new(steer_rules: &[&str]) -> Self {
        let steer_rules: Vec<SteerRule> =
            steer_rules.iter().map(|text| text.parse().unwrap()).collect();
        let Steer { program, sockets } = Steer::load(&steer_rules, &[], true).unwrap();
        // Not bound: nothing is sent there, and the verdict is the same.
        let socket = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        let map = SocketMap::from(sockets);
        map.insert(0, &socket).unwrap();
        Self {
            program: Program::new(std::os::fd::AsFd::as_fd(&program)),
            _socket: socket,
            _map: map,
        }
    }

    /// Whether it comes to user space; it is left as it is in either case.
    fn takes(&self, frame: &[u8]) -> bool {
        let mut out = Vec::new();
        let verdict = self.program.run(frame, &mut out).unwrap();
        assert_eq!(out, frame);
        assert!(verdict == Pass || verdict == Redirect, "{verdict}");
        verdict == Redirect
    }
}

fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

fn udp(family: Family, port: u16) -> Frame {
    Frame::udp(at(family.client(), 40_000), at(family.vip(), port))
}

fn tcp(family: Family, port: u16) -> Frame {
    Frame::tcp(at(family.client(), 40_000), at(family.vip(), port), SYN)
}

fn ping(family: Family) -> Frame {
    let echo = if family == Family::V4 { ICMP_ECHO } else { [128, 0, 0, 0, 0, 1, 0, 1] };
    Frame::new(family.icmp(), at(family.client(), 0), at(family.vip(), 0)).payload(&echo)
}

fn arp(target: IpAddr) -> Vec<u8> {
    Arp::who_has(target).bytes()
}

/// Neighbour discovery: to an address, of a type, about a target.
fn nd(to: IpAddr, kind: u8, target: IpAddr) -> Frame {
    let IpAddr::V6(target) = target else { panic!("{target} is not IPv6") };
    let mut payload = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    payload.extend(target.octets());
    Frame::new(58, at(Family::V6.client(), 0), at(to, 0)).payload(&payload).with(|f| f.ttl = 255)
}

fn solicited_node(target: IpAddr) -> IpAddr {
    let IpAddr::V6(target) = target else { panic!("{target} is not IPv6") };
    let [.., a, b] = target.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (a & 0xff), b).into()
}

/// A queue without a socket: packets that rules name are dropped if that was asked for. Frames of a
/// test run come in by queue 0.
#[test]
fn queues_without_a_socket() {
    needs_root!("queues_without_a_socket");
    let (ours, other) = (udp(Family::V4, 7).bytes(), udp(Family::V4, 8).bytes());
    let rule: [SteerRule; 1] = ["udp:7".parse().unwrap()];
    let cases = [
        (&rule[..], &[][..], Pass, Pass),
        (&rule, &[0], Drop, Pass),
        (&rule, &[1, 32, 255], Pass, Pass),
        (&rule, &[0, 1000], Drop, Pass),
        (&[], &[], Pass, Pass),
        (&[], &[0], Drop, Drop),
    ];
    for (frags, case) in [true, false].into_iter().flat_map(|frags| cases.map(|case| (frags, case)))
    {
        let (steer_rules, drop, of_ours, of_other) = case;
        let Steer { program, sockets } = Steer::load(steer_rules, drop, frags).unwrap();
        let program = Program::new(std::os::fd::AsFd::as_fd(&program));
        let run = |frame: &[u8]| program.run(frame, &mut Vec::new()).unwrap();
        assert_eq!((run(&ours), run(&other)), (of_ours, of_other), "{case:?} {frags}");
        let socket = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        let map = SocketMap::from(sockets);
        map.insert(0, &socket).unwrap();
        let of_other = if steer_rules.is_empty() { Redirect } else { Pass };
        assert_eq!((run(&ours), run(&other)), (Redirect, of_other), "{case:?} {frags}");
    }
}

/// A frame, and which of these rules takes it: each rule by itself, in a program of its own.
#[test]
fn each_rule_takes_its_own() {
    needs_root!("each_rule_takes_its_own");
    let (v4, v6) = (Family::V4, Family::V6);
    let (vip4, vip6) = (v4.vip(), v6.vip());
    let rules = [
        "udp",
        "udp:7",
        "udp:7-9",
        "tcp:22",
        "icmp",
        "arp",
        "nd",
        "203.0.113.10",
        "203.0.113.0/24",
        "0.0.0.0/0",
        "2001:db8:a::10",
        "2001:db8::/32",
        "::/0",
        "udp:7@203.0.113.10",
        "udp:7@203.0.113.11",
        "arp@203.0.113.10",
        "nd@2001:db8:a::10",
        "47",
    ];
    let at4 = ["203.0.113.10", "203.0.113.0/24", "0.0.0.0/0"];
    let at6 = ["2001:db8:a::10", "2001:db8::/32", "::/0"];
    let with = |some: &[&'static str], more: &[&'static str]| [some, more].concat();
    let all = &["udp", "udp:7", "udp:7-9"];
    let rows: Vec<(&str, Vec<u8>, Vec<&str>)> = vec![
        ("UDP", udp(v4, 7).bytes(), with(&with(all, &at4), &["udp:7@203.0.113.10"])),
        ("UDP, IPv6", udp(v6, 7).bytes(), with(all, &at6)),
        ("UDP, the range's end", udp(v4, 9).bytes(), with(&["udp", "udp:7-9"], &at4)),
        ("UDP, beyond it", udp(v4, 10).bytes(), with(&["udp"], &at4)),
        (
            "UDP, from the port",
            udp(v4, 53).with(|f| f.src.set_port(7)).bytes(),
            with(&["udp"], &at4),
        ),
        (
            "UDP, from the address",
            Frame::udp(at(vip4, 1), at(v4.client(), 9000)).bytes(),
            with(&["udp", "0.0.0.0/0"], &[]),
        ),
        ("TCP", tcp(v4, 22).bytes(), with(&["tcp:22"], &at4)),
        ("TCP, IPv6", tcp(v6, 22).bytes(), with(&["tcp:22"], &at6)),
        ("TCP to UDP's port", tcp(v4, 7).bytes(), at4.to_vec()),
        ("a ping", ping(v4).bytes(), with(&["icmp"], &at4)),
        ("a ping, IPv6", ping(v6).bytes(), with(&["icmp"], &at6)),
        ("ARP", arp(vip4), vec!["arp", "arp@203.0.113.10"]),
        ("ARP for another", arp(v4.elsewhere()), vec!["arp"]),
        (
            "a neighbour solicitation",
            nd(solicited_node(vip6), 135, vip6).bytes(),
            vec!["nd", "nd@2001:db8:a::10"],
        ),
        ("one for another", nd(solicited_node(vip6), 135, v6.client()).bytes(), vec!["nd"]),
        (
            "an advertisement to us",
            nd(vip6, 136, v6.client()).bytes(),
            vec!["nd", "nd@2001:db8:a::10"],
        ),
        ("a router's", nd("ff02::1".parse().unwrap(), 134, vip6).bytes(), vec!["nd"]),
        ("the last type before", nd(vip6, 132, vip6).bytes(), with(&["icmp"], &at6)),
        ("the first type after", nd(vip6, 138, vip6).bytes(), with(&["icmp"], &at6)),
        (
            "GRE",
            Frame::new(47, at(v4.client(), 0), at(vip4, 0)).payload(&[0; 8]).bytes(),
            with(&["47"], &at4),
        ),
    ];
    let programs: Vec<_> = rules.iter().map(|rule| (rule, Steered::new(&[rule]))).collect();
    for (name, frame, mut want) in rows {
        let mut takes: Vec<&str> = programs
            .iter()
            .filter(|(_, program)| program.takes(&frame))
            .map(|(rule, _)| **rule)
            .collect();
        takes.sort_unstable();
        want.sort_unstable();
        assert_eq!(takes, want, "{name}");
    }
}

#[test]
fn what_stands_before_layer_4_does_not_matter() {
    needs_root!("what_stands_before_layer_4_does_not_matter");
    let steered = Steered::new(&["udp:7"]);
    for family in FAMILIES {
        for port in [7, 8] {
            let base = udp(family, port);
            let tag = (0x8100, 5);
            let mut rows = vec![
                ("plain", base.clone()),
                ("a tag", base.clone().with(|f| f.vlans = vec![tag])),
                ("two tags", base.clone().with(|f| f.vlans = vec![(0x88a8, 9), tag])),
                ("padding", base.clone().with(|f| f.padding = 9)),
            ];
            if family == Family::V4 {
                rows.push(("options", base.clone().with(|f| f.options = vec![1; 8])));
                rows.push(("most options", base.clone().with(|f| f.options = vec![1; 40])));
            } else {
                let chains = [&[0][..], &[60], &[43], &[44], &[0, 60, 60, 60, 60, 60, 60]];
                rows.extend(chains.map(|chain| ("headers", base.clone().extended(chain))));
            }
            for (name, frame) in rows {
                assert_eq!(steered.takes(&frame.bytes()), port == 7, "{name}: {frame:?}");
            }
            let three = base.with(|f| f.vlans = vec![tag; 3]);
            assert!(!steered.takes(&three.bytes()), "three tags");
        }
    }
}

/// All fragments of a datagram go one way.
#[test]
fn fragments_show_no_ports() {
    needs_root!("fragments_show_no_ports");
    let ports = Steered::new(&["udp:7", "udp:1-65535"]);
    let protocol = Steered::new(&["udp"]);
    for family in FAMILIES {
        let whole = udp(family, 7).payload(&[5; 100]).with(|f| f.fragment = 0).bytes();
        let parts = fragments(&whole, 40, 77);
        assert_eq!(parts.len(), 3);
        for (n, part) in parts.iter().enumerate() {
            assert!(!ports.takes(part), "{family:?}, {n}: of ports");
            assert!(protocol.takes(part), "{family:?}, {n}: of a protocol");
        }
        assert!(ports.takes(&whole));
    }
}

/// A frame that is cut anywhere is decided by the bytes that are left, never by those that are not.
#[test]
fn what_cannot_be_read_goes_to_the_kernel() {
    needs_root!("what_cannot_be_read_goes_to_the_kernel");
    let ports = Steered::new(&["udp:7", "tcp:22", "arp", "nd@2001:db8:a::10"]);
    let frames = [
        (udp(Family::V4, 7).bytes(), 42),
        (udp(Family::V6, 7).bytes(), 62),
        (tcp(Family::V4, 22).with(|f| f.vlans = vec![(0x8100, 5)]).bytes(), 46),
        (arp(Family::V4.vip()), 42),
    ];
    for (frame, needed) in frames {
        // The kernel's test run takes no less than an Ethernet header.
        for len in 14..frame.len() {
            assert_eq!(ports.takes(&frame[..len]), len >= needed, "{len} of {}", frame.len());
        }
    }
    let other = udp(Family::V4, 7).bytes();
    for (at, value) in [(12, 0x86), (14, 0x65), (14, 0x44)] {
        let mut frame = other.clone();
        frame[at] = value;
        assert!(!ports.takes(&frame), "byte {at} is {value:#x}");
    }
}

#[test]
fn several_rules_and_too_many() {
    needs_root!("several_rules_and_too_many");
    let most: Vec<String> = (0..RW_MAX_STEER_RULES).map(|n| format!("tcp:{}", n + 1)).collect();
    let most: Vec<&str> = most.iter().map(String::as_str).collect();
    let steered = Steered::new(&most);
    for port in [1, RW_MAX_STEER_RULES as u16] {
        assert!(steered.takes(&tcp(Family::V4, port).bytes()), "{port}");
    }
    assert!(!steered.takes(&tcp(Family::V4, RW_MAX_STEER_RULES as u16 + 1).bytes()));
    let mut steer_rules: Vec<SteerRule> = most.iter().map(|text| text.parse().unwrap()).collect();
    steer_rules.push("udp".parse().unwrap());
    let error = Steer::load(&steer_rules, &[], true).unwrap_err().to_string();
    assert!(error.contains("33 rules") && error.contains("takes 32"), "{error}");
}
