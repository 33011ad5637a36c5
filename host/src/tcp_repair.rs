//! TCP connections that begin in the middle: the kernel is told their numbers (TCP_REPAIR), and no
//! SYN is sent.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net;

use crate::socket_options::{set, tcp_info};

// linux/tcp.h
const TCP_REPAIR_WINDOW: libc::c_int = 29;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;
const OFF: u32 = 0;
const ON: u32 = 1;
const OFF_WITHOUT_PROBE: u32 = u32::MAX;
const CLOSED: u8 = 7;

/// Bytes that each side takes at first.
const WINDOW: u32 = 14_600;

/// struct tcp_repair_window
#[repr(C)]
struct Window {
    sent_with: u32,
    send: u32,
    largest_send: u32,
    receive: u32,
    receive_from: u32,
}

/// Of the segments of a connection, without SYN and FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Of the next byte that is sent.
    pub send: u32,
    /// Of the next byte that comes.
    pub receive: u32,
}

/// What has become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The other side has reset it.
    pub is_reset: bool,
    /// Segments that have come.
    pub segments: u32,
}

/// Establishes a bound socket's connection, of whose beginning the other side is told nothing.
/// Needs CAP_NET_ADMIN.
///
/// # Errors
/// The kernel's.
pub fn establish(socket: impl AsFd, to: SocketAddr, numbers: Numbers) -> io::Result<()> {
    let Numbers { send, receive } = numbers;
    let tcp = |name, value| set(&socket, libc::IPPROTO_TCP, name, value);
    tcp(libc::TCP_REPAIR, ON)?;
    for (queue, number) in [(SEND_QUEUE, send), (RECEIVE_QUEUE, receive)] {
        tcp(libc::TCP_REPAIR_QUEUE, queue)?;
        tcp(libc::TCP_QUEUE_SEQ, number)?;
    }
    net::connect(&socket, &to)?;
    let window = Window {
        sent_with: receive,
        send: WINDOW,
        largest_send: WINDOW,
        receive: WINDOW,
        receive_from: receive,
    };
    set(&socket, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, window)?;
    tcp(libc::TCP_REPAIR, OFF_WITHOUT_PROBE)
}

/// Sends an ACK without data, whose number is one less than that of the next byte.
///
/// # Errors
/// The kernel's.
pub fn acknowledge(socket: impl AsFd) -> io::Result<()> {
    set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, ON)?;
    set(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, OFF)
}

/// # Errors
/// The kernel's.
pub fn heard(socket: impl AsFd) -> io::Result<Heard> {
    // What comes meanwhile is counted before it is taken: the second reading has it taken.
    let segments = info(&socket)?.segments;
    Ok(Heard { segments, ..info(&socket)? })
}

fn info(socket: &impl AsFd) -> io::Result<Heard> {
    let [state, .., a, b, c, d] = tcp_info(socket)?;
    Ok(Heard { is_reset: state == CLOSED, segments: u32::from_ne_bytes([a, b, c, d]) })
}
