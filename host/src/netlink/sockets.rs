//! TCP sockets of the calling thread's network namespace, by NETLINK_SOCK_DIAG (linux/inet_diag.h):
//! counted and summed up, since there may be a million.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use serde::{Deserialize, Serialize};

use crate::netlink::{Message, Netlink, Request, address, attributes, u32_of};
use crate::{Error, Result};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Names of enum tcp_states (net/tcp_states.h), from 1 on.
const STATES: [&str; 12] = [
    "established",
    "syn_sent",
    "syn_recv",
    "fin_wait1",
    "fin_wait2",
    "time_wait",
    "close",
    "close_wait",
    "last_ack",
    "listen",
    "closing",
    "new_syn_recv",
];
const ESTABLISHED: u8 = 1;
pub(super) const LISTEN: u8 = 10;
/// INET_DIAG_INFO: struct tcp_info, with tcpi_rtt at this offset (linux/tcp.h).
pub(super) const INFO: u16 = 2;
const RTT: usize = 68;
/// Pairs that are listed: those with most connections.
const MOST_PAIRS: usize = 50;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    pub address: IpAddr,
    pub port: u16,
    /// Connections that wait for accept(2).
    pub waiting: u32,
    /// The most that may wait: the lesser of listen(2)'s backlog and net.core.somaxconn.
    pub limit: u32,
}

/// Connections from one address of this host to one port of one other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTuple {
    /// Own address.
    pub source: IpAddr,
    /// Far address.
    pub destination: IpAddr,
    /// Far port.
    pub port: u16,
    /// Own ports of the local range in use, TIME_WAIT among them.
    pub connections: u64,
}

/// All TCP sockets, summed up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    pub listeners: Vec<Listener>,
    /// Sockets by state, such as `time_wait`.
    pub states: BTreeMap<String, u64>,
    /// Where most connections with a port of the local range lead.
    #[serde(rename = "roads")]
    pub peers: Vec<PeerTuple>,
    /// The median of established connections' smoothed round-trip times, in microseconds, but for
    /// those to this host itself.
    #[serde(default)]
    pub rtt_us: Option<u32>,
}

/// Counts them; `local` is the range of ports that connections of this host get.
pub fn tcp(local: RangeInclusive<u16>) -> Result<Sockets> {
    let mut sockets = Sockets::default();
    let mut peers: BTreeMap<(IpAddr, IpAddr, u16), u64> = BTreeMap::new();
    let mut rtts = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for socket in dump(family, u32::MAX, 1 << (INFO - 1), read)? {
            let name = STATES.get(usize::from(socket.state).wrapping_sub(1));
            *sockets.states.entry((*name.unwrap_or(&"other")).into()).or_default() += 1;
            if socket.state == LISTEN {
                sockets.listeners.push(Listener {
                    address: socket.source,
                    port: socket.source_port,
                    waiting: socket.receive_queue,
                    limit: socket.send_queue,
                });
                continue;
            }
            if socket.state == ESTABLISHED && socket.source != socket.destination {
                rtts.extend(socket.rtt_us);
            }
            if local.contains(&socket.source_port) {
                let pair = (socket.source, socket.destination, socket.destination_port);
                *peers.entry(pair).or_default() += 1;
            }
        }
    }
    let pair = |((source, destination, port), connections)| PeerTuple {
        source,
        destination,
        port,
        connections,
    };
    sockets.peers = peers.into_iter().map(pair).collect();
    sockets.peers.sort_by_key(|pair| std::cmp::Reverse(pair.connections));
    sockets.peers.truncate(MOST_PAIRS);
    let middle = rtts.len() / 2;
    sockets.rtt_us = (!rtts.is_empty()).then(|| *rtts.select_nth_unstable(middle).1);
    Ok(sockets)
}

struct Socket {
    state: u8,
    source: IpAddr,
    source_port: u16,
    destination: IpAddr,
    destination_port: u16,
    receive_queue: u32,
    send_queue: u32,
    rtt_us: Option<u32>,
}

/// What `read` makes of the sockets of a family: those whose state's bit is set, with attributes of
/// `extensions`.
pub(super) fn dump<T>(
    family: i32,
    states: u32,
    extensions: u8,
    read: impl Fn(Message) -> Option<T>,
) -> Result<Vec<T>> {
    // struct inet_diag_req_v2: family, protocol, ext, pad, states, id.
    let mut header = [0; 56];
    header[0] = family as u8;
    header[1] = libc::IPPROTO_TCP as u8;
    header[2] = extensions;
    header[4..8].copy_from_slice(&states.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(SOCK_DIAG_BY_FAMILY, flags, &header);
    let found = Netlink::of(NETLINK_SOCK_DIAG, &[])?.dump("listing TCP sockets", request, read);
    match found {
        // A kernel without IPv6.
        Err(Error::Netlink { source, .. })
            if family == libc::AF_INET6 && source.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(Vec::new())
        }
        found => found,
    }
}

/// struct inet_diag_msg: family, state, timer, retrans, then the id: ports (network order), source,
/// destination, interface, cookie; expires, rqueue, wqueue.
fn read(message: Message) -> Option<Socket> {
    let (body, rest) = message.body.split_at_checked(72)?;
    let info = attributes(rest).find(|one| one.kind == INFO);
    let length = if i32::from(body[0]) == libc::AF_INET { 4 } else { 16 };
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    Some(Socket {
        state: body[1],
        source: address(&body[8..8 + length])?,
        source_port: port(4),
        destination: address(&body[24..24 + length])?,
        destination_port: port(6),
        receive_queue: u32_of(&body[56..])?,
        send_queue: u32_of(&body[60..])?,
        // 0: none has been measured.
        rtt_us: info.and_then(|info| u32_of(info.data.get(RTT..)?)).filter(|rtt| *rtt > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_and_who_connects_to_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let sockets = tcp(1..=65535).unwrap();
        let found = sockets.listeners.iter().find(|one| one.port == port).unwrap();
        // std asks for a backlog of 128 or more.
        assert!(found.waiting == 1 && found.limit >= 16, "{found:?}");
        assert!(sockets.peers.iter().any(|pair| pair.port == port), "{sockets:?}");
        assert!(sockets.states["established"] >= 1 && sockets.states["listen"] >= 1);
    }
}
