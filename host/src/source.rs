//! Where files of /proc and /sys are read: on this machine, or from a captured tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A machine's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// This machine, now.
    Live,
    /// A directory that holds `proc/...` and `sys/...` as they were.
    Tree(PathBuf),
}

impl Source {
    /// Where the file of this absolute path really is.
    pub fn path(&self, path: &str) -> PathBuf {
        match self {
            Self::Live => PathBuf::from(path),
            Self::Tree(root) => root.join(path.trim_start_matches('/')),
        }
    }

    /// The whole file, trimmed at its end.
    pub fn read(&self, path: &str) -> Result<String> {
        let at = self.path(path);
        match fs::read(&at) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(source) => Err(Error::Read { path: at, source }),
        }
    }

    /// The whole file, or `None` if there is none.
    pub fn read_if_there(&self, path: &str) -> Result<Option<String>> {
        match self.read(path) {
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Whether there is such a file or directory.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory, sorted; none if there is no such directory.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let at = self.path(path);
        let entries = match fs::read_dir(&at) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| Error::Read { path: at, source })?,
        };
        let mut names: Vec<String> =
            entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    /// The content made into a `T`, or an error that shows it.
    pub(crate) fn parse<T>(
        &self,
        path: &str,
        content: &str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T> {
        parse(content).ok_or_else(|| Error::Content {
            path: self.path(path),
            content: content.chars().take(80).collect(),
            expected,
        })
    }
}

/// Copies one file into a tree, creating directories; what cannot be read here is left out.
pub(crate) fn capture_file(root: &Path, path: &str) -> io::Result<()> {
    let Ok(content) = fs::read(path) else { return Ok(()) };
    let to = root.join(path.trim_start_matches('/'));
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(to, content)
}
