//! A frame's headers in words: addresses, ports, flags, lengths. Frames that were cut short too.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ringway_wire::{Frame, Header as _, Icmp, Icmpv6, Ip, Tcp, Udp, ethertype, protocol};

/// The names of flags, in the order of their bits.
pub(crate) const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// The headers of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub from: IpAddr,
    pub to: IpAddr,
    /// The payload of the IP header.
    pub transport: Transport,
}

/// The payload of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp {
        /// Ports of sender and receiver.
        ports: (u16, u16),
        /// Byte 13 of its header.
        flags: u8,
        seq: u32,
        /// The acknowledged number; valid only with the flag.
        ack: u32,
        /// Bytes behind its header.
        bytes: usize,
    },
    Udp {
        /// Ports of sender and receiver.
        ports: (u16, u16),
        /// Bytes behind its header.
        bytes: usize,
    },
    /// A message of ICMP or ICMPv6.
    Icmp { kind: u8, code: u8 },
    /// Another IP packet: a tunnel.
    Ip(Box<Headers>),
    /// Something else, by its protocol number; a later fragment too.
    Other(u8),
}

impl Headers {
    /// Of a frame, or of an IP packet where the device has no Ethernet header (`layer3`); `cut`
    /// bytes of its end were not captured. `None`: it is not IP.
    pub fn of(frame: &[u8], layer3: bool, cut: usize) -> Option<Headers> {
        Headers::read(frame, layer3, cut, true)
    }

    /// With `tunnels` it looks into one; what is inside a tunnel inside a tunnel it does not.
    fn read(frame: &[u8], layer3: bool, cut: usize, tunnels: bool) -> Option<Headers> {
        let packet = match layer3 {
            true => frame,
            false => {
                let frame = Frame::parse(frame).ok()?;
                let is_ip = matches!(frame.ethertype, ethertype::IPV4 | ethertype::IPV6);
                is_ip.then_some(frame.payload)?
            }
        };
        let ip = Ip::parse_partial(packet).ok()?;
        // What a short frame is filled up with is no part of the IP packet.
        let cut = if Ip::parse(packet).is_ok() { 0 } else { cut };
        let transport = transport(&ip, cut, tunnels);
        Some(Headers { from: ip.source(), to: ip.destination(), transport })
    }

    /// Sender and receiver with their ports, where there are any.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self.transport {
            Transport::Tcp { ports, .. } | Transport::Udp { ports, .. } => {
                Some((SocketAddr::new(self.from, ports.0), SocketAddr::new(self.to, ports.1)))
            }
            _ => None,
        }
    }

    /// `tcp 192.0.2.7:4711 > 203.0.113.10:80`: who sends what to whom.
    pub fn who(&self) -> String {
        match (&self.transport, self.ends()) {
            (Transport::Tcp { .. }, Some((from, to))) => format!("tcp {from} > {to}"),
            (_, Some((from, to))) => format!("udp {from} > {to}"),
            (Transport::Icmp { .. }, _) => format!("icmp {} > {}", self.from, self.to),
            (Transport::Other(number), _) => {
                format!("protocol {number} {} > {}", self.from, self.to)
            }
            (_, None) => format!("ip {} > {}", self.from, self.to),
        }
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who())?;
        match &self.transport {
            Transport::Tcp { flags, seq, ack, bytes, .. } => {
                write!(f, " {} seq {seq}", flag_names(*flags))?;
                if flags & 0x10 != 0 {
                    write!(f, " ack {ack}")?;
                }
                write!(f, " len {bytes}")
            }
            Transport::Udp { bytes, .. } => write!(f, " len {bytes}"),
            Transport::Icmp { kind: 8 | 128, .. } => f.write_str(" echo request"),
            Transport::Icmp { kind: 0 | 129, .. } => f.write_str(" echo reply"),
            Transport::Icmp { kind, code } => write!(f, " type {kind} code {code}"),
            Transport::Ip(inner) => write!(f, " ({inner})"),
            Transport::Other(_) => Ok(()),
        }
    }
}

fn transport(ip: &Ip<&[u8]>, cut: usize, tunnels: bool) -> Transport {
    let known = match ip.protocol {
        protocol::IPV4 | protocol::IPV6 if tunnels => Headers::read(ip.payload, true, cut, false)
            .map(|inside| Transport::Ip(Box::new(inside))),
        // A fragment's ports would be those of its payload.
        _ if ip.fragment.is_some() => None,
        protocol::TCP => Tcp::parse_partial(ip.payload).ok().map(|tcp| Transport::Tcp {
            ports: (tcp.header.source.get(), tcp.header.destination.get()),
            flags: tcp.header.flags() as u8,
            seq: tcp.header.sequence.get(),
            ack: tcp.header.acknowledgment.get(),
            bytes: tcp.payload.len() + cut,
        }),
        protocol::UDP => Udp::parse_partial(ip.payload).ok().map(|udp| Transport::Udp {
            ports: (udp.header.source.get(), udp.header.destination.get()),
            bytes: usize::from(udp.header.length.get()).saturating_sub(size_of::<Udp>()),
        }),
        protocol::ICMP => Icmp::parse_partial(ip.payload)
            .ok()
            .map(|icmp| Transport::Icmp { kind: icmp.header.kind, code: icmp.header.code }),
        protocol::ICMPV6 => Icmpv6::parse_partial(ip.payload)
            .ok()
            .map(|icmp| Transport::Icmp { kind: icmp.header.kind, code: icmp.header.code }),
        _ => None,
    };
    known.unwrap_or(Transport::Other(ip.protocol))
}

/// Names of flags, as they are written.
pub fn flag_names(flags: u8) -> String {
    let set = (0..8).filter(|bit| flags & 1 << bit != 0).map(|bit| FLAGS[bit]);
    let names: Vec<&str> = set.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use ringway_wire::{BuildError, Builder, Ethernet, IntoBytes as _, Ipv4, Ipv6, Mac, U32};

    use super::*;

    /// What `build` puts around a payload.
    fn packet(
        payload: &[u8],
        build: impl Fn(&mut Builder<'_>) -> Result<(), BuildError>,
    ) -> Vec<u8> {
        let mut buffer = vec![0; 128 + payload.len()];
        let mut packet = Builder::new(&mut buffer, 128).expect("room");
        packet.append(payload).expect("room");
        build(&mut packet).expect("a packet");
        packet.packet().to_vec()
    }

    fn in_ethernet(packet: &[u8]) -> Vec<u8> {
        let ethertype = if packet[0] >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
        let header = Ethernet::new(Mac([4; 6]), Mac([2; 6]), ethertype);
        [header.as_bytes(), packet].concat()
    }

    fn frame(payload: usize) -> Vec<u8> {
        let ip = Ipv4::new(protocol::TCP, [192, 0, 2, 7].into(), [203, 0, 113, 10].into());
        let tcp = Tcp::new(4711, 80, Tcp::SYN | Tcp::ACK);
        let tcp = Tcp { sequence: U32::new(5), acknowledgment: U32::new(7), ..tcp };
        in_ethernet(&packet(&vec![0; payload], |p| {
            p.tcp(tcp, &[], ip.pseudo())?.ipv4(ip, &[]).map(drop)
        }))
    }

    fn words(frame: &[u8], cut: usize) -> String {
        Headers::of(frame, false, cut).expect("IP").to_string()
    }

    #[test]
    fn tcp_whole_padded_and_cut() {
        let want = "tcp 192.0.2.7:4711 > 203.0.113.10:80 syn,ack seq 5 ack 7 len ";
        assert_eq!(words(&frame(10), 0), format!("{want}10"));
        let padded = [frame(0), vec![0; 6]].concat();
        assert_eq!(words(&padded, 0), format!("{want}0"));
        assert_eq!(words(&frame(1000)[..64], 990), format!("{want}1000"));
    }

    #[test]
    fn others() {
        let ip = Ipv6::new(protocol::UDP, [1; 16].into(), [2; 16].into());
        let udp = packet(&[0; 9], |p| p.udp(Udp::new(1, 2), Some(ip.pseudo()))?.ipv6(ip).map(drop));
        let inner = Headers::of(&udp, true, 0).expect("IP").to_string();
        assert!(inner.starts_with("udp [101:") && inner.ends_with("]:2 len 9"), "{inner}");
        let between = |protocol| Ipv4::new(protocol, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let outer = packet(&udp, |p| p.ipv4(between(protocol::IPV6), &[]).map(drop));
        assert_eq!(words(&in_ethernet(&outer), 0), format!("ip 10.0.0.1 > 10.0.0.2 ({inner})"));

        let icmp = Icmp::echo_request(1, 1);
        let echo = packet(&[], |p| p.icmp(icmp)?.ipv4(between(protocol::ICMP), &[]).map(drop));
        assert_eq!(words(&in_ethernet(&echo), 0), "icmp 10.0.0.1 > 10.0.0.2 echo request");
        for nothing in [&[0; 5][..], &[0; 60], &frame(0)[..20]] {
            assert_eq!(Headers::of(nothing, false, 0), None);
        }
    }

    /// A later fragment has no ports.
    #[test]
    fn fragments() {
        let mut later = frame(40);
        later[20..22].copy_from_slice(&[0, 5]);
        assert_eq!(words(&later, 0), "protocol 6 192.0.2.7 > 203.0.113.10");
    }
}
