//! The kernel's memory at one moment, from three sources: its caches, what TCP accounts for, and a
//! cgroup's.

use std::collections::BTreeMap;
use std::fs;

use super::{Share, Side, SocketState};
use crate::Result;
use crate::benches::tcp::memcg::{Cgroup, Charged};
use crate::benches::tcp::slab::{Names, Slabs};

/// A socket with a descriptor has one of each, and so has any file of strangers' of the first two.
const OF_FILES: [&str; 3] = ["dentry", "filp", "sock_inode_cache"];
/// Of these it is known how many a connection has, so that what is more or less is strangers'.
const JUDGED: [&str; 5] = ["dentry", "filp", "sock_inode_cache", "TCP", "tw_sock_TCP"];

pub(super) struct Moment {
    slabs: Slabs,
    /// Pages.
    charged: u64,
    memcg: Option<Charged>,
}

impl Moment {
    /// Once sockets neither come nor go any more.
    pub(super) fn settled(names: &Names, cgroup: Option<&Cgroup>) -> Result<Self> {
        let slabs = Slabs::settled(names)?;
        let sockstat = fs::read_to_string("/proc/thread-self/net/sockstat").unwrap_or_default();
        let memcg = cgroup.and_then(Cgroup::charged);
        Ok(Self { slabs, charged: tcp_pages(&sockstat).unwrap_or(0), memcg })
    }

    /// By how many objects for each connection the worst cache differs from what a side must have.
    pub(super) fn strangers_since(
        &self,
        without: &Self,
        (state, side): (SocketState, Side),
        connections: u32,
    ) -> f64 {
        let differs = |cache: &&str| {
            let known = state.objects(side, cache).filter(|_| self.slabs.has(cache))?;
            let more = self.slabs.objects(cache) as f64 - without.slabs.objects(cache) as f64;
            Some((more / f64::from(connections) - known).abs())
        };
        JUDGED.iter().filter_map(differs).fold(0.0, f64::max)
    }

    /// The difference to another moment, which is without the sockets of a side.
    pub(super) fn share_since(
        &self,
        without: &Self,
        names: &Names,
        (state, side): (SocketState, Side),
        connections: u32,
    ) -> Share {
        let mut caches = BTreeMap::new();
        for (cache, bytes) in self.slabs.since(&without.slabs) {
            // A closed socket has no file: these objects are other processes'.
            let strangers = !state.has_file(side) && OF_FILES.contains(&cache.as_str());
            if let Some(name) = names.of_sockets(&cache).filter(|_| !strangers) {
                *caches.entry(name).or_default() += bytes;
            }
        }
        let unread = state.unread(side) as u64 * u64::from(connections);
        if unread > 0 {
            caches.insert("pages of data".into(), unread as f64);
        }
        let more = |of: fn(&Charged) -> u64| {
            Some(of(self.memcg.as_ref()?) as f64 - of(without.memcg.as_ref()?) as f64)
        };
        let memcg = more(|charged| charged.slab).zip(more(|charged| charged.sock));
        let pages = self.charged as f64 - without.charged as f64;
        let charged = pages * rustix::param::page_size() as f64;
        Share { caches, charged, memcg, disturbed: false }
    }
}

/// `TCP: inuse 3 orphan 0 tw 0 alloc 4 mem 17`, of all namespaces together.
fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    line.split_once("mem ")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cache that is judged can make a round a disturbed one.
    #[test]
    fn strangers_objects() {
        let moment = |objects: [(&str, u64); 5]| Moment {
            slabs: Slabs::of(&objects),
            charged: 0,
            memcg: None,
        };
        let before = moment(JUDGED.map(|cache| (cache, 50)));
        let of = |state, side, with: [u64; 5]| {
            let mut with = with.into_iter();
            let now = moment(JUDGED.map(|cache| (cache, 50 + with.next().unwrap())));
            (now.strangers_since(&before, (state, side), 100) * 100.0).round()
        };
        for (state, side, with, strangers, whose) in [
            (SocketState::Idle, Side::Client, [100, 100, 100, 100, 0], 0.0, "nobody's"),
            (SocketState::TimeWait, Side::Client, [0, 0, 0, 0, 100], 0.0, "nobody's"),
            (SocketState::TimeWait, Side::Server, [0; 5], 0.0, "nobody's"),
            (SocketState::TimeWait, Side::Client, [0, 0, 0, 0, 107], 7.0, "others' TIME_WAIT"),
            (SocketState::TimeWait, Side::Client, [0, 0, 0, 4, 100], 4.0, "others' sockets"),
            (SocketState::Idle, Side::Server, [105, 100, 100, 100, 0], 5.0, "others' files"),
        ] {
            assert_eq!(of(state, side, with), strangers, "{whose}");
        }
    }

    #[test]
    fn pages_of_sockstat() {
        let text =
            "sockets: used 9\nTCP: inuse 3 orphan 0 tw 0 alloc 4 mem 17\nUDP: inuse 1 mem 2\n";
        assert_eq!(tcp_pages(text), Some(17));
        assert_eq!(tcp_pages("sockets: used 9\n"), None);
    }
}
