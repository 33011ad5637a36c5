//! TCP listeners of the calling thread's network namespace, one by one.

use std::net::{IpAddr, SocketAddr};

use super::sockets::{INFO, LISTEN, dump};
use crate::Result;
use crate::netlink::{Message, address, attributes, string, u32_of};

/// INET_DIAG_SKV6ONLY and INET_DIAG_ULP_INFO with its INET_ULP_INFO_NAME (linux/inet_diag.h).
const V6_ONLY: u16 = 11;
const UPPER_PROTOCOL: u16 = 19;
const UPPER_PROTOCOL_NAME: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpListener {
    /// Where it listens; unspecified: at every address.
    pub address: IpAddr,
    pub port: u16,
    /// An IPv6 listener that takes no IPv4.
    pub v6_only: bool,
    /// It speaks Multipath TCP.
    pub mptcp: bool,
    /// The interface that it is bound to; 0: none.
    pub ifindex: u32,
}

impl TcpListener {
    /// Whether connections to this address and port are its own, where no listener is more specific.
    pub fn takes(&self, target: SocketAddr) -> bool {
        let any = match self.address {
            IpAddr::V4(own) => own.is_unspecified() && target.is_ipv4(),
            IpAddr::V6(own) => own.is_unspecified() && (target.is_ipv6() || !self.v6_only),
        };
        self.port == target.port() && (any || self.address.to_canonical() == target.ip())
    }
}

/// All of them.
///
/// # Errors
/// The kernel's.
pub fn all() -> Result<Vec<TcpListener>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // What the kernel says of upper protocols comes with INET_DIAG_INFO alone.
        found.extend(dump(family, 1 << LISTEN, 1 << (INFO - 1), read)?);
    }
    Ok(found)
}

/// As [`super::sockets`] reads it.
fn read(message: Message) -> Option<TcpListener> {
    let (body, rest) = message.body.split_at_checked(72)?;
    let length = if i32::from(body[0]) == libc::AF_INET { 4 } else { 16 };
    let of = |kind| attributes(rest).find(|one| one.kind == kind).map(|one| one.data);
    let upper = of(UPPER_PROTOCOL).into_iter().flat_map(attributes);
    let mut upper = upper.filter(|one| one.kind == UPPER_PROTOCOL_NAME);
    Some(TcpListener {
        address: address(&body[8..8 + length])?,
        port: u16::from_be_bytes([body[4], body[5]]),
        v6_only: of(V6_ONLY).is_some_and(|only| only.first() == Some(&1)),
        mptcp: upper.any(|name| string(name.data) == "mptcp"),
        ifindex: u32_of(&body[40..])?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd as _, OwnedFd};

    use super::*;

    fn at(port: u16) -> TcpListener {
        all().unwrap().into_iter().find(|one| one.port == port).unwrap()
    }

    #[test]
    fn a_listener_takes_what_its_address_says() {
        let listener = |address: &str, v6_only| TcpListener {
            address: address.parse().unwrap(),
            port: 80,
            v6_only,
            mptcp: false,
            ifindex: 0,
        };
        for (own, v6_only, target, takes) in [
            ("203.0.113.9", false, "203.0.113.9:80", true),
            ("203.0.113.9", false, "203.0.113.9:81", false),
            ("203.0.113.9", false, "203.0.113.8:80", false),
            ("0.0.0.0", false, "203.0.113.9:80", true),
            ("0.0.0.0", false, "[2001:db8::9]:80", false),
            ("::", false, "203.0.113.9:80", true),
            ("::", true, "203.0.113.9:80", false),
            ("::", true, "[2001:db8::9]:80", true),
            ("::ffff:203.0.113.9", false, "203.0.113.9:80", true),
        ] {
            assert_eq!(
                listener(own, v6_only).takes(target.parse().unwrap()),
                takes,
                "{own} {target}"
            );
        }
    }

    #[test]
    fn the_kernel_tells_what_kind_a_listener_is() {
        let plain = std::net::TcpListener::bind("[::]:0").unwrap();
        let found = at(plain.local_addr().unwrap().port());
        assert!(!found.mptcp && !found.v6_only && found.address.is_unspecified(), "{found:?}");
        // SAFETY: no memory is given.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) };
        if socket < 0 {
            return; // this kernel has none
        }
        // SAFETY: opened above; nobody else has it.
        let socket = unsafe { std::net::TcpListener::from(OwnedFd::from_raw_fd(socket)) };
        // An address is given to a socket that listens without one.
        rustix::net::listen(&socket, 1).unwrap();
        assert!(at(socket.local_addr().unwrap().port()).mptcp);
    }
}
