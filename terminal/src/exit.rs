//! Exit codes, the same for every subcommand, and what is said on stderr.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::error::{Error, Kind};
use crate::journal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; nothing to complain about.
    Done = 0,
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
            Some(Kind::Configuration) => Exit::Usage,
            Some(Kind::Unhealthy) => Exit::Unhealthy,
            _ => Exit::Failed,
        }
    }
}

/// Says on stderr what went wrong with a program's command; nothing when the reader of our output
/// went away (`| head`).
pub fn complain(program: &str, error: &anyhow::Error) {
    if !closed_pipe(error) {
        refuse(complaint(program, error));
    }
}

/// The same of what carries its own words. In the journal it is an error: `journalctl -p err` shows
/// each line.
pub fn refuse(why: impl Display) {
    let text = format!("{why}\n").into_bytes();
    let text = if journal::reads_stderr() { journal::marked(3, &text) } else { text };
    let _ = io::stderr().write_all(&text);
}

fn complaint(program: &str, error: &anyhow::Error) -> String {
    format!("{program}: {}", in_words(error))
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

    #[derive(Debug, thiserror::Error)]
    #[error("cannot run ss: {source}")]
    struct Run {
        source: io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        let run = || Run { source: io::ErrorKind::OutOfMemory.into() };
        assert_eq!(complaint("ringway", &run().into()), "ringway: cannot run ss: out of memory");
        let wrapped = Err::<(), _>(run()).context("counting").unwrap_err();
        assert_eq!(in_words(&wrapped), "counting: cannot run ss: out of memory");
    }

    #[test]
    fn errors_have_codes() {
        for (error, code) in [
            (Error::configuration("x", "").into(), Exit::Usage),
            (Error::unhealthy("x", "").into(), Exit::Unhealthy),
            (anyhow::anyhow!("x"), Exit::Failed),
            (io::Error::from(io::ErrorKind::BrokenPipe).into(), Exit::Done),
        ] {
            assert_eq!(Exit::of(&error), code, "{error}");
        }
    }
}
