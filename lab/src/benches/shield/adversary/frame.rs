//! Frames of any shape, right or wrong, by the RFCs of their headers.

use std::net::{IpAddr, SocketAddr};

use crate::benches::packet::path::frame::{NEXT_MAC, OUR_MAC, checksum};
use crate::harness::named_enum::named;

named! {
    /// The header behind IP's.
    pub enum Layer4 {
        Syn = "syn",
        Ack = "ack",
        SynAck = "syn-ack",
        Rst = "rst",
        Fin = "fin",
        NoFlags = "no-flags",
        Datagram = "datagram",
        /// A datagram from port 53.
        DnsAnswer = "dns-answer",
        Echo = "echo",
        Gre = "gre",
    }
}

named! {
    /// What is special about the IP header.
    pub enum Shape {
        Plain = "plain",
        /// As many IPv4 options or IPv6 extension headers as there may be.
        Options = "options",
        SourceRoute = "source-route",
        FirstFragment = "first-fragment",
        LaterFragment = "later-fragment",
        /// A first fragment that ends within the header of layer 4.
        TinyFragment = "tiny-fragment",
        /// Shorter than its IP header says.
        CutShort = "cut-short",
    }
}

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;
/// IPv6 headers that the gateway steps over, at most (bpf/common/layers.bpf.h).
const EXTENSIONS: usize = 8;
/// Of a later fragment, in units of 8 bytes.
const OFFSET: u16 = 185;
const TINY: usize = 8;
const CUT: u16 = 100;

impl Layer4 {
    pub(super) fn is_udp(self) -> bool {
        matches!(self, Self::Datagram | Self::DnsAnswer)
    }

    fn flags(self) -> Option<u8> {
        Some(match self {
            Self::Syn => 0x02,
            Self::Ack => 0x10,
            Self::SynAck => 0x12,
            Self::Rst => 0x04,
            Self::Fin => 0x11,
            Self::NoFlags => 0,
            _ => return None,
        })
    }

    fn number(self, v4: bool) -> u8 {
        match self {
            Self::Datagram | Self::DnsAnswer => UDP,
            Self::Echo if v4 => 1,
            Self::Echo => 58,
            Self::Gre => 47,
            _ => TCP,
        }
    }

    fn bytes(self, sport: u16, dport: u16, payload: usize, v4: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20 + payload);
        bytes.extend([sport, dport].map(u16::to_be_bytes).concat());
        match (self, self.flags()) {
            (_, Some(flags)) => {
                bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            }
            (Self::Echo, _) => bytes = vec![if v4 { 8 } else { 128 }, 0, 0, 1, 0, 1, 0, 1],
            (Self::Gre, _) => bytes = vec![0; 4],
            _ => {
                bytes.extend(((8 + payload) as u16).to_be_bytes());
                bytes.extend([0, 0]);
            }
        }
        bytes.resize(bytes.len() + payload, 0);
        bytes
    }
}

pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// Where the source port and the checksum over it are; none where the port stays what it is.
    pub(super) port_and_check: Option<(u16, u16)>,
}

impl Frame {
    /// Behind the header of layer 4 come so many bytes.
    pub(super) fn new(
        layer4: Layer4,
        shape: Shape,
        from: SocketAddr,
        to: SocketAddr,
        payload: usize,
    ) -> Self {
        let v4 = to.is_ipv4();
        let sport = if layer4 == Layer4::DnsAnswer { 53 } else { from.port() };
        let mut behind = layer4.bytes(sport, to.port(), payload, v4);
        let number = layer4.number(v4);
        let addresses = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
            (from, to) => [from, to].map(octets).concat(),
        };
        let check_at = match number {
            TCP => Some(16),
            UDP => Some(6),
            _ => None,
        };
        if let Some(at) = check_at {
            let [high, low] = (behind.len() as u16).to_be_bytes();
            let pseudo = [0, number, high, low];
            let check = checksum(&[&addresses, &pseudo, &behind]);
            behind[at..at + 2].copy_from_slice(&check);
        }
        match shape {
            // All but the last one are whole units.
            Shape::FirstFragment => behind.resize(behind.len().next_multiple_of(8), 0),
            Shape::TinyFragment => behind.truncate(TINY),
            _ => (),
        }
        let mut bytes = [OUR_MAC, NEXT_MAC].concat();
        bytes.extend(if v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
        let header = if v4 { ipv4 } else { ipv6 };
        bytes.extend(header(shape, number, sport, &addresses, behind.len()));
        let l4 = bytes.len() as u16;
        bytes.extend(behind);
        let whole = matches!(shape, Shape::Plain | Shape::Options | Shape::FirstFragment);
        let changes = whole && layer4 != Layer4::DnsAnswer;
        let port_and_check = check_at.filter(|_| changes).map(|at| (l4, l4 + at as u16));
        Self { bytes, port_and_check }
    }
}

/// RFC 791, section 3.1.
fn ipv4(shape: Shape, number: u8, id: u16, addresses: &[u8], behind: usize) -> Vec<u8> {
    let options: &[u8] = match shape {
        Shape::Options => &[1; 40],
        Shape::SourceRoute => &[131, 7, 4, 192, 0, 2, 9, 0],
        _ => &[],
    };
    let fragment: u16 = match shape {
        Shape::FirstFragment | Shape::TinyFragment => 0x2000,
        Shape::LaterFragment => OFFSET,
        _ => 0,
    };
    let header = 20 + options.len();
    let total = (header + behind) as u16 + if shape == Shape::CutShort { CUT } else { 0 };
    let mut bytes = vec![0x40 | (header / 4) as u8, 0];
    bytes.extend([total, id, fragment].map(u16::to_be_bytes).concat());
    bytes.extend([64, number, 0, 0]);
    bytes.extend(addresses);
    bytes.extend(options);
    let check = checksum(&[&bytes]);
    bytes[10..12].copy_from_slice(&check);
    bytes
}

/// RFC 8200, sections 3 and 4.
fn ipv6(shape: Shape, number: u8, id: u16, addresses: &[u8], behind: usize) -> Vec<u8> {
    let fragment = |word: u16| {
        let [high, low] = word.to_be_bytes();
        [&[number, 0, high, low, 0, 0][..], &id.to_be_bytes()].concat()
    };
    let (first, extensions) = match shape {
        Shape::Options => {
            let header = |n| {
                let next = if n + 1 < EXTENSIONS { DESTINATION_OPTIONS } else { number };
                [next, 0, 1, 4, 0, 0, 0, 0]
            };
            (DESTINATION_OPTIONS, (0..EXTENSIONS).flat_map(header).collect())
        }
        Shape::SourceRoute => {
            let header = [&[number, 2, 0, 1, 0, 0, 0, 0][..], &addresses[..16]].concat();
            (ROUTING, header)
        }
        Shape::FirstFragment | Shape::TinyFragment => (FRAGMENT, fragment(1)),
        Shape::LaterFragment => (FRAGMENT, fragment(OFFSET << 3)),
        Shape::Plain | Shape::CutShort => (number, Vec::new()),
    };
    let length = (extensions.len() + behind) as u16;
    let length = length + if shape == Shape::CutShort { CUT } else { 0 };
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend(length.to_be_bytes());
    bytes.extend([first, 64]);
    bytes.extend(addresses);
    bytes.extend(extensions);
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// What a backend says to a packet that the gateway has sent to it. All segments have the sequence
/// number 1 and acknowledge 2, so each acknowledges the other side's first one.
pub(super) fn answered(forwarded: &[u8], layer4: Layer4) -> Option<Vec<u8>> {
    let v4 = forwarded.get(ETHERNET)? >> 4 == 4;
    let (addresses, behind) = if v4 { (26, 34) } else { (22, 54) };
    let size = if v4 { 4 } else { 16 };
    let mut answer = forwarded.to_vec();
    let mut swap = |at: usize, size: usize| {
        let (one, other) = answer.get_mut(at..at + 2 * size)?.split_at_mut(size);
        one.swap_with_slice(other);
        Some(())
    };
    swap(0, 6)?;
    swap(addresses, size)?;
    swap(behind, 2)?;
    if let Some(flags) = layer4.flags() {
        let before = std::mem::replace(answer.get_mut(behind + 13)?, flags);
        // The checksum covers the flags; all else has changed places.
        let check = u16::from_be_bytes([answer[behind + 16], answer[behind + 17]]);
        let sum = u32::from(!check) + u32::from(!u16::from(before)) + u32::from(flags);
        let folded = (sum & 0xffff) + (sum >> 16);
        let check = !(folded + (folded >> 16)) as u16;
        answer[behind + 16..behind + 18].copy_from_slice(&check.to_be_bytes());
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use ringway_wire::{self as wire, Header as _, Tcp, Udp, UdpChecksum};

    use super::*;
    use crate::benches::packet::path::{Ip, frame::service};

    fn of(layer4: Layer4, shape: Shape, ip: Ip) -> Frame {
        let (from, to) = ((service(ip), 0x1234).into(), (service(ip), 80).into());
        Frame::new(layer4, shape, from, to, 100)
    }

    #[test]
    fn plain_frames_are_right() {
        for ip in Ip::ALL {
            let segment = of(Layer4::Fin, Shape::Plain, ip);
            let frame = wire::Frame::parse(&segment.bytes[..]).unwrap();
            let packet = wire::Ip::parse(frame.payload).unwrap();
            let tcp = Tcp::parse(packet.payload).unwrap();
            assert!(tcp.checksum_is_right(packet.pseudo()));
            assert_eq!((tcp.header.source.get(), tcp.payload.len()), (0x1234, 100));
            let (port_at, check_at) = segment.port_and_check.unwrap();
            assert_eq!(segment.bytes[usize::from(port_at)..][..2], [0x12, 0x34]);
            assert_eq!(check_at, port_at + 16);

            let datagram = of(Layer4::DnsAnswer, Shape::Plain, ip);
            let frame = wire::Frame::parse(&datagram.bytes[..]).unwrap();
            let packet = wire::Ip::parse(frame.payload).unwrap();
            let udp = Udp::parse(packet.payload).unwrap();
            assert_eq!(udp.verify(packet.pseudo()), UdpChecksum::Right);
            assert_eq!((udp.header.source.get(), datagram.port_and_check), (53, None));
        }
    }

    #[test]
    fn shapes_are_what_they_say() {
        let first = |shape, ip| of(Layer4::Syn, shape, ip).bytes[ETHERNET..].to_vec();
        for ip in Ip::ALL {
            let plain = first(Shape::Plain, ip);
            for shape in Shape::ALL {
                assert_eq!(first(shape, ip) != plain, shape != Shape::Plain, "{shape}");
            }
        }
        assert_eq!(first(Shape::Options, Ip::V4)[0], 0x4f);
        assert_eq!(first(Shape::LaterFragment, Ip::V4)[6..8], OFFSET.to_be_bytes());
        assert_eq!(first(Shape::TinyFragment, Ip::V6).len(), 40 + 8 + TINY);
    }
}
