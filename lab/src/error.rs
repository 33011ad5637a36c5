use std::io;
use std::path::PathBuf;

use ringway_terminal::text::counted;

/// Why something could not be measured, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Namespaces, links or programs.
    #[error(transparent)]
    Testnet(#[from] ringway_testnet::Error),
    /// A file could not be written.
    #[error("writing {path}: {source}; see that the disk has room and the directory is yours")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of the kernel's could not be read.
    #[error(
        "reading {path}: {source}; mount what it belongs to, or measure on a kernel that has it"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is too little of something for so many connections.
    #[error("not enough {short} for {}: {}", counted(asked, "connection"), remedy(*possible, more))]
    TooMany {
        /// Connections asked for.
        asked: u64,
        /// Connections that there can be.
        possible: u64,
        /// What there is too little of.
        short: String,
        /// What gives more of it.
        more: String,
    },
    /// A bench that needs some files at once has fewer.
    #[error("not enough open files: {needed} needed, {have} allowed (`ulimit -Hn`); {}", raise_files(*needed))]
    TooFewFiles {
        /// Open files that it needs.
        needed: u64,
        /// Open files that this process may have.
        have: u64,
    },
    /// Sockets could not be had or brought where they were to be.
    #[error(
        "sockets for \"{what}\": {source}; run as root, and with fewer of them where memory or files are short"
    )]
    Socket {
        /// What they were for.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be run at all.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// The program.
        program: String,
        /// What it said.
        output: String,
    },
    /// The bare rewriter could not be loaded or attached.
    #[error("the bare XDP rewriter: {0}; run as root on a kernel with BTF and native XDP on veth")]
    Bpf(#[from] libbpf_rs::Error),
    /// The program that feeds the gateway could not be loaded or run.
    #[error("the packet feeder: {0}; run as root on a kernel with BTF, 6.1 or newer")]
    Feeder(libbpf_rs::Error),
    /// The program that sends from within the kernel could not be loaded or run.
    #[error("sending from within the kernel: {0}; run as root on a kernel with BTF, 6.1 or newer")]
    Live(libbpf_rs::Error),
    /// Packets that it does not send.
    #[error(
        "from within the kernel only frames of up to 3000 bytes are sent that were made here; take another port for a capture's"
    )]
    NotLive,
    /// The programs that make load could not be loaded or run.
    #[error("load from the kernel: {0}; run as root on a kernel with BTF and native XDP on veth")]
    Load(libbpf_rs::Error),
    /// Its variables are not where they were built: a bug.
    #[error("a program of the lab has lost its variables: build ringway-lab again, from clean")]
    NoVariables,
    /// The gateway could not be loaded or filled.
    #[error(transparent)]
    Kernel(#[from] ringway_kernel::Error),
    /// No tables for the gateway.
    #[error("the gateway's tables: {0}")]
    Tables(String),
    /// No place to measure in.
    #[error(
        "a network namespace and a processor to measure in: {0}; run as root, outside of a container"
    )]
    Settle(io::Error),
    /// Packets were not dealt with as they should, so that their time says nothing.
    #[error("path {path}: {what}; `ringway reasons` explains them")]
    OtherWay {
        /// The path.
        path: &'static str,
        /// What the gateway's books say.
        what: String,
    },
    /// Asked for by somebody else than root.
    #[error(
        "`ringway-lab {command}` needs root, for network namespaces and XDP programs; write `sudo {typed}`"
    )]
    NotRoot {
        /// What follows `ringway-lab`.
        command: String,
        /// All that was typed.
        typed: String,
    },
    /// The machine has no such balancer.
    #[error("{0}")]
    Unavailable(String),
    /// Ringway's engine could not be measured.
    #[error(transparent)]
    Engine(#[from] ringway_engine::EngineError),
    /// A measurement without a figure.
    #[error("{who}: {what}; measure again, alone on the machine")]
    NoFigure {
        /// Who was measured.
        who: String,
        /// What went wrong.
        what: String,
    },
    /// An unknown phase of the demo was asked for.
    #[error("the demo has no phase {0:?}; write one of {1}")]
    NoSuchPhase(String, String),
    /// Something that was left behind could not be removed.
    #[error("removing {path}: {source}; run as root, or remove it by hand")]
    Remove {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// What to do where so many connections are possible.
fn remedy(possible: u64, more: &str) -> String {
    match possible {
        0 => format!("not even one is possible; {more}"),
        1 => format!("1 is possible; write `--connections 1`, or {more}"),
        n => format!("{n} are possible; write `--connections {n}`, or {more}"),
    }
}

/// How a process gets so many open files.
pub(crate) fn raise_files(needed: u64) -> String {
    let typed = crate::typed(std::env::args_os());
    format!("raise the limit, in a new shell or by `prlimit --nofile={needed} {typed}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_work() {
        let too_many = |asked, possible| {
            let (short, more) = ("open files".into(), "raise it".into());
            Error::TooMany { asked, possible, short, more }.to_string()
        };
        assert_eq!(
            too_many(1, 0),
            "not enough open files for 1 connection: not even one is possible; raise it"
        );
        assert!(
            too_many(9, 1)
                .ends_with("9 connections: 1 is possible; write `--connections 1`, or raise it")
        );
        assert!(too_many(9, 8).ends_with(": 8 are possible; write `--connections 8`, or raise it"));
        let files = Error::TooFewFiles { needed: 64, have: 20 }.to_string();
        assert!(
            files.contains("64 needed, 20 allowed") && files.contains("`prlimit --nofile=64 "),
            "{files}"
        );
    }
}
