//! What can go wrong with drivers of devices.

use std::io;
use std::path::PathBuf;

/// Why a device was not bound, or not given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// There is no such device.
    #[error("{device}: {why}; `ringway nic list` shows NICs on PCI")]
    Unknown { device: String, why: String },
    /// Nothing was changed.
    #[error("{device}: {why}; {remedy}")]
    Refused { device: String, why: String, remedy: String },
    /// What was done is undone.
    #[error("{device}: {step}: {source}; {now} has it, as before; see `dmesg`")]
    Undone { device: String, step: &'static str, source: io::Error, now: String },
    /// It is left halfway.
    #[error(
        "{device}: {step}: {source}; see `dmesg`; `ringway nic unbind {device}` goes on from here"
    )]
    Halfway { device: String, step: &'static str, source: io::Error },
    #[error(
        "{what} {path}: {source}; run this as root, and see that its file system can be written"
    )]
    Record { what: &'static str, path: PathBuf, source: io::Error },
}
