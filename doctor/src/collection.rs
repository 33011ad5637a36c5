//! Two samples in one archive, to be looked at elsewhere.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use ringway_host::Files;
use serde::{Deserialize, Serialize};

use crate::{Sample, gather, gather_counters};

/// The schema that the first file of an archive names.
const SCHEMA: &str = "ringway.collection/1";
const HEAD: &str = "collection.json";
/// No file of a machine that rules read is larger, and no archive as a whole.
const FILE_MOST: u64 = 64 << 20;
const MOST: u64 = 512 << 20;

/// Two samples of one machine.
#[derive(Debug, Clone, Default)]
pub struct Collection {
    /// Counters, at first.
    pub before: Sample,
    /// Everything, later.
    pub after: Sample,
    pub seconds: f64,
}

/// Why an archive is not a collection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no archive, or ends too early.
    #[error("it is damaged: {0}; collect it again: `ringway doctor --collect FILE.tar`")]
    Damaged(String),
    /// It is an archive of something else.
    #[error("it is no collection: {0}; make one: `ringway doctor --collect FILE.tar`")]
    Foreign(String),
    /// It is one, compressed.
    #[error("it is compressed: unpack it first, with gunzip, unxz or unzstd")]
    Compressed,
    /// It is too large to be one.
    #[error("it holds more than {0} bytes: no collection is as large")]
    Large(u64),
}

#[derive(Serialize, Deserialize)]
struct Head {
    schema: String,
    version: String,
    seconds: f64,
    /// Files of each sample: an archive that was cut off between two files looks whole.
    files_before: usize,
    files_after: usize,
    /// Why files could not be read, by path, of each sample.
    unread_before: BTreeMap<String, String>,
    unread_after: BTreeMap<String, String>,
}

impl Collection {
    /// Of this machine, in the calling thread's network namespace; takes this long.
    pub fn live(interval: Duration) -> Self {
        let (start, before) = (Instant::now(), gather_counters());
        std::thread::sleep(interval);
        let seconds = start.elapsed().as_secs_f64();
        Self { before, after: gather(), seconds }
    }

    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(to);
        let head = Head {
            schema: SCHEMA.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            seconds: self.seconds,
            files_before: self.before.files().len(),
            files_after: self.after.files().len(),
            unread_before: self.before.unread().clone(),
            unread_after: self.after.unread().clone(),
        };
        append(&mut archive, HEAD, &serde_json::to_string_pretty(&head)?)?;
        for (directory, sample) in [("before", &self.before), ("after", &self.after)] {
            for (path, text) in sample.files() {
                append(&mut archive, &format!("{directory}{path}"), text)?;
            }
        }
        archive.into_inner()?.flush()
    }

    pub fn read(mut from: impl Read) -> Result<Self, Error> {
        let mut begin = Vec::new();
        let read = from.by_ref().take(4).read_to_end(&mut begin);
        read.map_err(|error| Error::Damaged(shown(&error.to_string())))?;
        // gzip (RFC 1952), xz, zstd (RFC 8878).
        let compressed: [&[u8]; 3] = [b"\x1f\x8b", b"\xfd7zX", b"\x28\xb5\x2f\xfd"];
        if compressed.iter().any(|magic| begin.starts_with(magic)) {
            return Err(Error::Compressed);
        }
        let from = begin.as_slice().chain(from);
        // Names of files and other headers are bounded, too.
        let mut archive = tar::Archive::new(from.take(MOST + FILE_MOST));
        let damaged = |error: io::Error| Error::Damaged(shown(&error.to_string()));
        let (mut head, mut files) = (None, BTreeMap::<String, Files>::new());
        let mut room = MOST;
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let size = entry.size();
            room =
                room.checked_sub(size).filter(|_| size <= FILE_MOST).ok_or(Error::Large(MOST))?;
            let path = entry.path().map_err(damaged)?.to_string_lossy().into_owned();
            match entry.header().entry_type() {
                tar::EntryType::Regular => {}
                // There are some if the archive was unpacked and packed again.
                tar::EntryType::Directory => continue,
                _ => return Err(Error::Foreign(format!("{} is no plain file", shown(&path)))),
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(damaged)?;
            if bytes.len() as u64 != size {
                return Err(Error::Damaged(format!("{} ends too early", shown(&path))));
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            match path.split_once('/') {
                None if path == HEAD => head = Some(text),
                Some((sample, path)) => {
                    files.entry(sample.into()).or_default().insert(format!("/{path}"), text);
                }
                None => {}
            }
        }
        let head = head.ok_or_else(|| Error::Foreign(format!("{HEAD} is not in it")))?;
        Self::with_head(&head, files)
    }

    fn with_head(head: &str, mut files: BTreeMap<String, Files>) -> Result<Self, Error> {
        let head: Head = serde_json::from_str(head)
            .map_err(|error| Error::Damaged(format!("{HEAD} is not understood: {error}")))?;
        if head.schema != SCHEMA {
            let why = format!("its schema is {:?}, and this version reads {SCHEMA:?}", head.schema);
            return Err(Error::Foreign(why));
        }
        let mut sample = |name: &str, count: usize, unread| {
            let files = files.remove(name).unwrap_or_default();
            if files.len() != count {
                let why =
                    format!("{} of {count} files of the sample {name} are in it", files.len());
                return Err(Error::Damaged(why));
            }
            Ok(Sample::new(files, unread))
        };
        Ok(Self {
            before: sample("before", head.files_before, head.unread_before)?,
            after: sample("after", head.files_after, head.unread_after)?,
            seconds: head.seconds,
        })
    }
}

/// A quotation from an archive may hold anything.
fn shown(text: &str) -> String {
    text.chars()
        .take_while(|c| !c.is_control() && *c != char::REPLACEMENT_CHARACTER)
        .take(80)
        .collect()
}

fn append(archive: &mut tar::Builder<impl Write>, path: &str, text: &str) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy;

    fn written() -> (Collection, Vec<u8>) {
        let collection = healthy().miss("/proc/irq", "no").collection;
        let mut bytes = Vec::new();
        collection.write(&mut bytes).unwrap();
        (collection, bytes)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (collection, bytes) = written();
        let read = Collection::read(bytes.as_slice()).unwrap();
        assert_eq!((read.before, read.after), (collection.before, collection.after));
        assert_eq!(read.seconds, collection.seconds);
    }

    #[test]
    fn what_is_no_collection_says_so() {
        let (_, bytes) = written();
        let said = |bytes: &[u8]| Collection::read(bytes).unwrap_err().to_string();
        // Between two files, too, and but for the two empty blocks at the end.
        for blocks in 1..bytes.len() / 512 - 2 {
            let said = said(&bytes[..blocks * 512]);
            assert!(said.contains("damaged"), "{blocks}: {said}");
        }
        assert!(said(b"hello, this is no archive at all").contains("damaged"));
        assert!(said(b"\x1f\x8b\x08\x00 and so on").contains("gunzip"));
        assert!(said(&[]).contains("no collection"));
        let mut other = tar::Builder::new(Vec::new());
        append(&mut other, "letter.txt", "hello").unwrap();
        assert!(said(&other.into_inner().unwrap()).contains("no collection"));
        let mut newer = tar::Builder::new(Vec::new());
        let head = r#"{"schema":"ringway.collection/9","version":"","seconds":1,"files_before":0,"files_after":0,"unread_before":{},
            "unread_after":{}}"#;
        append(&mut newer, HEAD, head).unwrap();
        assert!(said(&newer.into_inner().unwrap()).contains("collection/9"));
    }
}
