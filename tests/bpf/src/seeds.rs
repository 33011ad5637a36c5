//! Frames that mutation starts from.

use std::net::{IpAddr, SocketAddr};

use crate::cast::*;
use crate::frame::{Arp, Frame, TCP, UDP, flags::*, tunnel};
use crate::icmp::{self, Says};
use crate::{World, ports};

/// A frame and the interface slot it comes by.
pub type Seed = (u32, Vec<u8>);

/// Frames of every kind where every service is under nat: flows are opened, so that their answers
/// are known.
pub fn of_nat(world: &mut World) -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |slot, frame: &Frame| seeds.push((slot, frame.bytes()));
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for port in [ports::SAME, ports::ACROSS, ports::CLIENT, ports::POOL, ports::SMALL] {
                let flow = world.connect_or_open(family, proto, port);
                add(FRONT, &flow.request);
                add(FRONT, &flow.next(PSH | ACK).payload(b"GET / HTTP/1.0\r\n\r\n"));
                add(FRONT, &flow.next(FIN | ACK));
                add(flow.back_slot(), &flow.answer(PSH | ACK));
                add(flow.back_slot(), &flow.answer(SYN | ACK).payload(b""));
                add(flow.back_slot(), &flow.answer(RST));
            }
            for port in
                [ports::NONE_RESET, ports::NONE_DROP, ports::UNRESOLVED, ports::NO_DEVICE, 79]
            {
                let first = world.first(family, proto, port);
                add(FRONT, &first);
                add(FRONT, &first.with(|f| f.flags = ACK));
            }
            let (src, dst) = world.ends(family, ports::SMALL);
            let just_fits = vec![3; 1280 - family.header_len() - if proto == TCP { 20 } else { 8 }];
            add(FRONT, &Frame { proto, flags: SYN, ..Frame::udp(src, dst) }.payload(&just_fits));
            add(FRONT, &Frame { proto, flags: SYN, ..Frame::udp(src, dst) }.payload(&[3; 1300]));
            if (family, proto) == (Family::V4, UDP) {
                // Nobody is told that a later fragment is too big.
                for (fragment, length) in [(0x2000, 1200), (1208 / 8, 1300)] {
                    let part = Frame { id: 7, fragment, ..Frame::udp(src, dst) };
                    add(FRONT, &part.payload(&vec![3; length]));
                }
            }
            let plain = world.first(family, proto, ports::ACROSS);
            add(FRONT, &plain.clone().with(|f| f.vlans = vec![(0x8100, 5)]));
            add(FRONT, &plain.clone().with(|f| f.fragment = 0x2000));
            add(FRONT, &plain.clone().with(|f| f.no_checksum = proto == UDP));
            add(FRONT, &plain.clone().with(|f| f.ttl = 1));
            add(FRONT, &plain.clone().with(|f| f.padding = 9));
            add(FRONT, &plain.clone().with(|f| f.dst_mac = STRANGER_MAC));
            add(FRONT, &plain.extended(&[60]));
        }
        let ping = icmp::echo(family, false, b"");
        add(FRONT, &icmp::frame(family.client(), family.vip(), ping));
    }
    let v6 = Family::V6.announced();
    let IpAddr::V6(target) = v6 else { unreachable!() };
    for options in [&[][..], &[1, 1, 2, 0, 0, 0, 0, 0xc1]] {
        let body = [&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..], options].concat();
        let ask = Frame::new(58, (Family::V6.client(), 0).into(), (v6, 0).into()).payload(&body);
        add(FRONT, &ask.with(|f| f.ttl = 255));
    }
    seeds.push((FRONT, Arp::who_has(Family::V4.announced()).bytes()));
    seeds
}

/// Frames of every shape towards services of every kind, whatever their mode of forwarding:
/// tags, options, extension headers, fragments, ICMP errors about each, tunnels.
pub fn of_clients() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for family in FAMILIES {
        for proto in [TCP, UDP] {
            for (n, port) in (ports::SAME..=ports::ANNOUNCED).chain([79]).enumerate() {
                let address =
                    if port == ports::ANNOUNCED { family.announced() } else { family.vip() };
                let dst = SocketAddr::new(address, port);
                let src = SocketAddr::new(family.client(), 20_000 + n as u16);
                let plain = Frame { proto, flags: SYN, ..Frame::udp(src, dst) };
                for shape in shapes(&plain) {
                    seeds.push((FRONT, shape.bytes()));
                }
                seeds.push((FRONT, error_about(&plain).bytes()));
            }
        }
        seeds.extend(tunnels(family).into_iter().map(|frame| (BACK, frame)));
    }
    seeds
}

/// One packet in every dress.
fn shapes(plain: &Frame) -> Vec<Frame> {
    let with = |change: &dyn Fn(&mut Frame)| plain.clone().with(change);
    let mut all = vec![
        plain.clone(),
        with(&|f| f.flags = PSH | ACK),
        with(&|f| f.flags = FIN | ACK),
        with(&|f| f.flags = RST),
        with(&|f| f.tcp_options = vec![2, 4, 0x05, 0xb4, 1, 3, 3, 7]),
        with(&|f| f.tcp_options = vec![1, 1, 2, 4, 0x23, 0x28, 0, 0]),
        with(&|f| f.vlans = vec![(0x8100, 5)]),
        with(&|f| f.vlans = vec![(0x88a8, 5), (0x8100, 6)]),
        with(&|f| f.ttl = 1),
        with(&|f| f.padding = 9),
        with(&|f| f.payload = vec![7; 1452]),
        with(&|f| f.payload = vec![7; 8_900]),
        with(&|f| f.no_checksum = f.proto == UDP),
    ];
    match plain.family() {
        Family::V4 => {
            for options in [&[1u8, 1, 1, 0][..], &[0x94, 4, 0, 0], &[131, 7, 4, 10, 0, 0, 1, 0]] {
                all.push(with(&|f| f.options = options.to_vec()));
            }
            for fragment in [0x2000, 0x2010, 0x0020] {
                all.push(with(&|f| f.fragment = fragment));
            }
        }
        Family::V6 => {
            all.extend(
                [&[0][..], &[60], &[0, 60], &[43]].map(|types| plain.clone().extended(types)),
            );
            for offset in [0x0001u16, 0x0081, 0x0080, 0] {
                let [high, low] = offset.to_be_bytes();
                let fragment = vec![plain.proto, 0, high, low, 0, 0, 0, 7];
                all.push(with(&|f| (f.first_extension, f.options) = (44, fragment.clone())));
            }
        }
    }
    all
}

/// A router's complaint about the answer that a client got: it quotes the service's own packet.
fn error_about(request: &Frame) -> Frame {
    let answer = Frame { src: request.dst, dst: request.src, flags: ACK, ..request.clone() };
    let says = [Says::TooBig(1280), Says::Unreachable, Says::TimeExceeded];
    let says = says[usize::from(request.dst.port() % 3)];
    let family = request.family();
    let error = icmp::error(family, says, &icmp::quote(&answer, usize::MAX));
    icmp::frame(family.elsewhere(), request.dst.ip(), error)
}

/// Packets in packets, as a tunnel's other end would send them.
fn tunnels(family: Family) -> Vec<Vec<u8>> {
    let src = SocketAddr::new(family.client(), 30_000);
    let inner = Frame::tcp(src, SocketAddr::new(family.vip(), ports::SAME), SYN);
    let mut all = Vec::new();
    for outer in FAMILIES {
        let ends = (SocketAddr::new(outer.backend(1), 50_000), SocketAddr::new(outer.nat(), 6080));
        for gue in [false, true] {
            let frame = tunnel(gue, ends.0, ends.1, &inner);
            all.push(frame.with(|f| f.dst_mac = BACK_MAC).bytes());
        }
    }
    all
}
