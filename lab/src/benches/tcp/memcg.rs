//! A memory cgroup (v2) made for a measurement: what the kernel charges to whoever has the sockets,
//! a second book beside the slabs, in which strangers do not write.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Of the namespaces that cgroups are named like, and so of these: one whose namespace is gone is
/// left over.
const NAMES: [&str; 2] = ["rw-tcpmem-", "rw-balancer-"];
const NETNS: &str = "/run/netns";

/// Bytes that are charged at one moment (memory.stat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Charged {
    /// Objects of the kernel's.
    pub slab: u64,
    /// Buffers of sockets, in whole pages.
    pub sock: u64,
}

/// A cgroup with this process in it. Dropped, it is left and removed.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
    /// Where this process came from.
    home: PathBuf,
}

impl Cgroup {
    /// Makes one, named like a namespace of this process, and moves there, with all threads.
    ///
    /// # Errors
    /// In words: why there can be none here, and what would change it.
    pub(super) fn enter(namespace: &str) -> Result<Self, String> {
        let root = root()?;
        hands_memory_on(&root)?;
        remove_stale_in(&root);
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let home = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = root.join(home.ok_or("this process is in no cgroup of v2")?);
        let path = root.join(namespace);
        let refused = |error: io::Error| {
            format!("{}: {error}; run as root, outside of a container", path.display())
        };
        fs::create_dir(&path).map_err(refused)?;
        let cgroup = Self { path: path.clone(), home };
        move_to(&cgroup.path).map_err(refused)?;
        Ok(cgroup)
    }

    pub(super) fn charged(&self) -> Option<Charged> {
        parse(&fs::read_to_string(self.path.join("memory.stat")).ok()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // If this fails, the guard or the next run does it.
        let _ = move_to(&self.home);
        let _ = fs::remove_dir(&self.path);
    }
}

fn move_to(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
}

/// Where v2 is mounted.
pub(crate) fn root() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    root_in(&mounts)
        .ok_or_else(|| "no cgroup v2 is mounted (`mount -t cgroup2 none /sys/fs/cgroup`)".into())
}

/// `36 35 98:0 / /sys/fs/cgroup rw ... - cgroup2 none rw` (proc_pid_mountinfo(5)).
fn root_in(mountinfo: &str) -> Option<PathBuf> {
    let is_v2 =
        |line: &&str| line.split_once(" - ").is_some_and(|(_, fs)| fs.starts_with("cgroup2 "));
    mountinfo.lines().find(is_v2)?.split(' ').nth(4).map(PathBuf::from)
}

/// Whether a cgroup made below has memory's figures.
fn hands_memory_on(root: &Path) -> Result<(), String> {
    let has = |file: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        text.split_whitespace().any(|controller| controller == "memory")
    };
    let at = |file: &str| root.join(file).display().to_string();
    if !has("cgroup.controllers") {
        return Err(format!(
            "cgroup v2 does not have the memory controller here ({}): it belongs to v1; boot with \
             cgroup_no_v1=all systemd.unified_cgroup_hierarchy=1",
            at("cgroup.controllers")
        ));
    }
    if !has("cgroup.subtree_control") {
        return Err(format!(
            "memory is not handed on to cgroups; `echo +memory > {}`, outside of a container",
            at("cgroup.subtree_control")
        ));
    }
    Ok(())
}

/// Removes cgroups of measurements that were killed.
pub(crate) fn remove_stale() {
    if let Ok(root) = root() {
        remove_stale_in(&root);
    }
}

fn remove_stale_in(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if NAMES.iter().any(|of| name.starts_with(of)) && !Path::new(NETNS).join(&name).exists() {
            // Not empty: somebody is at work there, and removes it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn parse(stat: &str) -> Option<Charged> {
    let number = |key: &str| -> Option<u64> {
        let value = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        value.parse().ok()
    };
    Some(Charged { slab: number("slab")?, sock: number("sock")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_v2_is() {
        let v1 = "33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let v2 = "34 24 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(root_in(v1), None);
        assert_eq!(root_in(&(v1.to_owned() + v2)), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn why_there_are_no_figures() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path();
        let put = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        put("cgroup.controllers", "hugetlb memory_too\n");
        assert!(hands_memory_on(root).unwrap_err().contains("belongs to v1"));
        put("cgroup.controllers", "cpu memory pids\n");
        put("cgroup.subtree_control", "pids\n");
        let reason = hands_memory_on(root).unwrap_err();
        assert!(
            reason.contains(&format!("echo +memory > {}/cgroup.subtree_control", root.display()))
        );
        put("cgroup.subtree_control", "memory pids\n");
        assert_eq!(hands_memory_on(root), Ok(()));
    }

    #[test]
    fn what_killed_ones_left() {
        let tree = tempfile::tempdir().unwrap();
        for name in ["rw-tcpmem-1-1-0", "rw-balancer-1-1-0", "rw-gw-1-1-0", "system.slice"] {
            fs::create_dir(tree.path().join(name)).unwrap();
        }
        remove_stale_in(tree.path());
        let left = |name| tree.path().join(name).exists();
        assert_eq!(
            ["rw-tcpmem-1-1-0", "rw-balancer-1-1-0", "rw-gw-1-1-0", "system.slice"].map(left),
            [false, false, true, true]
        );
    }

    #[test]
    fn what_is_charged() {
        let stat = "anon 4096\nsock 8192\nslab_reclaimable 1\nslab_unreclaimable 2\nslab 12288\n";
        assert_eq!(parse(stat), Some(Charged { slab: 12288, sock: 8192 }));
        assert_eq!(parse("anon 4096\n"), None);
    }
}
