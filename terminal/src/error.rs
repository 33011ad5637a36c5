//! Errors of the daemon: what failed, on what, why, and what to do.

use std::fmt;

use ringway_host::Fix;

/// Why the daemon cannot go on, or a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its exit code.
    pub kind: Kind,
    /// The failure: what failed, on what and why.
    pub what: String,
    /// May be empty. Boxed, because results hold errors by value.
    pub remedy: Box<Fix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The configuration does not fit this machine, or is wrong in itself.
    Configuration,
    Failed,
    /// Nothing failed, but what was asked about is not well.
    Unhealthy,
}

impl Error {
    pub fn failed(what: impl Into<String>, remedy: impl Into<Fix>) -> Error {
        Error { kind: Kind::Failed, what: what.into(), remedy: Box::new(remedy.into()) }
    }

    /// The configuration is at fault.
    pub fn configuration(what: impl Into<String>, remedy: impl Into<Fix>) -> Error {
        Error { kind: Kind::Configuration, what: what.into(), remedy: Box::new(remedy.into()) }
    }

    pub fn unhealthy(what: impl Into<String>, remedy: impl Into<Fix>) -> Error {
        Error { kind: Kind::Unhealthy, what: what.into(), remedy: Box::new(remedy.into()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  to do: {}", self.remedy) }
    }
}

impl std::error::Error for Error {}
