//! Where a node's captures live, and who holds which:
//!
//! ```text
//! BPFFS/ringway/NODE/capture/NAME       a map or program that they share; `enter` says it is all there
//! BPFFS/ringway/NODE/capture/N/filter   the filter program of capture N
//! ```
//!
//! `capture` is locked while something changes in it; `capture/N` for as long as capture N's process
//! lives: the kernel lets go of it, however that ends.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::MOST;
use crate::pins::{Pins, pin_error, remove_tree};
use crate::{Error, Result};

/// How long to wait for others that begin: the first loads programs, on a busy machine for many
/// seconds, and twelve may begin at once.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long one that ends waits: the daemon cleans up behind it in any case.
const SHORT_PATIENCE: Duration = Duration::from_secs(20);
const GLANCE: Duration = Duration::from_millis(5);

/// The place of a node's captures, for as long as nothing else may change in it.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    _lock: OwnedFd,
}

/// One capture's place, which its process holds.
#[derive(Debug)]
pub(super) struct Held {
    /// Its number.
    pub(super) number: u32,
    dir: PathBuf,
    lock: OwnedFd,
}

impl Held {
    /// Whether it is still there: it is not when the node was detached.
    pub(super) fn is_there(&self) -> bool {
        same_file(&self.dir, &self.lock)
    }
}

impl Place {
    /// The place of a node's captures, made if need be.
    pub(super) fn make(pins: &Pins) -> Result<Self> {
        let dir = pins.capture();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(pins.not_loaded()),
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(pin_error("create", &dir)(error));
                }
                _ => {}
            }
            // The last capture may just have taken it away.
            if let Some(place) = Self::lock(pins, deadline)? {
                return Ok(place);
            }
        }
    }

    /// The same where there is one.
    pub(super) fn find(pins: &Pins) -> Result<Option<Self>> {
        Self::lock(pins, Instant::now() + SHORT_PATIENCE)
    }

    /// The same where there is one and nobody is at it.
    pub(super) fn find_idle(pins: &Pins) -> Result<Option<Self>> {
        Self::lock(pins, Instant::now())
    }

    /// `None` where there is none, or where patience ends at once.
    fn lock(pins: &Pins, deadline: Instant) -> Result<Option<Self>> {
        let dir = &pins.capture();
        let Some(fd) = open(dir)? else { return Ok(None) };
        let patient = deadline > Instant::now();
        loop {
            if try_lock(&fd, dir)? {
                let place = Self { dir: dir.to_owned(), _lock: fd };
                return Ok(same_file(dir, &place._lock).then_some(place));
            }
            match (patient, Instant::now() < deadline) {
                (false, _) => return Ok(None),
                (true, false) => {
                    return Err(Error::CaptureBusy { node: pins.node().to_owned() });
                }
                (true, true) => std::thread::sleep(GLANCE),
            }
        }
    }

    /// A pin in it.
    pub(super) fn pin(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The filter program of a capture.
    pub(super) fn filter(&self, number: u32) -> PathBuf {
        self.of(number).join("filter")
    }

    /// When a capture took its place.
    pub(super) fn since(&self, number: u32) -> Result<SystemTime> {
        let dir = self.of(number);
        fs::metadata(&dir).and_then(|about| about.modified()).map_err(pin_error("read", &dir))
    }

    fn of(&self, number: u32) -> PathBuf {
        self.dir.join(number.to_string())
    }

    /// The captures that have a place, in order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        (0..MOST as u32).filter(|number| self.of(*number).exists()).collect()
    }

    /// Those whose process has ended.
    pub(super) fn orphans(&self) -> Result<Vec<u32>> {
        let mut orphans = Vec::new();
        for number in self.numbers() {
            let dir = self.of(number);
            let Some(fd) = open(&dir)? else { continue };
            if try_lock(&fd, &dir)? {
                orphans.push(number);
            }
        }
        Ok(orphans)
    }

    /// Takes the first that is free; `None`: there is none.
    pub(super) fn take(&self) -> Result<Option<Held>> {
        let taken = self.numbers();
        let Some(number) = (0..MOST as u32).find(|number| !taken.contains(number)) else {
            return Ok(None);
        };
        let dir = self.of(number);
        fs::create_dir(&dir).map_err(pin_error("create", &dir))?;
        let lock =
            open(&dir)?.ok_or_else(|| pin_error("open", &dir)(ErrorKind::NotFound.into()))?;
        if !try_lock(&lock, &dir)? {
            return Err(pin_error("lock", &dir)(ErrorKind::WouldBlock.into()));
        }
        Ok(Some(Held { number, dir, lock }))
    }

    /// Gives a capture's place back.
    pub(super) fn give_back(&self, number: u32) -> Result<()> {
        remove_tree(&self.of(number))
    }

    /// Gives all of it to whom the node belongs, so that a daemon without root's rights can clean up.
    pub(super) fn hand_over(&self, pins: &Pins) -> Result<()> {
        let node = pins.dir();
        let owner = fs::metadata(&node).map_err(pin_error("read", &node))?;
        let owner = (owner.uid(), owner.gid());
        match owner == (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()) {
            true => Ok(()),
            false => hand_over(&self.dir, owner),
        }
    }

    /// Takes everything away, the place itself last.
    pub(super) fn remove(&self) -> Result<()> {
        remove_tree(&self.dir)
    }
}

fn open(dir: &Path) -> Result<Option<OwnedFd>> {
    match rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(pin_error("open", dir)(errno.into())),
    }
}

fn try_lock(fd: &OwnedFd, dir: &Path) -> Result<bool> {
    match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(pin_error("lock", dir)(errno.into())),
    }
}

/// Whether this directory still has its name.
fn same_file(dir: &Path, fd: &impl AsFd) -> bool {
    let named = fs::symlink_metadata(dir).map(|found| (found.dev(), found.ino()));
    let held = rustix::fs::fstat(fd).map(|found| (found.st_dev, found.st_ino));
    matches!((named, held), (Ok(named), Ok(held)) if named == held)
}

/// That a capture's place was taken away from under it.
pub(super) fn gone(pins: &Pins) -> Error {
    Error::CaptureGone { node: pins.node().to_owned() }
}

/// Gives a path and what is in it to another user and group.
fn hand_over(path: &Path, owner: (u32, u32)) -> Result<()> {
    lchown(path, Some(owner.0), Some(owner.1)).map_err(pin_error("change the owner of", path))?;
    if !path.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(pin_error("list", path))? {
        hand_over(&entry.map_err(pin_error("list", path))?.path(), owner)?;
    }
    Ok(())
}
