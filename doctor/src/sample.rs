//! A machine at one moment.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ringway_host::{Files, Host};
use serde::Serialize;

/// Why something could not be read, in words.
#[derive(Debug)]
pub struct Unread(String);

pub const ROOT_ALONE: &str = "root alone may see it: run it as root";

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        // The number that the system's words end in helps nobody.
        if error.kind() == io::ErrorKind::PermissionDenied {
            return ROOT_ALONE.into();
        }
        error.to_string().into()
    }
}

impl From<ringway_host::Error> for Unread {
    fn from(error: ringway_host::Error) -> Self {
        use ringway_host::Error::{Interface, Netlink, Read};
        match &error {
            Read { source, .. } | Interface { source, .. } | Netlink { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                ROOT_ALONE.into()
            }
            _ => error.to_string().into(),
        }
    }
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for Unread {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// Files of a machine by path, and why others could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    files: Arc<Files>,
    unread: BTreeMap<String, String>,
}

impl Sample {
    /// One that was read before.
    pub fn new(files: Files, unread: BTreeMap<String, String>) -> Self {
        Self { files: Arc::new(files), unread }
    }

    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Why a file or a whole directory is not there, by its path.
    pub fn unread(&self) -> &BTreeMap<String, String> {
        &self.unread
    }

    pub fn put(&mut self, path: impl Into<String>, text: impl Into<String>) {
        Arc::make_mut(&mut self.files).insert(path.into(), text.into());
    }

    /// Adds what was asked of the kernel as JSON, or why it did not answer.
    pub fn put_json<T: Serialize, E: Into<Unread>>(&mut self, path: &str, answer: Result<T, E>) {
        let json = |answer| {
            serde_json::to_string_pretty(&answer).map_err(|error| error.to_string().into())
        };
        match answer.map_err(Into::into).and_then(json) {
            Ok(json) => self.put(path, json),
            Err(why) => self.miss(path, why),
        }
    }

    /// Says why a file or a directory is not there.
    pub fn miss(&mut self, path: impl Into<String>, why: impl Into<Unread>) {
        self.unread.insert(path.into(), why.into().0);
    }

    /// Takes a file, or a directory with all in it, away.
    #[cfg(test)]
    pub fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        Arc::make_mut(&mut self.files).retain(|at, _| at != path && !at.starts_with(&below));
    }

    /// Why this is not there, where that is known: itself, or a directory that it is in.
    pub fn why_not(&self, path: &str) -> Option<&str> {
        let about = |(at, _): &(&String, &String)| {
            path.strip_prefix(at.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.unread.iter().find(about).map(|(_, why)| why.as_str())
    }

    /// To ask what `host` can read from it.
    pub fn host(&self) -> Host {
        Host::captured(Arc::clone(&self.files))
    }
}
