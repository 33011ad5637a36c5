//! A bpffs that another one was mounted on top of: many scripts mount one without a look. Programs
//! run on and pins are there, but their path leads to the other.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ringway_bpf_sys::XdpLink;
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::link::OnInterface;
use crate::requirements::is_bpffs;
use crate::{Error, Result};

/// The directory with those of all nodes, in a bpffs.
const NODES: &str = "ringway";

/// A bpffs that this process has reached.
struct Reached {
    bpffs: PathBuf,
    /// Target of the descriptor: the bpffs, or its directory of nodes.
    name: PathBuf,
    fd: OwnedFd,
}

impl Reached {
    fn nodes(&self) -> PathBuf {
        match self.name == self.bpffs {
            true => by(&self.fd).join(NODES),
            false => by(&self.fd),
        }
    }
}

static REACHED: Mutex<Vec<Reached>> = Mutex::new(Vec::new());
static GIVEN: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// A directory of nodes that a former process of this service held ([`hold_nodes`]), by the
/// descriptor that this process was started with. It is where this network namespace's node is
/// looked for when there is none at the bpffs's own path. Programs that this process starts do not
/// get the descriptor.
pub fn give_nodes(passed: RawFd) {
    // SAFETY: nothing in this process closes what it was started with.
    let passed = unsafe { BorrowedFd::borrow_raw(passed) };
    // Where nothing is open by this number, there is nothing to pass on, either.
    let _ = fcntl_setfd(passed, FdFlags::CLOEXEC);
    let held = open(&by(passed), OFlags::RDONLY).filter(|fd| is_bpffs(&by(fd)));
    *GIVEN.lock().unwrap_or_else(PoisonError::into_inner) = held;
}

/// The directory of nodes in this bpffs: whoever has its descriptor finds it whatever is mounted on
/// top.
pub fn hold_nodes(bpffs: &Path) -> Option<OwnedFd> {
    open(&reach(bpffs), OFlags::RDONLY)
}

/// Whether this path leads to another bpffs than the one that this process has its pins in.
pub fn bpffs_is_covered(path: &Path) -> bool {
    let reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(known) = reached.iter().find(|known| known.bpffs == path) else { return false };
    let (named, held) = (rustix::fs::stat(path), rustix::fs::fstat(&known.fd));
    matches!((named, held), (Ok(named), Ok(held)) if named.st_dev != held.st_dev)
}

/// Whether bpf file systems are mounted one on top of another at a path.
fn is_stacked(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    stacked(&mounts, path)
}

/// By proc_pid_mountinfo(5): a bind mount of a file system is on the same device.
fn stacked(mounts: &str, path: &Path) -> bool {
    let device = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let (device, point) = (words.next()?.to_owned(), words.nth(1)?);
        (Path::new(point) == path && line.contains(" - bpf ")).then_some(device)
    };
    let mut devices: Vec<String> = mounts.lines().filter_map(device).collect();
    devices.sort();
    devices.dedup();
    devices.len() > 1
}

/// Fails where this namespace's node may be below a second mount, and this process may not look
/// there.
pub fn require_reachable(path: &Path) -> Result<()> {
    match is_stacked(path) && !rustix::process::geteuid().is_root() && !serves_here(&reach(path)) {
        true => Err(Error::BpffsCovered { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// The directory of all nodes in the bpffs of this path, by a path of this process's own, which
/// leads there whatever is mounted on top later. Below what is on top already where the node of
/// this namespace is there; that takes root, or [`give_nodes`].
pub(crate) fn reach(path: &Path) -> PathBuf {
    if !is_bpffs(path) {
        return path.join(NODES);
    }
    let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = reached.iter().find(|known| known.bpffs == path) {
        return known.nodes();
    }
    let within = |name: PathBuf, fd| Reached { bpffs: path.to_owned(), name, fd };
    let at_top = |fd| within(path.to_owned(), fd);
    let below = || {
        let elsewhere = is_stacked(path) && !serves_here(&path.join(NODES));
        let given = || given().map(|fd| within(path.join(NODES), fd));
        elsewhere.then(|| given().or_else(|| beneath(path).map(at_top))).flatten()
    };
    let Some(found) = below().or_else(|| open(path, OFlags::PATH).map(at_top)) else {
        return path.join(NODES);
    };
    let nodes = found.nodes();
    reached.push(found);
    nodes
}

fn given() -> Option<OwnedFd> {
    let given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    given.filter(|fd| serves_here(&by(fd)))
}

/// Name of a path of this process's own, for messages.
pub(crate) fn named(path: &Path) -> Option<PathBuf> {
    let reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    reached.iter().find_map(|known| Some(known.name.join(path.strip_prefix(by(&known.fd)).ok()?)))
}

fn by(fd: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

fn open(path: &Path, how: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, how | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether a node has its pins here whose program is on an interface of this network namespace:
/// other namespaces' nodes, as of a machine that this container is on, are not meant.
fn serves_here(nodes: &Path) -> bool {
    let attached = |link: PathBuf| {
        let info = XdpLink::open(&link).ok().and_then(|link| link.info().ok());
        info.is_some_and(|info| {
            OnInterface::query(info.ifindex).is_ok_and(|on| on.has(info.program))
        })
    };
    let within = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    within(nodes.to_owned())
        .flat_map(|node| within(node.path().join("ifaces")))
        .any(|iface| attached(iface.path().join("link")))
}

/// The topmost of those below that has this namespace's node, by taking off what is above it among
/// mounts of a thread's own: nobody else sees that, and they end with the thread.
fn beneath(path: &Path) -> Option<OwnedFd> {
    let path = path.to_owned();
    let look = move || {
        // SAFETY: of this thread alone, which opens a directory and ends; descriptors stay shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).ok()?;
        while is_bpffs(&path) {
            if serves_here(&path.join(NODES)) {
                return open(&path, OFlags::PATH);
            }
            unmount(&path, UnmountFlags::DETACH).ok()?;
        }
        None
    };
    std::thread::spawn(look).join().ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a service manager passes one: sd_listen_fds(3).
    #[test]
    fn what_is_passed_is_not_passed_on() {
        let passed = rustix::fs::open("/", OFlags::DIRECTORY, Mode::empty()).expect("a directory");
        assert_eq!(rustix::io::fcntl_getfd(&passed), Ok(FdFlags::empty()));
        give_nodes(passed.as_raw_fd());
        assert_eq!(rustix::io::fcntl_getfd(&passed), Ok(FdFlags::CLOEXEC));
    }

    #[test]
    fn two_file_systems_at_one_path() {
        let path = Path::new("/sys/fs/bpf");
        let line = |device: &str, point: &str, kind: &str| {
            format!("42 27 {device} / {point} rw,relatime shared:9 - {kind} {kind} rw\n")
        };
        let first = line("0:39", "/sys/fs/bpf", "bpf");
        for (mounts, expected) in [
            (first.clone(), false),
            // The same once more, as systemd binds it.
            (first.repeat(2), false),
            (first.clone() + &line("0:40", "/mnt", "bpf"), false),
            (first.clone() + &line("0:40", "/sys/fs/bpf", "tmpfs"), false),
            (first + &line("0:40", "/sys/fs/bpf", "bpf"), true),
        ] {
            assert_eq!(stacked(&mounts, path), expected, "{mounts}");
        }
    }
}
