//! A frame's headers in words: addresses, ports, flags, lengths. Frames that were cut short too.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, LaxNetSlice, LaxSlicedPacket, TransportSlice};

/// The names of flags, in the order of their bits.
pub(crate) const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// What a frame's headers say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Sender.
    pub from: IpAddr,
    /// Receiver.
    pub to: IpAddr,
    /// What is behind the IP header.
    pub transport: Transport,
}

/// What an IP packet holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP segment.
    Tcp {
        /// Ports of sender and receiver.
        ports: (u16, u16),
        /// Byte 13 of its header.
        flags: u8,
        /// Sequence number.
        seq: u32,
        /// What it acknowledges, with the flag alone of use.
        ack: u32,
        /// Bytes behind its header.
        bytes: usize,
    },
    /// A UDP datagram.
    Udp {
        /// Ports of sender and receiver.
        ports: (u16, u16),
        /// Bytes behind its header.
        bytes: usize,
    },
    /// A message of ICMP or ICMPv6.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
    },
    /// Another IP packet: a tunnel.
    Ip(Box<Headers>),
    /// Something else, by its protocol number; a later fragment too.
    Other(u8),
}

impl Headers {
    /// Of a frame, or of an IP packet where the device has no Ethernet header (`layer3`); `cut` bytes
    /// of its end were not captured. `None`: it is not IP.
    pub fn of(frame: &[u8], layer3: bool, cut: usize) -> Option<Headers> {
        Headers::read(frame, layer3, cut, true)
    }

    /// With `tunnels` it looks into one; what is inside a tunnel inside a tunnel it does not.
    fn read(frame: &[u8], layer3: bool, cut: usize, tunnels: bool) -> Option<Headers> {
        let packet = match layer3 {
            true => LaxSlicedPacket::from_ip(frame).ok()?,
            false => LaxSlicedPacket::from_ethernet(frame).ok()?,
        };
        let (from, to): (IpAddr, IpAddr) = match packet.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            LaxNetSlice::Ipv6(ip) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            LaxNetSlice::Arp(_) => return None,
        };
        Some(Headers { from, to, transport: transport(&packet, cut, tunnels)? })
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

fn transport(packet: &LaxSlicedPacket<'_>, cut: usize, tunnels: bool) -> Option<Transport> {
    let payload = packet.ip_payload()?;
    // What a short frame is filled up with is no part of the IP packet.
    let cut = if payload.incomplete { cut } else { 0 };
    Some(match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => Transport::Tcp {
            ports: (tcp.source_port(), tcp.destination_port()),
            flags: tcp.slice()[13],
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            bytes: tcp.payload().len() + cut,
        },
        Some(TransportSlice::Udp(udp)) => Transport::Udp {
            ports: (udp.source_port(), udp.destination_port()),
            bytes: usize::from(udp.length()).saturating_sub(8),
        },
        Some(TransportSlice::Icmpv4(icmp)) => {
            Transport::Icmp { kind: icmp.type_u8(), code: icmp.code_u8() }
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            Transport::Icmp { kind: icmp.type_u8(), code: icmp.code_u8() }
        }
        None => {
            let tunnel = [IpNumber::IPV4, IpNumber::IPV6].contains(&payload.ip_number);
            let inside = (tunnel && tunnels)
                .then(|| Headers::read(payload.payload, true, cut, false))
                .flatten();
            match inside {
                Some(inside) => Transport::Ip(Box::new(inside)),
                None => Transport::Other(payload.ip_number.0),
            }
        }
    })
}

/// Names of flags, as they are written.
pub fn flag_names(flags: u8) -> String {
    let set = (0..8).filter(|bit| flags & 1 << bit != 0).map(|bit| FLAGS[bit]);
    let names: Vec<&str> = set.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame(payload: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([192, 0, 2, 7], [203, 0, 113, 10], 64)
            .tcp(4711, 80, 5, 1000)
            .syn()
            .ack(7)
            .write(&mut frame, &vec![0; payload])
            .expect("a frame");
        frame
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
        let mut udp = Vec::new();
        let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(1, 2);
        builder.write(&mut udp, &[0; 9]).expect("a packet");
        let inner = Headers::of(&udp, true, 0).expect("IP").to_string();
        assert!(inner.starts_with("udp [101:") && inner.ends_with("]:2 len 9"), "{inner}");
        let mut outer = Vec::new();
        let builder =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.write(&mut outer, IpNumber::IPV6, &udp).expect("a frame");
        assert_eq!(words(&outer, 0), format!("ip 10.0.0.1 > 10.0.0.2 ({inner})"));

        let mut echo = Vec::new();
        let builder =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.icmpv4_echo_request(1, 1).write(&mut echo, &[]).expect("a frame");
        assert_eq!(words(&echo, 0), "icmp 10.0.0.1 > 10.0.0.2 echo request");
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
