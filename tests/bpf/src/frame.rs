//! Builds frames byte by byte from the RFCs, checksums computed over the whole.

use std::net::{IpAddr, SocketAddr};

use crate::cast::{BROADCAST_MAC, CLIENT_MAC, FRONT_MAC, Family, Mac};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

pub mod flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// An IP packet in an Ethernet frame. Change what you like, then [`Frame::bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub src_mac: Mac,
    pub dst_mac: Mac,
    /// VLAN tags, outermost first: ethertype and tag.
    pub vlans: Vec<(u16, u16)>,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// IP protocol; ports are written for TCP and UDP only.
    pub proto: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 identification, or the lower half of the IPv6 flow label.
    pub id: u16,
    /// IPv4 options, a multiple of 4 bytes; for IPv6 a chain of extension headers, whose first
    /// is of type `first_extension`.
    pub options: Vec<u8>,
    pub first_extension: u8,
    /// IPv4 flags and offset as on the wire, in units of 8 bytes.
    pub fragment: u16,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    /// TCP options, a multiple of 4 bytes.
    pub tcp_options: Vec<u8>,
    /// After the layer-4 header; of other protocols, all of layer 4.
    pub payload: Vec<u8>,
    pub no_checksum: bool,
    /// Ethernet padding: zeros after the packet.
    pub padding: usize,
}

impl Frame {
    /// From a client to the front interface.
    pub fn new(proto: u8, src: SocketAddr, dst: SocketAddr) -> Self {
        Self {
            src_mac: CLIENT_MAC,
            dst_mac: FRONT_MAC,
            vlans: Vec::new(),
            src,
            dst,
            proto,
            ttl: 61,
            tos: 0,
            id: 0x1234,
            options: Vec::new(),
            first_extension: 0,
            fragment: 0x4000,
            flags: 0,
            seq: 0x1000_0000,
            ack: 0,
            window: 0xfaf0,
            tcp_options: Vec::new(),
            payload: Vec::new(),
            no_checksum: false,
            padding: 0,
        }
    }

    pub fn tcp(src: SocketAddr, dst: SocketAddr, tcp_flags: u8) -> Self {
        let ack = if tcp_flags & flags::ACK != 0 { 0x2000_0000 } else { 0 };
        Self { flags: tcp_flags, ack, ..Self::new(TCP, src, dst) }
    }

    /// A UDP datagram with something in it.
    pub fn udp(src: SocketAddr, dst: SocketAddr) -> Self {
        Self::new(UDP, src, dst).payload(b"question")
    }

    /// With this after the layer-4 header.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Behind IPv6 extension headers of these types, 8 bytes each, that say nothing: no segments
    /// left (43, RFC 8200 section 4.4), an atomic fragment (44, RFC 6946), padding.
    pub fn extended(self, types: &[u8]) -> Self {
        let next = types.iter().skip(1).chain([&self.proto]);
        let header = |(kind, next): (&u8, &u8)| match kind {
            43 => [*next, 0, 0, 0, 0, 0, 0, 0],
            44 => [*next, 0, 0, 0, 0, 0, 0, 7],
            _ => [*next, 0, 1, 4, 0, 0, 0, 0],
        };
        let options = types.iter().zip(next).flat_map(header).collect();
        Self { first_extension: types[0], options, ..self }
    }

    pub fn family(&self) -> Family {
        Family::of(self.dst.ip())
    }

    /// The packet without its frame: from the IP header on, without padding.
    pub fn l3(&self) -> Vec<u8> {
        let bytes = self.bytes();
        bytes[14 + 4 * self.vlans.len()..bytes.len() - self.padding].to_vec()
    }

    /// The frame on the wire, without FCS.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1600);
        out.extend(self.dst_mac);
        out.extend(self.src_mac);
        for (ethertype, tag) in &self.vlans {
            out.extend(ethertype.to_be_bytes());
            out.extend(tag.to_be_bytes());
        }
        let l4 = self.l4();
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out.extend([8, 0]);
                out.extend(self.ipv4(src.octets(), dst.octets(), l4.len()));
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                out.extend([0x86, 0xdd]);
                out.extend(self.ipv6(src.octets(), dst.octets(), l4.len()));
            }
            _ => panic!("source and destination of two families"),
        }
        out.extend(l4);
        out.resize(out.len() + self.padding, 0);
        out
    }

    // RFC 791 section 3.1
    fn ipv4(&self, src: [u8; 4], dst: [u8; 4], l4_len: usize) -> Vec<u8> {
        let header = 20 + self.options.len();
        let mut ip = vec![0x40 | (header / 4) as u8, self.tos];
        ip.extend(((header + l4_len) as u16).to_be_bytes());
        ip.extend(self.id.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, self.proto, 0, 0]);
        ip.extend(src);
        ip.extend(dst);
        ip.extend(&self.options);
        sum_ipv4(&mut ip);
        ip
    }

    // RFC 8200 section 3
    fn ipv6(&self, src: [u8; 16], dst: [u8; 16], l4_len: usize) -> Vec<u8> {
        let word = 0x6000_0000 | u32::from(self.tos) << 20 | u32::from(self.id);
        let mut ip = word.to_be_bytes().to_vec();
        ip.extend(((self.options.len() + l4_len) as u16).to_be_bytes());
        let next = if self.options.is_empty() { self.proto } else { self.first_extension };
        ip.extend([next, self.ttl]);
        ip.extend(src);
        ip.extend(dst);
        ip.extend(&self.options);
        ip
    }

    fn l4(&self) -> Vec<u8> {
        let mut l4 = Vec::new();
        let check_at = match self.proto {
            TCP => {
                // RFC 9293 section 3.1
                l4.extend(self.src.port().to_be_bytes());
                l4.extend(self.dst.port().to_be_bytes());
                l4.extend(self.seq.to_be_bytes());
                l4.extend(self.ack.to_be_bytes());
                l4.extend([((20 + self.tcp_options.len()) as u8 / 4) << 4, self.flags]);
                l4.extend(self.window.to_be_bytes());
                l4.extend([0; 4]);
                l4.extend(&self.tcp_options);
                16
            }
            UDP => {
                // RFC 768
                l4.extend(self.src.port().to_be_bytes());
                l4.extend(self.dst.port().to_be_bytes());
                l4.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                l4.extend([0; 2]);
                6
            }
            58 if self.payload.len() >= 4 => 2,
            1 if self.payload.len() >= 4 => 2,
            _ => usize::MAX,
        };
        l4.extend(&self.payload);
        if check_at != usize::MAX && !self.no_checksum {
            l4[check_at..check_at + 2].fill(0);
            // RFC 792: ICMP for IPv4 has no pseudo-header.
            let pseudo = if self.proto == 1 { 0 } else { self.pseudo(l4.len()) };
            let check = match !sum(&l4, pseudo) {
                0 if self.proto == UDP => 0xffff,
                check => check,
            };
            l4[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
        }
        l4
    }

    /// The checksum field of a sender with checksum offload: the pseudo-header's sum.
    pub fn pseudo_sum(&self) -> u16 {
        sum(&[], self.pseudo(self.l4().len()))
    }

    fn pseudo(&self, l4_len: usize) -> u64 {
        let addresses = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => u64::from(sum(&v4.octets(), 0)),
            IpAddr::V6(v6) => u64::from(sum(&v6.octets(), 0)),
        };
        addresses(self.src.ip()) + addresses(self.dst.ip()) + u64::from(self.proto) + l4_len as u64
    }
}

/// A frame without options or extensions as fragments of `size` bytes of layer 4, a multiple of 8;
/// the last is as long as it is.
pub fn fragments(frame: &[u8], size: usize, id: u32) -> Vec<Vec<u8>> {
    let v4 = frame[14] >> 4 == 4;
    let (head, l4) = frame.split_at(if v4 { 34 } else { 54 });
    let count = l4.len().div_ceil(size);
    let fragment = |(n, part): (usize, &[u8])| {
        let more = n + 1 < count;
        let mut out = head.to_vec();
        if v4 {
            // RFC 791 section 3.1
            out[16..18].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            out[18..20].copy_from_slice(&(id as u16).to_be_bytes());
            let offset = (n * size / 8) as u16 | if more { 0x2000 } else { 0 };
            out[20..22].copy_from_slice(&offset.to_be_bytes());
            sum_ipv4(&mut out[14..]);
        } else {
            // RFC 8200 section 4.5
            out[18..20].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            let next = std::mem::replace(&mut out[20], 44);
            out.extend([next, 0]);
            out.extend(((n * size) as u16 | u16::from(more)).to_be_bytes());
            out.extend(id.to_be_bytes());
        }
        out.extend(part);
        out
    };
    l4.chunks(size).enumerate().map(fragment).collect()
}

/// A packet in IP (RFC 2003, RFC 2473), or in UDP by GUE's variant 1, without a checksum as Linux
/// and others send it.
pub fn tunnel(gue: bool, src: SocketAddr, dst: SocketAddr, inner: &Frame) -> Frame {
    let proto = if gue { UDP } else { inner.family().in_ip() };
    Frame::new(proto, src, dst).payload(&inner.l3()).with(|f| f.no_checksum = true)
}

/// Reassembles fragments that came in order, as a host does: the frame as if it had never been cut.
pub fn reassemble(parts: &[Vec<u8>]) -> Vec<u8> {
    let v4 = parts[0][14] >> 4 == 4;
    let mut out = parts[0][..if v4 { 34 } else { 54 }].to_vec();
    for part in parts {
        let offset = if v4 {
            8 * (usize::from(u16::from_be_bytes([part[20], part[21]])) & 0x1fff)
        } else {
            usize::from(u16::from_be_bytes([part[56], part[57]])) & 0xfff8
        };
        assert_eq!(out.len() - if v4 { 34 } else { 54 }, offset, "fragments in order");
        out.extend(&part[if v4 { 34 } else { 62 }..]);
    }
    let len = out.len() - 14;
    if v4 {
        out[16..18].copy_from_slice(&(len as u16).to_be_bytes());
        out[20..22].fill(0);
        sum_ipv4(&mut out[14..]);
    } else {
        out[18..20].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        out[20] = parts[0][54];
    }
    out
}

/// RFC 1071: one's complement sum of big-endian 16-bit words, an odd byte padded with zero.
pub fn sum(bytes: &[u8], initial: u64) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u64::from);
    let mut total = bytes.chunks(2).map(word).sum::<u64>() + initial;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Writes the checksum of an IPv4 header anew, which this begins with.
pub fn sum_ipv4(packet: &mut [u8]) {
    let header = 4 * usize::from(packet[0] & 15);
    packet[10..12].fill(0);
    let check = !sum(&packet[..header], 0);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
}

/// An ARP packet for IPv4 over Ethernet (RFC 826), padded to Ethernet's minimum.
#[derive(Clone, Debug)]
pub struct Arp {
    pub dst_mac: Mac,
    pub src_mac: Mac,
    pub op: u16,
    pub sender: (Mac, IpAddr),
    pub target: (Mac, IpAddr),
}

impl Arp {
    /// A client's question to everyone.
    pub fn who_has(address: IpAddr) -> Self {
        Self {
            dst_mac: BROADCAST_MAC,
            src_mac: CLIENT_MAC,
            op: 1,
            sender: (CLIENT_MAC, Family::V4.client()),
            target: ([0; 6], address),
        }
    }

    /// The frame on the wire, without FCS.
    pub fn bytes(&self) -> Vec<u8> {
        let v4 = |ip| match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(_) => panic!("ARP is for IPv4"),
        };
        let mut out = Vec::new();
        out.extend(self.dst_mac);
        out.extend(self.src_mac);
        out.extend([8, 6, 0, 1, 8, 0, 6, 4]);
        out.extend(self.op.to_be_bytes());
        out.extend(self.sender.0);
        out.extend(v4(self.sender.1));
        out.extend(self.target.0);
        out.extend(v4(self.target.1));
        out.resize(60, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn the_sum_is_that_of_rfc_1071() {
        // The example of section 3.
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
        assert_eq!(sum(&[0x01], 0), 0x0100);
    }
}
