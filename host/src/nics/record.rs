//! What was bound to vfio-pci, kept where a reboot finds it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ringway_wire::Mac;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{BindError, Nic};

/// Root's own: whoever can write here says which drivers devices get at the next boot.
const DIRECTORY: &str = "/var/lib/ringway-nics";

/// A device that is to be bound, and who had it before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub address: String,
    /// Vendor and device of the chip, and of the card: another card in its place is not bound.
    pub id: String,
    pub card: String,
    /// None: not known.
    pub mac: Option<Mac>,
    /// The driver that gets it back; none: whichever fits.
    pub driver: Option<String>,
    /// What `driver_override` was.
    pub driver_override: Option<String>,
    /// Its interfaces then.
    pub interfaces: Vec<String>,
}

impl Record {
    /// Whether this is another card than the one that was bound, and what differs.
    pub fn differs(&self, nic: &Nic) -> Option<String> {
        let shown = |mac: Mac| mac.to_string();
        let macs = self.mac.zip(nic.mac).map(|(old, new)| (shown(old), shown(new)));
        let pairs = [(self.id.clone(), nic.id.clone()), (self.card.clone(), nic.card.clone())];
        let (old, new) = pairs.into_iter().chain(macs).find(|(old, new)| old != new)?;
        Some(format!("another card is in its place: {new} instead of {old}"))
    }
}

/// A directory with a file for each.
pub struct Records {
    directory: PathBuf,
}

impl Records {
    pub fn live() -> Self {
        Self::new(Path::new(DIRECTORY))
    }

    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.into() }
    }

    /// Waits until no other process changes drivers, and keeps others waiting for as long as this
    /// file is open.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn lock(&self) -> Result<File, BindError> {
        let lock = || {
            DirBuilder::new().mode(0o755).recursive(true).create(&self.directory)?;
            let directory = File::open(&self.directory)?;
            rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
            Ok(directory)
        };
        lock().map_err(|source| self.failed("cannot use", &self.directory, source))
    }

    /// By address.
    ///
    /// # Errors
    /// One cannot be read, or is none.
    pub fn all(&self) -> Result<Vec<Record>, BindError> {
        let unread = |source| self.failed("cannot read", &self.directory, source);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let paths: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut paths = paths.map_err(unread)?;
        paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
        paths.sort();
        paths.iter().map(|path| self.read(path)).collect()
    }

    /// Of this device.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn of(&self, address: &str) -> Result<Option<Record>, BindError> {
        match self.read(&self.path(address)) {
            Err(BindError::Record { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            record => record.map(Some),
        }
    }

    /// It is on the disk when this returns.
    pub(super) fn write(&self, record: &Record) -> Result<(), BindError> {
        let path = self.path(&record.address);
        let new = path.with_extension("new");
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
            serde_json::to_writer_pretty(&mut file, record)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| self.failed("cannot write", &path, source))
    }

    pub(super) fn remove(&self, address: &str) -> Result<(), BindError> {
        let path = self.path(address);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(self.failed("cannot remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path) -> Result<Record, BindError> {
        let read = || Ok(serde_json::from_slice(&fs::read(path)?)?);
        read().map_err(|source| self.failed("cannot read", path, source))
    }

    fn path(&self, address: &str) -> PathBuf {
        self.directory.join(format!("{address}.json"))
    }

    fn failed(&self, what: &'static str, path: &Path, source: io::Error) -> BindError {
        BindError::Record { what, path: path.into(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_card_is_told_apart() {
        let mac = |last| Some(Mac([2, 0, 0, 0, 0, last]));
        let nic = Nic { id: "8086:10c9".into(), card: "8086:a03c".into(), ..Nic::default() };
        let (id, card) = (nic.id.clone(), nic.card.clone());
        let record = Record { id, card, mac: mac(1), ..Record::default() };
        for (other, differs) in [
            (nic.clone(), None),
            (Nic { mac: mac(1), ..nic.clone() }, None),
            (Nic { mac: mac(2), ..nic.clone() }, Some("02:00:00:00:00:02 instead of")),
            (Nic { id: "8086:1521".into(), ..nic.clone() }, Some("8086:1521 instead of 8086:10c9")),
            (Nic { card: "15d9:0".into(), ..nic }, Some("15d9:0 instead of")),
        ] {
            let told = record.differs(&other);
            assert_eq!(told.is_some(), differs.is_some(), "{other:?}: {told:?}");
            assert!(told.unwrap_or_default().contains(differs.unwrap_or_default()));
        }
    }
}
