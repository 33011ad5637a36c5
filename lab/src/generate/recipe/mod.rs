//! The recipe of packets.

pub(crate) mod template;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ringway_engine::stamp::Stamp;
use ringway_wire::protocol;
use ringway_wire::{
    BuildError, Builder, Ethernet, Icmp, Icmpv6, Ipv4, Ipv6, Mac, Tcp, Udp, Vlan, ethertype,
};

use super::addresses::{Addresses, Numbers};
use template::Template;

/// Bytes of a frame, without its checksum: from the shortest of Ethernet to what fits into one
/// frame of 4 096.
pub const SIZES: std::ops::RangeInclusive<u16> = 60..=3840;

/// Twelve frames of the simple Internet mix: seven short ones, four of 576 bytes of IP, one of
/// 1 500.
pub const IMIX: [u16; 12] = [60, 590, 60, 60, 590, 60, 60, 590, 60, 1514, 60, 590];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    #[default]
    Udp,
    /// The first segment of a connection, with data.
    TcpSyn,
    Icmp,
}

impl FromStr for Transport {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "udp" => Ok(Self::Udp),
            "tcp-syn" => Ok(Self::TcpSyn),
            "icmp" => Ok(Self::Icmp),
            _ => Err("write udp, tcp-syn or icmp"),
        }
    }
}

/// Packets alike but for their size, addresses, ports and [`Stamp`].
#[derive(Clone, Debug)]
pub struct Recipe {
    /// From which link-layer address.
    pub source_mac: Mac,
    pub destination_mac: Mac,
    /// Of a VLAN tag, if they have one: 1 to 4 094.
    pub vlan: Option<u16>,
    /// From which addresses, in turn.
    pub sources: Addresses,
    /// To which, of the same family.
    pub destinations: Addresses,
    pub transport: Transport,
    /// From which ports, in turn; not for [`Transport::Icmp`].
    pub source_ports: Numbers,
    pub destination_ports: Numbers,
    /// Bytes of a frame, without its checksum; they take turns.
    pub sizes: Vec<u16>,
}

/// Why there can be no such packets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// Addresses of two families.
    #[error(
        "packets cannot go from {from} to {to}: these are addresses of two families; give both as IPv4 or both as IPv6"
    )]
    Families { from: Addresses, to: Addresses },
    /// The headers and the stamp are longer.
    #[error(
        "frames of {size} bytes have no room for the headers and the stamp; ask for {least} bytes or more"
    )]
    TooShort { size: u16, least: u16 },
    /// No frame of the pool has so much room.
    #[error("frames of {size} bytes do not fit; ask for {most} bytes or less")]
    TooLong { size: u16, most: u16 },
    /// No size at all.
    #[error("no frame size is given; ask for one, in bytes")]
    NoSize,
    #[error("{0}")]
    Build(BuildError),
}

/// Most bytes of headers in front of the payload: Ethernet, a tag, IPv6, TCP.
const HEADERS: usize = 14 + 4 + 40 + 20;

impl Recipe {
    /// A frame for each size.
    ///
    /// # Errors
    /// [`RecipeError`].
    pub fn templates(&self) -> Result<Vec<Template>, RecipeError> {
        let families = (self.sources.first().is_ipv4(), self.destinations.first().is_ipv4());
        if families.0 != families.1 {
            return Err(RecipeError::Families { from: self.sources, to: self.destinations });
        }
        if self.sizes.is_empty() {
            return Err(RecipeError::NoSize);
        }
        self.sizes.iter().map(|size| self.template(*size)).collect()
    }

    /// Bytes of the shortest frame.
    pub fn least(&self) -> u16 {
        // At most 96.
        ((self.headers() + Stamp::BYTES) as u16).max(*SIZES.start())
    }

    pub(crate) fn headers(&self) -> usize {
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        let ip = if self.sources.first().is_ipv4() { 20 } else { 40 };
        let transport = if self.transport == Transport::TcpSyn { 20 } else { 8 };
        14 + tag + ip + transport
    }

    fn template(&self, size: u16) -> Result<Template, RecipeError> {
        let (least, most) = (self.least(), *SIZES.end());
        if size < least {
            return Err(RecipeError::TooShort { size, least });
        }
        if size > most {
            return Err(RecipeError::TooLong { size, most });
        }
        let mut buffer = vec![0; HEADERS + usize::from(size)];
        let range = self.build(&mut buffer, usize::from(size) - self.headers());
        let frame = buffer[range.map_err(RecipeError::Build)?].to_vec();
        let transport = self.headers() - if self.transport == Transport::TcpSyn { 20 } else { 8 };
        let ip = 14 + if self.vlan.is_some() { 4 } else { 0 };
        Ok(Template::new(frame, self.transport, ip, transport))
    }

    /// With a payload of zeroes, and the first of all addresses and ports.
    fn build(
        &self,
        buffer: &mut [u8],
        payload: usize,
    ) -> Result<std::ops::Range<usize>, BuildError> {
        let mut built = Builder::new(buffer, HEADERS)?;
        built.space(payload)?;
        let ethertype = match (self.sources.first(), self.destinations.first()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.v4(&mut built, from, to)?,
            // Of one family, as was checked.
            (from, to) => self.v6(&mut built, mapped(from), mapped(to))?,
        };
        let outer = match self.vlan {
            Some(id) => {
                built.put(&Vlan::new(id, ethertype))?;
                ethertype::VLAN
            }
            None => ethertype,
        };
        built.ethernet(Ethernet::new(self.destination_mac, self.source_mac, outer))?;
        Ok(built.range())
    }

    fn v4(&self, built: &mut Builder<'_>, from: Ipv4Addr, to: Ipv4Addr) -> Result<u16, BuildError> {
        let number = match self.transport {
            Transport::Udp => protocol::UDP,
            Transport::TcpSyn => protocol::TCP,
            Transport::Icmp => protocol::ICMP,
        };
        let ip = Ipv4::new(number, from, to);
        match self.transport {
            Transport::Udp => built.udp(self.udp(), Some(ip.pseudo()))?,
            Transport::TcpSyn => built.tcp(self.tcp(), &[], ip.pseudo())?,
            Transport::Icmp => built.icmp(Icmp::echo_request(0, 0))?,
        };
        built.ipv4(ip, &[])?;
        Ok(ethertype::IPV4)
    }

    fn v6(&self, built: &mut Builder<'_>, from: Ipv6Addr, to: Ipv6Addr) -> Result<u16, BuildError> {
        let number = match self.transport {
            Transport::Udp => protocol::UDP,
            Transport::TcpSyn => protocol::TCP,
            Transport::Icmp => protocol::ICMPV6,
        };
        let ip = Ipv6::new(number, from, to);
        match self.transport {
            Transport::Udp => built.udp(self.udp(), Some(ip.pseudo()))?,
            Transport::TcpSyn => built.tcp(self.tcp(), &[], ip.pseudo())?,
            Transport::Icmp => built.icmpv6(Icmpv6::echo_request(0, 0), ip.pseudo())?,
        };
        built.ipv6(ip)?;
        Ok(ethertype::IPV6)
    }

    fn udp(&self) -> Udp {
        Udp::new(self.source_ports.first(), self.destination_ports.first())
    }

    fn tcp(&self) -> Tcp {
        Tcp::new(self.source_ports.first(), self.destination_ports.first(), Tcp::SYN)
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Udp => "udp",
            Self::TcpSyn => "tcp-syn",
            Self::Icmp => "icmp",
        })
    }
}
