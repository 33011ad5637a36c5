//! A packet in a line, for people.

use core::fmt;

use crate::network::protocol;
use crate::{Arp, Frame, Header as _, Icmp, Icmpv6, Ip, Malformed, Tcp, Udp, ethertype};

/// Bytes of a frame, of which the end may be missing; printed, what they are in a line: who sends
/// what to whom.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(pub &'a [u8]);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = match Frame::parse(self.0) {
            Ok(frame) => frame,
            Err(malformed) => return malformed.fmt(f),
        };
        write!(f, "{} > {}", frame.ethernet.source, frame.ethernet.destination)?;
        for tag in frame.tags.iter().flatten() {
            write!(f, " vlan {}", tag.id())?;
        }
        f.write_str(" ")?;
        let malformed = match frame.ethertype {
            ethertype::ARP => arp(f, frame.payload),
            ethertype::IPV4 | ethertype::IPV6 => ip(f, frame.payload),
            other => Ok(write!(f, "ethertype {other:#06x}")),
        };
        match malformed {
            Ok(written) => written,
            Err(malformed) => malformed.fmt(f),
        }
    }
}

fn arp(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> Result<fmt::Result, Malformed> {
    let arp = Arp::parse(bytes)?.header;
    Ok(write!(f, "arp {} {:?} for {:?}", arp.operation, arp.sender, arp.target))
}

fn ip(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> Result<fmt::Result, Malformed> {
    let ip = Ip::parse_partial(bytes)?;
    let written = write!(f, "{} > {} ", ip.source(), ip.destination());
    if written.is_err() {
        return Ok(written);
    }
    if let Some(fragment) = ip.fragment.filter(|fragment| fragment.offset > 0) {
        return Ok(write!(f, "fragment at {}", fragment.offset));
    }
    Ok(match ip.protocol {
        protocol::UDP => {
            let udp = Udp::parse_partial(ip.payload)?.header;
            write!(f, "udp {} > {} length {}", udp.source, udp.destination, udp.length)
        }
        protocol::TCP => {
            let tcp = Tcp::parse_partial(ip.payload)?.header;
            write!(f, "tcp {} > {} flags {:#x}", tcp.source, tcp.destination, tcp.flags())
        }
        protocol::ICMP => {
            write!(f, "icmp type {}", Icmp::parse_partial(ip.payload)?.header.kind)
        }
        protocol::ICMPV6 => {
            write!(f, "icmpv6 type {}", Icmpv6::parse_partial(ip.payload)?.header.kind)
        }
        other => write!(f, "protocol {other}"),
    })
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;
    use crate::{Builder, Ethernet, Ipv4, Mac};

    #[test]
    fn who_sends_what_to_whom() {
        let mut buffer = [0; 256];
        let ip = Ipv4::new(protocol::UDP, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut packet = Builder::new(&mut buffer, 128).unwrap();
        packet.append(b"hello").unwrap().udp(Udp::new(4711, 7), Some(ip.pseudo())).unwrap();
        packet.ipv4(ip, &[]).unwrap();
        packet.ethernet(Ethernet::new(Mac([2; 6]), Mac([4; 6]), ethertype::IPV4)).unwrap();
        let whole = packet.packet();
        let line =
            "04:04:04:04:04:04 > 02:02:02:02:02:02 192.0.2.1 > 192.0.2.2 udp 4711 > 7 length 13";
        assert_eq!(Line(whole).to_string(), line);
        // Each beginning of it is something, and none is more than there is.
        for len in 0..whole.len() {
            let part = Line(&whole[..len]).to_string();
            assert!(!part.is_empty() && (len >= 42 || part != line), "{len}: {part}");
        }
    }
}
