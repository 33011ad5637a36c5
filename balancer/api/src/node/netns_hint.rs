//! Nodes of other network namespaces: pins are the machine's, interfaces are a namespace's.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use ringway_kernel::{DEFAULT_BPFFS, View, bpffs_is_hidden, bpffs_is_overmounted};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where namespaces have names (ip-netns(8)).
const NAMED: &str = "/run/netns";

/// Where a node is, seen from this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this network namespace.
    Here,
    Elsewhere(Netns),
    Unknown,
}

impl Place {
    /// Prefix of a command that is to run where the node is; `None`: it is here, as far as can be
    /// told.
    pub fn enter(&self) -> Option<String> {
        match self {
            Place::Elsewhere(netns) => Some(netns.enter()),
            Place::Here | Place::Unknown => None,
        }
    }
}

/// Another network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Netns {
    /// Under /run/netns.
    Named(String),
    /// Without a name: its inode, and a process that is in it.
    Unnamed { inode: u64, pid: u64 },
    /// None of those that can be entered.
    Unknown,
}

impl Netns {
    /// Prefix of a command that is to run there, such as `nsenter --net=/run/netns/gw`.
    pub fn enter(&self) -> String {
        match self {
            Netns::Named(name) => format!("nsenter --net={NAMED}/{name}"),
            Netns::Unnamed { pid, .. } => format!("nsenter -t {pid} -n"),
            Netns::Unknown => format!("nsenter --net={NAMED}/NAMESPACE"),
        }
    }
}

impl Display for Netns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Netns::Named(name) => write!(f, "network namespace {name}"),
            Netns::Unnamed { inode, .. } => write!(f, "network namespace {inode}"),
            Netns::Unknown => write!(f, "another network namespace"),
        }
    }
}

/// Where a node is: its daemon, or where none runs what it has attached.
pub fn locate(view: &View) -> Place {
    let daemon = view.daemon().ok().flatten().filter(|daemon| daemon.running);
    if let Some(place) = daemon.and_then(|daemon| of_process(daemon.pid)) {
        return place;
    }
    match view.interfaces().unwrap_or_default().is_empty() {
        true => Place::Unknown,
        false if is_attached(view) => Place::Here,
        false => Place::Elsewhere(search(view)),
    }
}

/// Where a process is; `None`: it has ended, or this user may not look.
pub fn of_process(pid: u64) -> Option<Place> {
    let (there, own) = (identity(&net(&pid.to_string()))?, identity(&net("self"))?);
    let unnamed = Netns::Unnamed { inode: there.1, pid };
    let netns = || name(Path::new(NAMED), there).map_or(unnamed, Netns::Named);
    Some(if there == own { Place::Here } else { Place::Elsewhere(netns()) })
}

/// Whether a process is root's and sees other mounts than this one. Not if it has ended, or this
/// user may not look.
pub fn is_root_elsewhere(pid: u64) -> bool {
    let look = || {
        // An open directory stays that process's; its number may become another's.
        let process = File::open(format!("/proc/{pid}")).ok()?;
        let process = format!("/proc/self/fd/{}", process.as_raw_fd());
        let status = fs::read_to_string(format!("{process}/status")).ok()?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let mounts = identity(&format!("{process}/ns/mnt"))?;
        let is_root = users.split_whitespace().all(|user| user == "0");
        Some(is_root && mounts != identity("/proc/self/ns/mnt")?)
    };
    look().unwrap_or_default()
}

/// A program's link has the number of its interface alone, which is a namespace's: the one where
/// that interface has the program is looked for, among those that have a name or a process.
fn search(view: &View) -> Netns {
    let named = listed(Path::new(NAMED)).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((path, Netns::Named(name)))
    });
    let mut seen = Vec::new();
    let unnamed = listed(Path::new("/proc")).into_iter().filter_map(|process| {
        let pid = process.file_name()?.to_str()?.parse().ok()?;
        let path = process.join("ns/net");
        let found = identity(&path.to_string_lossy()).filter(|found| !seen.contains(found))?;
        seen.push(found);
        Some((path, Netns::Unnamed { inode: found.1, pid }))
    });
    let mut all = named.chain(unnamed);
    all.find(|(path, _)| is_attached_in(path, view)).map_or(Netns::Unknown, |(_, netns)| netns)
}

/// In the calling thread's network namespace.
fn is_attached(view: &View) -> bool {
    view.interfaces().unwrap_or_default().iter().any(|state| state.mode.is_some())
}

fn is_attached_in(netns: &Path, view: &View) -> bool {
    let look = || {
        let file = File::open(netns).ok()?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        Some(is_attached(view))
    };
    // A thread of its own goes there, and does not come back.
    thread::scope(|scope| scope.spawn(look).join().ok().flatten().unwrap_or_default())
}

/// The way into the namespace of this process, for a command that is to find what it does not; with
/// a word in the place of a name that cannot be found.
pub fn here() -> String {
    let own = identity(&net("self")).and_then(|own| name(Path::new(NAMED), own));
    format!("nsenter --net={NAMED}/{}", own.as_deref().unwrap_or("NAMESPACE"))
}

/// Why this process cannot tell what is loaded, and what to do; `None` where it can. `what`: what
/// cannot be seen. `command`: what to run where it can.
pub fn hidden(what: &str, command: &str) -> Option<(String, String)> {
    let reason = format!("{what} cannot be seen here: this process has no {DEFAULT_BPFFS}");
    bpffs_is_hidden(Path::new(DEFAULT_BPFFS)).then(|| (reason, unhide(command)))
}

/// How to run a command where the pins can be seen, for a process that cannot see them.
pub fn unhide(command: &str) -> String {
    match bpffs_is_overmounted(Path::new(DEFAULT_BPFFS)) {
        true => format!(
            "another file system is mounted over it: `umount {DEFAULT_BPFFS}`, then `{command}`"
        ),
        false => format!(
            "if it was started by `ip netns exec`, which hides that: `{} {command}` does not",
            here()
        ),
    }
}

fn net(process: &str) -> String {
    format!("/proc/{process}/ns/net")
}

/// Device and inode of what a path leads to: two names of one namespace have the same.
fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The first name of a namespace in a directory of them.
fn name(directory: &Path, namespace: (u64, u64)) -> Option<String> {
    let paths = listed(directory);
    let found = paths.iter().find(|path| identity(&path.to_string_lossy()) == Some(namespace))?;
    Some(found.file_name()?.to_string_lossy().into_owned())
}

/// What is in a directory, in alphabetical order.
fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_entered_by_its_name_or_by_its_process() {
        let place = tempfile::tempdir().expect("a directory");
        let file = |name: &str| {
            let path = place.path().join(name);
            fs::write(&path, "").expect("written");
            identity(&path.to_string_lossy()).expect("there")
        };
        let (one, other) = (file("a"), file("b"));
        assert_eq!(name(place.path(), one).as_deref(), Some("a"));
        assert_eq!(name(place.path(), other).as_deref(), Some("b"));
        assert_eq!(name(place.path(), (0, 0)), None);
        assert_eq!(Netns::Named("gw".into()).enter(), "nsenter --net=/run/netns/gw");
        assert_eq!(Netns::Unnamed { inode: 9, pid: 7 }.enter(), "nsenter -t 7 -n");
        assert_eq!(of_process(std::process::id().into()), Some(Place::Here));
        assert_eq!(identity(&net("self")), identity(&net(&std::process::id().to_string())));
    }
}
