//! Telling a network who now holds an address: gratuitous ARP (RFC 5227, section 3) and unsolicited neighbour
//! advertisements (RFC 4861, section 7.2.6).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::netlink::links;
use crate::{Error, Mac, Result};

/// Sends one frame on `ifindex` that says that `address` is at `mac`. Repeat it a few times: nobody acknowledges.
/// Needs CAP_NET_RAW.
pub fn announce(ifindex: u32, mac: Mac, address: IpAddr) -> Result<()> {
    let sent = match address {
        IpAddr::V4(address) => send(ifindex, &gratuitous_arp(mac, address)),
        IpAddr::V6(address) => send(ifindex, &unsolicited_na(mac, address)),
    };
    sent.map_err(|source| Error::Interface {
        what: "announcing an address",
        interface: links::by_index(ifindex).map_or_else(|_| ifindex.to_string(), |l| l.name),
        source,
    })
}

/// An ARP announcement: a broadcast request whose sender and target address are both `address`.
pub fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> [u8; 42] {
    let mut frame = [0; 42];
    frame[0..6].copy_from_slice(&Mac::BROADCAST.0);
    frame[6..12].copy_from_slice(&mac.0);
    // EtherType ARP; hardware Ethernet, protocol IPv4, lengths 6 and 4, operation request.
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac.0);
    frame[28..32].copy_from_slice(&address.octets());
    frame[38..42].copy_from_slice(&address.octets());
    frame
}

/// A neighbour advertisement to all nodes, from `address`, with the override flag and its link-layer address.
pub fn unsolicited_na(mac: Mac, address: Ipv6Addr) -> [u8; 86] {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut frame = [0; 86];
    frame[0..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&mac.0);
    // EtherType IPv6; version 6; payload of 32 bytes; next header ICMPv6; hop limit 255.
    frame[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
    frame[22..38].copy_from_slice(&address.octets());
    frame[38..54].copy_from_slice(&ALL_NODES.octets());
    // Type 136, code 0, checksum (below), flags: override.
    frame[54..60].copy_from_slice(&[136, 0, 0, 0, 0x20, 0]);
    frame[62..78].copy_from_slice(&address.octets());
    // Option 2, target link-layer address, in units of 8 bytes.
    frame[78..80].copy_from_slice(&[2, 1]);
    frame[80..86].copy_from_slice(&mac.0);
    let checksum = icmpv6_checksum_of(&frame);
    frame[56..58].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Checksum over the pseudo-header (addresses, length, next header) and the message, whose field is still zero.
pub(crate) fn icmpv6_checksum_of(frame: &[u8]) -> u16 {
    let words = frame[22..].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum = words.sum::<u32>() + (frame.len() as u32 - 54) + 58;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn send(ifindex: u32, frame: &[u8]) -> io::Result<()> {
    // Protocol 0: the socket sends and never receives.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // SAFETY: sockaddr_ll is plain old data for which all zeroes is valid.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = ifindex as i32;
    // SAFETY: frame and address are valid for the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn arp_announces_sender_and_target_alike() {
        let frame = gratuitous_arp(MAC, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(frame[28..32], frame[38..42]);
        assert_eq!(frame[32..38], [0; 6]);
    }

    #[test]
    fn advertisement_has_a_right_checksum() {
        let mut frame = unsolicited_na(MAC, "fd00::1".parse().unwrap());
        // Summed with its own checksum a message gives zero.
        assert_eq!(icmpv6_checksum_of(&frame), 0);
        frame[85] ^= 1;
        assert_ne!(icmpv6_checksum_of(&frame), 0);
    }
}
