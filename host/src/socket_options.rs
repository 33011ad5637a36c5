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

/// What the two ends of a TCP connection agreed to in their handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Time stamps (RFC 7323).
    pub stamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Bytes of a segment without options: what the far end takes, and the way to it.
    pub mss: u16,
}

/// What a connection was agreed to have (TCP_INFO). An option that this machine does not ask for is
/// absent.
pub fn tcp_options(stream: impl AsFd) -> io::Result<TcpOptions> {
    // linux/tcp.h: TCPI_OPT_*, and the places in struct tcp_info.
    const STAMPS: u8 = 1;
    const SACK: u8 = 2;
    const ECN: u8 = 8;
    const OPTIONS: usize = 5;
    const SEND_MSS: usize = 16;
    /// The MSS of the kernel leaves out this option, which is in every segment.
    const STAMPS_LENGTH: u32 = 12;
    let info = tcp_info(stream)?;
    let has = |option: u8| info[OPTIONS] & option != 0;
    let mss = [0, 1, 2, 3].map(|byte| info[SEND_MSS + byte]);
    let mss = u32::from_ne_bytes(mss) + if has(STAMPS) { STAMPS_LENGTH } else { 0 };
    let mss = u16::try_from(mss).unwrap_or(u16::MAX);
    Ok(TcpOptions { stamps: has(STAMPS), sack: has(SACK), ecn: has(ECN), mss })
}

/// struct tcp_info up to tcpi_segs_in (Linux 4.2).
pub(crate) fn tcp_info(socket: impl AsFd) -> io::Result<[u8; 144]> {
    let mut info = [0; 144];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: an open socket; the kernel writes `length` bytes at most, for which there is room.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if ret == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
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
