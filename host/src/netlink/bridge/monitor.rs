//! Changes of bridges, as the kernel announces them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::fdb::{self, FdbEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Result;
use crate::netlink::Message;
use crate::netlink::monitor::Subscription;

/// RTNLGRP_LINK, NEIGH, IPV4_IFADDR, BRVLAN.
const GROUPS: [u32; 4] = [1, 3, 5, 33];
/// A flush of a large table announces every entry at once, at about 800 bytes each.
const RECEIVE_BUFFER: usize = 16 << 20;
// linux/rtnetlink.h
const RTM_NEWVLAN: u16 = 112;
const RTM_DELVLAN: u16 = 113;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BridgeChange {
    /// An entry of some bridge appeared, moved to this port, changed or was refreshed by [`touch`].
    ///
    /// [`touch`]: super::touch
    Fdb(FdbEntry),
    /// An entry of some bridge disappeared.
    FdbGone(FdbEntry),
    /// Some interface, bridge, port, VLAN of a port or IPv4 address changed: read again what
    /// matters.
    Link,
    /// Changes came faster than they were read and some are lost: read everything anew.
    Lost,
}

/// A subscription in the network namespace of the thread that opened it, whichever thread reads it.
/// The kernel announces neither that an entry was refreshed by a frame nor that a topology change
/// begins or ends.
pub struct BridgeMonitor {
    subscription: Subscription,
}

impl BridgeMonitor {
    /// Subscribes. Changes from now on are queued; read the present state after this, not before.
    pub fn open() -> Result<Self> {
        let subscription = Subscription::open(&GROUPS)?;
        subscription.enlarge(RECEIVE_BUFFER)?;
        Ok(Self { subscription })
    }

    /// Waits for changes, at most `timeout` (for ever without); empty on timeout. Changes that
    /// repeat the one before are left out.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Vec<BridgeChange>> {
        let mut changes = self.subscription.next(timeout, read, BridgeChange::Lost)?;
        changes.dedup();
        Ok(changes)
    }

    /// Whether all changes up to now have been read.
    pub fn is_drained(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }
}

/// Readable while changes wait; [`BridgeMonitor::next`] then returns at once.
impl AsFd for BridgeMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

fn read(message: Message) -> Option<BridgeChange> {
    match message.kind {
        libc::RTM_NEWNEIGH => fdb::read(message).map(BridgeChange::Fdb),
        libc::RTM_DELNEIGH => fdb::read(message).map(BridgeChange::FdbGone),
        libc::RTM_NEWLINK
        | libc::RTM_DELLINK
        | libc::RTM_NEWADDR
        | libc::RTM_DELADDR
        | RTM_NEWVLAN
        | RTM_DELVLAN => Some(BridgeChange::Link),
        _ => None,
    }
}
