//! Is a frame in order? Lengths against each other, checksums over the whole: what the next
//! host's kernel would check, and nothing of what the packet path knows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::{TCP, UDP, sum};

/// A frame in order, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Ethernet destination and source.
    pub macs: ([u8; 6], [u8; 6]),
    /// Source; port 0 where there is none.
    pub src: SocketAddr,
    /// Destination; port 0 where there is none.
    pub dst: SocketAddr,
    pub proto: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Bytes of layer 3, header included.
    pub l3_len: usize,
    /// The layer-4 header and what follows it, without padding.
    pub l4: &'a [u8],
    /// A fragment, or behind an IPv6 header that is not stepped over: layer 4 was not looked at.
    pub opaque: bool,
}

impl Packet<'_> {
    pub fn tcp_flags(&self) -> u8 {
        self.l4[13]
    }

    /// TCP sequence and acknowledgement numbers.
    pub fn tcp_numbers(&self) -> (u32, u32) {
        let word = |at: usize| u32::from_be_bytes(self.l4[at..at + 4].try_into().unwrap());
        (word(4), word(8))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<'a> {
    /// An IP packet in order.
    Good(Packet<'a>),
    /// Not IP, or with more than two tags.
    NotIp,
    /// Something in it is wrong.
    Bad(&'static str),
}

impl<'a> Checked<'a> {
    /// The packet, or a panic that says what is wrong with it.
    pub fn good(self) -> Packet<'a> {
        match self {
            Self::Good(packet) => packet,
            other => panic!("not a frame in order: {other:?}"),
        }
    }

    /// It is an IP packet in order.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Good(_))
    }
}

pub fn check(frame: &[u8]) -> Checked<'_> {
    let is_tag = |at: usize| matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8]));
    let tags = (0..2).take_while(|n| is_tag(12 + 4 * n)).count();
    let start = 14 + 4 * tags;
    let Some(l3) = frame.get(start..) else {
        return Checked::Bad("shorter than Ethernet's header");
    };
    let parsed = match [frame[start - 2], frame[start - 1]] {
        [8, 0] => ipv4(l3),
        [0x86, 0xdd] => ipv6(l3),
        _ => return Checked::NotIp,
    };
    let macs = (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap());
    match parsed.and_then(|packet| transport(Packet { macs, ..packet })) {
        Ok(packet) => Checked::Good(packet),
        Err(why) => Checked::Bad(why),
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn ipv4(l3: &[u8]) -> Result<Packet<'_>, &'static str> {
    if l3.len() < 20 || l3[0] >> 4 != 4 {
        return Err("no IPv4 header");
    }
    let (header, total) = (usize::from(l3[0] & 15) * 4, usize::from(word(l3, 2)));
    if header < 20 || total < header || total > l3.len() {
        return Err("IPv4 lengths disagree");
    }
    if sum(&l3[..header], 0) != 0xffff {
        return Err("IPv4 checksum");
    }
    let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(l3[at], l3[at + 1], l3[at + 2], l3[at + 3]));
    Ok(Packet {
        macs: Default::default(),
        src: (ip(12), 0).into(),
        dst: (ip(16), 0).into(),
        proto: l3[9],
        ttl: l3[8],
        l3_len: total,
        l4: &l3[header..total],
        opaque: word(l3, 6) & 0x3fff != 0,
    })
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Headers between IPv6's and layer 4 that say in their second byte how long they are.
const STEPPED_OVER: [u8; 3] = [0, 43, 60];
const OPAQUE: [u8; 5] = [44, 51, 135, 139, 140];

/// Protocol and place of what follows IPv6's header and its extensions; whether it is opaque.
fn upper(l3: &[u8], total: usize) -> Result<(u8, usize, bool), &'static str> {
    let (mut proto, mut at) = (l3[6], 40);
    loop {
        let atomic = proto == 44 && at + 8 <= total && word(l3, at + 2) & !6 == 0;
        if !STEPPED_OVER.contains(&proto) && !atomic {
            return Ok((proto, at, OPAQUE.contains(&proto)));
        }
        let Some(header) = l3[..total].get(at..at + 8) else {
            return Err("an extension header is cut");
        };
        proto = header[0];
        at += if atomic { 8 } else { 8 * (usize::from(header[1]) + 1) };
        if at > total {
            return Err("an extension header reaches beyond the packet");
        }
    }
}

fn ipv6(l3: &[u8]) -> Result<Packet<'_>, &'static str> {
    if l3.len() < 40 || l3[0] >> 4 != 6 {
        return Err("no IPv6 header");
    }
    let total = 40 + usize::from(word(l3, 4));
    if total > l3.len() {
        return Err("IPv6 payload length beyond the frame");
    }
    let (proto, l4, opaque) = upper(l3, total)?;
    let ip =
        |at: usize| IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&l3[at..at + 16]).unwrap()));
    Ok(Packet {
        macs: Default::default(),
        src: (ip(8), 0).into(),
        dst: (ip(24), 0).into(),
        proto,
        ttl: l3[7],
        l3_len: total,
        l4: &l3[l4..total],
        opaque,
    })
}

fn transport(mut packet: Packet<'_>) -> Result<Packet<'_>, &'static str> {
    let l4 = packet.l4;
    if packet.proto == ICMP && packet.src.is_ipv4() && !packet.opaque && l4.len() >= 8 {
        return if sum(l4, 0) == 0xffff { Ok(packet) } else { Err("ICMP checksum") };
    }
    if packet.opaque || !matches!(packet.proto, TCP | UDP | ICMPV6) {
        return Ok(packet);
    }
    if packet.proto == ICMPV6 {
        let right = packet.src.is_ipv4() || sum(l4, pseudo(&packet, l4.len())) == 0xffff;
        return if right { Ok(packet) } else { Err("ICMPv6 checksum") };
    }
    let covered = if packet.proto == TCP {
        if l4.len() < 20 || l4[12] >> 4 < 5 || usize::from(l4[12] >> 4) * 4 > l4.len() {
            return Err("TCP lengths disagree");
        }
        l4
    } else {
        let udp_len = if l4.len() < 8 { 0 } else { usize::from(word(l4, 4)) };
        if udp_len < 8 || udp_len > l4.len() {
            return Err("UDP lengths disagree");
        }
        &l4[..udp_len]
    };
    packet.src.set_port(word(l4, 0));
    packet.dst.set_port(word(l4, 2));
    let unchecked = packet.proto == UDP && word(l4, 6) == 0;
    if !unchecked && sum(covered, pseudo(&packet, covered.len())) != 0xffff {
        return Err("layer-4 checksum");
    }
    Ok(packet)
}

fn pseudo(packet: &Packet<'_>, len: usize) -> u64 {
    let one = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => u64::from(sum(&v4.octets(), 0)),
        IpAddr::V6(v6) => u64::from(sum(&v6.octets(), 0)),
    };
    one(packet.src.ip()) + one(packet.dst.ip()) + u64::from(packet.proto) + len as u64
}

/// Makes the checksums of a frame right, wherever its lengths allow it.
pub fn mend(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [8, 0] {
        let end = 14 + usize::from(frame[14] & 15) * 4;
        if (34..=frame.len()).contains(&end) {
            frame[24..26].fill(0);
            let check = !sum(&frame[14..end], 0);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
    }
    let packet = match frame.get(14..).map(|l3| ([frame[12], frame[13]], l3)) {
        Some(([8, 0], l3)) => ipv4(l3),
        Some(([0x86, 0xdd], l3)) => ipv6(l3),
        _ => return,
    };
    let Ok(packet) = packet else { return };
    let (check_at, mut len) = match packet.proto {
        TCP => (16, packet.l4.len()),
        UDP if packet.l4.len() >= 8 => (6, usize::from(word(packet.l4, 4))),
        ICMPV6 => (2, packet.l4.len()),
        _ => return,
    };
    len = len.min(packet.l4.len());
    if packet.opaque || len < check_at + 2 {
        return;
    }
    let at = 14 + packet.l3_len - packet.l4.len();
    let pseudo = pseudo(&packet, len);
    frame[at + check_at..at + check_at + 2].fill(0);
    let check = match !sum(&frame[at..at + len], pseudo) {
        0 => 0xffff,
        check => check,
    };
    frame[at + check_at..at + check_at + 2].copy_from_slice(&check.to_be_bytes());
}

/// Checks that etherparse, which shares no code with us, reads and sums the frame alike.
/// TCP and UDP without options only.
pub fn agrees_with_etherparse(frame: &[u8]) {
    use etherparse::{SlicedPacket, TransportSlice};
    let packet = check(frame).good();
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let v4 = match sliced.net.as_ref().unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
            true
        }
        _ => false,
    };
    assert_eq!(packet.src.is_ipv4(), v4, "IP version");
    let (found, right) = match sliced.transport.as_ref().unwrap() {
        TransportSlice::Tcp(tcp) => {
            let right = match (packet.src.ip(), packet.dst.ip()) {
                (IpAddr::V4(s), IpAddr::V4(d)) => tcp.calc_checksum_ipv4(s.octets(), d.octets()),
                (IpAddr::V6(s), IpAddr::V6(d)) => tcp.calc_checksum_ipv6(s.octets(), d.octets()),
                _ => unreachable!(),
            };
            (tcp.checksum(), right.unwrap())
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            let data = udp.payload();
            let right = match (packet.src.ip(), packet.dst.ip()) {
                (IpAddr::V4(s), IpAddr::V4(d)) => {
                    header.calc_checksum_ipv4_raw(s.octets(), d.octets(), data)
                }
                (IpAddr::V6(s), IpAddr::V6(d)) => {
                    header.calc_checksum_ipv6_raw(s.octets(), d.octets(), data)
                }
                _ => unreachable!(),
            };
            let unchecked = header.checksum == 0;
            (header.checksum, if unchecked { 0 } else { right.unwrap() })
        }
        other => panic!("neither TCP nor UDP: {other:?}"),
    };
    assert_eq!(found, right, "layer-4 checksum");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::FAMILIES;
    use crate::frame::{Frame, flags};

    #[test]
    fn what_is_mended_is_in_order() {
        for family in FAMILIES {
            let src = SocketAddr::new(family.client(), 40000);
            let dst = SocketAddr::new(family.vip(), 80);
            for frame in [Frame::tcp(src, dst, flags::ACK).payload(b"odd"), Frame::udp(src, dst)] {
                let mut bytes = frame.bytes();
                bytes[14 + family.header_len() + 1] ^= 1;
                bytes[14 + family.header_len() - 1] ^= 1;
                assert!(!check(&bytes).is_good());
                mend(&mut bytes);
                check(&bytes).good();
            }
        }
    }

    #[test]
    fn every_damaged_byte_under_a_checksum_is_noticed() {
        for family in FAMILIES {
            let src = SocketAddr::new(family.client(), 40000);
            let dst = SocketAddr::new(family.vip(), 80);
            for frame in [
                Frame::tcp(src, dst, flags::ACK).payload(b"odd"),
                Frame::udp(src, dst).payload(b"four"),
            ] {
                let bytes = frame.bytes();
                agrees_with_etherparse(&bytes);
                // Of IPv6's own header, only what the pseudo-header repeats is summed.
                let summed = |at: usize| match at {
                    0..14 => false,
                    14..22 => family == crate::cast::Family::V4,
                    _ => true,
                };
                for at in (0..bytes.len()).filter(|at| summed(*at)) {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 0x10;
                    assert!(!check(&damaged).is_good(), "byte {at} of {frame:?}");
                }
            }
        }
    }
}
