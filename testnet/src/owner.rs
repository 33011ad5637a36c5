//! The owner of a namespace: a process, by pid and start time, since pids are reused.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{Error, Result};

/// Names of namespaces that go with their owner.
const SWEPT: &str = "rw-";
/// Names of namespaces that stay until [`crate::remove_kept`].
const KEPT: &str = "rwkeep-";

static KEEP: AtomicBool = AtomicBool::new(false);
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// From now on, namespaces made by this process and the programs started in them stay when it ends;
/// [`crate::remove_kept`] removes them. Call it before the first namespace is made.
pub fn keep_everything() {
    KEEP.store(true, Ordering::Relaxed);
}

pub(crate) fn keeping() -> bool {
    KEEP.load(Ordering::Relaxed)
}

/// A process, past or present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub pid: u32,
    /// Clock ticks since boot, field 22 of /proc/PID/stat.
    pub start: u64,
}

impl Owner {
    pub fn this() -> Result<Self> {
        static THIS: OnceLock<Owner> = OnceLock::new();
        if let Some(owner) = THIS.get() {
            return Ok(*owner);
        }
        let pid = std::process::id();
        let start = start_time(pid).ok_or_else(|| {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            Error::file("reading this process's start time from", "/proc/self/stat", missing)
        })?;
        Ok(*THIS.get_or_init(|| Owner { pid, start }))
    }

    pub fn lives(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// A fresh name for a namespace of this owner.
    pub fn name(self, hint: &str) -> String {
        let prefix = if keeping() { KEPT } else { SWEPT };
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{}-{}-{:x}-{n}", clean(hint), self.pid, self.start)
    }

    /// The owner of a namespace of this name, and whether it is to be kept; `None` if it is not
    /// ours.
    pub fn of_name(name: &str) -> Option<(Self, bool)> {
        let kept = name.starts_with(KEPT);
        if !kept && !name.starts_with(SWEPT) {
            return None;
        }
        let mut fields = name.rsplitn(4, '-');
        let _counter: u32 = fields.next()?.parse().ok()?;
        let start = u64::from_str_radix(fields.next()?, 16).ok()?;
        let pid = fields.next()?.parse().ok()?;
        Some((Self { pid, start }, kept))
    }
}

/// Directory for what belongs to one namespace: logs, configurations, and the pids started in it.
pub(crate) fn directory_of(namespace: &str) -> PathBuf {
    PathBuf::from("/run/ringway-testnet").join(namespace)
}

fn clean(hint: &str) -> String {
    let hint: String =
        hint.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).take(32).collect();
    if hint.is_empty() { "ns".into() } else { hint }
}

/// Start time of a process, or `None` if there is none of this pid (or it is a zombie).
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let (state, _group, start) =
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    (state != 'Z' && state != 'X').then_some(start)
}

/// State, process group and start time out of /proc/PID/stat; the name in parentheses may hold
/// anything.
pub(crate) fn parse_stat(stat: &str) -> Option<(char, u32, u64)> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5): state is field 3, pgrp 5, starttime 22; `fields` begins at field 3.
    Some((
        fields.first()?.chars().next()?,
        fields.get(2)?.parse().ok()?,
        fields.get(19)?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_their_owner() {
        let owner = Owner { pid: 4711, start: 0xabc };
        let name = owner.name("my-hint/with spaces");
        assert!(name.starts_with("rw-my-hintwithspaces-4711-abc-"), "{name}");
        assert_eq!(Owner::of_name(&name), Some((owner, false)));
        assert_eq!(Owner::of_name("rwkeep-a-1-2-3"), Some((Owner { pid: 1, start: 2 }, true)));
        for foreign in ["blue", "rw-", "rw-x", "rw-a-b-c-d", "docker-1-2-3"] {
            assert_eq!(Owner::of_name(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn this_process_lives_and_a_reused_pid_does_not_count() {
        let this = Owner::this().unwrap();
        assert!(this.lives());
        assert!(!Owner { start: this.start + 1, ..this }.lives());
    }

    #[test]
    fn stat_with_an_odd_name() {
        let stat = "12 (a) b (c) S 1 34 34 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999 0 0";
        assert_eq!(parse_stat(stat), Some(('S', 34, 999)));
    }
}
