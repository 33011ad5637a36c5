//! Frames as values: what is built, and what is to be read again. Lengths and checksums, which the
//! builder fills in, are zero here.

use ringway_wire::protocol;
use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Gre, Gue, Icmp, Icmpv6, Ipv4, Ipv6, Mac, Tcp, U16, Udp,
    Vlan, Vxlan, ethertype,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    pub destination: Mac,
    pub source: Mac,
    /// Outermost first; their EtherTypes are what follows.
    pub tags: Vec<Vlan>,
    pub body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Arp(Arp),
    Ip(Packet),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub head: Head,
    pub carries: Carries,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Head {
    V4(Ipv4, Vec<u8>),
    /// With its extensions: kind and all bytes but the first two.
    V6(Ipv6, Vec<(u8, Vec<u8>)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Carries {
    /// Of a later fragment, or no protocol that has a type.
    Bytes(u8, Vec<u8>),
    Udp(Udp, Vec<u8>),
    /// Without a checksum.
    BareUdp(Udp, Vec<u8>),
    Tcp(Tcp, Vec<u8>, Vec<u8>),
    Icmp(Icmp, Vec<u8>),
    Icmpv6(Icmpv6, Vec<u8>),
    Ip(Box<Packet>),
    Gre(Gre, Vec<u8>, Box<Packet>),
    Vxlan(u16, Vxlan, Box<Link>),
    Gue(u16, Gue, Vec<u8>, Box<Packet>),
    GueDirect(u16, Box<Packet>),
}

/// More than any of these frames needs in front of its innermost payload.
const HEADROOM: usize = 1024;

impl Link {
    pub fn build(&self) -> Vec<u8> {
        let mut buffer = vec![0xa5; HEADROOM + 2048];
        let mut packet = Builder::new(&mut buffer, HEADROOM).unwrap();
        self.put(&mut packet).unwrap();
        packet.packet().to_vec()
    }

    fn put(&self, packet: &mut Builder<'_>) -> Result<(), BuildError> {
        match &self.body {
            Body::Arp(arp) => drop(packet.put(arp)?),
            Body::Ip(ip) => ip.put(packet)?,
        }
        for tag in self.tags.iter().rev() {
            packet.put(tag)?;
        }
        let first = match self.tags.len() {
            0 => self.ethertype(),
            1 => ethertype::VLAN,
            _ => ethertype::PROVIDER_VLAN,
        };
        packet.ethernet(Ethernet::new(self.destination, self.source, first)).map(drop)
    }

    /// Of what headers and tags carry.
    pub fn ethertype(&self) -> u16 {
        match &self.body {
            Body::Arp(_) => ethertype::ARP,
            Body::Ip(ip) => ip.ethertype(),
        }
    }
}

impl Packet {
    pub fn ethertype(&self) -> u16 {
        match self.head {
            Head::V4(..) => ethertype::IPV4,
            Head::V6(..) => ethertype::IPV6,
        }
    }

    fn put(&self, packet: &mut Builder<'_>) -> Result<(), BuildError> {
        let pseudo = match &self.head {
            Head::V4(ip, _) => ip.pseudo(),
            Head::V6(ip, _) => ip.pseudo(),
        };
        match &self.carries {
            Carries::Bytes(_, bytes) => packet.append(&**bytes)?,
            Carries::Udp(udp, payload) => packet.append(&**payload)?.udp(*udp, Some(pseudo))?,
            Carries::BareUdp(udp, payload) => packet.append(&**payload)?.udp(*udp, None)?,
            Carries::Tcp(tcp, options, payload) => {
                packet.append(&**payload)?.tcp(*tcp, options, pseudo)?
            }
            Carries::Icmp(icmp, payload) => packet.append(&**payload)?.icmp(*icmp)?,
            Carries::Icmpv6(icmp, payload) => packet.append(&**payload)?.icmpv6(*icmp, pseudo)?,
            Carries::Ip(inner) => {
                inner.put(packet)?;
                &mut *packet
            }
            Carries::Gre(gre, fields, inner) => {
                inner.put(packet)?;
                packet.put(&**fields)?.put(gre)?
            }
            Carries::Vxlan(port, vxlan, inner) => {
                inner.put(packet)?;
                packet.put(vxlan)?.udp(Udp::new(*port, Vxlan::PORT), Some(pseudo))?
            }
            Carries::Gue(port, gue, fields, inner) => {
                inner.put(packet)?;
                packet.put(&**fields)?.put(gue)?.udp(Udp::new(*port, Gue::PORT), Some(pseudo))?
            }
            Carries::GueDirect(port, inner) => {
                inner.put(packet)?;
                packet.udp(Udp::new(*port, Gue::PORT), Some(pseudo))?
            }
        };
        match &self.head {
            Head::V4(ip, options) => packet.ipv4(*ip, options)?,
            Head::V6(ip, extensions) => {
                let mut next = self.protocol();
                for (kind, body) in extensions.iter().rev() {
                    match *kind {
                        // One byte is reserved where others have their length.
                        protocol::FRAGMENT => packet.put(&**body)?.put(&[next, 0])?,
                        _ => packet.extension(next, body)?,
                    };
                    next = *kind;
                }
                packet.ipv6(*ip)?
            }
        };
        Ok(())
    }

    /// Of what it carries.
    pub fn protocol(&self) -> u8 {
        match &self.carries {
            Carries::Bytes(protocol, _) => *protocol,
            Carries::Udp(..)
            | Carries::BareUdp(..)
            | Carries::Vxlan(..)
            | Carries::Gue(..)
            | Carries::GueDirect(..) => protocol::UDP,
            Carries::Tcp(..) => protocol::TCP,
            Carries::Icmp(..) => protocol::ICMP,
            Carries::Icmpv6(..) => protocol::ICMPV6,
            Carries::Gre(..) => protocol::GRE,
            Carries::Ip(inner) => inner.number(),
        }
    }

    /// The protocol number of IP in IP.
    pub fn number(&self) -> u8 {
        match self.head {
            Head::V4(..) => protocol::IPV4,
            Head::V6(..) => protocol::IPV6,
        }
    }

    /// As a generator makes it: the header says what follows, a tunnel's inner packet too.
    pub fn settled(mut self) -> Self {
        let protocol = self.protocol();
        match &mut self.head {
            Head::V4(ip, _) => ip.protocol = protocol,
            Head::V6(ip, extensions) => {
                ip.next_header = extensions.first().map_or(protocol, |(kind, _)| *kind);
            }
        }
        match &mut self.carries {
            Carries::Gre(gre, _, inner) => gre.ethertype = U16::new(inner.ethertype()),
            Carries::Gue(_, gue, _, inner) => gue.protocol = inner.number(),
            _ => (),
        }
        self
    }
}
