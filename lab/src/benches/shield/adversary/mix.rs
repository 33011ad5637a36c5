//! What an adversary sends: a mix of kinds of packets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;

use super::frame::{Frame, Layer4, Shape};
use super::random::Random;
use crate::benches::packet::path::{Clients, Ip, frame::service};
use crate::harness::named_enum::named;

/// Kinds in a mix, at most.
const KINDS: usize = 4;
const WEIGHTS: usize = 8;
/// Of the packets of those who know flows or clients, one in so many is in the name of one: far less
/// than the rate of each.
const FORGED: u64 = 32;

/// Where nobody listens.
const CLOSED: u16 = 9;
pub(super) const WEB: u16 = 80;
pub(super) const STREAM: u16 = 7000;

named! {
    /// Where packets seem to come from.
    pub enum Sources {
        /// One address.
        One = "one",
        Few = "16",
        /// Hosts of one /24 or /64.
        OneNetwork = "one-network",
        Anywhere = "anywhere",
        /// In a prefix of the block list.
        Listed = "listed",
        /// The address or network beside one.
        BesideListed = "beside-listed",
        /// Addresses with established flows; ports are guessed.
        Clients = "clients",
        /// Some of them of established flows.
        Flows = "flows",
        /// Some of them learnt.
        Learnt = "learnt",
    }
}

named! {
    pub enum To {
        Service = "service",
        ClosedPort = "closed-port",
    }
}

/// The good ones, whom the adversary may know.
pub(super) struct Known {
    /// By what their clients send.
    pub(super) established: Vec<(Layer4, SocketAddr)>,
    pub(super) learnt: Vec<IpAddr>,
    /// Sources that are in the block list.
    pub(super) listed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kind {
    weight: usize,
    ip: Ip,
    layer4: Layer4,
    shape: Shape,
    sources: Sources,
    to: To,
    /// Bytes behind the header of layer 4.
    payload: u16,
}

const PAYLOADS: [u16; 3] = [0, 100, 1200];

impl Kind {
    fn random(random: &mut Random) -> Self {
        Self {
            weight: 1 + random.below(WEIGHTS),
            ip: random.one_of(&Ip::ALL),
            layer4: random.one_of(&Layer4::ALL),
            shape: random.one_of(&Shape::ALL),
            sources: random.one_of(&Sources::ALL),
            to: random.one_of(&To::ALL),
            payload: random.one_of(&PAYLOADS),
        }
    }

    /// The same with one gene of another.
    fn mutated(self, random: &mut Random) -> Self {
        let other = Self::random(random);
        match random.below(7) {
            0 => Self { weight: other.weight, ..self },
            1 => Self { ip: other.ip, ..self },
            2 => Self { layer4: other.layer4, ..self },
            3 => Self { shape: other.shape, ..self },
            4 => Self { sources: other.sources, ..self },
            5 => Self { to: other.to, ..self },
            _ => Self { payload: other.payload, ..self },
        }
    }

    fn packet(&self, known: &Known, random: &mut Random) -> Frame {
        let from = self.source(known, random);
        let port = match (self.to, self.layer4.is_udp()) {
            (To::ClosedPort, _) => CLOSED,
            (To::Service, true) => STREAM,
            (To::Service, false) => WEB,
        };
        let to = (service(self.ip), port).into();
        let made = Frame::new(self.layer4, self.shape, from.0, to, self.payload.into());
        if from.1 { made } else { Frame { port_and_check: None, ..made } }
    }

    /// And whether the port may be another in each cycle.
    fn source(&self, known: &Known, random: &mut Random) -> (SocketAddr, bool) {
        let number = random.next();
        let port = 1024 + (number >> 48) as u16 % 60_000;
        let of_family = |address: &IpAddr| address.is_ipv4() == (self.ip == Ip::V4);
        let clients = if self.ip == Ip::V4 { Clients::OneNetwork } else { Clients::Networks };
        let flows = known.established.iter().map(|(_, flow)| *flow);
        let listed = clients.address(self.ip, number as u32 % known.listed);
        let address = match self.sources {
            Sources::One => host(self.ip, 1),
            Sources::Few => host(self.ip, number % 16),
            Sources::OneNetwork => host(self.ip, number),
            Sources::Listed => listed,
            Sources::BesideListed => match listed {
                IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() ^ 1).into(),
                IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() ^ 1 << 80).into(),
            },
            Sources::Flows if number.is_multiple_of(FORGED) => {
                let own = flows.filter(|flow| flow.is_ipv4() == (self.ip == Ip::V4));
                let own: Vec<SocketAddr> = own.collect();
                return (random.one_of(&own), false);
            }
            Sources::Clients => {
                let own = flows.map(|flow| flow.ip()).filter(of_family);
                own.clone().nth(random.below(own.count())).unwrap_or(listed)
            }
            Sources::Learnt if number.is_multiple_of(FORGED) => {
                let own = known.learnt.iter().filter(|one| of_family(one));
                own.clone().nth(random.below(own.count())).copied().unwrap_or(listed)
            }
            Sources::Anywhere | Sources::Flows | Sources::Learnt => anywhere(self.ip, number),
        };
        ((address, port).into(), true)
    }
}

/// One of 256 IPv4 hosts or of 2^32 IPv6 hosts of a network.
fn host(ip: Ip, number: u64) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::new(198, 51, 100, number as u8).into(),
        Ip::V6 => Ipv6Addr::from_bits(0x2001_0db8_6666 << 80 | u128::from(number as u32)).into(),
    }
}

fn anywhere(ip: Ip, number: u64) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::from_bits(number as u32).into(),
        Ip::V6 => Ipv6Addr::from_bits(0x2 << 124 | u128::from(number >> 4) << 64 | 1).into(),
    }
}

/// Kinds of packets, with their shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Mix(Vec<Kind>);

impl Mix {
    /// The worst that the search has met, each in another way.
    #[cfg(test)]
    pub(super) fn worst() -> [Self; 3] {
        use Ip::{V4, V6};
        use Shape::{Options, Plain, SourceRoute};
        use Sources::{BesideListed, Clients};
        let syns = |sources, kinds: &[(usize, Ip, Shape)]| {
            let kind = |&(weight, ip, shape)| Kind {
                weight,
                ip,
                layer4: Layer4::Syn,
                shape,
                sources,
                to: To::Service,
                payload: 1200,
            };
            Self(kinds.iter().map(kind).collect())
        };
        [
            syns(BesideListed, &[(5, V6, Options), (3, V4, Options)]),
            syns(Clients, &[(2, V4, Options), (1, V6, Plain)]),
            syns(BesideListed, &[(1, V6, Options), (1, V4, Options), (1, V6, SourceRoute)]),
        ]
    }

    pub(super) fn random(random: &mut Random) -> Self {
        Self((0..=random.below(KINDS)).map(|_| Kind::random(random)).collect())
    }

    /// A child of two.
    pub(super) fn child(&self, other: &Self, random: &mut Random) -> Self {
        let mut kinds = self.0.clone();
        let place = random.below(kinds.len());
        match random.below(6) {
            0 if kinds.len() < KINDS => kinds.push(random.one_of(&other.0)),
            1 if kinds.len() > 1 => _ = kinds.remove(place),
            2 => kinds[place] = random.one_of(&other.0),
            _ => kinds[place] = kinds[place].mutated(random),
        }
        Self(kinds)
    }

    /// Packets in random order.
    pub(super) fn packets(&self, count: u32, known: &Known, random: &mut Random) -> Vec<Frame> {
        let places: Vec<&Kind> = self.0.iter().flat_map(|kind| vec![kind; kind.weight]).collect();
        (0..count).map(|_| random.one_of(&places).packet(known, random)).collect()
    }

    /// Of most packets: mixes with another one are others in kind, and not in shares alone.
    pub(super) fn main_kind(&self) -> Option<(Layer4, Shape, Sources)> {
        let main = self.0.iter().max_by_key(|kind| kind.weight)?;
        Some((main.layer4, main.shape, main.sources))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: usize = self.0.iter().map(|kind| kind.weight).sum();
        for (n, kind) in self.0.iter().enumerate() {
            let Kind { weight, ip, layer4, shape, sources, to, payload } = kind;
            let (comma, share) = (if n == 0 { "" } else { "; " }, 100 * weight / all.max(1));
            write!(f, "{comma}{share} % IPv{} {layer4}", ip.number())?;
            write!(f, " {shape}, from {sources}, to {to}, {payload} bytes")?;
        }
        Ok(())
    }
}
