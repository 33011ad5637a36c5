//! The frame that every packet is made from, and the addresses in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::benches::packet::path::{Clients, Ip};

/// TCP flags, RFC 9293 section 3.1.
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;

/// The interface's address, the clients' router's and the backends' next hop's: all on one link.
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FROM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const NEXT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];

pub(crate) const PORT: u16 = 80;

/// Length of the frames; feed.bpf.c knows them in words.
const LEN: [usize; 2] = [64, 88];
const ETHERNET: usize = 14;
const TCP: u8 = 6;

/// From the documentation's networks, but for IPv4 clients, of which there may be ten million:
/// 10/8.
pub(crate) fn service(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Ip::V6 => v6(1, 1),
    }
}

/// An address that nobody serves.
pub(crate) fn elsewhere(ip: Ip) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::new(198, 51, 100, 1).into(),
        Ip::V6 => v6(2, 1),
    }
}

pub(crate) fn backend(ip: Ip, n: u8) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::new(172, 16, 0, n).into(),
        Ip::V6 => v6(3, n),
    }
}

/// A source of ours towards backends.
pub(crate) fn own(ip: Ip, n: u8) -> IpAddr {
    match ip {
        Ip::V4 => Ipv4Addr::new(172, 16, 1, n).into(),
        Ip::V6 => v6(4, n),
    }
}

fn v6(net: u16, host: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host.into()).into()
}

/// A TCP segment to `to`, port [`PORT`]. The feeder puts the client's address and port in, which
/// are 0 here, and adds them to the checksums.
pub(crate) fn segment(clients: Clients, to: IpAddr, tcp_flags: u8) -> Vec<u8> {
    let ip = if to.is_ipv4() { Ip::V4 } else { Ip::V6 };
    between((client(ip, clients), 0), (to, PORT), tcp_flags)
}

/// The same as systems begin a connection: with options, and nothing behind them but what pads the
/// frame.
pub(crate) fn syn(clients: Clients, to: IpAddr) -> Vec<u8> {
    let mut frame = segment(clients, to, SYN);
    let l4 = l4_of(to);
    let options = (frame.len() - l4 - 20) & !3;
    frame[l4 + 12] = (((20 + options) / 4) << 4) as u8;
    frame[l4 + 20..][..8].copy_from_slice(&[2, 4, 5, 180, 1, 3, 3, 7]);
    frame[l4 + 28..l4 + 20 + options].fill(1);
    let length = l4 + 20 + options - ETHERNET;
    match to {
        IpAddr::V4(_) => frame[16..18].copy_from_slice(&(length as u16).to_be_bytes()),
        IpAddr::V6(_) => frame[18..20].copy_from_slice(&(length as u16 - 40).to_be_bytes()),
    }
    let padded = frame.len();
    frame.truncate(ETHERNET + length);
    sum_up(&mut frame, l4);
    frame.resize(padded, 0);
    frame
}

/// A client's address but for what the feeder puts in.
pub(in crate::benches) fn client(ip: Ip, clients: Clients) -> IpAddr {
    match (ip, clients) {
        (Ip::V4, _) => Ipv4Addr::UNSPECIFIED.into(),
        (Ip::V6, Clients::OneNetwork) => v6(5, 0),
        (Ip::V6, Clients::Networks) => Ipv6Addr::new(0x2a00, 0, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// A TCP segment of a backend's. The feeder puts in the last bytes of both addresses, and the port
/// it goes to.
pub(crate) fn reply(ip: Ip, tcp_flags: u8) -> Vec<u8> {
    between((backend(ip, 0), PORT), (own(ip, 0), 0), tcp_flags)
}

fn between((from, sport): (IpAddr, u16), (to, dport): (IpAddr, u16), tcp_flags: u8) -> Vec<u8> {
    let len = LEN[usize::from(to.is_ipv6())];
    let mut frame = Vec::with_capacity(len);
    frame.extend(OUR_MAC);
    frame.extend(FROM_MAC);
    let l3 = (len - ETHERNET) as u16;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend(l3.to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        _ => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((l3 - 40).to_be_bytes());
            frame.extend([TCP, 64]);
            frame.extend([from, to].map(octets).concat());
        }
    }
    frame.extend([sport, dport].map(u16::to_be_bytes).concat());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, tcp_flags, 0xff, 0xff]);
    frame.resize(len, 0);
    sum_up(&mut frame, l4_of(to));
    frame
}

fn l4_of(to: IpAddr) -> usize {
    ETHERNET + if to.is_ipv4() { 20 } else { 40 }
}

/// Writes the checksums of a frame whose TCP begins at `l4` and ends with it.
fn sum_up(frame: &mut [u8], l4: usize) {
    let is_v4 = l4 == ETHERNET + 20;
    if is_v4 {
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let check = checksum(&[&frame[ETHERNET..l4]]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&check);
    }
    // Both addresses, which end the header; length and protocol.
    let addresses = if is_v4 { 8 } else { 32 };
    let pseudo = [0, 0, 0, TCP, 0, 0, 0, (frame.len() - l4) as u8];
    frame[l4 + 16..l4 + 18].fill(0);
    let check = checksum(&[&frame[l4 - addresses..l4], &pseudo, &frame[l4..]]);
    frame[l4 + 16..l4 + 18].copy_from_slice(&check);
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// RFC 1071, of parts of whole words.
pub(in crate::benches) fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!(folded + (folded >> 16)) as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_agree() {
        let v4 = segment(Clients::OneNetwork, service(Ip::V4), ACK);
        assert_eq!((v4.len(), v4[16..18] == 50u16.to_be_bytes()), (64, true));
        assert_eq!((v4[47], &v4[30..34]), (ACK, &[192, 0, 2, 1][..]));
        let v6 = segment(Clients::OneNetwork, service(Ip::V6), SYN);
        assert_eq!((v6.len(), v6[18..20] == 34u16.to_be_bytes()), (88, true));
        assert_eq!((v6[67], v6[53], &v6[56..58]), (SYN, 1, &[0, 80][..]));
        assert!(v4.len().is_multiple_of(8) && v6.len().is_multiple_of(8), "whole words");
    }

    #[test]
    fn syns_have_options_and_right_sums() {
        use ringway_wire::{Frame, Header as _, Tcp};
        for ip in Ip::ALL {
            let bytes = syn(Clients::OneNetwork, service(ip));
            assert_eq!(bytes.len(), LEN[usize::from(ip == Ip::V6)]);
            let packet =
                ringway_wire::Ip::parse(Frame::parse(&bytes[..]).unwrap().payload).unwrap();
            let tcp = Tcp::parse(packet.payload).unwrap();
            assert!(tcp.checksum_is_right(packet.pseudo()), "{ip:?}");
            assert_eq!((packet.payload.len() % 4, packet.payload[20]), (0, 2), "an MSS");
        }
    }
}
