use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a namespace, link or process could not be had, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a namespace failed.
    #[error("{step} network namespace {name}: {source}{}", privilege_hint(source))]
    Namespace {
        /// The action, as a participle: "creating", "entering".
        step: &'static str,
        name: String,
        source: io::Error,
    },
    /// A namespace was to be made after [`crate::remove_own`].
    #[error("no namespace is made any more: this process ends")]
    Ending,
    /// A file or directory could not be used.
    #[error("{what} {path}: {source}{}", privilege_hint(source))]
    File {
        /// The action, as a participle.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// `ip` refused a command.
    #[error("`ip {command}` in {namespace} failed: {message}")]
    Ip {
        /// The failing line of the batch, or the whole batch.
        command: String,
        namespace: String,
        message: String,
    },
    /// Offloads of an interface could not be switched.
    #[error(transparent)]
    Host(#[from] ringway_host::Error),
    /// A program is not on this machine.
    #[error(
        "{tool} is neither on PATH nor under {peers}; install the Debian package {package}, or unpack it there"
    )]
    NoTool {
        tool: String,
        /// The Debian package that carries it.
        package: String,
        /// The directory with unpacked packages.
        peers: String,
    },
    /// A program could not be started.
    #[error("cannot start {program} in {namespace}: {source}{}", missing_hint(source))]
    Start { program: String, namespace: String, source: io::Error },
    /// A program ended when it should have gone on.
    #[error("{program} ended with {status}; its last words: {log}")]
    Ended {
        program: String,
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A condition did not come true in time.
    #[error("{what} did not happen within {after:?} ({tries} tries){}", last_hint(last))]
    Timeout {
        what: String,
        after: Duration,
        /// How often the condition was looked at.
        tries: u32,
        /// The last state seen; may be empty.
        last: String,
    },
}

impl Error {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { what, path: path.into(), source }
    }
}

fn privilege_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; run as root",
        _ => "",
    }
}

fn missing_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; install it or give its full path",
        _ => "",
    }
}

fn last_hint(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!("; last: {last}") }
}
