//! How much of this machine there is to take.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::slab::kib_of;
use crate::{Error, Result};

/// Raises the soft limit of open files to the hard one; how many this process may have.
pub(crate) fn open_files() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// The same, where there are at least so many; else the error tells to get `needed`, so that it
/// does not come again.
pub(crate) fn open_files_at_least(least: u64, needed: u64) -> Result<u64> {
    match open_files() {
        have if have < least => Err(Error::TooFewFiles { needed: needed.max(least), have }),
        have => Ok(have),
    }
}

/// Bytes of memory that can be had without swapping; the most there can be where the kernel does
/// not say.
pub(crate) fn available() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_of(&meminfo, "MemAvailable").map_or(u64::MAX, |kib| kib * 1024)
}

/// A number in a file of /proc/sys; of several the last.
pub(crate) fn sysctl(key: &str) -> Option<u64> {
    numbers(key)?.pop()
}

/// The first of several values.
pub(crate) fn first_of_sysctl(key: &str) -> Option<u64> {
    numbers(key)?.into_iter().next()
}

fn numbers(key: &str) -> Option<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/sys/{key}")).ok()?;
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}
