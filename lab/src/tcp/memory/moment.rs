//! The kernel's memory at one moment, by three books: its caches, what TCP accounts for, and a cgroup's.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use super::{Share, Side, State};
use crate::Result;
use crate::tcp::memcg::{Cgroup, Charged};
use crate::tcp::slab::{Names, Slabs};

/// For what is freed after a grace period (RCU) to be gone, at most.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two looks. Grace periods take some tens of milliseconds.
const LOOK: Duration = Duration::from_millis(60);
/// What connections are counted by: strangers' files are in none of them.
const COUNTED: [&str; 3] = ["TCP", "sock_inode_cache", "tw_sock_TCP"];
/// A socket with a descriptor has one of each, and so has any file of strangers' of the first two.
pub(super) const OF_FILES: [&str; 3] = ["dentry", "filp", "sock_inode_cache"];

pub(super) struct Moment {
    slabs: Slabs,
    /// Pages.
    charged: u64,
    memcg: Option<Charged>,
}

impl Moment {
    /// Once sockets neither come nor go any more.
    pub(super) fn settled(names: &Names, cgroup: Option<&Cgroup>) -> Result<Self> {
        let began = Instant::now();
        let mut last = Slabs::read()?;
        let mut quiet = 0;
        while quiet < 2 && began.elapsed() < SETTLE {
            std::thread::sleep(LOOK);
            let now = Slabs::read()?;
            let moved: u64 =
                COUNTED.iter().map(|cache| now.objects(cache).abs_diff(last.objects(cache))).sum();
            // Others open and close sockets too.
            quiet = if moved <= 64 { quiet + 1 } else { 0 };
            last = now;
        }
        names.shrink();
        let slabs = Slabs::read()?;
        let sockstat = fs::read_to_string("/proc/thread-self/net/sockstat").unwrap_or_default();
        let memcg = cgroup.and_then(Cgroup::charged);
        Ok(Self { slabs, charged: tcp_pages(&sockstat).unwrap_or(0), memcg })
    }

    /// Objects more than at another moment of each cache of files that the kernel tells apart.
    pub(super) fn files_since(&self, other: &Self) -> Vec<f64> {
        let known = OF_FILES.iter().filter(|cache| self.slabs.has(cache));
        known.map(|c| self.slabs.objects(c) as f64 - other.slabs.objects(c) as f64).collect()
    }

    /// What this moment has more than another, without the sockets of a side.
    pub(super) fn share_since(
        &self,
        without: &Self,
        names: &Names,
        (state, side): (State, Side),
        connections: u32,
    ) -> Share {
        let mut caches = BTreeMap::new();
        for (cache, bytes) in self.slabs.since(&without.slabs) {
            // What is closed has no file: these are strangers'.
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
        Share { caches, charged: pages * rustix::param::page_size() as f64, memcg }
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

    #[test]
    fn pages_of_sockstat() {
        let text =
            "sockets: used 9\nTCP: inuse 3 orphan 0 tw 0 alloc 4 mem 17\nUDP: inuse 1 mem 2\n";
        assert_eq!(tcp_pages(text), Some(17));
        assert_eq!(tcp_pages("sockets: used 9\n"), None);
    }
}
