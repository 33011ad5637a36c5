//! The states of a connection that are measured, and how one gets there.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};

use super::Side;
use crate::benches::tcp::socket::{Pair, receive_all, send_all};
use crate::harness::named_enum::named;

/// A message as short requests are.
const MESSAGE: usize = 64;
/// A full TLS 1.3 record: 16 KiB of text, its type, header and tag (RFC 8446, section 5.2).
const RECORD: usize = 16384 + 1 + 5 + 16;

named! {
    /// The state of a connection.
    pub enum SocketState {
        Idle = "established",
        Epoll = "established-epoll",
        ClientSent = "client-sent-unread",
        ServerRead = "client-sent-read",
        ServerSent = "server-sent-unread",
        ClientRead = "server-sent-read",
        TlsSent = "tls-record-unread",
        TlsRead = "tls-record-read",
        HalfClosed = "half-closed",
        FinWait2 = "fin-wait2",
        TimeWait = "time-wait",
    }
}

use SocketState::*;

impl SocketState {
    /// The state in words.
    pub fn what(self) -> &'static str {
        match self {
            Idle => "established, no data yet",
            Epoll => "the same, each socket in an epoll set",
            ClientSent => "client sent 64 bytes, server has not read",
            ServerRead => "client sent 64 bytes, server has read",
            ServerSent => "server sent 64 bytes, client has not read",
            ClientRead => "server sent 64 bytes, client has read",
            TlsSent => "client sent a TLS record of 16 KiB, not read",
            TlsRead => "client sent a TLS record of 16 KiB, read",
            HalfClosed => "client shut down (FIN_WAIT2, held), server CLOSE_WAIT",
            FinWait2 => "client closed (FIN_WAIT2), server CLOSE_WAIT",
            TimeWait => "client closed, server closed (TIME_WAIT)",
        }
    }

    /// Bytes of a socket that the 2022 book of the lab's source has for Linux 3.10 (it counts in KB
    /// of 1024).
    pub(super) fn source_bytes(self, side: Side) -> Option<u64> {
        let kb = match (self, side) {
            (Idle, Side::Client) => 3.42,
            (Idle, Side::Server) => 3.27,
            (ClientSent, Side::Client) => 7.66,
            (ClientSent, Side::Server) => 5.47,
            (ServerRead, Side::Client) => 7.00,
            (ServerRead, Side::Server) => 3.24,
            (ServerSent, Side::Client) => 4.82,
            (ServerSent, Side::Server) => 3.39,
            (ClientRead, Side::Client) => 3.56,
            (ClientRead, Side::Server) => 3.33,
            (TimeWait, Side::Client) => 0.5,
            (TimeWait, Side::Server) => 0.0,
            _ => return None,
        };
        Some((kb * 1024.0_f64).round() as u64)
    }

    /// Bytes in pages behind the queue of a side that has not read, which are no objects:
    /// tcp_sendmsg copies into fragments of pages and charges exactly what it copies
    /// (net/ipv4/tcp.c).
    pub(super) fn unread(self, side: Side) -> usize {
        match (self, side) {
            (ClientSent, Side::Server) | (ServerSent, Side::Client) => MESSAGE,
            (TlsSent, Side::Server) => RECORD,
            _ => 0,
        }
    }

    /// Whether that side still holds its socket by a descriptor.
    pub(super) fn has_file(self, side: Side) -> bool {
        !matches!((self, side), (FinWait2 | TimeWait, Side::Client) | (TimeWait, Side::Server))
    }

    /// Objects of one cache that a side has of each connection; none where it is not known how
    /// many.
    pub(super) fn objects(self, side: Side, cache: &str) -> Option<f64> {
        let is = |has: bool| Some(f64::from(u8::from(has)));
        match cache {
            "dentry" | "filp" | "sock_inode_cache" | "TCP" => is(self.has_file(side)),
            // A socket that is closed and waits is no full socket any more
            // (net/ipv4/tcp_minisocks.c).
            "tw_sock_TCP" => is(matches!((self, side), (FinWait2 | TimeWait, Side::Client))),
            _ => None,
        }
    }

    /// Takes a fresh connection there.
    pub(super) fn reach(self, pair: &mut Pair, set: &OwnedFd) -> io::Result<()> {
        let (Some(client), Some(server)) = (&pair.client, &pair.server) else { return Ok(()) };
        match self {
            Idle => {}
            Epoll => {
                for socket in [client, server] {
                    let data = epoll::EventData::new_u64(0);
                    epoll::add(set, socket, data, epoll::EventFlags::IN)?;
                }
            }
            ClientSent | ServerRead => send_all(client, &[1; MESSAGE])?,
            ServerSent | ClientRead => send_all(server, &[1; MESSAGE])?,
            TlsSent | TlsRead => send_all(client, &[1; RECORD])?,
            HalfClosed => shutdown(client, Shutdown::Write)?,
            FinWait2 => pair.client = None,
            TimeWait => {
                pair.client = None;
                pair.server = None;
            }
        }
        self.read(pair)
    }

    fn read(self, pair: &Pair) -> io::Result<()> {
        let (reader, bytes) = match self {
            ServerRead => (&pair.server, MESSAGE),
            TlsRead => (&pair.server, RECORD),
            ClientRead => (&pair.client, MESSAGE),
            _ => return Ok(()),
        };
        reader.as_ref().map_or(Ok(()), |reader| receive_all(reader, &mut vec![0; bytes]))
    }
}
