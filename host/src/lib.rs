//! Facts about this machine, live or from a captured tree.
//!
//! Everything here is synchronous and acts in the **calling thread's** network namespace: netlink and
//! ioctl sockets are opened per call, and `/proc` is read through `/proc/thread-self` where it matters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod ethtool;
pub mod links;
mod mac;
mod netlink;

pub use error::Error;
pub use mac::{Mac, ParseMacError};

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
