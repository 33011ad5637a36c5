//! How much of this machine there is to take.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::slab::kib_of;

/// Raises the soft limit of open files to the hard one; how many this process may have.
pub(crate) fn open_files() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Bytes of memory that can be had without swapping; the most there can be where the kernel does not say.
pub(crate) fn available() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_of(&meminfo, "MemAvailable").map_or(u64::MAX, |kib| kib * 1024)
}
