//! Exit codes, the same for every subcommand.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use ringway_api::error::{Error, Kind};

use crate::logging::Stderr;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; nothing to complain about.
    Done = 0,
    /// It did not work.
    Failed = 1,
    /// Wrong usage or configuration (clap's own code is 2 as well).
    Usage = 2,
    /// It worked, and found something unhealthy.
    Unhealthy = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl Exit {
    /// The code an error deserves.
    pub fn of(error: &anyhow::Error) -> Exit {
        let cause = error.downcast_ref::<Error>();
        match cause.map(|error| error.kind) {
            _ if closed_pipe(error) => Exit::Done,
            _ if error.is::<ringway_config::Errors>() => Exit::Usage,
            Some(Kind::Configuration) => Exit::Usage,
            Some(Kind::Unhealthy) => Exit::Unhealthy,
            _ => Exit::Failed,
        }
    }
}

/// Says on stderr what went wrong; nothing when the reader of our output went away (`| head`).
pub fn complain(error: &anyhow::Error) {
    if !closed_pipe(error) {
        let _ = io::stderr().write_all(&complaint(error, &Stderr::new()));
    }
}

/// The same of what carries its own words.
pub fn refuse(why: impl Display) {
    let _ = io::stderr().write_all(&marked(&why, &Stderr::new()));
}

fn complaint(error: &anyhow::Error, stderr: &Stderr) -> Vec<u8> {
    marked(&format_args!("ringway: {}", in_words(error)), stderr)
}

/// With the priority of errors in the journal: `journalctl -p err` shows each line.
fn marked(text: &impl Display, stderr: &Stderr) -> Vec<u8> {
    stderr.lines(3, format!("{text}\n").as_bytes())
}

/// An error and its causes. Some say their cause themselves: it is not said again.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match words.as_str() {
            "" => words = cause,
            said if said.contains(&cause) => {}
            _ => words += &format!(": {cause}"),
        }
    }
    words
}

/// A line for people, on stderr. Nobody misses it where nobody reads it any more (`2>&1 | head`):
/// `eprintln!` would panic.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

fn closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let run = || ringway_lab::Error::Run {
            program: "ss".into(),
            source: io::ErrorKind::OutOfMemory.into(),
        };
        assert_eq!(in_words(&run().into()), "cannot run ss: out of memory");
        let wrapped = Err::<(), _>(run()).context("counting").unwrap_err();
        assert_eq!(in_words(&wrapped), "counting: cannot run ss: out of memory");
    }

    #[test]
    fn the_journal_gets_a_refusal_as_an_error() {
        let refusal = anyhow::anyhow!("eth0: gone\neth1: down");
        let of = |journal| complaint(&refusal, &Stderr::of(journal));
        assert_eq!(of(true), b"<3>ringway: eth0: gone\n<3>eth1: down\n");
        assert_eq!(of(false), b"ringway: eth0: gone\neth1: down\n");
    }
}
