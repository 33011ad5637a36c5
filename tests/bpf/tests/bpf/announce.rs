//! announce = "arp": who answers for which address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ringway_abi::raw::RW_IFACE_REDIRECT;
use ringway_abi::{Reason::*, Verdict::*};
use ringway_bpf_tests::prelude::*;

fn is_at(asked: &Arp, mac: Mac) -> Arp {
    Arp {
        dst_mac: asked.src_mac,
        src_mac: mac,
        op: 2,
        sender: (mac, asked.target.1),
        target: asked.sender,
    }
}

#[test]
fn arp() {
    needs_root!("arp");
    let world = World::new();
    let ask = Arp::who_has(Family::V4.announced());
    let probe = Arp { sender: (CLIENT_MAC, IpAddr::from([0, 0, 0, 0])), ..ask.clone() };
    let gratuitous = Arp { sender: (CLIENT_MAC, ask.target.1), ..ask.clone() };
    let unicast = Arp { dst_mac: FRONT_MAC, ..ask.clone() };
    let mut rows: Vec<Row> = vec![
        row("announced", ask.clone(), Tx, ArpReply).gives(is_at(&ask, FRONT_MAC)),
        row("on the other interface", ask.clone(), Tx, ArpReply)
            .on(BACK)
            .gives(is_at(&ask, BACK_MAC)),
        row("asked directly", unicast.clone(), Tx, ArpReply).gives(is_at(&unicast, FRONT_MAC)),
        row("probe (RFC 5227)", probe.clone(), Tx, ArpReply).gives(is_at(&probe, FRONT_MAC)),
        row("somebody claims it", gratuitous.clone(), Tx, ArpReply)
            .gives(is_at(&gratuitous, FRONT_MAC)),
        row("a service that is not announced", Arp::who_has(Family::V4.vip()), Pass, NotIp),
        row("an address of nobody", Arp::who_has(Family::V4.elsewhere()), Pass, NotIp),
        row("a nat address", Arp::who_has(Family::V4.nat()), Pass, NotIp),
        row("another host is asked", Arp { dst_mac: STRANGER_MAC, ..ask.clone() }, Pass, NotIp),
        row("a reply", Arp { op: 2, ..ask.clone() }, Pass, NotIp),
        row("RARP", Arp { op: 3, ..ask.clone() }, Pass, NotIp),
        row("no operation", Arp { op: 0, ..ask.clone() }, Pass, NotIp),
    ];
    for (what, at, value) in [
        ("not Ethernet", 14 + 1, 6),
        ("not IPv4", 14 + 2, 0x86),
        ("addresses of 8 bytes", 14 + 4, 8),
        ("protocol addresses of 16 bytes", 14 + 5, 16),
    ] {
        let mut bytes = ask.bytes();
        bytes[at] = value;
        rows.push(row(what, bytes, Pass, NotIp));
    }
    for len in 14..42 {
        let bytes = ask.bytes()[..len].to_vec();
        rows.push(row(&format!("cut to {len} bytes"), bytes, Pass, NotIp));
    }
    // Without padding, and tagged.
    let reply = is_at(&ask, FRONT_MAC).bytes()[..42].to_vec();
    rows.push(row("without padding", ask.bytes()[..42].to_vec(), Tx, ArpReply).gives(reply));
    let mut tagged = ask.bytes();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    rows.push(row("tagged", tagged, Pass, Vlan));
    check(&world, &rows);
}

/// On veth the answer is redirected back.
#[test]
fn arp_and_nd_back_by_redirect() {
    needs_root!("arp_and_nd_back_by_redirect");
    let world = World::new();
    world.change_iface(FRONT, |iface| iface.flags = RW_IFACE_REDIRECT as u16);
    let ask = Arp::who_has(Family::V4.announced());
    let ours = Family::V6.announced();
    let solicitation = solicit(ours, &SOURCE);
    let (to, to_mac) = (solicitation.src.ip(), solicitation.src_mac);
    let reply = advert(&solicitation, ours, FRONT_MAC, to, to_mac, true);
    let rows = [
        row("ARP", ask.clone(), Redirect, ArpReply).gives(is_at(&ask, FRONT_MAC)),
        row("ND", solicitation, Redirect, NdReply).gives(reply),
    ];
    check(&world, &rows);
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(v6) => v6,
        IpAddr::V4(_) => panic!("not IPv6"),
    }
}

/// The solicited-node multicast address (RFC 4291 section 2.7.1) and its MAC (RFC 2464).
fn solicited_node(target: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = target.octets();
    let address =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    (address, [0x33, 0x33, 0xff, a, b, c])
}

/// A neighbour solicitation (RFC 4861 section 4.3).
fn solicit(target: IpAddr, options: &[u8]) -> Frame {
    let (group, mac) = solicited_node(v6(target));
    let body = [&[135, 0, 0, 0, 0, 0, 0, 0], &v6(target).octets()[..], options].concat();
    Frame::new(58, icmp(Family::V6.client()), icmp(group.into())).payload(&body).with(|f| {
        f.dst_mac = mac;
        f.ttl = 255;
    })
}

/// For the address alone.
fn icmp(address: IpAddr) -> SocketAddr {
    (address, 0).into()
}

/// The advertisement that answers it (RFC 4861 section 4.4).
fn advert(
    asked: &Frame,
    target: IpAddr,
    mac: Mac,
    to: IpAddr,
    to_mac: Mac,
    solicited: bool,
) -> Frame {
    let flags = if solicited { 0x60 } else { 0x20 };
    let head = [136, 0, 0, 0, flags, 0, 0, 0];
    let body = [&head[..], &v6(target).octets(), &[2, 1], &mac].concat();
    let (src, dst) = (icmp(target), icmp(to));
    Frame { src, dst, src_mac: mac, dst_mac: to_mac, ..asked.clone() }.payload(&body)
}

/// The asker's MAC address, as an option.
const SOURCE: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 0xc1];
/// Nonce (RFC 3971 section 5.3.2), as enhanced duplicate address detection sends (RFC 7527).
const NONCE: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];

#[test]
fn neighbour_discovery() {
    needs_root!("neighbour_discovery");
    let world = World::new();
    let ours = Family::V6.announced();
    let answer = |asked: &Frame, mac| advert(asked, ours, mac, asked.src.ip(), asked.src_mac, true);
    let answered = |what: &str, asked: Frame| {
        let reply = answer(&asked, FRONT_MAC);
        row(what, asked, Tx, NdReply).gives(reply)
    };
    let ask = solicit(ours, &SOURCE);
    let to_us = |mac| move |f: &mut Frame| (f.dst, f.dst_mac) = (icmp(ours), mac);
    let mut rows: Vec<Row> = vec![
        answered("with the asker's MAC", ask.clone()),
        answered("without", solicit(ours, &[])),
        answered("two options", solicit(ours, &[SOURCE, NONCE].concat())),
        answered("asked directly", ask.clone().with(to_us(FRONT_MAC))),
        answered("traffic class and flow label", ask.clone().with(|f| (f.tos, f.id) = (0xc0, 5))),
        row("on the other interface", ask.clone(), Tx, NdReply)
            .on(BACK)
            .gives(answer(&ask, BACK_MAC)),
    ];
    // Duplicate address detection: from nobody, answered to all nodes.
    for options in [&[][..], &NONCE] {
        let dad = solicit(ours, options).with(|f| f.src = icmp(Ipv6Addr::UNSPECIFIED.into()));
        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into();
        let reply = advert(&dad, ours, FRONT_MAC, all, [0x33, 0x33, 0, 0, 0, 1], false);
        rows.push(row("duplicate address detection", dad, Tx, NdReply).gives(reply));
    }
    let not = |what: &str, frame: Frame, reason| row(what, frame, Pass, reason);
    let typed = |n| {
        let mut body = ask.payload.clone();
        body[0] = n;
        ask.clone().payload(&body)
    };
    let mut coded = ask.payload.clone();
    coded[1] = 1;
    rows.extend([
        not("not announced", solicit(Family::V6.vip(), &SOURCE), OtherHost),
        not("nobody's", solicit(Family::V6.elsewhere(), &SOURCE), OtherHost),
        not("through a router", ask.clone().with(|f| f.ttl = 254), OtherHost),
        not("an advertisement", typed(136), OtherHost),
        not("a router solicitation", typed(133), OtherHost),
        not("ICMP for IPv4", ask.clone().with(|f| f.proto = 1), OtherHost),
        not("code 1", ask.clone().payload(&coded), OtherHost),
        not("too short", ask.clone().payload(&ask.payload[..23]), OtherHost),
        not("another host is asked", ask.clone().with(to_us(STRANGER_MAC)), OtherHost),
    ]);
    // RFC 4861 section 7.1.1, and sources that no host has.
    let from = |address: &str| {
        let source: IpAddr = address.parse().unwrap();
        move |f: &mut Frame| f.src = icmp(source)
    };
    let dad = solicit(ours, &[]).with(from("::"));
    let mut damaged = ask.bytes();
    *damaged.last_mut().unwrap() ^= 1;
    rows.push(row("a bad checksum", damaged, Pass, OtherHost));
    rows.extend([
        not("no source, but its MAC", solicit(ours, &SOURCE).with(from("::")), OtherHost),
        not("no source, to one host", dad.clone().with(to_us(FRONT_MAC)), Icmp),
        not(
            "no source, to all nodes",
            dad.with(|f| f.dst = icmp("ff02::1".parse().unwrap())),
            OtherHost,
        ),
        not("from many", ask.clone().with(from("ff02::9")), OtherHost),
        not("from nowhere", ask.clone().with(from("::1")), OtherHost),
        not("an option of no length", solicit(ours, &[14, 0, 0, 0, 0, 0, 0, 0]), OtherHost),
        not("an option cut short", solicit(ours, &[14, 2, 0, 0, 0, 0, 0, 0]), OtherHost),
    ]);
    // Ethernet padding is not part of the packet.
    let padded = solicit(ours, &[]).with(|f| f.padding = 30);
    let reply = Frame { padding: 0, ..answer(&padded, FRONT_MAC) };
    rows.push(row("padded", padded, Tx, NdReply).gives(reply));
    check(&world, &rows);
}
