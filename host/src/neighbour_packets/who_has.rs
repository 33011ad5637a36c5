//! Asks a link who has an address, past the kernel's own tables: ARP probes (RFC 5227, section
//! 2.1.1) and neighbour solicitations from the unspecified address (RFC 4862, section 5.4.2), which
//! nobody notes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ringway_wire::nd::Neighbour;
use ringway_wire::{Arp, BuildError, Ethernet, Header as _, Icmpv6, Ip, ethertype, protocol};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::neighbour_packets::{arp_request, neighbour_message};
use crate::netlink::links;
use crate::{Error, Mac, Result};

const ETH_P_ALL: u16 = 3;

/// The MAC addresses that answer for `address` on `ifindex` within `patience`, but our own (`mac`).
/// Needs CAP_NET_RAW.
pub fn who_has(ifindex: u32, mac: Mac, address: IpAddr, patience: Duration) -> Result<Vec<Mac>> {
    ask(ifindex, mac, address, patience).map_err(|source| Error::Interface {
        what: "asking who has an address",
        interface: links::by_index(ifindex).map_or_else(|_| ifindex.to_string(), |l| l.name),
        source,
    })
}

fn ask(ifindex: u32, mac: Mac, address: IpAddr, patience: Duration) -> io::Result<Vec<Mac>> {
    let socket = listen(ifindex)?;
    let frame = question(mac, address).map_err(io::Error::other)?;
    let until = Instant::now() + patience;
    rustix::net::send(&socket, &frame, rustix::net::SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = [0; 256];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(found);
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(left.max(Duration::from_millis(1))))?;
        let received = rustix::net::recv(&socket, &mut buffer, rustix::net::RecvFlags::empty());
        let length = match received {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let answerer = answer(&buffer[..length], address).filter(|from| *from != mac);
        if let Some(from) = answerer.filter(|from| !found.contains(from)) {
            found.push(from);
        }
    }
}

/// A packet socket on this interface alone.
fn listen(ifindex: u32) -> io::Result<OwnedFd> {
    // Protocol 0: nothing comes in before it is bound to its interface.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // SAFETY: sockaddr_ll is plain old data for which all zeroes is valid.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = ETH_P_ALL.to_be();
    at.sll_ifindex = ifindex as i32;
    // SAFETY: an open socket and an address that is valid for the length given.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const at).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// From nobody: a broadcast request, or a solicitation to the group of the address, which then has
/// no options.
fn question(mac: Mac, address: IpAddr) -> Result<Vec<u8>, BuildError> {
    match address {
        IpAddr::V4(address) => arp_request(mac, Ipv4Addr::UNSPECIFIED, address),
        IpAddr::V6(address) => {
            let ends = (Ipv6Addr::UNSPECIFIED, Neighbour::solicited_nodes(address));
            let header = Icmpv6::new(Icmpv6::NEIGHBOUR_SOLICITATION, 0, 0);
            neighbour_message(mac, ends, header, address, &[])
        }
    }
}

/// The sender of an ARP reply or neighbour advertisement for this address.
fn answer(frame: &[u8], address: IpAddr) -> Option<Mac> {
    let frame = Ethernet::parse(frame).ok()?;
    match (address, frame.header.ethertype.get()) {
        (IpAddr::V4(address), ethertype::ARP) => {
            let arp = Arp::parse(frame.payload).ok()?.header;
            let answers = arp.operation.get() == Arp::REPLY && arp.sender == address.octets();
            answers.then_some(arp.sender_mac)
        }
        (IpAddr::V6(address), ethertype::IPV6) => {
            let ip = Ip::parse_partial(frame.payload).ok()?;
            let icmp = Icmpv6::parse(ip.payload).ok()?;
            let neighbour = Neighbour::parse(icmp.payload).ok()?.header;
            let answers = ip.protocol == protocol::ICMPV6
                && icmp.header.kind == Icmpv6::NEIGHBOUR_ADVERTISEMENT
                && neighbour.target == address.octets();
            answers.then_some(frame.header.source)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbour_packets::announce::{gratuitous_arp, unsolicited_na};

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_probe_names_no_sender() {
        let frame = question(MAC, "10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(frame[28..32], [0; 4]);
        assert_eq!(frame[38..42], [10, 0, 0, 1]);
        let frame = question(MAC, "fd00::1:2:3".parse().unwrap()).unwrap();
        assert_eq!(frame.len(), 78);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 2, 0, 3]);
        assert_eq!(frame[22..38], [0; 16]);
        assert_eq!(frame[54], 135);
    }

    #[test]
    fn answers_are_told_from_questions() {
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let mut frame = gratuitous_arp(MAC, ip).unwrap();
        assert_eq!(answer(&frame, ip.into()), None);
        frame[21] = 2;
        assert_eq!(answer(&frame, ip.into()), Some(MAC));
        assert_eq!(answer(&frame, Ipv4Addr::new(10, 0, 0, 2).into()), None);
        let six: Ipv6Addr = "fd00::1".parse().unwrap();
        assert_eq!(answer(&unsolicited_na(MAC, six).unwrap(), six.into()), Some(MAC));
        assert_eq!(answer(&frame[..20], ip.into()), None);
    }
}
