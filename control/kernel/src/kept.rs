//! `ringway engine --when-dead drop`: the attachment is pinned while the engine runs, so that its program outlives an engine that is killed,
//! and drops what it would have got.
//!
//! ```text
//! BPFFS/ringway-engine/NAMESPACE-IFINDEX-PID    the attachment of one interface
//! ```
//! Whose pin it is still lives if the abstract socket of the pin's name has somebody: the kernel frees that name with the process, and it
//! belongs to the network namespace as the interface does.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use libbpf_rs::MapHandle;

use crate::decap::map_of;
use crate::link::XdpLink;
use crate::map;
use crate::pins::pin_error;
use crate::{Bpffs, DEFAULT_BPFFS, Error, Result, probe};

/// Several engines in PID namespaces of their own may have the same number.
const SAME_NUMBER: u32 = 16;

/// An attachment that outlives this process if it is killed. Dropped, it is gone with its last descriptor.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    _alive: UnixDatagram,
}

/// Has the attachment of an interface of the calling thread's network namespace outlive this process.
///
/// # Errors
/// Where there is no bpffs, it may not be written, or it would go with the engine.
pub fn keep(ifindex: u32, link: BorrowedFd<'_>) -> Result<Kept> {
    let directory = directory();
    // Whoever mounts it among mounts of its own takes it with it, and the pin too.
    if let Bpffs::JustMounted { private: true } = probe::ensure_bpffs(Path::new(DEFAULT_BPFFS))? {
        return Err(pin_error("keep", &directory)(std::io::Error::other(
            "this process has mounts of its own, as by `ip netns exec`, which end with it, and with them what is pinned; \
             start it by `nsenter --net=/run/netns/NAME`",
        )));
    }
    fs::create_dir_all(&directory).map_err(pin_error("create", &directory))?;
    let first = format!("{}{}", of_interface(ifindex)?, std::process::id());
    let (name, _alive) = (0..SAME_NUMBER)
        .map(|n| if n == 0 { first.clone() } else { format!("{first}-{n}") })
        // A dead engine may have had our number, and its pin may still be of use.
        .filter(|name| !directory.join(name).exists())
        .find_map(|name| alone(&name).map(|alive| (name, alive)))
        .ok_or_else(|| pin_error("take", &directory.join(&first))(busy()))?;
    let path = directory.join(name);
    let link = link.try_clone_to_owned();
    let link = XdpLink::of(link.map_err(pin_error("duplicate", &path))?);
    link.pin(&path).map_err(pin_error("pin", &path))?;
    Ok(Kept { path, _alive })
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Before its name is free: whoever finds the name free and the pin there takes it for a dead engine's.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(directory());
    }
}

/// What an engine that was killed has left on an interface.
#[derive(Debug)]
pub struct DeadEngine {
    path: PathBuf,
    link: XdpLink,
    /// Packets that it would have got; none where its program is gone, or counts none.
    dropped: Option<MapHandle>,
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
        if name.starts_with(&prefix) && alone(&name).is_some() {
            let path = entry.path();
            let link = XdpLink::open(&path).map_err(pin_error("open", &path))?;
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

    /// Packets that it would have got, and that were dropped; also once another program has taken its program's place.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn dropped_packets(&self) -> Result<u64> {
        let Some(dropped) = &self.dropped else { return Ok(0) };
        Ok(map::get_percpu::<u64>(dropped, 0)?.into_iter().sum())
    }

    /// Its attachment, so that another program can take its program's place; none where its interface is gone.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn attachment(&self) -> Result<Option<OwnedFd>> {
        let (ifindex, _) = self.link.info().map_err(look_failed)?;
        let link = (ifindex != 0).then(|| self.link.try_clone());
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
        fs::remove_file(&self.path).map_err(pin_error("remove", &self.path))?;
        let _ = fs::remove_dir(directory());
        Ok(())
    }
}

fn dropped(link: &XdpLink) -> Result<Option<MapHandle>> {
    let (_, program) = link.info().map_err(look_failed)?;
    map_of(program, "dropped")
}

fn look_failed(source: libbpf_rs::Error) -> Error {
    Error::System { action: "look at an attachment", source: std::io::Error::other(source) }
}

fn directory() -> PathBuf {
    Path::new(DEFAULT_BPFFS).join("ringway-engine")
}

/// What names of pins of an interface begin with.
fn of_interface(ifindex: u32) -> Result<String> {
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net")
        .map_err(|e| Error::System { action: "look at the namespace", source: e.into() })?;
    Ok(format!("{}-{ifindex}-", namespace.st_ino))
}

/// Whoever has the name of a pin lives; none: somebody does.
fn alone(name: &str) -> Option<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("ringway-engine/{name}")).ok()?;
    UnixDatagram::bind_addr(&address).ok()
}

fn busy() -> std::io::Error {
    std::io::ErrorKind::AddrInUse.into()
}
