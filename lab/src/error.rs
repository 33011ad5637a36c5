use std::io;
use std::path::PathBuf;

use ringway_terminal::text::counted;

/// Why something could not be measured, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Testnet(#[from] ringway_testnet::Error),
    #[error("writing {path}: {source}; see that the disk has room and the directory is yours")]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "reading {path}: {source}; mount what it belongs to, or measure on a kernel that has it"
    )]
    Read { path: PathBuf, source: io::Error },
    #[error("not enough {short} for {}: {}", counted(asked, "connection"), remedy(*possible, more))]
    TooMany {
        asked: u64,
        possible: u64,
        /// The resource that is too small.
        short: String,
        /// The way to get more of it.
        more: String,
    },
    #[error("not enough open files: {needed} needed, {have} allowed (`ulimit -Hn`); {}", raise_files(*needed))]
    TooFewFiles { needed: u64, have: u64 },
    #[error(
        "sockets for \"{what}\": {source}; run as root, and with fewer of them where memory or files are short"
    )]
    Socket { what: &'static str, source: io::Error },
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("{program} failed: {output}")]
    Failed { program: String, output: String },
    #[error("the bare XDP rewriter: {0}; run as root on a kernel with BTF and native XDP on veth")]
    Bpf(#[from] libbpf_rs::Error),
    #[error("the packet feeder: {0}; run as root on a kernel with BTF, 6.1 or newer")]
    Feeder(libbpf_rs::Error),
    #[error("sending from within the kernel: {0}; run as root on a kernel with BTF, 6.1 or newer")]
    Live(libbpf_rs::Error),
    #[error(
        "from within the kernel only frames of up to 3000 bytes are sent that were made here; take another port for a capture's"
    )]
    NotLive,
    #[error("load from the kernel: {0}; run as root on a kernel with BTF and native XDP on veth")]
    Load(libbpf_rs::Error),
    #[error("a program of the lab has lost its variables: build ringway-lab again, from clean")]
    NoVariables,
    #[error(transparent)]
    Kernel(#[from] ringway_kernel::Error),
    #[error("counting calls: {0}")]
    Count(#[from] CountError),
    #[error("the gateway's tables: {0}")]
    Tables(String),
    #[error(
        "a network namespace and a processor to measure in: {0}; run as root, outside of a container"
    )]
    Settle(io::Error),
    #[error("path {path}: {what}; `ringway reasons` explains them")]
    OtherWay { path: &'static str, what: String },
    #[error(
        "`ringway-lab {command}` needs root, for network namespaces and XDP programs; write `sudo {typed}`"
    )]
    NotRoot {
        /// The words after `ringway-lab`.
        command: String,
        /// All that was typed.
        typed: String,
    },
    #[error("{0}")]
    Unavailable(String),
    #[error("interface {name}: {what}; {remedy}")]
    Interface { name: String, what: String, remedy: String },
    #[error(transparent)]
    Engine(#[from] ringway_engine::EngineError),
    #[error("{who}: {what}; measure again, alone on the machine")]
    NoFigure { who: String, what: String },
    #[error("the demo has no phase {0:?}; write one of {1}")]
    NoSuchPhase(String, String),
    #[error("removing {path}: {source}; run as root, or remove it by hand")]
    Remove { path: PathBuf, source: io::Error },
}

/// Why the calls of a packet cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    #[error("a map of counters: {0}; run as root on a kernel with BTF, 6.1 or newer")]
    Counters(libbpf_rs::Error),
    #[error("libbpf takes no handler of programs: {0}; build ringway-lab again, from clean")]
    Handler(io::Error),
    #[error("instruction {0} leads out of the program; build ringway-lab again, from clean")]
    Outside(usize),
    #[error(
        "with counters, the jump of instruction {0} does not fit into 16 bits; measure another build"
    )]
    TooFar(usize),
    #[error("the programs have more calls than there are counters; measure another build")]
    TooMany,
    #[error(
        "the kernel does not show the programs as it runs them; set net.core.bpf_jit_harden to 0 for the measurement"
    )]
    Unseen,
}

/// The remedy if so many connections are possible.
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
        let wanted = "not enough open files for 1 connection: not even one is possible; raise it";
        assert_eq!(too_many(1, 0), wanted);
        assert!(
            too_many(9, 1)
                .ends_with("9 connections: 1 is possible; write `--connections 1`, or raise it")
        );
        assert!(too_many(9, 8).ends_with(": 8 are possible; write `--connections 8`, or raise it"));
        let files = Error::TooFewFiles { needed: 64, have: 20 }.to_string();
        assert!(files.contains("64 needed, 20 allowed"), "{files}");
        assert!(files.contains("`prlimit --nofile=64 "), "{files}");
    }
}
