//! `ringway engine --when-dead drop`: the attachment is pinned while the engine runs, so that its
//! program outlives an engine that is killed, and drops what it would have got.
//!
//! ```text
//! BPFFS/ringway-engine/NAMESPACE-IFINDEX-PID          the attachment of one interface
//! BPFFS/ringway-engine/alive-NAMESPACE-IFINDEX-PID/   locked by its engine, for as long as that lives
//! ```
//! Nobody else may open that directory, so nobody else can say that a dead engine lives.
//!
//! An engine of 0.1.0 (packaging/releases) has no such directory. It holds an abstract socket of
//! its pin's name in the interface's network namespace, which is looked for where a pin has no
//! directory. Only an upgrade from 0.1.0 needs this: remove [`former_lives`] once the next release
//! is out.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ringway_bpf_sys::XdpLink;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};

use crate::link::open_link;
use crate::maps::Map;
use crate::pins::{netns, pin_error};
use crate::{Bpffs, DEFAULT_BPFFS, Error, Result, requirements};

/// Several engines in PID namespaces of their own may have the same number.
const SAME_NUMBER: u32 = 16;

/// How often the directory may vanish before a pin is in it.
const VANISHES: u32 = 100;

/// An attachment that outlives this process if it is killed. Dropped, it is gone with its last
/// descriptor.
#[derive(Debug)]
pub struct PinnedLink {
    path: PathBuf,
    _alive: OwnedFd,
}

/// Has the attachment of an interface of the calling thread's network namespace outlive this
/// process.
///
/// # Errors
/// Where there is no bpffs, it may not be written, or it would go with the engine.
pub fn pin_link(ifindex: u32, link: BorrowedFd<'_>) -> Result<PinnedLink> {
    let directory = directory();
    // Whoever mounts it among mounts of its own takes it with it, and the pin too.
    if let Bpffs::JustMounted { private: true } =
        requirements::ensure_bpffs(Path::new(DEFAULT_BPFFS))?
    {
        return Err(pin_error("keep", &directory)(std::io::Error::other(
            "this process has mounts of its own, as by `ip netns exec`, which end with it, and with them what is pinned; \
             start it by `nsenter --net=/run/netns/NAME`",
        )));
    }
    let mut tries = 0;
    loop {
        match pin_below(&directory, ifindex, link) {
            // An engine that ends removes the directory, if nothing else is in it.
            Err(_) if tries < VANISHES => tries += 1,
            other => return other,
        }
    }
}

fn pin_below(directory: &Path, ifindex: u32, link: BorrowedFd<'_>) -> Result<PinnedLink> {
    fs::create_dir_all(directory).map_err(pin_error("create", directory))?;
    let first = format!("{}{}", of_interface(ifindex)?, std::process::id());
    let (name, _alive) = (0..SAME_NUMBER)
        .map(|n| if n == 0 { first.clone() } else { format!("{first}-{n}") })
        // A dead engine may have had our number, and its pin may still be of use.
        .filter(|name| !directory.join(name).exists())
        .find_map(|name| alone(&alive(&name)).map(|alive| (name, alive)))
        .ok_or_else(|| pin_error("take", &directory.join(&first))(busy()))?;
    let path = directory.join(name);
    ringway_bpf_sys::pin(link, &path).map_err(pin_error("pin", &path))?;
    Ok(PinnedLink { path, _alive })
}

impl Drop for PinnedLink {
    fn drop(&mut self) {
        // Before its lock is free: whoever finds that free and the pin there takes it for a dead
        // engine's.
        let _ = remove(&self.path);
    }
}

/// Removes a pin, and what told whether its engine lives.
fn remove(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)?;
    if let Some(name) = path.file_name() {
        let _ = fs::remove_dir(alive(&name.to_string_lossy()));
    }
    let _ = fs::remove_dir(directory());
    Ok(())
}

/// What an engine that was killed has left on an interface.
#[derive(Debug)]
pub struct DeadEngine {
    path: PathBuf,
    link: XdpLink,
    /// Packets that it would have got; none where its program is gone, or counts none.
    dropped: Option<Map<u32, u64>>,
}

/// Those of an interface of the calling thread's network namespace.
///
/// # Errors
/// Where they cannot be looked at.
pub fn dead_engines(ifindex: u32) -> Result<Vec<DeadEngine>> {
    let prefix = of_interface(ifindex)?;
    // None has ever been here, or nobody may look.
    let Ok(entries) = fs::read_dir(directory()) else { return Ok(Vec::new()) };
    let mut dead = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&prefix) && !lives(&name)? {
            let path = entry.path();
            let link = open_link(&path)?;
            let dropped = dropped(&link)?;
            dead.push(DeadEngine { path, link, dropped });
        }
    }
    Ok(dead)
}

impl DeadEngine {
    /// What keeps its program where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Packets that it would have got, and that were dropped; also once another program has taken
    /// its program's place.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn dropped_packets(&self) -> Result<u64> {
        let Some(dropped) = &self.dropped else { return Ok(0) };
        Ok(dropped.percpu(&0)?.into_iter().sum())
    }

    /// Its attachment, so that another program can take its program's place; none where its
    /// interface is gone.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn attachment(&self) -> Result<Option<XdpLink>> {
        let link =
            (self.link.info().map_err(look_failed)?.ifindex != 0).then(|| self.link.try_clone());
        link.transpose().map_err(pin_error("duplicate", &self.path))
    }

    /// Takes its program off: packets go to the kernel.
    pub fn detach(&self) {
        // Gone already where its interface is.
        let _ = self.link.detach();
    }

    /// Removes what keeps its attachment where it is.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn remove(self) -> Result<()> {
        remove(&self.path).map_err(pin_error("remove", &self.path))
    }
}

fn dropped(link: &XdpLink) -> Result<Option<Map<u32, u64>>> {
    Map::of_program(link.info().map_err(look_failed)?.program, "dropped")
}

fn look_failed(source: std::io::Error) -> Error {
    Error::System { action: "look at an attachment", source }
}

fn directory() -> PathBuf {
    Path::new(DEFAULT_BPFFS).join("ringway-engine")
}

/// What names of pins of an interface begin with.
fn of_interface(ifindex: u32) -> Result<String> {
    Ok(format!("{}-{ifindex}-", netns()?))
}

fn alive(name: &str) -> PathBuf {
    directory().join(format!("alive-{name}"))
}

/// Says that the engine of this directory lives, until what it returns is closed; none: somebody
/// else does.
fn alone(path: &Path) -> Option<OwnedFd> {
    let _ = fs::DirBuilder::new().mode(0o700).create(path);
    let lock = locked(path)?;
    // Its former owner may have removed it.
    let (named, held) = (stat(path).ok()?, fstat(&lock).ok()?);
    (named.st_ino == held.st_ino).then_some(lock)
}

/// Whether the engine of a pin lives.
fn lives(name: &str) -> Result<bool> {
    let path = alive(name);
    if path.exists() { Ok(locked(&path).is_none()) } else { former_lives(name) }
}

/// Whether an engine of 0.1.0 lives. An error where that cannot be read: a pin is not taken away on
/// suspicion.
fn former_lives(name: &str) -> Result<bool> {
    // Of this thread's namespace: "Num: RefCount Protocol Flags Type St Inode @NAME",
    // proc_pid_net(5).
    let sockets = fs::read("/proc/thread-self/net/unix").map_err(|source| Error::System {
        action: "look whether an engine of a former release lives",
        source,
    })?;
    let (sockets, socket) = (String::from_utf8_lossy(&sockets), format!("@ringway-engine/{name}"));
    Ok(sockets.lines().any(|line| line.split_whitespace().nth(7) == Some(&socket)))
}

fn locked(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = open(path, flags, Mode::empty()).ok()?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(fd)
}

fn busy() -> std::io::Error {
    std::io::ErrorKind::AddrInUse.into()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::thread;

    use rustix::thread::{Uid, set_thread_res_uid};

    use super::*;

    /// Only root can become another user.
    #[test]
    fn another_user_cannot_say_that_an_engine_lives() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = std::env::temp_dir().join(format!("ringway-alive-{}", std::process::id()));
        let engine = alone(&path).unwrap();
        assert!(locked(&path).is_none());
        drop(engine);
        let another = || {
            let user = Uid::from_raw(62_114);
            // Of this thread alone.
            set_thread_res_uid(user, user, user).unwrap();
            locked(&path)
        };
        let held = thread::scope(|scope| scope.spawn(another).join().unwrap());
        assert!(held.is_none() && locked(&path).is_some());
        fs::remove_dir(&path).unwrap();
    }

    /// The one that ends last removes the directory in which another is about to begin.
    #[test]
    fn engines_end_and_begin_at_once() {
        if !ringway_testnet::root_or_skip("engines_end_and_begin_at_once") {
            return;
        }
        let instructions = &ringway_bpf_sys::PASS;
        let program = ringway_bpf_sys::Program { name: "pass", instructions, frags: false };
        let program = program.load().unwrap();
        thread::scope(|scope| {
            for ifindex in 1_000_000..1_000_004 {
                let program = &program;
                let pin = move || drop(pin_link(ifindex, program.as_fd()).unwrap());
                scope.spawn(move || (0..500).for_each(|_| pin()));
            }
        });
    }

    /// It has a socket and no directory.
    #[test]
    fn an_engine_of_the_former_release_lives() {
        let name = format!("4026531840-7-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(format!("ringway-engine/{name}")).unwrap();
        let engine = UnixDatagram::bind_addr(&address).unwrap();
        assert!(lives(&name).unwrap() && !lives(&format!("{name}-1")).unwrap());
        drop(engine);
        assert!(!lives(&name).unwrap());
    }
}
