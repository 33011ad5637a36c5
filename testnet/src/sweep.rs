//! Removing what owners left behind.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::owner::{Owner, directory_of, parse_stat};
use crate::{Error, Result};

pub(crate) const NETNS: &str = "/run/netns";

/// [`remove_own`] has begun.
static ENDING: RwLock<bool> = RwLock::new(false);

/// Removes the namespaces whose owner no longer lives, and the programs it left in them. Runs by
/// itself before a process makes its first namespace. Returns the names removed.
pub fn sweep() -> Result<Vec<String>> {
    remove_where(|owner, kept| !kept && !owner.lives())
}

/// Removes all namespaces made under [`crate::keep_everything`] by processes that have ended, and
/// ends the programs in them. Returns the names removed. Those of a process that still lives are
/// its own: see [`keepers`].
pub fn remove_kept() -> Result<Vec<String>> {
    remove_where(|owner, kept| kept && !owner.lives())
}

/// Processes that live and have made namespaces under [`crate::keep_everything`].
pub fn keepers() -> Result<BTreeSet<u32>> {
    let owners = names_in(NETNS)?.into_iter().filter_map(|name| Owner::of_name(&name));
    Ok(owners.filter(|(owner, kept)| *kept && owner.lives()).map(|(owner, _)| owner.pid).collect())
}

/// Removes all namespaces made by this process, kept ones too, and ends the programs in them. For
/// ending at once, as on a signal: no handle to them may be used any more, and this process makes
/// no more of them. Returns the names removed.
pub fn remove_own() -> Result<Vec<String>> {
    *ENDING.write().unwrap_or_else(PoisonError::into_inner) = true;
    let this = Owner::this()?;
    remove_where(|owner, _| owner == this)
}

/// Whether `name` is that of a namespace whose owner has ended, and may be removed. Tests run
/// in many processes at once: that there is no such namespace says nothing about its owner.
pub fn abandoned(name: &str) -> bool {
    Owner::of_name(name).is_some_and(|(owner, kept)| !kept && !owner.lives())
}

/// Leave to make a namespace, while it is held. `None`: this process has removed its own.
pub(crate) fn leave_to_make() -> Option<RwLockReadGuard<'static, bool>> {
    let ending = ENDING.read().unwrap_or_else(PoisonError::into_inner);
    (!*ending).then_some(ending)
}

fn remove_where(doomed: impl Fn(Owner, bool) -> bool) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    // An owner may die between making or removing the one and the other, so look at both.
    for place in [NETNS, "/run/ringway-testnet"] {
        for name in names_in(place)? {
            if Owner::of_name(&name).is_some_and(|(owner, kept)| doomed(owner, kept)) {
                remove(&name)?;
                if place == NETNS {
                    removed.push(name);
                }
            }
        }
    }
    Ok(removed)
}

/// Of a directory's entries; of one that does not exist, none.
fn names_in(place: &str) -> Result<Vec<String>> {
    match fs::read_dir(place) {
        Ok(entries) => {
            Ok(entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::file("listing", place, e)),
    }
}

/// Removes one namespace, the programs started in it and its directory. What is already gone is no
/// error.
pub(crate) fn remove(name: &str) -> Result<()> {
    let path = Path::new(NETNS).join(name);
    let directory = directory_of(name);
    if let Ok(netns) = fs::metadata(&path) {
        kill_leftovers(&directory, netns.ino());
    }
    let _ = fs::remove_dir_all(&directory);
    // Not a mount point (EINVAL): its owner died between making the file and mounting.
    match unmount(&path, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(Error::file("unmounting", path, e.into())),
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::file("removing", path, e)),
        _ => Ok(()),
    }
}

/// Notes that the process group `pid` was started by us in this namespace.
pub(crate) fn note_started(directory: &Path, pid: u32) -> io::Result<()> {
    fs::write(group_file(directory, pid), [])
}

fn group_file(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("group-{pid}"))
}

/// Kills the processes of groups noted in `directory` that are still inside the namespace with this
/// inode: both must hold, since a group's number may have been reused by a stranger.
fn kill_leftovers(directory: &Path, netns_inode: u64) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let groups: Vec<u32> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("group-")?.parse().ok())
        .collect();
    if groups.is_empty() {
        return;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let started_by_us = parse_stat(&stat).is_some_and(|(_, group, _)| groups.contains(&group));
        let inside =
            || fs::metadata(process.path().join("ns/net")).is_ok_and(|m| m.ino() == netns_inode);
        if let Some(pid) = Pid::from_raw(pid)
            && started_by_us
            && inside()
        {
            // Ended meanwhile: fine.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::{Command, Output};

    use super::*;
    use crate::{Namespace, keep_everything, owner, root_or_skip};

    const ROLE: &str = "RINGWAY_TEST_OWNER_THAT_KEEPS";

    #[test]
    fn abandoned_are_the_names_of_a_dead_owner() {
        let this = Owner::this().unwrap();
        let name = |prefix: &str, start| format!("{prefix}-gw-{}-{start:x}-0", this.pid);
        assert!(abandoned(&name("rw", this.start + 1)));
        for name in [name("rw", this.start), name("rwkeep", this.start + 1), "rw-forward".into()] {
            assert!(!abandoned(&name), "{name}");
        }
    }

    #[test]
    fn kept_namespaces_outlive_their_owner_until_removed() {
        if !root_or_skip("kept_namespaces_outlive_their_owner_until_removed") {
            return;
        }
        // Elsewhere `ringway-lab demo --clean` may remove what is kept.
        crate::private_run().unwrap();
        let output = alone("owner_that_keeps");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.split_once("KEPT ").unwrap().1.lines().next().unwrap();
        let (name, pid) = line.split_once(' ').unwrap();
        let pid = pid.parse().unwrap();
        assert!(!sweep().unwrap().contains(&name.to_owned()));
        assert!(Path::new(NETNS).join(name).exists() && owner::start_time(pid).is_some());
        // Not remove_kept(): that would take down what the user of this machine keeps.
        remove(name).unwrap();
        assert!(!Path::new(NETNS).join(name).exists() && !directory_of(name).exists());
        let ended = || owner::start_time(pid).is_none();
        crate::wait_until("the kept program's end", std::time::Duration::from_secs(5), ended)
            .unwrap();
    }

    #[test]
    fn after_remove_own_no_more_are_made() {
        if !root_or_skip("after_remove_own_no_more_are_made") {
            return;
        }
        let output = alone("owner_that_removes_its_own");
        assert!(output.status.success(), "{output:?}");
    }

    /// Not a test by itself: the one above runs it in a process of its own.
    #[test]
    fn owner_that_removes_its_own() {
        if env::var_os(ROLE).is_none() {
            return;
        }
        let ns = Namespace::new("own").unwrap();
        assert_eq!(remove_own().unwrap(), [ns.name()]);
        let refused = Namespace::new("own").map(|ns| ns.name().to_owned());
        assert!(matches!(refused, Err(Error::Ending)), "{refused:?}");
    }

    fn alone(test: &str) -> Output {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("sweep::tests::{test}"), "--nocapture"])
            .env(ROLE, "1")
            .output()
            .unwrap()
    }

    /// Not a test by itself: another runs it in a process of its own.
    #[test]
    fn owner_that_keeps() {
        if env::var_os(ROLE).is_none() {
            return;
        }
        keep_everything();
        let ns = Namespace::new("kept").unwrap();
        let mut sleeper = ns.command("sleep");
        sleeper.arg("1000");
        let child = ns.spawn(sleeper).unwrap();
        println!("\nKEPT {} {}", ns.name(), child.pid());
    }
}
