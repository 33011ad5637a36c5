//! Why an engine does not start.

use ringway_xsk::{Cause, UmemError};

use crate::port::PortError;
use crate::takeover::TakeoverError;

/// Why an engine does not start, or a worker does not continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No worker, or one without a port.
    #[error("{0} has no port to receive or send packets; give it one")]
    NoPort(String),
    /// More workers than a UMEM has pools for.
    #[error("{0} workers are too many: at most 255 can share one memory; start several engines")]
    TooMany(usize),
    /// A cable has one end only.
    #[error("memory:{0} is named once, so its other end is missing; name it twice")]
    Loose(String),
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The machine has no memory for so many frames.
    #[error(
        "{frames} frames of {chunk} bytes need {needed_mib} MiB, and {available_mib} MiB are available{under}: ask for \
         fewer, at most `--frames {possible}` for each worker"
    )]
    NoMemory {
        frames: u32,
        chunk: u32,
        /// MiB for all of them, and their bookkeeping.
        needed_mib: u64,
        /// MiB that the machine could give.
        available_mib: u64,
        /// The limit's origin, if it is not the machine: " under " and its file.
        under: String,
        /// Frames that each worker could have.
        possible: u64,
    },
    /// A capture file would be overwritten.
    #[error(
        "pcap: {written} is the same file as {other} and would be overwritten; give each port its own files"
    )]
    SameFile {
        /// To be written to, as it was named.
        written: String,
        /// The other one, as it was named.
        other: String,
    },
    #[error("worker {worker}: {source}")]
    Port { worker: usize, source: PortError },
    /// It may not run there.
    #[error("worker {worker} cannot run on CPU {cpu}; this process may use {allowed}")]
    Cpu { worker: usize, cpu: usize, allowed: String },
    /// Its thread cannot be started.
    #[error(
        "cannot start a thread for worker {worker}: {source}; raise the limit of processes (`ulimit -u`)"
    )]
    Thread { worker: usize, source: std::io::Error },
    #[error(transparent)]
    Succession(#[from] TakeoverError),
    /// The successor went away.
    #[error("the successor did not take over: {0}; this engine continues")]
    Offer(std::io::Error),
    #[error(
        "worker {0} panicked: this is a bug in its app or in Ringway; restart the engine and report it"
    )]
    Panicked(usize),
}

impl EngineError {
    /// The interface that has another XDP program, if that is the cause.
    pub fn taken_interface(&self) -> Option<&str> {
        match self {
            Self::Port { source: PortError::Setup { source, .. }, .. }
                if source.cause == Cause::ProgramThere =>
            {
                Some(&source.on)
            }
            _ => None,
        }
    }
}
