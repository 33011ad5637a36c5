//! The memory of the kernel's objects: /proc/slabinfo (mm/slab_common.c), by cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringway_testnet::wait_until;

use crate::{Error, Result};

const SLABINFO: &str = "/proc/slabinfo";
const MEMINFO: &str = "/proc/meminfo";
/// Where the kernel says which caches it has merged into one (links to the same directory).
const MERGED: &str = "/sys/kernel/slab";
/// The names of caches for TCP sockets, their files and their data begin with one of these.
const OF_SOCKETS: [&str; 11] = [
    "TCP",
    "sock_inode_cache",
    "dentry",
    "filp",
    "kmalloc-",
    "tw_sock_TCP",
    "tcp_bind",
    "request_sock_TCP",
    "skbuff_",
    "eventpoll_",
    "ep_head",
];
/// But not what is accounted to whoever runs: pipes, processes and file tables of strangers, while
/// TCP's own buffers are not.
const OF_STRANGERS: [&str; 2] = ["kmalloc-cg-", "kmalloc-rcl-"];
/// Each established socket has one of each; and nothing else has one of these.
const ONE_EACH: [&str; 4] = ["TCP", "sock_inode_cache", "dentry", "filp"];
const OF_SOCKETS_ALONE: [&str; 2] = ["TCP", "sock_inode_cache"];
/// The one cache where the kernel does not tell them apart.
pub(super) const ALL: &str = "all slabs";

/// For what is freed after a grace period (RCU) to be gone, at most.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two looks. Grace periods take some tens of milliseconds.
const LOOK: Duration = Duration::from_millis(60);
/// The caches by which connections are counted: other processes' files are in none of them.
const COUNTED: [&str; 3] = ["TCP", "sock_inode_cache", "tw_sock_TCP"];

/// Bytes of established sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct OfSockets {
    /// Of what each has exactly one of.
    pub known: f64,
    /// Of other caches that sockets are made of, others' objects among them.
    pub rest: f64,
    /// By how many objects for each socket the caches differ from what there must be.
    pub strangers: f64,
}

/// A cache at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cache {
    objects: u64,
    /// Bytes of memory behind an object: the slab's pages, shared out.
    each: f64,
}

/// All caches at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Slabs(BTreeMap<String, Cache>);

impl Slabs {
    /// Now. Where slabinfo cannot be read, the sum of all that /proc/meminfo has.
    pub(super) fn read() -> Result<Self> {
        let page = rustix::param::page_size() as u64;
        match fs::read_to_string(SLABINFO) {
            Ok(text) => Ok(Self(parse(&text, page))),
            Err(_) => {
                let text = fs::read_to_string(MEMINFO)
                    .map_err(|source| Error::Read { path: MEMINFO.into(), source })?;
                let bytes = kib_of(&text, "Slab").unwrap_or(0) * 1024;
                Ok(Self([(ALL.to_owned(), Cache { objects: bytes, each: 1.0 })].into()))
            }
        }
    }

    /// Once sockets neither come nor go any more.
    pub(super) fn settled(names: &Names) -> Result<Self> {
        let began = Instant::now();
        let mut last = Self::read()?;
        let mut quiet = 0;
        while quiet < 2 && began.elapsed() < SETTLE {
            std::thread::sleep(LOOK);
            let now = Self::read()?;
            let moved: u64 =
                COUNTED.iter().map(|cache| now.objects(cache).abs_diff(last.objects(cache))).sum();
            // Others open and close sockets too.
            quiet = if moved <= 64 { quiet + 1 } else { 0 };
            last = now;
        }
        names.shrink();
        Self::read()
    }

    /// Objects of a byte each.
    #[cfg(test)]
    pub(super) fn of(objects: &[(&str, u64)]) -> Self {
        let cache = |(name, objects): &(&str, u64)| {
            ((*name).to_owned(), Cache { objects: *objects, each: 1.0 })
        };
        Self(objects.iter().map(cache).collect())
    }

    /// Whether caches are told apart.
    pub(super) fn by_cache(&self) -> bool {
        !self.has(ALL)
    }

    /// Whether the kernel lists a cache of this name.
    pub(super) fn has(&self, cache: &str) -> bool {
        self.0.contains_key(cache)
    }

    /// Objects of a cache.
    pub(super) fn objects(&self, cache: &str) -> u64 {
        self.0.get(cache).map_or(0, |cache| cache.objects)
    }

    /// Bytes of established sockets that have come since an earlier moment; none where caches are
    /// not told apart. Of what a socket has exactly one of, that counts: others' files are in the
    /// same caches, thousands of them where somebody builds or copies.
    pub(super) fn of_sockets_since(
        &self,
        before: &Self,
        names: &Names,
        sockets: u64,
    ) -> Option<OfSockets> {
        let known = |name: &&str| Some(self.0.get(*name)?.each * sockets as f64);
        let rest = |(name, bytes): (String, f64)| {
            let counts = names.of_sockets(&name).is_some() && !ONE_EACH.contains(&name.as_str());
            counts.then_some(bytes)
        };
        let differs = |cache: &&str| {
            let more = self.objects(cache) as f64 - before.objects(cache) as f64;
            (more / sockets.max(1) as f64 - 1.0).abs()
        };
        self.by_cache().then(|| OfSockets {
            known: ONE_EACH.iter().filter_map(known).sum(),
            rest: self.since(before).into_iter().filter_map(rest).sum(),
            strangers: OF_SOCKETS_ALONE
                .iter()
                .filter(|cache| self.has(cache))
                .map(differs)
                .fold(0.0, f64::max),
        })
    }

    /// Waits until some sockets that are being closed are gone: the kernel frees them by and by.
    pub(super) fn wait_until_as(before: &Self, sockets: u64) {
        let gone = || {
            Self::read().is_ok_and(|now| {
                let left = now.objects("TCP").saturating_sub(before.objects("TCP"));
                left <= sockets / 100
            })
        };
        // Others' sockets may have come meanwhile: what is measured next is judged.
        let _ = wait_until("sockets to be freed", SETTLE, gone);
    }

    /// Bytes that each cache has more than at an earlier moment, or fewer.
    pub(super) fn since(&self, before: &Self) -> BTreeMap<String, f64> {
        let more = |(name, now): (&String, &Cache)| {
            let objects = now.objects as f64 - before.objects(name) as f64;
            (name.clone(), objects * now.each)
        };
        self.0.iter().map(more).filter(|(_, bytes)| *bytes != 0.0).collect()
    }
}

/// `name active_objs num_objs objsize objperslab pagesperslab : ...`, after two lines of heading.
fn parse(text: &str, page: u64) -> BTreeMap<String, Cache> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (objects, _, _, per_slab, pages) =
            (number()?, number()?, number()?, number()?, number()?);
        Some((name, Cache { objects, each: (pages * page) as f64 / per_slab.max(1) as f64 }))
    };
    text.lines().skip(2).filter_map(line).collect()
}

/// A line of /proc/meminfo: `Slab:   123 kB`.
pub(super) fn kib_of(meminfo: &str, what: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The names that share one cache.
#[derive(Debug, Default)]
pub(super) struct Names {
    groups: BTreeMap<String, Vec<String>>,
    /// Directories of what sockets alone are made of, as the kernel has merged it.
    of_sockets: Vec<PathBuf>,
}

impl Names {
    /// As the kernel has merged them. Where it does not say, each has its own alone.
    pub(super) fn read() -> Self {
        let mut by_directory: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for entry in fs::read_dir(Path::new(MERGED)).into_iter().flatten().flatten() {
            if let Ok(directory) = fs::canonicalize(entry.path()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !name.starts_with(':') {
                    by_directory.entry(directory).or_default().push(name);
                }
            }
        }
        let mut names = Self::default();
        for (directory, mut group) in by_directory {
            group.sort();
            for name in &group {
                names.groups.insert(name.clone(), group.clone());
            }
            let general = |name: &String| name.starts_with("kmalloc-");
            if names.of_sockets(&group[0]).is_some() && !group.iter().any(general) {
                names.of_sockets.push(directory);
            }
        }
        names
    }

    /// Has the kernel take the free objects back that its processors keep at hand, which it counts
    /// as used: some hundreds of each cache. Where it does not let us, figures are by so much less
    /// exact.
    pub(super) fn shrink(&self) {
        for directory in &self.of_sockets {
            let _ = fs::write(directory.join("shrink"), "1");
        }
    }

    /// The name of a cache here: the first name of its group that belongs to sockets, with the
    /// number of the others; none if there is none.
    pub(super) fn of_sockets(&self, cache: &str) -> Option<String> {
        if cache == ALL {
            return Some(cache.to_owned());
        }
        let begins = |name: &str, with: &[&str]| with.iter().any(|prefix| name.starts_with(prefix));
        let ours = |name: &&str| begins(name, &OF_SOCKETS) && !begins(name, &OF_STRANGERS);
        let group = self.groups.get(cache).map(|group| group.iter().map(String::as_str));
        let found = match group {
            Some(group) => group.filter(ours).collect::<Vec<_>>(),
            None => [cache].into_iter().filter(ours).collect(),
        };
        (!found.is_empty()).then(|| found.join("|"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "slabinfo - version: 2.1\n# name <active_objs> ...\n\
        TCP 26 26 2368 13 8 : tunables 0 0 0 : slabdata 2 2 0\n\
        dentry 100 126 192 21 1 : tunables 0 0 0 : slabdata 6 6 0\n";

    #[test]
    fn what_a_cache_has_more() {
        let before = Slabs(parse(TEXT, 4096));
        assert_eq!((before.objects("TCP"), before.objects("gone")), (26, 0));
        let now = Slabs(parse(&TEXT.replace("TCP 26", "TCP 126"), 4096));
        let more = now.since(&before);
        // 8 pages for 13 objects: more than the 2368 bytes that one is.
        assert_eq!(more, [("TCP".to_owned(), 100.0 * 8.0 * 4096.0 / 13.0)].into());
        assert_eq!(before.since(&now)["TCP"], -more["TCP"]);
    }

    #[test]
    fn of_sockets_and_of_strangers() {
        let slabs = |tcp, filp, buckets, strangers| {
            let names = ["TCP", "filp", "tcp_bind_bucket", "vm_area_struct"];
            let objects = [tcp, filp, buckets, strangers];
            Slabs::of(&std::array::from_fn::<_, 4, _>(|n| (names[n], objects[n])))
        };
        let (before, names) = (slabs(10, 500, 0, 9000), Names::default());
        let of = |now: Slabs| now.of_sockets_since(&before, &names, 200).unwrap();
        let sockets = OfSockets { known: 400.0, rest: 100.0, strangers: 0.0 };
        assert_eq!(of(slabs(210, 700, 100, 5)), sockets);
        assert_eq!(of(slabs(210, 100, 100, 5)), sockets, "others' files, closed meanwhile");
        assert_eq!(of(slabs(260, 700, 0, 5)).strangers, 0.25, "others' sockets");
        let all = Slabs::of(&[(ALL, 5)]);
        assert_eq!(all.of_sockets_since(&Slabs::default(), &names, 1), None);
    }

    #[test]
    fn a_merged_cache_by_the_name_that_sockets_have() {
        let group = vec!["eventpoll_pwq".to_owned(), "jbd2_x".to_owned(), "tcp_bind_bucket".into()];
        let groups = group.iter().map(|name| (name.clone(), group.clone())).collect();
        let names = Names { groups, ..Names::default() };
        assert_eq!(names.of_sockets("jbd2_x").as_deref(), Some("eventpoll_pwq|tcp_bind_bucket"));
        assert_eq!(names.of_sockets("kmalloc-512").as_deref(), Some("kmalloc-512"));
        assert_eq!(names.of_sockets("vm_area_struct"), None);
        assert_eq!(names.of_sockets("kmalloc-cg-512"), None);
        assert_eq!(names.of_sockets(ALL).as_deref(), Some(ALL));
    }

    #[test]
    fn a_line_of_meminfo() {
        let text = "SlabX: 1 kB\nSlab:      123 kB\n";
        assert_eq!((kib_of(text, "Slab"), kib_of(text, "Gone")), (Some(123), None));
    }
}
