//! Frames read into the values of `packets.rs`; every checksum on the way must be right.

use ringway_wire::gue;
use ringway_wire::protocol;
use ringway_wire::{
    Arp, Extensions, Frame, Gre, Gue, Header as _, Icmp, Icmpv6, Ip, IpHeader, Ipv4, Malformed,
    Tcp, U16, Udp, UdpChecksum, View, Vxlan, ethertype,
};

use crate::packets::{Body, Carries, Head, Link, Packet};

pub fn link(bytes: &[u8]) -> Result<Link, Malformed> {
    let frame = Frame::parse(bytes)?;
    let body = match frame.ethertype {
        ethertype::ARP => Body::Arp(*Arp::parse(frame.payload)?.header),
        ethertype::IPV4 | ethertype::IPV6 => Body::Ip(packet(frame.payload)?),
        other => panic!("nobody built {other:#x}"),
    };
    Ok(Link {
        destination: frame.ethernet.destination,
        source: frame.ethernet.source,
        tags: frame.tags.iter().flatten().map(|tag| **tag).collect(),
        body,
    })
}

fn packet(bytes: &[u8]) -> Result<Packet, Malformed> {
    let ip = Ip::parse(bytes)?;
    let carries = match (ip.protocol, ip.fragment) {
        (protocol, Some(_)) => Carries::Bytes(protocol, ip.payload.to_vec()),
        (protocol::UDP, _) => udp(&ip)?,
        (protocol::TCP, _) => tcp(&ip)?,
        (protocol::ICMP, _) => {
            let icmp = Icmp::parse(ip.payload)?;
            assert!(icmp.checksum_is_right());
            let header = Icmp { checksum: U16::ZERO, ..*icmp.header };
            Carries::Icmp(header, icmp.payload.to_vec())
        }
        (protocol::ICMPV6, _) => {
            let icmp = Icmpv6::parse(ip.payload)?;
            assert!(icmp.checksum_is_right(ip.pseudo()));
            let header = Icmpv6 { checksum: U16::ZERO, ..*icmp.header };
            Carries::Icmpv6(header, icmp.payload.to_vec())
        }
        (protocol::IPV4 | protocol::IPV6, _) => Carries::Ip(Box::new(packet(ip.payload)?)),
        (protocol::GRE, _) => {
            let gre = Gre::parse(ip.payload)?;
            Carries::Gre(*gre.header, gre.options.to_vec(), Box::new(packet(gre.payload)?))
        }
        (protocol, _) => Carries::Bytes(protocol, ip.payload.to_vec()),
    };
    Ok(Packet { head: head(&ip, bytes)?, carries })
}

fn head(ip: &Ip<&[u8]>, bytes: &[u8]) -> Result<Head, Malformed> {
    Ok(match &ip.header {
        IpHeader::V4(header) => {
            assert!(Ipv4::parse(bytes)?.checksum_is_right());
            let zero = U16::ZERO;
            let header = Ipv4 { version_ihl: 0x45, total_length: zero, checksum: zero, ..**header };
            Head::V4(header, ip.between.to_vec())
        }
        IpHeader::V6(header) => {
            let mut extensions = Vec::new();
            for extension in Extensions::new(header.next_header, ip.between) {
                let extension = extension?;
                extensions.push((extension.kind, extension.bytes[2..].to_vec()));
            }
            let mut header = **header;
            header.payload_length = U16::ZERO;
            Head::V6(header, extensions)
        }
    })
}

fn udp(ip: &Ip<&[u8]>) -> Result<Carries, Malformed> {
    let udp = Udp::parse(ip.payload)?;
    let verdict = udp.verify(ip.pseudo());
    let port = udp.header.source.get();
    let header = Udp { length: U16::ZERO, checksum: U16::ZERO, ..*udp.header };
    Ok(match (udp.header.destination.get(), verdict) {
        (_, UdpChecksum::Wrong) => panic!("wrong checksum"),
        (_, UdpChecksum::None) => Carries::BareUdp(header, udp.payload.to_vec()),
        (Vxlan::PORT, _) => {
            let vxlan = Vxlan::parse(udp.payload)?;
            Carries::Vxlan(port, *vxlan.header, Box::new(link(vxlan.payload)?))
        }
        (Gue::PORT, _) => match Gue::open(udp.payload)? {
            gue::Opened::Ip(inner) => Carries::GueDirect(port, Box::new(packet(inner)?)),
            gue::Opened::Header(View { header, options, payload }) => {
                Carries::Gue(port, *header, options.to_vec(), Box::new(packet(payload)?))
            }
        },
        _ => Carries::Udp(header, udp.payload.to_vec()),
    })
}

fn tcp(ip: &Ip<&[u8]>) -> Result<Carries, Malformed> {
    let tcp = Tcp::parse(ip.payload)?;
    assert!(tcp.checksum_is_right(ip.pseudo()));
    let mut header = Tcp { checksum: U16::ZERO, ..*tcp.header };
    header.offset_flags = Tcp::new(0, 0, header.flags()).offset_flags;
    Ok(Carries::Tcp(header, tcp.options.to_vec(), tcp.payload.to_vec()))
}
