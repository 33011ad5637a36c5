use std::io;
use std::path::PathBuf;

/// Why a fact could not be had, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of /proc or /sys, or of a captured machine, could not be read.
    #[error("cannot read {path}: {source}; check that it exists and that this process may read it")]
    Read { path: PathBuf, source: io::Error },
    /// A file was read but does not look as the kernel documents it.
    #[error(
        "{path} holds {content:?}, where {expected} was expected; report this with the kernel's version"
    )]
    Content { path: PathBuf, content: String, expected: &'static str },
    /// No interface of this name or index in the calling thread's network namespace.
    #[error("no interface {name} in this network namespace; `ip link` lists those that exist")]
    NoInterface {
        /// Name, or the index in decimal.
        name: String,
    },
    /// An ioctl on an interface failed.
    #[error("{what} on {interface}: {source}{}", privilege_hint(source))]
    Interface {
        /// The request.
        what: &'static str,
        interface: String,
        source: io::Error,
    },
    /// The kernel refused a netlink request.
    #[error("{what}: {source}{}{}", kernel_hint(detail), privilege_hint(source))]
    Netlink {
        what: String,
        source: io::Error,
        /// The kernel's own words (extended acknowledgement), or empty.
        detail: String,
    },
    /// A netlink answer is shorter than its own length fields say.
    #[error("malformed netlink answer to {what}; report this with the kernel's version")]
    Malformed { what: String },
    /// There is no route to this address.
    #[error(
        "no route to {destination}: {source}; add one, for example `ip route add {destination} via GATEWAY`"
    )]
    NoRoute { destination: std::net::IpAddr, source: io::Error },
    /// A captured machine lacks this fact.
    #[error(
        "what was collected does not hold {fact}; collect it again with this version of Ringway"
    )]
    NotCaptured { fact: &'static str },
}

fn privilege_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_NET_ADMIN: run as root)",
        _ => "",
    }
}

fn kernel_hint(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" (the kernel says: {detail})") }
}
