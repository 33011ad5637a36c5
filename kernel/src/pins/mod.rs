//! Where a node's pins live:
//!
//! ```text
//! BPFFS/ringway/NODE/maps/NAME          every map of the packet path
//! BPFFS/ringway/NODE/ifaces/IFACE/link  the attachment of one interface
//! BPFFS/ringway/NODE/losses/PROGRAM     the attachment of one program to its tracepoint
//! BPFFS/ringway/NODE/capture/...        what captures share, while there are any
//! BPFFS/ringway/NODE/socket             a symbolic link to its daemon's API socket
//! ```
//!
//! bpffs refuses dots in names (kernel/bpf/inode.c, bpf_lookup), so `.` and `%` are written as
//! `%2e` and `%25`.

pub(crate) mod overmount;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::{Error, Result};

/// Where the kernel expects bpffs.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf";

/// Paths of one node's pins. Makes no promise that they exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// The directory of all nodes.
    nodes: PathBuf,
    node: String,
}

impl Pins {
    /// The pins of `node` under `bpffs`. Fails on a name that cannot be a file name.
    pub fn new(bpffs: impl Into<PathBuf>, node: &str) -> Result<Self> {
        check_name(node)?;
        Ok(Self { nodes: overmount::reach(&bpffs.into()), node: node.to_owned() })
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn dir(&self) -> PathBuf {
        self.nodes.join(encode(&self.node))
    }

    /// Directory of the node's maps.
    pub fn maps(&self) -> PathBuf {
        self.dir().join("maps")
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Directory with a directory for each interface.
    pub fn ifaces(&self) -> PathBuf {
        self.dir().join("ifaces")
    }

    /// Pin of an interface's attachment.
    pub fn link(&self, iface: &str) -> PathBuf {
        self.ifaces().join(encode(iface)).join("link")
    }

    /// Directory with the attachments of the programs that count what the kernel drops.
    pub fn losses(&self) -> PathBuf {
        self.dir().join("losses")
    }

    /// Pin of one of them.
    pub fn loss(&self, program: &str) -> PathBuf {
        self.losses().join(program)
    }

    /// Directory of the captures under way (capture/place.rs).
    pub(crate) fn capture(&self) -> PathBuf {
        self.dir().join("capture")
    }

    /// Names of the maps that are pinned, in alphabetical order.
    pub(crate) fn map_names(&self) -> Result<Vec<String>> {
        list(&self.maps())
    }

    /// Names of those that are pinned, in alphabetical order.
    pub(crate) fn loss_names(&self) -> Result<Vec<String>> {
        list(&self.losses())
    }

    /// Whether there is anything of the node, be it unfinished. Fails for a user who may not look.
    pub fn any(&self) -> Result<bool> {
        self.dir().try_exists().map_err(|_| Error::NotReadable { path: named(&self.nodes) })
    }

    /// Whether a gateway is pinned here. The settings are pinned last: without them a start was
    /// cut short and nothing can be in use. Fails for a user who may not look.
    pub fn exist(&self) -> Result<bool> {
        let settings = self.map("settings");
        settings.try_exists().map_err(|_| Error::NotReadable { path: named(&self.nodes) })
    }

    /// Interfaces that have pins, in alphabetical order.
    pub fn iface_names(&self) -> Result<Vec<String>> {
        list(&self.ifaces())
    }

    /// Nodes that have pins under this bpffs, in alphabetical order. Fails for a user who may not
    /// look: that is not the same as none.
    pub fn known_nodes(&self) -> Result<Vec<String>> {
        let mut nodes = list(&self.nodes)?;
        nodes.retain(|name| is_node_name(name));
        Ok(nodes)
    }

    /// The error that nothing is pinned for this node.
    pub(crate) fn not_loaded(&self) -> Error {
        Error::NotLoaded {
            node: self.node.clone(),
            path: named(&self.nodes),
            known: self.known_nodes().unwrap_or_default(),
        }
    }

    /// Whether a process holds the node, which a daemon does for as long as it lives.
    pub fn is_held(&self) -> bool {
        match self.lock() {
            Ok(lock) => lock.is_none(),
            Err(_) => false,
        }
    }

    /// Where the node's daemon listens, or the last one did; `None` when none has said so, or this
    /// user may not look.
    pub fn socket(&self) -> Option<PathBuf> {
        fs::read_link(self.socket_link()).ok()
    }

    /// Notes where the node's daemon listens, in place of what was noted before.
    pub fn note_socket(&self, socket: &Path) -> Result<()> {
        let link = self.socket_link();
        self.forget_socket()?;
        symlink(socket, &link).map_err(pin_error("create", &link))
    }

    /// Nobody listens any more; that nothing was noted is fine.
    pub fn forget_socket(&self) -> Result<()> {
        let link = self.socket_link();
        match fs::remove_file(&link) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(pin_error("remove", &link)(error))
            }
            _ => Ok(()),
        }
    }

    fn socket_link(&self) -> PathBuf {
        self.dir().join("socket")
    }

    pub(crate) fn create(&self) -> Result<()> {
        for dir in [self.maps(), self.ifaces()] {
            fs::create_dir_all(&dir).map_err(pin_error("create", &dir))?;
        }
        Ok(())
    }

    /// Takes the node for this process, until the descriptor is closed; `None` when another
    /// process has it. The directory must exist.
    pub(crate) fn lock(&self) -> Result<Option<OwnedFd>> {
        let dir = self.dir();
        let fd = rustix::fs::open(&dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| pin_error("open", &dir)(errno.into()))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(fd)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(pin_error("lock", &dir)(errno.into())),
        }
    }

    /// Makes the directory for an interface's pins.
    pub(crate) fn create_iface(&self, iface: &str) -> Result<()> {
        check_name(iface)?;
        let dir = self.ifaces().join(encode(iface));
        fs::create_dir_all(&dir).map_err(pin_error("create", &dir))
    }

    /// Removes an interface's pins; its attachment ends when nothing else holds the link.
    pub(crate) fn remove_iface(&self, iface: &str) -> Result<()> {
        remove_tree(&self.ifaces().join(encode(iface)))
    }

    /// Makes the directory for the programs that count what the kernel drops.
    pub(crate) fn create_losses(&self) -> Result<()> {
        fs::create_dir_all(self.losses()).map_err(pin_error("create", &self.losses()))
    }

    /// Removes them; they count no more.
    pub(crate) fn remove_losses(&self) -> Result<()> {
        remove_tree(&self.losses())
    }

    /// Removes every pin of the node, attachments first, and the directories that become empty.
    pub(crate) fn remove(&self) -> Result<()> {
        remove_tree(&self.ifaces())?;
        remove_tree(&self.dir())?;
        // Shared with other nodes: stays when they are there. So it does for a user who was given
        // it.
        let stays =
            [ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty, ErrorKind::PermissionDenied];
        match fs::remove_dir(&self.nodes) {
            Err(error) if !stays.contains(&error.kind()) => {
                Err(pin_error("remove", &self.nodes)(error))
            }
            _ => Ok(()),
        }
    }

    /// Empties the node's directories, which stay; tells whether anything was there.
    pub(crate) fn clear(&self) -> Result<bool> {
        let empty = list(&self.maps())?.is_empty() && list(&self.ifaces())?.is_empty();
        if !empty {
            remove_tree(&self.ifaces())?;
            remove_tree(&self.capture())?;
            remove_tree(&self.maps())?;
            self.create()?;
        }
        Ok(!empty)
    }
}

/// Whether an open object of the kernel is of a kind: `bpf-map`, `bpf-prog`, `bpf_link`.
pub(crate) fn is_a(kind: &str, object: BorrowedFd<'_>) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd()));
    link.is_ok_and(|to| to.to_string_lossy().contains(kind))
}

/// The inode that stands for the calling thread's network namespace.
pub(crate) fn netns() -> Result<u64> {
    let found = fs::metadata("/proc/thread-self/ns/net");
    let failed = |source| Error::System { action: "look at the network namespace", source };
    found.map(|namespace| namespace.ino()).map_err(failed)
}

pub(crate) fn pin_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = named(path);
    move |source| Error::Pin { action, path, source }
}

/// What is reached through an open directory, by the name that this has.
pub(crate) fn named(path: &Path) -> PathBuf {
    if let Some(name) = overmount::named(path) {
        return name;
    }
    let of_fd = path.strip_prefix("/proc/self/fd").ok().and_then(|rest| {
        let mut parts = rest.components();
        let dir = fs::read_link(Path::new("/proc/self/fd").join(parts.next()?)).ok()?;
        Some(dir.join(parts.as_path()))
    });
    of_fd.unwrap_or_else(|| path.to_owned())
}

fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c != '/' && c != '\0';
    if (1..=64).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(Error::BadName { name: name.to_owned() })
}

/// Whether this may be a node's name where it is told in a command, perhaps to root. Who makes
/// directories of pins, or answers at a socket, need not be root and chooses the name.
pub fn is_node_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    check_name(name).is_ok() && !name.starts_with('-') && name.chars().all(plain)
}

/// A name as bpffs takes it.
pub(crate) fn encode(name: &str) -> String {
    name.replace('%', "%25").replace('.', "%2e")
}

fn decode(file: &str) -> String {
    file.replace("%2e", ".").replace("%25", "%")
}

fn list(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::NotReadable { path: named(dir) });
        }
        entries => entries.map_err(pin_error("list", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(pin_error("list", dir))?;
        names.push(decode(&entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}

/// Removes a directory and what is in it; one that is not there is fine.
pub(crate) fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(pin_error("remove", dir)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_escaped() {
        let pins = Pins::new("/b", "gw1.example.org").unwrap();
        let wanted = Some("/b/ringway/gw1%2eexample%2eorg/ifaces/eth0%2e100/link");
        assert_eq!(pins.link("eth0.100").to_str(), wanted);
        for name in ["eth0.100", "a%2eb", "%", "..", "%25.%2e"] {
            assert!(!encode(name).contains('.'));
            assert_eq!(decode(&encode(name)), name);
        }
    }

    #[test]
    fn the_socket_of_the_last_daemon_is_found() {
        let place = std::env::temp_dir().join(format!("ringway-pins-{}", std::process::id()));
        let pins = Pins::new(&place, "gw1").unwrap();
        fs::create_dir_all(pins.dir()).unwrap();
        assert_eq!(pins.socket(), None);
        for socket in ["/run/a.sock", "/run/b.sock"] {
            pins.note_socket(Path::new(socket)).unwrap();
            assert_eq!(pins.socket().as_deref(), Some(Path::new(socket)));
        }
        pins.forget_socket().unwrap();
        pins.forget_socket().unwrap();
        assert_eq!(pins.socket(), None);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_command_is_no_nodes_name() {
        let place = std::env::temp_dir().join(format!("ringway-names-{}", std::process::id()));
        for name in ["gw1", "gw.2", "-m", "x;id", "x\n  gw: id", "$(id)", "x id"] {
            fs::create_dir_all(Pins::new(&place, name).unwrap().dir()).unwrap();
        }
        let known = Pins::new(&place, "any").unwrap().known_nodes().unwrap();
        assert_eq!(known, ["gw.2", "gw1"]);
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn bad_names_are_refused() {
        let long = "x".repeat(65);
        for name in ["", "a/b", "a\0b", &long] {
            assert!(matches!(Pins::new("/b", name), Err(Error::BadName { .. })), "{name:?}");
        }
    }
}
