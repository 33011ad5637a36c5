//! Multicast groups of neighbour discovery: what an interface must receive so that somebody other
//! than its kernel may answer for an IPv6 address (RFC 4291, section 2.7.1).

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_char;
use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_add_membership;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::netlink::links;
use crate::{Error, Mac, Result};

/// Has the interface receive frames to `mac`, as `ip maddr add` does: until [`stop_receiving`],
/// whatever becomes of the caller. Receiving them already is success, and so is a device without a
/// filter. Needs CAP_NET_ADMIN.
pub fn receive(ifindex: u32, mac: Mac) -> Result<()> {
    change(libc::SIOCADDMULTI, ifindex, mac, "receiving a multicast address")
        .or_else(|error| unless(error, libc::EINVAL))
}

/// Takes back what [`receive`] or `ip maddr add` did. Returns whether there was anything to take
/// back. Others' needs, such as a socket's, stay. Needs CAP_NET_ADMIN.
pub fn stop_receiving(ifindex: u32, mac: Mac) -> Result<bool> {
    let removed =
        change(libc::SIOCDELMULTI, ifindex, mac, "giving up a multicast address").map(|()| true);
    let absent = |error| unless(error, libc::ENOENT).map(|()| false);
    removed.or_else(absent).or_else(|error| unless(error, libc::EINVAL).map(|()| false))
}

/// EINVAL: a device without a filter (no `ndo_set_rx_mode`). ENOENT: the address is not in it.
fn unless(error: Error, harmless: i32) -> Result<()> {
    match &error {
        Error::Interface { source, .. } if source.raw_os_error() == Some(harmless) => Ok(()),
        _ => Err(error),
    }
}

fn change(request: libc::c_ulong, ifindex: u32, mac: Mac, what: &'static str) -> Result<()> {
    let interface = links::by_index(ifindex)?.name;
    ioctl(request, &interface, mac).map_err(|source| Error::Interface { what, interface, source })
}

fn ioctl(request: libc::c_ulong, interface: &str, mac: Mac) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: plain old data for which all zeroes is valid.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: the kernel wants a terminated name.
    let room = ifreq.ifr_name.len() - 1;
    for (to, from) in ifreq.ifr_name.iter_mut().take(room).zip(interface.bytes()) {
        *to = from as c_char;
    }
    // SAFETY: plain old data for which all zeroes is valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::AF_UNSPEC as u16;
    for (to, from) in address.sa_data.iter_mut().zip(mac.0) {
        *to = from as c_char;
    }
    ifreq.ifr_ifru.ifru_hwaddr = address;
    // SAFETY: the socket is open, and the kernel reads an initialised ifreq that outlives the call.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw const ifreq) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Groups that this process is a member of, for as long as this value lives. The kernel reports
/// them to the link (MLD), so that switches that listen for such reports send it the groups'
/// frames.
#[derive(Debug, Default)]
pub struct Memberships {
    sockets: Vec<OwnedFd>,
}

impl Memberships {
    /// Joins groups, each given once, on interfaces given by their indexes. Returns what failed,
    /// too.
    pub fn join(groups: impl IntoIterator<Item = (u32, Ipv6Addr)>) -> (Self, Vec<Error>) {
        let (mut joined, mut errors) = (Self::default(), Vec::new());
        for (ifindex, group) in groups {
            let Err(source) = joined.add(ifindex, group) else { continue };
            errors.push(match links::by_index(ifindex) {
                Err(missing @ Error::NoInterface { .. }) => missing,
                link => Error::Interface {
                    what: "joining a multicast group",
                    interface: link.map_or_else(|_| ifindex.to_string(), |link| link.name),
                    source: source.into(),
                },
            });
        }
        (joined, errors)
    }

    fn add(&mut self, ifindex: u32, group: Ipv6Addr) -> rustix::io::Result<()> {
        if let Some(socket) = self.sockets.last() {
            match set_ipv6_add_membership(socket, &group, ifindex) {
                // A socket has memory for some hundreds (net.core.optmem_max).
                Err(Errno::NOMEM | Errno::NOBUFS) => {}
                other => return other,
            }
        }
        let socket =
            socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        set_ipv6_add_membership(&socket, &group, ifindex)?;
        self.sockets.push(socket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_missing_is_named() {
        let error = receive(999_999, Mac::BROADCAST).unwrap_err();
        assert!(matches!(&error, Error::NoInterface { name } if name == "999999"), "{error}");
        let (_, errors) = Memberships::join([(999_999, "ff02::1:ff00:80".parse().unwrap())]);
        assert!(matches!(&errors[..], [Error::NoInterface { .. }]), "{errors:?}");
    }
}
