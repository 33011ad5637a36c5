//! Where a node's captures live, and who holds which:
//!
//! ```text
//! BPFFS/ringway/NODE/capture/NAME       a map or program that they share; `enter` says it is all there
//! BPFFS/ringway/NODE/capture/N/filter   the filter program of capture N
//! ```
//!
//! `capture` is locked while something changes in it; `capture/N` for as long as capture N's
//! process lives: the kernel lets go of it, however that ends.
//!
//! The node's directory belongs to the daemon's user, and root captures in it. So root follows no
//! link there, reaches everything through the descriptor of a directory that it has looked at, and
//! changes the owner of its own pins only.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, chownat, openat, statat};
use rustix::process::geteuid;

use super::MOST;
use crate::pins::{Pins, named, pin_error, remove_tree};
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
    /// Its name, which somebody else may have given to another directory meanwhile.
    dir: PathBuf,
    lock: OwnedFd,
}

/// One capture's place, which its process holds.
#[derive(Debug)]
pub(super) struct Held {
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
        Self::make_until(pins, Instant::now() + PATIENCE)
    }

    fn make_until(pins: &Pins, deadline: Instant) -> Result<Self> {
        let dir = pins.capture();
        loop {
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(pins.not_loaded()),
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(pin_error("create", &dir)(error));
                }
                _ => {}
            }
            // The last capture may just have taken it away.
            match Self::lock(pins, deadline)? {
                Some(place) => return Ok(place),
                None if Instant::now() >= deadline => return Err(busy(pins)),
                None => std::thread::sleep(GLANCE),
            }
        }
    }

    /// The same where there is one.
    pub(super) fn find(pins: &Pins) -> Result<Option<Self>> {
        Self::own(Self::lock(pins, Instant::now() + SHORT_PATIENCE))
    }

    /// The same where there is one and nobody is at it.
    pub(super) fn find_idle(pins: &Pins) -> Result<Option<Self>> {
        Self::own(Self::lock(pins, Instant::now()))
    }

    /// What is not ours is none.
    fn own(found: Result<Option<Self>>) -> Result<Option<Self>> {
        match found {
            Err(Error::CaptureForeign { .. }) => Ok(None),
            found => found,
        }
    }

    /// `None` where there is none, or where patience ends at once.
    fn lock(pins: &Pins, deadline: Instant) -> Result<Option<Self>> {
        let dir = &pins.capture();
        let Some(fd) = open(dir)? else { return Ok(None) };
        let patient = deadline > Instant::now();
        loop {
            if try_lock(&fd, dir)? {
                let place = Self { dir: dir.to_owned(), lock: fd };
                return Ok(same_file(dir, &place.lock).then_some(place));
            }
            match (patient, Instant::now() < deadline) {
                (false, _) => return Ok(None),
                (true, false) => return Err(busy(pins)),
                (true, true) => std::thread::sleep(GLANCE),
            }
        }
    }

    /// Fails where there is anything that no capture has put there.
    pub(super) fn require_own(&self, known: &[&str]) -> Result<()> {
        let mut foreign = Vec::new();
        for (name, kind) in entries(self.lock.as_fd(), &self.dir)? {
            let number = name.parse().is_ok_and(|number: usize| number < MOST);
            let path = named(&self.dir).join(&name);
            match kind {
                FileType::Directory if number => {
                    let fd = open_dir(self.lock.as_fd(), &name, &path)?;
                    let inside = entries(fd.as_fd(), &path)?.into_iter();
                    let others = inside
                        .filter(|(name, kind)| name != FILTER || *kind != FileType::RegularFile);
                    foreign.extend(others.map(|(name, _)| path.join(name)));
                }
                FileType::RegularFile if known.contains(&&*name) => {}
                _ => foreign.push(path),
            }
        }
        match foreign.is_empty() {
            true => Ok(()),
            false => Err(Error::CaptureForeign { paths: foreign }),
        }
    }

    pub(super) fn pin(&self, name: &str) -> PathBuf {
        within(&self.lock).join(name)
    }

    /// The filter program of a capture.
    pub(super) fn filter(&self, number: u32) -> PathBuf {
        self.of(number).join(FILTER)
    }

    /// When a capture took its place.
    pub(super) fn since(&self, number: u32) -> Result<SystemTime> {
        let dir = self.of(number);
        let about = fs::symlink_metadata(&dir);
        about.and_then(|about| about.modified()).map_err(pin_error("read", &dir))
    }

    fn of(&self, number: u32) -> PathBuf {
        self.pin(&number.to_string())
    }

    /// The captures that have a place, in order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let is_dir =
            |number: &u32| fs::symlink_metadata(self.of(*number)).is_ok_and(|about| about.is_dir());
        (0..MOST as u32).filter(is_dir).collect()
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
        let dir = self.dir.join(number.to_string());
        Ok(Some(Held { number, dir, lock }))
    }

    /// Gives a capture's place back.
    pub(super) fn give_back(&self, number: u32) -> Result<()> {
        remove_tree(&self.of(number))
    }

    /// Gives what is ours of it to whom the node belongs, so that a daemon without root's rights
    /// can clean up.
    pub(super) fn hand_over(&self) -> Result<()> {
        let node = statat(&self.lock, "..", AtFlags::empty())
            .map_err(|errno| pin_error("read", &self.dir)(errno.into()))?;
        match node.st_uid == geteuid().as_raw() {
            true => Ok(()),
            false => hand_over(self.lock.as_fd(), &self.dir, (node.st_uid, node.st_gid)),
        }
    }

    /// Takes everything away, the place itself last.
    pub(super) fn remove(&self) -> Result<()> {
        self.clear()?;
        let path = self.pin("../capture");
        fs::remove_dir(&path).map_err(pin_error("remove", &path))
    }

    /// Takes away what is in it.
    pub(super) fn clear(&self) -> Result<()> {
        for (name, kind) in entries(self.lock.as_fd(), &self.dir)? {
            let path = self.pin(&name);
            match kind {
                FileType::Directory => remove_tree(&path)?,
                _ => fs::remove_file(&path).map_err(pin_error("remove", &path))?,
            }
        }
        Ok(())
    }
}

/// The filter program of a capture, in its directory.
const FILTER: &str = "filter";

/// The path of an open directory, whatever its name leads to now.
fn within(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

fn busy(pins: &Pins) -> Error {
    Error::CaptureBusy { node: pins.node().to_owned() }
}

/// Names in an open directory, and what each is.
fn entries(dir: BorrowedFd<'_>, path: &Path) -> Result<Vec<(String, FileType)>> {
    let failed = |errno: rustix::io::Errno| pin_error("list", path)(errno.into());
    let mut found = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy();
        if !matches!(&*name, "." | "..") {
            found.push((name.into_owned(), entry.file_type()));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// Opens a directory, but not through a link in its place.
fn open(dir: &Path) -> Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    match rustix::fs::open(dir, DIRECTORY, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::NOTDIR) => Err(Error::CaptureForeign { paths: vec![named(dir)] }),
        Err(errno) => Err(pin_error("open", dir)(errno.into())),
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_dir(within: BorrowedFd<'_>, name: &str, path: &Path) -> Result<OwnedFd> {
    openat(within, name, DIRECTORY, Mode::empty())
        .map_err(|errno| pin_error("open", path)(errno.into()))
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

/// The error that somebody removed the place of a running capture.
pub(super) fn gone(pins: &Pins) -> Error {
    Error::CaptureGone { node: pins.node().to_owned() }
}

/// Gives what is ours of a directory to another user and group, the directory last: until then
/// nobody else may change what is in one of ours. In one of theirs, a file of ours with a second
/// name may be one that they have linked there; it stays ours.
fn hand_over(dir: BorrowedFd<'_>, path: &Path, owner: (u32, u32)) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |errno: rustix::io::Errno| pin_error("change the owner of", &path)(errno.into())
    };
    let give = |fd: BorrowedFd<'_>, path: &Path| {
        let (user, group) =
            (rustix::fs::Uid::from_raw(owner.0), rustix::fs::Gid::from_raw(owner.1));
        chownat(fd, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(failed(path))
    };
    for (name, kind) in entries(dir, path)? {
        let path = path.join(&name);
        if kind == FileType::Directory {
            hand_over(open_dir(dir, &name, &path)?.as_fd(), &path, owner)?;
            continue;
        }
        let fd =
            openat(dir, &*name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed(&path))?;
        let about = rustix::fs::fstat(&fd).map_err(failed(&path))?;
        let pin = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
        if pin && about.st_uid == geteuid().as_raw() && about.st_nlink == 1 {
            give(fd.as_fd(), &path)?;
        }
    }
    let about = rustix::fs::fstat(dir).map_err(failed(path))?;
    match about.st_uid == geteuid().as_raw() {
        true => give(dir, path),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A node of which nothing but its directory is there, where no bpffs is.
    struct Node(Pins, PathBuf);

    impl Node {
        fn new(name: &str) -> Self {
            let place = std::env::temp_dir().join(format!("ringway-{name}-{}", std::process::id()));
            let pins = Pins::new(&place, "gw1").unwrap();
            fs::create_dir_all(pins.dir()).unwrap();
            Self(pins, place)
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.1);
        }
    }

    fn foreign(error: Error) -> Vec<PathBuf> {
        match error {
            Error::CaptureForeign { paths } => paths,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_link_is_no_place() {
        let node = Node::new("link");
        let (pins, elsewhere) = (&node.0, node.1.join("elsewhere"));
        fs::create_dir_all(elsewhere.join("0")).unwrap();
        symlink(&elsewhere, pins.capture()).unwrap();
        assert_eq!(foreign(Place::make(pins).unwrap_err()), [pins.capture()]);
        assert!(Place::find(pins).unwrap().is_none());
        // Who takes the node away takes the link with it, and not what it leads to.
        drop(super::super::hold(pins).unwrap());
        assert!(pins.capture().symlink_metadata().unwrap().is_dir());
        assert!(elsewhere.join("0").exists());
    }

    /// As one is that begins and ends all the time.
    #[test]
    fn patience_ends_while_the_name_changes() {
        let node = Node::new("patience");
        let pins = node.0.clone();
        fs::create_dir(pins.capture()).unwrap();
        let held = open(&pins.capture()).unwrap().unwrap();
        assert!(try_lock(&held, &pins.capture()).unwrap());
        let begun = Instant::now();
        let error = Place::make_until(&pins, begun + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::CaptureBusy { .. }), "{error}");
    }

    #[test]
    fn what_is_foreign_is_named() {
        let node = Node::new("foreign");
        let pins = &node.0;
        let place = Place::make(pins).unwrap();
        place.require_own(&["enter"]).unwrap();
        let held = place.take().unwrap().unwrap();
        fs::write(place.filter(held.number), "").unwrap();
        fs::write(place.pin("enter"), "").unwrap();
        place.require_own(&["enter"]).unwrap();
        let at = pins.capture();
        symlink("/", at.join("x")).unwrap();
        symlink("/", at.join("0/x")).unwrap();
        fs::create_dir(at.join("12")).unwrap();
        let error = place.require_own(&["enter"]).unwrap_err();
        assert!(error.to_string().contains("rm -r"), "{error}");
        assert_eq!(foreign(error), [at.join("0/x"), at.join("12"), at.join("x")]);
        // Links go, and not what they lead to.
        place.remove().unwrap();
        assert!(!at.exists() && Path::new("/proc").exists());
    }

    /// The owner of what is ours changes, and of nothing else: neither through a link nor by a
    /// second name. Only root can try.
    #[test]
    fn only_ours_is_handed_over() {
        if !geteuid().is_root() {
            return;
        }
        let node = Node::new("owner");
        let (pins, victim) = (&node.0, node.1.join("victim"));
        let owner_of = |path: &Path| {
            let about = fs::symlink_metadata(path).unwrap();
            (about.uid(), about.gid())
        };
        fs::create_dir_all(&victim).unwrap();
        fs::write(victim.join("shadow"), "").unwrap();
        let ringway = (62_114, 62_114);
        std::os::unix::fs::chown(pins.dir(), Some(ringway.0), Some(ringway.1)).unwrap();
        let place = Place::make(pins).unwrap();
        let held = place.take().unwrap().unwrap();
        fs::write(place.filter(held.number), "").unwrap();
        fs::write(place.pin("enter"), "").unwrap();
        let at = pins.capture();
        symlink(&victim, at.join("link")).unwrap();
        fs::hard_link(victim.join("shadow"), at.join("last")).unwrap();
        place.hand_over().unwrap();
        for ours in ["", "enter", "0", "0/filter"] {
            assert_eq!(owner_of(&at.join(ours)), ringway, "{ours}");
        }
        for theirs in ["", "shadow"] {
            assert_eq!(owner_of(&victim.join(theirs)), (0, 0), "{theirs}");
        }
    }
}
