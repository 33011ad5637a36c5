//! Frames of every kind that the crate can build, at random.

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_wire::{
    Arp, Fragment, FragmentHeader, Gre, Gue, Icmp, Icmpv6, IntoBytes as _, Ipv4, Ipv6, Mac, Tcp,
    TcpOption, U16, U32, Udp, Vlan, Vxlan, nd, protocol,
};

use crate::packets::{Body, Carries, Head, Link, Packet};

pub fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..90)
}

pub fn link() -> impl Strategy<Value = Link> {
    let body = prop_oneof![1 => arp().prop_map(Body::Arp), 8 => packet(2).prop_map(Body::Ip)];
    around(body.boxed())
}

fn around(body: BoxedStrategy<Body>) -> impl Strategy<Value = Link> {
    (mac(), mac(), vec(any::<u16>(), 0..3), body).prop_map(|(destination, source, tcis, body)| {
        let mut link = Link { destination, source, tags: Vec::new(), body };
        let mut next = link.ethertype();
        for tci in tcis.into_iter().rev() {
            link.tags.insert(0, Vlan { tci: U16::new(tci), ethertype: U16::new(next) });
            next = ringway_wire::ethertype::VLAN;
        }
        link
    })
}

pub fn arp() -> impl Strategy<Value = Arp> {
    (mac(), any::<[u8; 4]>(), mac(), any::<[u8; 4]>(), any::<bool>()).prop_map(
        |(sender_mac, sender, target_mac, target, reply)| {
            let request = Arp::request(sender_mac, sender.into(), target.into());
            if reply { request.reply(target_mac) } else { request }
        },
    )
}

/// With tunnels in tunnels down to this depth.
fn packet(depth: u32) -> BoxedStrategy<Packet> {
    (head(), carries(depth))
        .prop_map(|(mut head, mut carries)| {
            match (&head, &carries) {
                // Each ICMP belongs to one IP.
                (Head::V4(..), Carries::Icmpv6(..)) => {
                    carries = Carries::Icmp(Icmp::echo_request(1, 2), vec![3; 4]);
                }
                (Head::V6(..), Carries::Icmp(..)) => {
                    carries = Carries::Icmpv6(Icmpv6::echo_request(1, 2), vec![3; 5]);
                }
                _ => (),
            }
            let fragment = match &mut head {
                Head::V4(ip, _) => ip.fragment().is_some(),
                Head::V6(_, extensions) => {
                    extensions.last().is_some_and(|(kind, _)| *kind == protocol::FRAGMENT)
                }
            };
            if fragment {
                carries = Carries::Bytes(protocol::UDP, vec![0x5a; 24]);
            }
            Packet { head, carries }.settled()
        })
        .boxed()
}

fn head() -> impl Strategy<Value = Head> {
    prop_oneof![v4(), v6()]
}

fn v4() -> impl Strategy<Value = Head> {
    let fields = (any::<u8>(), any::<u16>(), fragment_bits(), any::<u8>());
    let addresses = (any::<[u8; 4]>(), any::<[u8; 4]>());
    (fields, addresses, v4_options()).prop_map(|(fields, (source, destination), options)| {
        let (traffic_class, identification, flags_offset, ttl) = fields;
        let header = Ipv4 {
            traffic_class,
            identification: U16::new(identification),
            flags_offset: U16::new(flags_offset),
            ttl,
            total_length: U16::ZERO,
            ..Ipv4::new(0, source.into(), destination.into())
        };
        Head::V4(header, options)
    })
}

fn fragment_bits() -> impl Strategy<Value = u16> {
    prop_oneof![
        6 => Just(0),
        3 => Just(Ipv4::DONT_FRAGMENT),
        1 => (1..0x1ff_u16).prop_map(|offset| offset | Ipv4::MORE_FRAGMENTS),
    ]
}

/// None, or no-operations and a router alert (RFC 2113).
fn v4_options() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(Vec::new()),
        1 => Just(vec![148, 4, 0, 0]),
        1 => Just(vec![1, 1, 1, 1, 148, 4, 0, 0]),
    ]
}

fn v6() -> impl Strategy<Value = Head> {
    let fields = (any::<u8>(), 0..1_u32 << 20, any::<u8>());
    let addresses = (any::<[u8; 16]>(), any::<[u8; 16]>());
    (fields, addresses, extensions()).prop_map(|(fields, (source, destination), extensions)| {
        let (class, label, hop_limit) = fields;
        let mut header = Ipv6 { hop_limit, ..Ipv6::new(0, source.into(), destination.into()) };
        header.set_traffic_class(class);
        header.set_flow_label(label);
        Head::V6(header, extensions)
    })
}

/// Hop-by-hop before destination options before a fragment header, each or none (RFC 8200, section
/// 4.1).
fn extensions() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    // PadN over all of the body.
    let pad = |len: usize| {
        let mut body = vec![0; len];
        (body[0], body[1]) = (1, len as u8 - 2);
        body
    };
    let fragment = (any::<u32>(), 1..200_usize, any::<bool>());
    let each = (proptest::bool::weighted(0.2), proptest::bool::weighted(0.2));
    (each, proptest::option::weighted(0.1, fragment)).prop_map(
        move |((hop_by_hop, destination), fragment)| {
            let mut all = Vec::new();
            if hop_by_hop {
                all.push((protocol::HOP_BY_HOP, pad(6)));
            }
            if destination {
                all.push((protocol::DESTINATION, pad(14)));
            }
            if let Some((identification, units, more)) = fragment {
                let fragment = Fragment { identification, offset: units * 8, more };
                let header = FragmentHeader::new(0, fragment);
                all.push((protocol::FRAGMENT, header.as_bytes()[2..].to_vec()));
            }
            all
        },
    )
}

fn carries(depth: u32) -> BoxedStrategy<Carries> {
    let flat = prop_oneof![
        3 => (udp(), payload()).prop_map(|(udp, payload)| Carries::Udp(udp, payload)),
        1 => (udp(), payload()).prop_map(|(udp, payload)| Carries::BareUdp(udp, payload)),
        3 => (tcp(), tcp_options(), payload()).prop_map(|(t, o, p)| Carries::Tcp(t, o, p)),
        1 => (any::<(u16, u16)>(), payload()).prop_map(|((id, seq), payload)| {
            Carries::Icmp(Icmp::echo_request(id, seq), payload)
        }),
        1 => (any::<(u16, u16)>(), payload()).prop_map(|((id, seq), payload)| {
            Carries::Icmpv6(Icmpv6::echo_request(id, seq), payload)
        }),
        2 => neighbour(),
        1 => router(),
    ];
    if depth == 0 {
        return flat.boxed();
    }
    let inner = || packet(depth - 1).prop_map(Box::new);
    let body = packet(depth - 1).prop_map(Body::Ip).boxed();
    prop_oneof![
        12 => flat,
        1 => inner().prop_map(Carries::Ip),
        1 => (gre(), inner()).prop_map(|((gre, fields), inner)| Carries::Gre(gre, fields, inner)),
        1 => (dynamic(), 0..1_u32 << 24, around(body)).prop_map(|(port, vni, inner)| {
            Carries::Vxlan(port, Vxlan::new(vni), Box::new(inner))
        }),
        1 => (dynamic(), inner()).prop_map(|(p, i)| Carries::Gue(p, Gue::new(0), vec![], i)),
        1 => (dynamic(), inner()).prop_map(|(port, inner)| Carries::GueDirect(port, inner)),
    ]
    .boxed()
}

/// A tunnel's source port (RFC 7348, section 5).
fn dynamic() -> impl Strategy<Value = u16> {
    0xc000_u16..
}

/// To ports that stand for no tunnel.
fn udp() -> impl Strategy<Value = Udp> {
    (any::<u16>(), 1..4000_u16).prop_map(|(source, destination)| Udp {
        length: U16::ZERO,
        ..Udp::new(source, destination)
    })
}

fn tcp() -> impl Strategy<Value = Tcp> {
    let numbers = any::<(u32, u32)>();
    (any::<(u16, u16)>(), numbers, 0..0x200_u16, any::<(u16, u16)>()).prop_map(
        |((source, destination), (sequence, acknowledgment), flags, (window, urgent))| Tcp {
            sequence: U32::new(sequence),
            acknowledgment: U32::new(acknowledgment),
            window: U16::new(window),
            urgent: U16::new(urgent),
            ..Tcp::new(source, destination, flags)
        },
    )
}

fn tcp_options() -> impl Strategy<Value = Vec<u8>> {
    let blocks = vec(any::<[u32; 2]>().prop_map(|pair| pair.map(U32::new)), 1..3);
    (any::<u16>(), 0..15_u8, any::<(u32, u32)>(), blocks, any::<[bool; 5]>()).prop_map(
        |(size, shift, (value, echo), blocks, which)| {
            let all = [
                TcpOption::MaximumSegmentSize(size),
                TcpOption::WindowScale(shift),
                TcpOption::SackPermitted,
                TcpOption::Timestamps { value, echo },
                TcpOption::Sack(&blocks),
            ];
            let some: Vec<_> =
                all.into_iter().zip(which).filter_map(|(o, there)| there.then_some(o)).collect();
            TcpOption::write(&some, &mut [0; 40]).unwrap().to_vec()
        },
    )
}

fn neighbour() -> impl Strategy<Value = Carries> {
    (any::<[u8; 16]>(), mac(), any::<bool>(), 0..8_u32).prop_map(|(target, mac, asks, flags)| {
        let (header, option) = match asks {
            true => (Icmpv6::new(Icmpv6::NEIGHBOUR_SOLICITATION, 0, 0), nd::LinkLayer::source(mac)),
            false => (
                Icmpv6::new(Icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, flags << 29),
                nd::LinkLayer::target(mac),
            ),
        };
        let mut message = nd::Neighbour { target }.as_bytes().to_vec();
        message.extend(option.as_bytes());
        Carries::Icmpv6(header, message)
    })
}

fn router() -> impl Strategy<Value = Carries> {
    let word = any::<(u8, u16)>();
    let prefix = (any::<[u8; 16]>(), 0..=128_u8, any::<(u32, u32)>());
    (word, any::<(u32, u32)>(), prefix, mac()).prop_map(
        |((hop_limit, lifetime), (reachable, retransmit), (prefix, prefix_len, times), mac)| {
            let router = nd::Router { hop_limit, flags: 0x80, lifetime: U16::new(lifetime) };
            let times_of_router = nd::RouterTimes {
                reachable: U32::new(reachable),
                retransmit: U32::new(retransmit),
            };
            let prefix = nd::Prefix {
                valid: U32::new(times.0),
                preferred: U32::new(times.1),
                ..nd::Prefix::new(prefix.into(), prefix_len)
            };
            let mut message = times_of_router.as_bytes().to_vec();
            message.extend(prefix.as_bytes());
            message.extend(nd::LinkLayer::source(mac).as_bytes());
            Carries::Icmpv6(router.header(), message)
        },
    )
}

fn gre() -> impl Strategy<Value = (Gre, Vec<u8>)> {
    any::<(Option<u32>, Option<u32>)>().prop_map(|(key, sequence)| {
        let mut flags = 0;
        let mut fields = Vec::new();
        for (field, flag) in [(key, Gre::KEY), (sequence, Gre::SEQUENCE)] {
            if let Some(value) = field {
                flags |= flag;
                fields.extend(value.to_be_bytes());
            }
        }
        (Gre { flags: U16::new(flags), ..Gre::default() }, fields)
    })
}
