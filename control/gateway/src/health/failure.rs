//! Why a check failed, in words for `status` and the log.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a check failed. The address is the backend's, so only the port is told.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens.
    #[error("connection refused on port {}", .0.port())]
    Refused(SocketAddr),
    /// Nobody listens, says ICMP.
    #[error("UDP port {} is refused: nobody listens", .0.port())]
    Unreachable(SocketAddr),
    /// No answer in time.
    #[error("no answer on port {} within {} ms", address.port(), limit.as_millis())]
    Timeout {
        /// Who was asked.
        address: SocketAddr,
        /// The check's timeout.
        limit: Duration,
    },
    /// The backend cannot be reached now.
    #[error("no way to it: {0}")]
    NoWay(String),
    /// The connection could not be made or broke.
    #[error("port {}: {}", address.port(), in_words(cause))]
    Io {
        /// Who was asked.
        address: SocketAddr,
        /// What the kernel said.
        cause: io::Error,
    },
    /// An HTTP answer with another status than expected.
    #[error("HTTP status {got}; {want} pass")]
    Status {
        /// What was answered.
        got: u16,
        /// What would have passed.
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
        /// What was answered.
        got: String,
        /// What would have passed.
        want: String,
    },
    /// A program's verdict, or that it could not be run.
    #[error("{0}")]
    Program(String),
}

impl Failure {
    /// Failures of one sort are the same news: their texts may differ each time, as a program's output does.
    pub fn sort(&self) -> Sort {
        let detail = match self {
            Failure::Io { cause, .. } => cause.raw_os_error().unwrap_or_default(),
            Failure::Status { got, .. } => i32::from(*got),
            _ => 0,
        };
        Sort(std::mem::discriminant(self), detail)
    }
}

/// What sort of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort(std::mem::Discriminant<Failure>, i32);

/// Without the number, which says nothing to people.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
