//! Asks a link who has an address, past the kernel's own tables: ARP probes (RFC 5227, section 2.1.1) and
//! neighbour solicitations from the unspecified address (RFC 4862, section 5.4.2), which nobody notes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::neighbour_packets::announce::icmpv6_checksum_of;
use crate::netlink::links;
use crate::{Error, Mac, Result};

const ETH_P_ALL: u16 = 3;

/// The MAC addresses that answer for `address` on `ifindex` within `patience`, but our own (`mac`). Needs CAP_NET_RAW.
pub fn who_has(ifindex: u32, mac: Mac, address: IpAddr, patience: Duration) -> Result<Vec<Mac>> {
    ask(ifindex, mac, address, patience).map_err(|source| Error::Interface {
        what: "asking who has an address",
        interface: links::by_index(ifindex).map_or_else(|_| ifindex.to_string(), |l| l.name),
        source,
    })
}

fn ask(ifindex: u32, mac: Mac, address: IpAddr, patience: Duration) -> io::Result<Vec<Mac>> {
    let socket = listen(ifindex)?;
    let frame = match address {
        IpAddr::V4(address) => arp_probe(mac, address).to_vec(),
        IpAddr::V6(address) => solicitation(mac, address).to_vec(),
    };
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

/// A broadcast request from nobody.
fn arp_probe(mac: Mac, address: Ipv4Addr) -> [u8; 42] {
    let mut frame = [0; 42];
    frame[0..6].copy_from_slice(&Mac::BROADCAST.0);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&mac.0);
    frame[38..42].copy_from_slice(&address.octets());
    frame
}

/// To the solicited-node group of the address, from nobody; so it has no options.
fn solicitation(mac: Mac, address: Ipv6Addr) -> [u8; 78] {
    let wanted = address.octets();
    let mut frame = [0; 78];
    frame[0..6].copy_from_slice(&[0x33, 0x33, 0xff, wanted[13], wanted[14], wanted[15]]);
    frame[6..12].copy_from_slice(&mac.0);
    frame[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255]);
    frame[38..40].copy_from_slice(&[0xff, 0x02]);
    frame[49..54].copy_from_slice(&[1, 0xff, wanted[13], wanted[14], wanted[15]]);
    frame[54] = 135;
    frame[62..78].copy_from_slice(&wanted);
    let checksum = icmpv6_checksum_of(&frame);
    frame[56..58].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Who sent an ARP reply or neighbour advertisement for this address.
fn answer(frame: &[u8], address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(address) => {
            let reply = frame.get(12..14)? == [0x08, 0x06] && frame.get(20..22)? == [0, 2];
            let of_it = frame.get(28..32)? == address.octets();
            (reply && of_it).then(|| frame.get(22..28)?.try_into().ok().map(Mac))?
        }
        IpAddr::V6(address) => {
            let advertisement = frame.get(12..14)? == [0x86, 0xdd]
                && *frame.get(20)? == 58
                && *frame.get(54)? == 136;
            let of_it = frame.get(62..78)? == address.octets();
            (advertisement && of_it).then(|| frame.get(6..12)?.try_into().ok().map(Mac))?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_probe_names_no_sender() {
        let frame = arp_probe(MAC, Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(frame[28..32], [0; 4]);
        assert_eq!(frame[38..42], [10, 0, 0, 1]);
        let frame = solicitation(MAC, "fd00::1:2:3".parse().unwrap());
        assert_eq!(icmpv6_checksum_of(&frame), 0);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 2, 0, 3]);
    }

    #[test]
    fn answers_are_told_from_questions() {
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let mut frame = crate::gratuitous_arp(MAC, ip);
        assert_eq!(answer(&frame, ip.into()), None);
        frame[21] = 2;
        assert_eq!(answer(&frame, ip.into()), Some(MAC));
        assert_eq!(answer(&frame, Ipv4Addr::new(10, 0, 0, 2).into()), None);
        let six: Ipv6Addr = "fd00::1".parse().unwrap();
        assert_eq!(answer(&crate::unsolicited_na(MAC, six), six.into()), Some(MAC));
        assert_eq!(answer(&frame[..20], ip.into()), None);
    }
}
