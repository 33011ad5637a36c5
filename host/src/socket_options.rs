//! Options of sockets that no library offers.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

// linux/in.h: SOL_IP
const IP_BIND_ADDRESS_NO_PORT: libc::c_int = 24;

/// Marks every packet of the socket (SO_MARK). Needs CAP_NET_ADMIN.
pub fn set_mark(socket: impl AsFd, mark: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MARK, mark)
}

/// Leaves the choice of a port to connect(2), which knows the far end and so may share ports,
/// instead of bind(2).
pub fn bind_late(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Lets send(2) of a datagram socket fail where a queue of this machine's drops the packet
/// (IP_RECVERR, see ip(7)); receiving fails with what ICMP says of the far end.
pub fn report_errors(socket: impl AsFd, v6: bool) -> io::Result<()> {
    match v6 {
        false => set(socket, libc::SOL_IP, libc::IP_RECVERR, 1),
        true => set(socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1),
    }
}

/// `value`: what the kernel expects of this option.
pub(crate) fn set<T>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: an open socket, and a value that outlives the call and is as long as said.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
