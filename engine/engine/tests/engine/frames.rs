//! Frames of every kind that apps read, and some that none does.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_engine::apps::{Host, Offer, Request};
use ringway_wire::{
    Arp, Builder, Ethernet, Icmp, Icmpv6, IntoBytes as _, Ipv4, Ipv6, Mac, Tcp, U16, U32, Udp,
    Vlan, ethertype, nd, protocol,
};

pub const US: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const THEM: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const OUR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const THEIR_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub const OUR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
pub const THEIR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
pub const PORT: u16 = 7;
pub const SEGMENT: u64 = 77;

pub fn host() -> Host {
    Host::new(US, [IpAddr::V4(OUR_V4), IpAddr::V6(OUR_V6)])
}

pub fn offers() -> HashMap<u64, Offer> {
    HashMap::from([(SEGMENT, Offer { price: 1000, creative: 5 })])
}

/// A frame that is built from the inside out behind enough headroom.
pub fn build(ethernet: Ethernet, inner: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 14];
    let mut built = Builder::new(&mut buffer, 256).unwrap();
    inner(&mut built);
    built.ethernet(ethernet).unwrap();
    built.packet().to_vec()
}

pub fn v4(source: Ipv4Addr) -> Ipv4 {
    Ipv4::new(protocol::UDP, source, OUR_V4)
}

pub fn to_us(ethertype: u16) -> Ethernet {
    Ethernet::new(US, THEM, ethertype)
}

pub fn arp() -> Vec<u8> {
    let ethernet = Ethernet::new(Mac::BROADCAST, THEM, ethertype::ARP);
    build(ethernet, |b| drop(b.append(&Arp::request(THEM, THEIR_V4, OUR_V4)).unwrap().pad(46)))
}

pub fn ping() -> Vec<u8> {
    ping_of(b"ping")
}

pub fn ping_of(payload: &[u8]) -> Vec<u8> {
    let ip = Ipv4 { protocol: protocol::ICMP, ..v4(THEIR_V4) };
    build(to_us(ethertype::IPV4), |b| {
        b.append(payload).unwrap().icmp(Icmp::echo_request(1, 7)).unwrap().ipv4(ip, &[]).unwrap();
    })
}

pub fn ping_v6() -> Vec<u8> {
    ping_v6_of(b"ping!")
}

pub fn ping_v6_of(payload: &[u8]) -> Vec<u8> {
    let ip = Ipv6::new(protocol::ICMPV6, THEIR_V6, OUR_V6);
    build(to_us(ethertype::IPV6), |b| {
        b.append(payload).unwrap().icmpv6(Icmpv6::echo_request(1, 7), ip.pseudo()).unwrap();
        b.ipv6(ip).unwrap();
    })
}

/// A solicitation of our address, by `source`, which may be unspecified.
pub fn solicitation(source: Ipv6Addr) -> Vec<u8> {
    let group = nd::Neighbour::solicited_nodes(OUR_V6);
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, source, group) };
    build(Ethernet::new(Mac::of_multicast(group), THEM, ethertype::IPV6), |b| {
        b.append(&nd::Neighbour { target: OUR_V6.octets() }).unwrap();
        if !source.is_unspecified() {
            b.append(&nd::LinkLayer::source(THEM)).unwrap();
        }
        b.icmpv6(Icmpv6::new(Icmpv6::NEIGHBOUR_SOLICITATION, 0, 0), ip.pseudo()).unwrap();
        b.ipv6(ip).unwrap();
    })
}

pub fn udp(payload: &[u8]) -> Vec<u8> {
    build(to_us(ethertype::IPV4), |b| {
        let ip = v4(THEIR_V4);
        b.append(payload).unwrap().udp(Udp::new(4711, PORT), Some(ip.pseudo())).unwrap();
        b.ipv4(ip, &[]).unwrap();
    })
}

pub fn udp_v6(payload: &[u8]) -> Vec<u8> {
    build(to_us(ethertype::IPV6), |b| {
        let ip = Ipv6::new(protocol::UDP, THEIR_V6, OUR_V6);
        b.append(payload).unwrap().udp(Udp::new(4711, PORT), Some(ip.pseudo())).unwrap();
        b.ipv6(ip).unwrap();
    })
}

pub fn tcp() -> Vec<u8> {
    build(to_us(ethertype::IPV4), |b| {
        let ip = Ipv4 { protocol: protocol::TCP, ..v4(THEIR_V4) };
        b.append(b"GET").unwrap().tcp(Tcp::default(), &[2, 4, 5, 180], ip.pseudo()).unwrap();
        b.ipv4(ip, &[]).unwrap();
    })
}

/// The same behind a VLAN tag.
pub fn tagged(frame: &[u8]) -> Vec<u8> {
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    let mut tagged = frame[..12].to_vec();
    tagged.extend(ethertype::VLAN.to_be_bytes());
    tagged.extend(Vlan::new(7, ethertype).as_bytes());
    tagged.extend(&frame[14..]);
    tagged
}

pub fn request(client: u32, segment: u64, floor: u32) -> Request {
    Request {
        magic: U16::new(Request::MAGIC),
        version: Request::VERSION,
        client: U32::new(client),
        id: 4242.into(),
        user: 9.into(),
        segment: segment.into(),
        floor: U32::new(floor),
        ..Request::default()
    }
}

pub fn all() -> Vec<Vec<u8>> {
    let with_options = build(to_us(ethertype::IPV4), |b| {
        let ip = Ipv4 { protocol: protocol::ICMP, ..v4(THEIR_V4) };
        b.icmp(Icmp::echo_request(1, 1)).unwrap().ipv4(ip, &[1; 8]).unwrap();
    });
    let fragment = build(to_us(ethertype::IPV4), |b| {
        let ip = Ipv4 { flags_offset: U16::new(Ipv4::MORE_FRAGMENTS), ..v4(THEIR_V4) };
        b.append(&[0; 24]).unwrap().ipv4(ip, &[]).unwrap();
    });
    let extended = build(to_us(ethertype::IPV6), |b| {
        let ip = Ipv6::new(protocol::HOP_BY_HOP, THEIR_V6, OUR_V6);
        b.append(b"x").unwrap().udp(Udp::new(1, PORT), Some(ip.pseudo())).unwrap();
        b.put(&[protocol::UDP, 0, 1, 4, 0, 0, 0, 0]).unwrap().ipv6(ip).unwrap();
    });
    let mut all = vec![
        arp(),
        ping(),
        ping_v6(),
        solicitation(THEIR_V6),
        solicitation(Ipv6Addr::UNSPECIFIED),
        udp(b"hello"),
        udp_v6(b"hello"),
        udp(request(3, SEGMENT, 1).as_bytes()),
        udp_v6(request(3, 0, 1).as_bytes()),
        tcp(),
        with_options,
        fragment,
        extended,
        build(to_us(0x88cc), |b| drop(b.append(&[2; 40]))),
    ];
    let with_tags: Vec<_> = all.iter().map(|frame| tagged(frame)).collect();
    all.extend(with_tags.iter().map(|frame| tagged(frame)).collect::<Vec<_>>());
    all.extend(with_tags);
    all
}
