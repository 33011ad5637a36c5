//! From IPVS to Ringway: what `ipvsadm-save -n` prints, as a configuration.
//!
//! Nothing is dropped in silence: what Ringway does otherwise, or not at all, becomes a comment in
//! the configuration and a warning.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::net::{IpAddr, SocketAddr};

pub use read::{Ports, read};
pub use write::{ImportOptions, write};

use crate::model::{Forward, Protocol};

/// A line that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}; {remedy}")]
pub struct Error {
    /// Counted from 1.
    pub line: usize,
    pub what: String,
    pub remedy: String,
}

/// What one was looking for: `-t`, `-u`, `--sctp-service` or `-f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Virtual {
    /// An address and a port (0: every port).
    Endpoint(Protocol, SocketAddr),
    /// SCTP, which Ringway does not balance.
    Sctp(SocketAddr),
    /// A firewall mark.
    Mark(u32),
}

impl std::fmt::Display for Virtual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Virtual::Endpoint(Protocol::Tcp, at) => write!(f, "-t {at}"),
            Virtual::Endpoint(Protocol::Udp, at) => write!(f, "-u {at}"),
            Virtual::Sctp(at) => write!(f, "--sctp-service {at}"),
            Virtual::Mark(mark) => write!(f, "-f {mark}"),
        }
    }
}

/// One `-A` with its `-a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its address.
    pub at: Virtual,
    /// Its scheduler; `wlc` where none is named, as in ipvsadm(8).
    pub scheduler: String,
    /// `-b`: flags of the scheduler.
    pub flags: Vec<String>,
    /// `-p`: seconds.
    pub persistent: Option<u32>,
    /// `-M`: it keeps whole prefixes together.
    pub prefix: Option<String>,
    /// Options that are only worth a warning, as they were written.
    pub others: Vec<String>,
    pub servers: Vec<Server>,
}

/// One `-a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Line that names it.
    pub line: usize,
    pub address: IpAddr,
    /// Port; 0: the one that the client used.
    pub port: u16,
    /// `-m`, `-g`, `-i`; `None`: a tunnel that Ringway does not have.
    pub forward: Option<Forward>,
    /// `--tun-port`.
    pub gue_port: Option<u16>,
    /// `-w`.
    pub weight: u32,
    /// Options that are only worth a warning, as they were written.
    pub others: Vec<String>,
}
