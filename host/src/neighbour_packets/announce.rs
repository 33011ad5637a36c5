//! Telling a network who now holds an address: gratuitous ARP (RFC 5227, section 3) and unsolicited
//! neighbour advertisements (RFC 4861, section 7.2.6).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use ringway_wire::nd::{self, LinkLayer};
use ringway_wire::{BuildError, Icmpv6, IntoBytes as _};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::neighbour_packets::{arp_request, neighbour_message};
use crate::netlink::links;
use crate::{Error, Mac, Result};

/// Sends one frame on `ifindex` that says that `address` is at `mac`. Repeat it a few times: nobody
/// acknowledges. Needs CAP_NET_RAW.
pub fn announce(ifindex: u32, mac: Mac, address: IpAddr) -> Result<()> {
    let frame = match address {
        IpAddr::V4(address) => gratuitous_arp(mac, address),
        IpAddr::V6(address) => unsolicited_na(mac, address),
    };
    let sent = frame.map_err(io::Error::other).and_then(|frame| send(ifindex, &frame));
    sent.map_err(|source| Error::Interface {
        what: "announcing an address",
        interface: links::by_index(ifindex).map_or_else(|_| ifindex.to_string(), |l| l.name),
        source,
    })
}

/// An ARP announcement: a broadcast request whose sender and target address are both `address`.
pub(super) fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> Result<Vec<u8>, BuildError> {
    arp_request(mac, address, address)
}

/// A neighbour advertisement to all nodes, from `address`, with the override flag and its
/// link-layer address.
pub(super) fn unsolicited_na(mac: Mac, address: Ipv6Addr) -> Result<Vec<u8>, BuildError> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let header = Icmpv6::new(Icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, nd::flags::OVERRIDE);
    let option = LinkLayer::target(mac);
    neighbour_message(mac, (address, ALL_NODES), header, address, option.as_bytes())
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
        let frame = gratuitous_arp(MAC, Ipv4Addr::new(10, 0, 0, 1)).unwrap();
        let (ethernet, arp) = frame.split_at(14);
        assert_eq!(ethernet, [[0xff; 6].as_slice(), &MAC.0, &[8, 6]].concat());
        assert_eq!(arp[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(arp[8..], [2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    }

    #[test]
    fn an_advertisement_is_to_all_and_overrides() {
        let frame = unsolicited_na(MAC, "fd00::1".parse().unwrap()).unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[18..22], [0, 32, 58, 255]);
        // The checksum as it was summed up by hand.
        assert_eq!(frame[54..62], [136, 0, 0x5a, 0x9b, 0x20, 0, 0, 0]);
        assert_eq!(frame[78..], [2, 1, 2, 0, 0, 0, 0, 1]);
    }
}
