//! A packet in words: `tcp 192.0.2.7:4711 > 203.0.113.10:80`, and the frame that is meant by it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ringway_api::error::Error;
use ringway_host::Mac;
use ringway_wire::{
    BuildError, Builder, Ethernet, Icmp, Icmpv6, Ipv4, Ipv6, Pseudo, Tcp, U16, U32, Udp, Vlan,
    ethertype, protocol,
};

use crate::headers::{FLAGS, Headers, Transport, flag_names};

const EXAMPLES: &str = "write 'tcp 192.0.2.7:4711 > 203.0.113.10:80', \
    'udp [2001:db8::7]:4711 > [2001:db8:a::10]:53' or 'icmp 192.0.2.7 > 203.0.113.10', in quotes";

/// Room for all headers: Ethernet, two tags, IPv6, TCP with its options.
const HEADROOM: usize = 128;

/// What a SYN of Linux carries: MSS 1460, SACK permitted, timestamps, window scale 7 (RFC 9293, 2018,
/// 7323).
const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
const SYN: u8 = 0x02;

/// TCP, UDP, or an ICMP echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    /// ICMP or ICMPv6: an echo request. Its ports mean nothing.
    Icmp,
}

/// Source, destination and protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub protocol: Protocol,
    pub source: SocketAddr,
    /// To whom, of the same family.
    pub destination: SocketAddr,
}

/// Properties of a packet that a tuple lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// TCP flags: byte 13 of its header.
    pub tcp_flags: u8,
    /// Bytes of the IP packet; `None`: headers alone. A SYN has options where there is room.
    pub bytes: Option<u16>,
    /// Hops it may still take.
    pub ttl: u8,
    pub source_mac: Mac,
    pub destination_mac: Mac,
    /// VLAN ids of its tags, outer first.
    pub vlans: Vec<(u16, u16)>,
    /// The device has no Ethernet header: neither has the frame.
    pub layer3: bool,
}

impl std::fmt::Display for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.protocol {
            Protocol::Tcp => write!(f, "tcp {} > {}", self.source, self.destination),
            Protocol::Udp => write!(f, "udp {} > {}", self.source, self.destination),
            Protocol::Icmp => write!(f, "icmp {} > {}", self.source.ip(), self.destination.ip()),
        }
    }
}

impl std::str::FromStr for Tuple {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: String| Error::configuration(what, EXAMPLES);
        let (protocol, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(|| {
            wrong(format!("{text:?} is no packet: it begins with tcp, udp or icmp and a space"))
        })?;
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "icmp" | "icmp6" | "icmpv6" => Protocol::Icmp,
            _ => return Err(wrong(format!("{protocol:?} is none of tcp, udp and icmp"))),
        };
        let (source, destination) = rest.split_once('>').ok_or_else(|| {
            wrong(format!(
                "{text:?} has no \">\" between sender and receiver (without quotes the shell takes \
                 it for itself)"
            ))
        })?;
        let source = end(source, protocol, "sender").map_err(&wrong)?;
        let destination = end(destination, protocol, "receiver").map_err(&wrong)?;
        if source.is_ipv4() != destination.is_ipv4() {
            let what = format!("{} and {} are of two families", source.ip(), destination.ip());
            return Err(wrong(what));
        }
        Ok(Tuple { protocol, source, destination })
    }
}

fn end(text: &str, protocol: Protocol, who: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok();
    match (protocol, address, text.parse::<SocketAddr>()) {
        (Protocol::Icmp, Some(address), _) => Ok(SocketAddr::new(address, 0)),
        (Protocol::Icmp, None, Ok(_)) => Err(format!("the {who}, {text}: icmp has no ports")),
        (_, _, Ok(at)) if at.port() == 0 => Err(format!("the {who}, {text}: 0 is no port")),
        (Protocol::Tcp | Protocol::Udp, None, Ok(at)) => Ok(at),
        (_, Some(IpAddr::V4(_)), _) => Err(format!("the {who}, {text}, has no port: {text}:PORT")),
        (_, Some(IpAddr::V6(_)), _) => {
            Err(format!("the {who}, {text}, has no port: [{bare}]:PORT"))
        }
        (_, None, _) if text.is_empty() => Err(format!("the {who} is missing")),
        (_, None, _) => {
            Err(format!("the {who}, {text:?}, is no address and port (names are not looked up)"))
        }
    }
}

/// Flags from `syn`, `syn,ack` or `none`.
///
/// # Errors
/// One of them is not TCP's.
pub fn flags(text: &str) -> Result<u8, Error> {
    let mut all = 0;
    for name in text.split(',').map(str::trim).filter(|name| *name != "none") {
        let bit =
            FLAGS.iter().position(|flag| flag.eq_ignore_ascii_case(name)).ok_or_else(|| {
                let what = format!("{name:?} is no TCP flag");
                Error::configuration(what, format!("write some of {}, or none", FLAGS.join(",")))
            })?;
        all |= 1 << bit;
    }
    Ok(all)
}

/// The frame that is meant.
///
/// # Errors
/// It would be shorter than its headers, or longer than a packet can be.
pub fn frame(tuple: &Tuple, details: &Details) -> Result<Vec<u8>, Error> {
    let v6 = tuple.source.is_ipv6();
    let head =
        if v6 { 40 } else { 20_usize } + if tuple.protocol == Protocol::Tcp { 20 } else { 8 };
    let is_syn = tuple.protocol == Protocol::Tcp && details.tcp_flags & SYN != 0;
    let with_options = head + SYN_OPTIONS.len();
    let bytes = details.bytes.map_or(if is_syn { with_options } else { head }, usize::from);
    let options = if is_syn && bytes >= with_options { &SYN_OPTIONS[..] } else { &[] };
    let payload = bytes.checked_sub(head + options.len()).ok_or_else(|| {
        Error::configuration(
            format!("a packet of {bytes} bytes has no room for its headers of {head}"),
            format!("give --bytes {head} or more, or leave it out"),
        )
    })?;
    let frame = build(tuple, details, options, payload);
    frame.map_err(|error| Error::configuration(error.to_string(), EXAMPLES))
}

fn build(
    tuple: &Tuple,
    details: &Details,
    options: &[u8],
    payload: usize,
) -> Result<Vec<u8>, BuildError> {
    let mut buffer = vec![0; HEADROOM + payload];
    let payload = HEADROOM..buffer.len();
    let mut packet = Builder::around(&mut buffer, payload)?;
    let (v4, v6) = match tuple.protocol {
        Protocol::Tcp => (protocol::TCP, protocol::TCP),
        Protocol::Udp => (protocol::UDP, protocol::UDP),
        Protocol::Icmp => (protocol::ICMP, protocol::ICMPV6),
    };
    let mut ethertype = match (tuple.source.ip(), tuple.destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = Ipv4 { ttl: details.ttl, ..Ipv4::new(v4, from, to) };
            transport(&mut packet, tuple, details, options, ip.pseudo())?;
            packet.ipv4(ip, &[])?;
            ethertype::IPV4
        }
        (from, to) => {
            let ip = Ipv6 { hop_limit: details.ttl, ..Ipv6::new(v6, as_v6(from), as_v6(to)) };
            transport(&mut packet, tuple, details, options, ip.pseudo())?;
            packet.ipv6(ip)?;
            ethertype::IPV6
        }
    };
    if !details.layer3 {
        for (announced_by, id) in details.vlans.iter().rev() {
            packet.put(&Vlan::new(*id, ethertype))?;
            ethertype = *announced_by;
        }
        packet.ethernet(Ethernet::new(details.destination_mac, details.source_mac, ethertype))?;
    }
    Ok(packet.packet().to_vec())
}

fn transport(
    packet: &mut Builder<'_>,
    tuple: &Tuple,
    details: &Details,
    options: &[u8],
    pseudo: Pseudo,
) -> Result<(), BuildError> {
    let (from, to) = (tuple.source.port(), tuple.destination.port());
    match tuple.protocol {
        Protocol::Tcp => {
            let tcp = Tcp::new(from, to, details.tcp_flags.into());
            let tcp = Tcp { sequence: U32::new(1), window: U16::MAX_VALUE, ..tcp };
            packet.tcp(tcp, options, pseudo)?
        }
        Protocol::Udp => packet.udp(Udp::new(from, to), Some(pseudo))?,
        Protocol::Icmp if tuple.source.is_ipv6() => {
            packet.icmpv6(Icmpv6::echo_request(1, 1), pseudo)?
        }
        Protocol::Icmp => packet.icmp(Icmp::echo_request(1, 1))?,
    };
    Ok(())
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// A captured frame as a tuple, as far as one describes it.
pub fn describe(frame: &[u8], layer3: bool) -> String {
    match Headers::of(frame, layer3, 0) {
        Some(headers) => match headers.transport {
            Transport::Tcp { flags, .. } => format!("{}, {}", headers.who(), flag_names(flags)),
            _ => headers.who(),
        },
        None => format!("a frame of {} bytes that is not IP", frame.len()),
    }
}

#[cfg(test)]
mod tests {
    use ringway_wire::{Header as _, Ip, UdpChecksum};

    use super::*;

    /// Of a packet without link layer.
    fn details(tcp_flags: u8, bytes: Option<u16>) -> Details {
        Details {
            tcp_flags,
            bytes,
            ttl: 64,
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlans: vec![],
            layer3: true,
        }
    }

    #[test]
    fn both_families_and_all_protocols() {
        for text in [
            "tcp 192.0.2.7:4711 > 203.0.113.10:80",
            "udp [2001:db8::7]:4711 > [2001:db8:a::10]:53",
            "icmp 192.0.2.7 > 203.0.113.10",
            "icmp 2001:db8::7 > 2001:db8:a::10",
        ] {
            let tuple: Tuple = text.parse().expect(text);
            assert_eq!(tuple.to_string(), text);
            let bare = details(flags("syn").expect("syn"), Some(80));
            let vlans = vec![(0x88a8, 5), (0x8100, 6)];
            let tagged = Details { vlans, layer3: false, ..details(SYN, Some(80)) };
            let tagged = frame(&tuple, &tagged).expect("frame");
            assert_eq!(tagged.len(), 14 + 8 + 80);
            let want = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 6];
            assert_eq!(tagged[..20], want);
            let bare = frame(&tuple, &bare).expect("bare");
            assert_eq!(bare.len(), 80);
            assert_right_sums(&bare);
            let described = describe(&bare, true);
            assert!(described.starts_with(text) || text.starts_with("icmp"), "{described}");
            assert_eq!(describe(&tagged, false), described);
        }
    }

    /// As a client's is, unless it is to be shorter.
    #[test]
    fn a_syn_has_options_where_there_is_room() {
        let tuple: Tuple = "tcp 192.0.2.7:4711 > 203.0.113.10:80".parse().expect("tuple");
        let framed = |tcp_flags, bytes| {
            let packet = frame(&tuple, &details(tcp_flags, bytes));
            packet.map(|packet| (packet.len(), packet[32] >> 4))
        };
        assert_eq!(framed(SYN, None).expect("plain"), (60, 10));
        assert_eq!(framed(SYN, Some(59)).expect("short"), (59, 5));
        assert_eq!(framed(SYN, Some(100)).expect("with data"), (100, 10));
        assert_eq!(framed(0x10, None).expect("an ACK"), (40, 5));
        assert!(framed(SYN, Some(39)).expect_err("too short").what.contains("headers of 40"));
    }

    fn assert_right_sums(packet: &[u8]) {
        let ip = Ip::parse(packet).expect("IP");
        let right = match ip.protocol {
            protocol::TCP => Tcp::parse(ip.payload).map(|tcp| tcp.checksum_is_right(ip.pseudo())),
            protocol::UDP => {
                Udp::parse(ip.payload).map(|udp| udp.verify(ip.pseudo()) == UdpChecksum::Right)
            }
            protocol::ICMP => Icmp::parse(ip.payload).map(|icmp| icmp.checksum_is_right()),
            _ => Icmpv6::parse(ip.payload).map(|icmp| icmp.checksum_is_right(ip.pseudo())),
        };
        assert_eq!(right, Ok(true));
    }

    #[test]
    fn blanks_and_letters_do_not_matter() {
        let tuple: Tuple = " TCP  192.0.2.7:4711>203.0.113.10:80 ".parse().expect("tuple");
        assert_eq!(tuple.to_string(), "tcp 192.0.2.7:4711 > 203.0.113.10:80");
    }

    #[test]
    fn nonsense_is_told_what_to_write() {
        for (text, why) in [
            ("", "is no packet"),
            ("hello", "is no packet"),
            ("sctp 192.0.2.7:1 > 203.0.113.10:2", "none of tcp, udp and icmp"),
            ("tcp 192.0.2.7:4711", "the shell takes it for itself"),
            ("tcp 192.0.2.7:4711 > ", "the receiver is missing"),
            (
                "tcp 192.0.2.7 > 203.0.113.10:80",
                "the sender, 192.0.2.7, has no port: 192.0.2.7:PORT",
            ),
            ("tcp 192.0.2.7:4711 > 203.0.113.10", "the receiver, 203.0.113.10, has no port"),
            ("tcp 2001:db8::7 > [2001:db8::1]:80", "has no port: [2001:db8::7]:PORT"),
            ("tcp [2001:db8::7] > [2001:db8::1]:80", "has no port: [2001:db8::7]:PORT"),
            ("tcp 192.0.2.7:4711 > [2001:db8::1]:80", "are of two families"),
            ("tcp 192.0.2.7:99999 > 203.0.113.10:80", "is no address and port"),
            ("tcp 192.0.2.7:0 > 203.0.113.10:80", "0 is no port"),
            ("tcp client:4711 > web:80", "names are not looked up"),
            ("icmp 192.0.2.7:1 > 203.0.113.10", "icmp has no ports"),
        ] {
            let error = text.parse::<Tuple>().expect_err(text);
            assert!(error.what.contains(why), "{text}: {error}");
            assert!(error.remedy.to_string().contains("tcp 192.0.2.7:4711"), "{text}: {error}");
        }
    }

    #[test]
    fn flags_by_name() {
        assert_eq!(flags("SYN,ack").expect("flags"), 0x12);
        assert_eq!(flags("none").expect("none"), 0);
        assert_eq!(flag_names(0x12), "syn,ack");
        assert!(flags("syn,sin").expect_err("sin").what.contains("\"sin\" is no TCP flag"));
    }
}
