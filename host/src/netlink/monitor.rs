//! Changes of links, addresses, routes and neighbours, as the kernel announces them.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use crate::netlink::addresses::{self, Address};
use crate::netlink::links::{self, Link};
use crate::netlink::neighbours::{self, Neighbour};
use crate::netlink::{Message, Netlink, messages};
use crate::{Error, Result};

/// RTNLGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE,
/// NEXTHOP.
const GROUPS: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];
/// Datagrams that are read before the changes in them are handed on.
const AT_ONCE: usize = 256;
/// A subscription that broke is tried again this often.
const AGAIN: Duration = Duration::from_secs(1);
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetlinkChange {
    /// An interface appeared or changed.
    Link(Box<Link>),
    /// An interface disappeared from this namespace.
    LinkGone {
        /// Its index, which may be given to another.
        ifindex: u32,
        name: String,
    },
    /// A neighbour appeared or changed.
    Neighbour(Neighbour),
    NeighbourGone {
        /// The interface it was behind.
        ifindex: u32,
        address: IpAddr,
    },
    /// An address appeared or changed.
    Address(Address),
    AddressGone(Address),
    /// Some route, rule or next hop changed: ask `routes::route_to` again.
    Routes,
    /// Changes came faster than they were read and some are lost: read everything anew.
    Lost,
    /// Changes cannot be heard now, and why. When they can be again, [`NetlinkChange::Lost`] follows.
    Unheard(String),
}

/// Membership in multicast groups, in the network namespace of the thread that opened it, whichever
/// thread reads it.
pub(crate) struct Subscription {
    netlink: Netlink,
}

impl Subscription {
    /// `groups`: RTNLGRP numbers.
    pub fn open(groups: &[u32]) -> Result<Self> {
        let netlink = Netlink::listening(groups)?;
        netlink.set_non_blocking().map_err(failed)?;
        Ok(Self { netlink })
    }

    /// Asks for a receive buffer of this many bytes; without CAP_NET_ADMIN it is smaller
    /// (net.core.rmem_max).
    pub fn enlarge(&self, bytes: usize) -> Result<()> {
        let socket = self.netlink.socket();
        set_socket_recv_buffer_size_force(socket, bytes)
            .or_else(|_| set_socket_recv_buffer_size(socket, bytes))
            .map_err(|e| failed(e.into()))
    }

    /// Waits for changes, at most `timeout` (for ever without); empty on timeout. `lost` stands for
    /// changes that the kernel had no room for.
    pub fn next<T: Clone>(
        &self,
        timeout: Option<Duration>,
        read: impl Fn(Message) -> Option<T>,
        lost: T,
    ) -> Result<Vec<T>> {
        let mut fds = [PollFd::new(self.netlink.socket(), PollFlags::IN)];
        wait(&mut fds, timeout).map_err(failed)?;
        self.pending(read, lost)
    }

    /// Reads what is there without waiting, up to a bound: changes may come faster than that.
    fn pending<T: Clone>(&self, read: impl Fn(Message) -> Option<T>, lost: T) -> Result<Vec<T>> {
        let mut changes = Vec::new();
        for _ in 0..AT_ONCE {
            match self.netlink.receive() {
                Ok(datagram) => changes.extend(messages(&datagram).filter_map(&read)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changes.push(lost.clone()),
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(changes)
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.socket().as_fd()
    }
}

/// A subscription in the network namespace of the thread that opened it, whichever thread reads it.
pub struct NetlinkMonitor {
    subscription: Subscription,
}

impl NetlinkMonitor {
    /// Subscribes. Changes from now on are queued; read the present state after this, not before.
    pub fn open() -> Result<Self> {
        Ok(Self { subscription: Subscription::open(&GROUPS)? })
    }

    /// Waits for changes, at most `timeout` (for ever without); empty on timeout.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Vec<NetlinkChange>> {
        self.subscription.next(timeout, read, NetlinkChange::Lost)
    }

    /// Reads in a thread of its own and hands every change to `each`, until that returns false or
    /// the returned guard is dropped. An unreadable socket is told as [`NetlinkChange::Unheard`] and
    /// replaced every second until that works.
    pub fn spawn(
        mut self,
        mut each: impl FnMut(NetlinkChange) -> bool + Send + 'static,
    ) -> Result<MonitorThread> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let stopped = stop.try_clone().map_err(failed)?;
        let run = move || {
            loop {
                let mut fds = [
                    PollFd::new(&self.subscription, PollFlags::IN),
                    PollFd::new(&stopped, PollFlags::IN),
                ];
                let waited = wait(&mut fds, None);
                if !fds[1].revents().is_empty() {
                    return;
                }
                let changes = match waited.map_err(failed).and_then(|()| self.pending()) {
                    Ok(changes) => changes,
                    Err(error) => {
                        if !each(NetlinkChange::Unheard(error.to_string())) {
                            return;
                        }
                        match reopened(&stopped) {
                            Some(monitor) => self = monitor,
                            None => return,
                        }
                        vec![NetlinkChange::Lost]
                    }
                };
                if !changes.into_iter().all(&mut each) {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("netlink-monitor".into());
        let thread = builder.spawn(run).map_err(failed)?;
        Ok(MonitorThread { stop, thread: Some(thread) })
    }

    fn pending(&self) -> Result<Vec<NetlinkChange>> {
        self.subscription.pending(read, NetlinkChange::Lost)
    }
}

/// Another subscription, as soon as the kernel gives one; `None`: stopped meanwhile.
fn reopened(stopped: &OwnedFd) -> Option<NetlinkMonitor> {
    loop {
        let mut fds = [PollFd::new(stopped, PollFlags::IN)];
        let _ = wait(&mut fds, Some(AGAIN));
        if !fds[0].revents().is_empty() {
            return None;
        }
        if let Ok(monitor) = NetlinkMonitor::open() {
            return Some(monitor);
        }
    }
}

/// Ends a monitor's thread when dropped.
pub struct MonitorThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MonitorThread {
    fn drop(&mut self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(self.stop.as_fd(), &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn wait(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn failed(source: io::Error) -> Error {
    Error::Netlink { what: "listening to changes".into(), source, detail: String::new() }
}

fn read(message: Message) -> Option<NetlinkChange> {
    match message.kind {
        libc::RTM_NEWLINK => links::read(message).map(|l| NetlinkChange::Link(Box::new(l))),
        // A port leaving its bridge is announced as RTM_DELLINK of family AF_BRIDGE: the link
        // itself stays.
        libc::RTM_DELLINK if message.body.first() == Some(&0) => links::read(message)
            .map(|l| NetlinkChange::LinkGone { ifindex: l.ifindex, name: l.name }),
        libc::RTM_NEWNEIGH => neighbours::read(message).map(NetlinkChange::Neighbour),
        libc::RTM_DELNEIGH => neighbours::read(message)
            .map(|n| NetlinkChange::NeighbourGone { ifindex: n.ifindex, address: n.address }),
        libc::RTM_NEWADDR => addresses::read(message).map(NetlinkChange::Address),
        libc::RTM_DELADDR => addresses::read(message).map(NetlinkChange::AddressGone),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWRULE | libc::RTM_DELRULE => {
            Some(NetlinkChange::Routes)
        }
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Some(NetlinkChange::Routes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use netlink_sys::Socket;
    use netlink_sys::protocols::NETLINK_USERSOCK;

    use crate::netlink::Request;

    /// The socket that it reads is another's from now on.
    fn put(other: &impl AsRawFd, monitor: &NetlinkMonitor) {
        // SAFETY: both are open; the number of the monitor's socket stands for the other from now
        // on, and its owner closes it.
        let put = unsafe {
            libc::dup2(other.as_raw_fd(), monitor.subscription.netlink.socket().as_raw_fd())
        };
        assert!(put >= 0);
    }

    #[test]
    fn a_subscription_that_breaks_is_told_and_made_again() {
        let monitor = NetlinkMonitor::open().expect("the kernel tells of changes");
        let null = File::open("/dev/null").expect("open");
        put(&null, &monitor);
        let (send, receive) = mpsc::channel();
        let _thread = monitor.spawn(move |change| send.send(change).is_ok()).expect("a thread");
        // It is tried every second.
        let next = || receive.recv_timeout(Duration::from_secs(10)).expect("told");
        assert!(matches!(next(), NetlinkChange::Unheard(_)));
        assert_eq!(next(), NetlinkChange::Lost);
    }

    /// Somebody who changes routes without end must not fill the memory.
    #[test]
    fn so_many_changes_are_read_before_they_are_handed_on() {
        let monitor = NetlinkMonitor::open().expect("the kernel tells of changes");
        // Whoever is not root can send to it as the kernel does.
        let mut socket = Socket::new(NETLINK_USERSOCK).expect("a socket");
        let address = socket.bind_auto().expect("an address");
        socket.set_non_blocking(true).expect("set");
        set_socket_recv_buffer_size(&socket, 1 << 20).expect("room");
        put(&socket, &monitor);
        let kernel = Socket::new(NETLINK_USERSOCK).expect("a socket");
        for _ in 0..AT_ONCE + 9 {
            let change = Request::new(libc::RTM_NEWROUTE, 0, &[0; 12]).finish(1);
            kernel.send_to(&change, &address, 0).expect("sent");
        }
        let pending = || monitor.pending().expect("read").len();
        assert_eq!([pending(), pending(), pending()], [AT_ONCE, 9, 0]);
    }
}
