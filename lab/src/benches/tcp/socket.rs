//! TCP sockets of IPv4, and what can be asked of them.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, connect,
    getsockname, listen, recv, send, socket_with, sockopt,
};

/// A number as a socket's option; for options that rustix does not know.
pub(crate) fn set_option(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option's value is an int, as long as said.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as u32,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket that belongs to no address yet.
pub(crate) fn stream(nonblocking: bool) -> io::Result<OwnedFd> {
    let flag = if nonblocking { SocketFlags::NONBLOCK } else { SocketFlags::empty() };
    let flags = SocketFlags::CLOEXEC | flag;
    Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
}

/// A listener, shared with those of other processes at the same port (SO_REUSEPORT). Port 0: any
/// that is free.
pub(crate) fn listener(at: SocketAddrV4, backlog: i32, nonblocking: bool) -> io::Result<OwnedFd> {
    let socket = stream(nonblocking)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &at)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// A socket's own address.
pub(crate) fn address(socket: &OwnedFd) -> io::Result<SocketAddrV4> {
    let address = getsockname(socket)?;
    SocketAddrV4::try_from(address).map_err(|_| io::ErrorKind::AddrNotAvailable.into())
}

/// A connection: the client's socket and the server's.
pub(crate) struct Pair {
    pub client: Option<OwnedFd>,
    pub server: Option<OwnedFd>,
}

impl Pair {
    /// To a listener of this thread, one at a time, so that no queue can overflow.
    pub(crate) fn connect(listener: &OwnedFd, to: SocketAddrV4) -> io::Result<Self> {
        let client = stream(false)?;
        connect(&client, &to)?;
        let server = accept_with(listener, SocketFlags::CLOEXEC)?;
        Ok(Self { client: Some(client), server: Some(server) })
    }
}

/// All of some bytes.
pub(crate) fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        bytes = &bytes[send(socket, bytes, SendFlags::NOSIGNAL)?..];
    }
    Ok(())
}

/// Exactly as many bytes as there is room for.
pub(crate) fn receive_all(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match recv(socket, &mut bytes[done..], RecvFlags::empty())?.0 {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => done += more,
        }
    }
    Ok(())
}

/// Ends a socket without a word to the other side, as the kernel's checkpointing does (TCP_REPAIR,
/// net/ipv4/tcp.c).
pub(crate) fn vanish(socket: OwnedFd) -> io::Result<()> {
    set_option(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)
}
