//! Why a device cannot be used.

use std::io;

/// Why DPDK or one of its devices cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// DPDK itself.
    #[error("DPDK did not start: {source}; see what it wrote above{remedy}")]
    Start {
        /// Its error.
        source: io::Error,
        /// What to do, if that is known.
        remedy: &'static str,
    },
    /// It can be started once in a process.
    #[error("DPDK did not start before, and cannot be started again: start this program anew")]
    Again,
    /// A NIC's memory must not move.
    #[error(
        "{port}: a NIC needs huge pages, {needed} of 2 MiB, and {free} are free: \
         `echo {pages} >/proc/sys/vm/nr_hugepages`"
    )]
    HugePages {
        /// As it was written.
        port: String,
        /// Pages of 2 MiB.
        needed: u64,
        /// Pages of 2 MiB.
        free: u64,
        /// Pages that there must be in all.
        pages: u64,
    },
    /// Its memory.
    #[error(
        "no memory for {frames} frames: {source}; ask for fewer (`--frames`), or give it huge pages: \
         `echo 1024 >/proc/sys/vm/nr_hugepages`"
    )]
    Memory {
        /// Frames that were asked for.
        frames: u32,
        /// DPDK's error.
        source: io::Error,
    },
    /// A port that DPDK cannot have.
    #[error("{port}: {why}; {remedy}")]
    Refused {
        /// As it was written.
        port: String,
        /// The cause.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A device that does not start.
    #[error("{port}: {step}: {source}; {remedy}")]
    Device {
        /// As it was written.
        port: String,
        /// The request to DPDK.
        step: String,
        /// Its answer.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
}

impl Error {
    pub(crate) fn memory(frames: u32) -> Self {
        Self::Memory { frames, source: last() }
    }

    pub(crate) fn refused(port: &str, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Refused { port: port.into(), why: why.into(), remedy: remedy.into() }
    }
}

/// DPDK's last error on this thread.
pub(crate) fn last() -> io::Error {
    // SAFETY: it reads a variable of this thread.
    io::Error::from_raw_os_error(unsafe { crate::sys::rw_dpdk_errno() })
}

/// What a function of DPDK returned: a negative number is an error's.
pub(crate) fn checked(returned: i32) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::from_raw_os_error(-returned)) } else { Ok(returned) }
}
