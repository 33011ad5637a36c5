//! A control group that limits memory or threads, of either version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringway_testnet::{abandoned, skip};

use crate::not_tested;

const ROOT: &str = "/sys/fs/cgroup";

/// An empty control group. Drop it after the processes that were added have ended.
pub struct Cgroup {
    directory: PathBuf,
    v1: bool,
}

impl Cgroup {
    /// Makes a group of this controller ("memory", "pids") with the name of a namespace of the
    /// calling test. `None`, and skipped aloud: this machine does not allow one.
    pub fn new(controller: &str, namespace: &str) -> Option<Cgroup> {
        let of_v1 = Path::new(ROOT).join(controller);
        let v1 = of_v1.join("tasks").exists();
        let root = if v1 { of_v1 } else { ROOT.into() };
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
        let has = |on: String| on.split_whitespace().any(|one| one == controller);
        if !v1 && !controllers.is_ok_and(has) {
            skip(namespace, format!("{ROOT}/cgroup.subtree_control has no {controller}"));
            return None;
        }
        remove_stale(&root);
        let directory = root.join(namespace);
        if let Err(error) = fs::create_dir(&directory) {
            skip(namespace, format!("{}: {error}", directory.display()));
            return None;
        }
        Some(Cgroup { directory, v1 })
    }

    /// Adds a process with all its threads. Memory that it has already is not charged to the group.
    pub fn add(&self, process: u32) -> Result<()> {
        self.write("cgroup.procs", process)
    }

    /// Refuses these threads all kernel memory until [`Cgroup::limit_memory`]. Their user memory is
    /// charged to the group of their process's first thread. False, and said aloud: version 2
    /// does not limit threads.
    pub fn starve(&self, threads: impl IntoIterator<Item = u32>) -> Result<bool> {
        self.limit_memory(Some(0))?;
        if !self.v1 {
            not_tested("threads without memory: control groups of version 2 have processes only");
            return Ok(false);
        }
        for thread in threads {
            let moved = self.write("tasks", thread);
            // One that has just ended.
            if Path::new("/proc").join(thread.to_string()).exists() {
                moved?;
            }
        }
        Ok(true)
    }

    /// Limits memory, in bytes.
    pub fn limit_memory(&self, bytes: Option<u64>) -> Result<()> {
        let (file, unlimited) =
            if self.v1 { ("memory.limit_in_bytes", "-1") } else { ("memory.max", "max") };
        self.write(file, bytes.map_or(unlimited.to_owned(), |bytes| bytes.to_string()))
    }

    /// Lets no thread and no process start while there are this many.
    pub fn limit_threads(&self, most: Option<u32>) -> Result<()> {
        self.write("pids.max", most.map_or("max".to_owned(), |most| most.to_string()))
    }

    /// How often the limit of memory was hit.
    pub fn refusals(&self) -> Result<u64> {
        if self.v1 {
            let path = self.directory.join("memory.failcnt");
            return Ok(fs::read_to_string(path)?.trim().parse()?);
        }
        self.count("memory.events", "max ")
    }

    /// How many of its processes the kernel killed for their memory.
    pub fn kills(&self) -> Result<u64> {
        self.count(if self.v1 { "memory.oom_control" } else { "memory.events" }, "oom_kill ")
    }

    fn count(&self, file: &str, name: &str) -> Result<u64> {
        let text = fs::read_to_string(self.directory.join(file))?;
        let count = text.lines().find_map(|line| line.strip_prefix(name));
        Ok(count.context(file.to_owned())?.parse()?)
    }

    fn write(&self, file: &str, value: impl ToString) -> Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, value.to_string()).with_context(|| path.display().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

/// Removes the groups of tests that were killed.
fn remove_stale(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if abandoned(&name) {
            // One that is not empty stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
