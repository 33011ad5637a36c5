//! Why a check failed, in words for `status` and the log.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use super::not_asked::{Lack, NotAsked, lack_of};

/// Why a check failed. The address is the backend's, so only the port is told.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("connection refused on port {}", .0.port())]
    Refused(SocketAddr),
    /// Nobody listens, says ICMP.
    #[error("UDP port {} is refused: nobody listens", .0.port())]
    Unreachable(SocketAddr),
    /// No answer in time.
    #[error("no answer on port {} within {} ms", address.port(), limit.as_millis())]
    Timeout { address: SocketAddr, limit: Duration },
    /// The backend cannot be reached now.
    #[error("no way to it: {0}")]
    NoWay(String),
    /// The connection could not be made or broke.
    #[error("port {}: {}", address.port(), in_words(cause))]
    Io { address: SocketAddr, cause: io::Error },
    /// An HTTP answer with another status than expected.
    #[error("HTTP status {got}; {want} pass")]
    Status {
        got: u16,
        /// The expected value.
        want: String,
    },
    /// The peer closed or sent something that is not HTTP.
    #[error("port {} does not answer in HTTP/1", .0.port())]
    NotHttp(SocketAddr),
    /// TLS: the certificate, or the handshake.
    #[error("{0}")]
    Tls(String),
    /// Datagrams came, and none was what was expected.
    #[error("answer is not what is expected: {0}")]
    Unexpected(String),
    /// A DNS answer with another code than expected.
    #[error("DNS answer {got}; {want} passes")]
    Rcode {
        got: String,
        /// The expected value.
        want: String,
    },
    #[error("{0}")]
    Program(String),
    /// This machine could not ask: no failure of the backend's.
    #[error("{0}")]
    NotAsked(NotAsked),
}

impl Failure {
    /// Whether the network says that there is no such host.
    pub fn is_host_gone(&self) -> bool {
        let Failure::Io { cause, .. } = self else { return false };
        let code = Errno::from_io_error(cause);
        matches!(code, Some(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN))
    }

    /// What an error of the kernel means: some say nothing about the peer.
    pub fn io(address: SocketAddr, cause: io::Error) -> Failure {
        match lack_of(&cause) {
            Some(lack) => Failure::not_asked(lack, in_words(&cause)),
            None => Failure::Io { address, cause },
        }
    }

    /// This machine could not ask.
    pub fn not_asked(lack: Lack, why: impl Into<String>) -> Failure {
        Failure::NotAsked(NotAsked { lack, why: why.into() })
    }

    /// Whether there was no descriptor for it.
    pub fn lacks_descriptors(&self) -> bool {
        matches!(self, Failure::NotAsked(why) if why.lack == Lack::Descriptors)
    }

    /// Failures of one sort are the same news: their texts may differ each time, as a program's
    /// output does.
    pub fn sort(&self) -> Sort {
        let detail = match self {
            Failure::Io { cause, .. } => cause.raw_os_error().unwrap_or_default(),
            Failure::Status { got, .. } => i32::from(*got),
            _ => 0,
        };
        Sort(std::mem::discriminant(self), detail)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort(std::mem::Discriminant<Failure>, i32);

/// Without the number, which says nothing to people.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    let words = number.and_then(|number| text.strip_suffix(&number));
    words.unwrap_or(&text).to_lowercase()
}
