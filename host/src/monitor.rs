//! Changes of links, addresses, routes and neighbours, as the kernel announces them.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::addresses::{self, Address};
use crate::links::{self, Link};
use crate::neighbours::{self, Neighbour};
use crate::netlink::{Message, Netlink, messages};
use crate::{Error, Result};

/// RTNLGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE, NEXTHOP.
const GROUPS: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_DELNEXTHOP: u16 = 105;

/// Something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// An interface appeared or changed.
    Link(Box<Link>),
    /// An interface disappeared from this namespace.
    LinkGone {
        /// Its index, which may be given to another.
        ifindex: u32,
        /// Its name.
        name: String,
    },
    /// A neighbour appeared or changed.
    Neighbour(Neighbour),
    /// A neighbour was forgotten.
    NeighbourGone {
        /// The interface it was behind.
        ifindex: u32,
        /// Its address.
        address: IpAddr,
    },
    /// An address appeared or changed.
    Address(Address),
    /// An address went.
    AddressGone(Address),
    /// Some route, rule or next hop changed: ask `routes::route_to` again.
    Routes,
    /// Changes came faster than they were read and some are lost: read everything anew.
    Lost,
}

/// A subscription in the network namespace of the thread that opened it, whichever thread reads it.
pub struct Monitor {
    netlink: Netlink,
}

impl Monitor {
    /// Subscribes. Changes from now on are queued; read the present state after this, not before.
    pub fn open() -> Result<Self> {
        let netlink = Netlink::listening(&GROUPS)?;
        netlink.set_non_blocking().map_err(failed)?;
        Ok(Self { netlink })
    }

    /// Waits for changes, at most `timeout` (for ever without); empty on timeout.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Vec<Change>> {
        let mut fds = [PollFd::new(self.netlink.socket(), PollFlags::IN)];
        wait(&mut fds, timeout).map_err(failed)?;
        self.pending()
    }

    /// Reads in a thread of its own and hands every change to `each`, until that returns false or the returned
    /// guard is dropped. An unreadable socket is told as [`Change::Lost`] and ends it.
    pub fn spawn(
        self,
        mut each: impl FnMut(Change) -> bool + Send + 'static,
    ) -> Result<MonitorThread> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let stopped = stop.try_clone().map_err(failed)?;
        let run = move || {
            loop {
                let mut fds = [
                    PollFd::new(self.netlink.socket(), PollFlags::IN),
                    PollFd::new(&stopped, PollFlags::IN),
                ];
                let waited = wait(&mut fds, None);
                if !fds[1].revents().is_empty() {
                    return;
                }
                let Ok(changes) = waited.map_err(failed).and_then(|()| self.pending()) else {
                    each(Change::Lost);
                    return;
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

    /// All that can be read without waiting.
    fn pending(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        loop {
            match self.netlink.receive() {
                Ok(datagram) => changes.extend(messages(&datagram).filter_map(read)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(changes),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changes.push(Change::Lost),
                Err(e) => return Err(failed(e)),
            }
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

fn read(message: Message) -> Option<Change> {
    match message.kind {
        libc::RTM_NEWLINK => links::read(message).map(|l| Change::Link(Box::new(l))),
        // A port leaving its bridge is announced as RTM_DELLINK of family AF_BRIDGE: the link itself stays.
        libc::RTM_DELLINK if message.body.first() == Some(&0) => {
            links::read(message).map(|l| Change::LinkGone { ifindex: l.ifindex, name: l.name })
        }
        libc::RTM_NEWNEIGH => neighbours::read(message).map(Change::Neighbour),
        libc::RTM_DELNEIGH => neighbours::read(message)
            .map(|n| Change::NeighbourGone { ifindex: n.ifindex, address: n.address }),
        libc::RTM_NEWADDR => addresses::read(message).map(Change::Address),
        libc::RTM_DELADDR => addresses::read(message).map(Change::AddressGone),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWRULE | libc::RTM_DELRULE => {
            Some(Change::Routes)
        }
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Some(Change::Routes),
        _ => None,
    }
}
