//! A blocking netlink socket in the calling thread's network namespace.

use std::io;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::wire::{Message, Request, attributes, messages, string, u32_of};
use crate::{Error, Result};

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NLM_F_DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
/// The kernel answers at once; silence means a bug, which must not hang the caller.
const PATIENCE: Duration = Duration::from_secs(10);
/// A dump that tables changed under is asked for again, this often.
const DUMP_TRIES: u32 = 10;

/// RTNLGRP numbers to listen to.
type Groups<'a> = &'a [u32];

pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub fn open() -> Result<Self> {
        Self::listening(&[])
    }

    /// With membership in multicast groups.
    pub fn listening(groups: Groups) -> Result<Self> {
        Self::of(NETLINK_ROUTE, groups)
    }

    /// A socket of another protocol than routes, such as NETLINK_SOCK_DIAG.
    pub fn of(protocol: isize, groups: Groups) -> Result<Self> {
        Self::try_open(protocol, groups).map_err(|source| Error::Netlink {
            what: "opening a netlink socket".into(),
            source,
            detail: String::new(),
        })
    }

    fn try_open(protocol: isize, groups: Groups) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_ext_ack(true)?;
        // Filters in dump requests are honoured only so; kernels before 4.20 do not know it.
        let _ = socket.set_netlink_get_strict_chk(true);
        for group in groups {
            socket.add_membership(*group)?;
        }
        let netlink = Self { socket, sequence: 0 };
        set_socket_timeout(&netlink.socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(netlink)
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    pub fn set_non_blocking(&self) -> io::Result<()> {
        self.socket.set_non_blocking(true)
    }

    /// One datagram of notifications, blocking at most ten seconds.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        Ok(self.socket.recv_from_full()?.0)
    }

    /// Sends a request made with NLM_F_ACK and waits for the acknowledgement.
    pub fn execute(&mut self, what: &str, request: Request) -> Result<()> {
        self.exchange(what, request, |_| ()).map(|_| ())
    }

    /// Sends a request that one message answers and returns what `read` makes of it.
    pub fn get<T>(
        &mut self,
        what: &str,
        request: Request,
        read: impl Fn(Message) -> Option<T>,
    ) -> Result<T> {
        let mut found = None;
        self.exchange(what, request, |message| found = read(message))?;
        found.ok_or_else(|| Error::Malformed { what: what.into() })
    }

    /// Sends a dump request, built anew for each try, and collects what `read` makes of the
    /// answers; a message that it makes nothing of is skipped.
    pub fn dump<T>(
        &mut self,
        what: &str,
        request: impl Fn() -> Request,
        read: impl Fn(Message) -> Option<T>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let mut found = Vec::new();
            if self.exchange(what, request(), |message| found.extend(read(message)))? {
                return Ok(found);
            }
        }
        Err(Error::Netlink {
            what: what.into(),
            source: io::Error::from(io::ErrorKind::Interrupted),
            detail: "the table kept changing while it was read; try again".into(),
        })
    }

    /// Sends requests that one message each answers, in one system call. `each` gets the place of a
    /// request with that message, or with the kernel's refusal. Send few: an answer that the
    /// receive buffer has no room for is an error.
    pub fn exchange_all(
        &mut self,
        what: &str,
        requests: impl IntoIterator<Item = Request>,
        mut each: impl FnMut(usize, io::Result<Message>),
    ) -> Result<()> {
        let failed = |source| Error::Netlink { what: what.into(), source, detail: String::new() };
        let first = self.sequence + 1;
        let mut bytes = Vec::new();
        for request in requests {
            self.sequence += 1;
            bytes.extend(request.finish(self.sequence));
        }
        let mut open = (self.sequence + 1 - first) as usize;
        if open > 0 {
            self.socket.send(&bytes, 0).map_err(failed)?;
        }
        while open > 0 {
            let datagram = self.receive().map_err(failed)?;
            let ours = first..=self.sequence;
            for message in messages(&datagram).filter(|m| ours.contains(&m.sequence)) {
                let refusal = if message.kind == NLMSG_ERROR { verdict(&message) } else { None };
                let answer = refusal.map_or(Ok(message), |(source, _)| Err(source));
                each((message.sequence - first) as usize, answer);
                open = open.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// One request with all its answers. False: interrupted by changes, so the answers may not fit
    /// together.
    fn exchange(
        &mut self,
        what: &str,
        request: Request,
        mut each: impl FnMut(Message),
    ) -> Result<bool> {
        let failed = |source, detail| Error::Netlink { what: what.into(), source, detail };
        self.sequence += 1;
        let bytes = request.finish(self.sequence);
        let expects_more = is_dump(&bytes) || has_ack(&bytes);
        self.socket.send(&bytes, 0).map_err(|e| failed(e, String::new()))?;
        let mut whole = true;
        loop {
            let datagram = self.receive().map_err(|e| failed(e, String::new()))?;
            for message in messages(&datagram).filter(|m| m.sequence == self.sequence) {
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => match verdict(&message) {
                        Some((source, detail)) => return Err(failed(source, detail)),
                        None => return Ok(whole),
                    },
                    _ => each(message),
                }
                if !expects_more {
                    return Ok(whole);
                }
            }
        }
    }
}

fn flags(request: &[u8]) -> i32 {
    i32::from(u16::from_ne_bytes([request[6], request[7]]))
}

fn is_dump(request: &[u8]) -> bool {
    flags(request) & libc::NLM_F_DUMP == libc::NLM_F_DUMP
}

fn has_ack(request: &[u8]) -> bool {
    flags(request) & libc::NLM_F_ACK != 0
}

/// The result in NLMSG_ERROR or NLMSG_DONE: success, or an error with the kernel's words.
fn verdict(message: &Message) -> Option<(io::Error, String)> {
    let code = u32_of(message.body).map_or(0, |c| c as i32);
    if code == 0 {
        return None;
    }
    Some((io::Error::from_raw_os_error(-code), extended(message).unwrap_or_default()))
}

/// The text of the extended acknowledgement: behind the code, and in NLMSG_ERROR behind the
/// offending request (its header alone if capped).
fn extended(message: &Message) -> Option<String> {
    if message.flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let mut offset = 4;
    if message.kind == NLMSG_ERROR {
        let request = message.body.get(4..)?;
        let length = if message.flags & NLM_F_CAPPED != 0 { 16 } else { u32_of(request)? as usize };
        offset += length.next_multiple_of(4);
    }
    attributes(message.body.get(offset..)?)
        .find(|a| a.kind == NLMSGERR_ATTR_MSG)
        .map(|a| string(a.data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_own_words() {
        // Captured: RTM_NEWNEIGH with an unknown interface, capped acknowledgement off.
        let mut body = (-libc::ENODEV).to_ne_bytes().to_vec();
        body.extend_from_slice(&Request::new(28, 5, &[0; 12]).finish(1));
        let text = b"invalid ifindex\0";
        body.extend_from_slice(&(text.len() as u16 + 4).to_ne_bytes());
        body.extend_from_slice(&NLMSGERR_ATTR_MSG.to_ne_bytes());
        body.extend_from_slice(text);
        let message =
            Message { kind: NLMSG_ERROR, flags: NLM_F_ACK_TLVS, sequence: 1, body: &body };
        let (source, detail) = verdict(&message).unwrap();
        assert_eq!(source.raw_os_error(), Some(libc::ENODEV));
        assert_eq!(detail, "invalid ifindex");
    }

    #[test]
    fn zero_is_success() {
        let body = 0i32.to_ne_bytes();
        let message = Message { kind: NLMSG_ERROR, flags: 0, sequence: 1, body: &body };
        assert!(verdict(&message).is_none());
    }

    #[test]
    fn refusals_carry_the_errno() {
        let request = Request::new(0x3fff, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &[0; 16]);
        let error = Netlink::open().unwrap().execute("nonsense", request).unwrap_err();
        assert!(matches!(error, Error::Netlink { .. }), "{error}");
    }
}
