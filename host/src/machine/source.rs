//! Where files of /proc and /sys are read: on this machine, or from what was captured of one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use crate::{Error, Result};

/// Files of a captured machine by absolute path: `/proc/...` and `/sys/...` as they were, and what
/// netlink and ethtool said as JSON.
pub type Files = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// This machine, now; `/proc/net` is that of the calling thread's network namespace.
    Live,
    /// One that was captured.
    Captured(Arc<Files>),
}

impl Source {
    /// The whole file, trimmed at its end.
    pub fn read(&self, path: &str) -> Result<String> {
        let content = match self {
            Self::Live => fs::read(live(path).as_ref()),
            Self::Captured(files) => match files.get(path) {
                Some(text) => return Ok(text.trim_end().to_owned()),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        };
        match content {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(source) => Err(Error::Read { path: path.into(), source }),
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
        match self {
            Self::Live => PathBuf::from(live(path).as_ref()).exists(),
            Self::Captured(files) => files.contains_key(path) || !children(files, path).is_empty(),
        }
    }

    /// Names in a directory, sorted; none if there is no such directory.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let entries = match self {
            Self::Captured(files) => return Ok(children(files, path)),
            Self::Live => match fs::read_dir(live(path).as_ref()) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                other => other.map_err(|source| Error::Read { path: path.into(), source })?,
            },
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
            path: path.into(),
            content: content.chars().take(80).collect(),
            expected,
        })
    }
}

/// `/proc/net` leads to the namespace of the process's first thread.
fn live(path: &str) -> Cow<'_, str> {
    match path.strip_prefix("/proc/net/") {
        Some(rest) => format!("/proc/thread-self/net/{rest}").into(),
        None => path.into(),
    }
}

fn children(files: &Files, directory: &str) -> Vec<String> {
    let prefix = format!("{}/", directory.trim_end_matches('/'));
    let below = files.range(prefix.clone()..).map_while(|(path, _)| path.strip_prefix(&prefix));
    let mut names: Vec<String> =
        below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
    names.dedup();
    names
}
