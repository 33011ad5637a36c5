//! Measures Ringway beside what it replaces. Nothing depends on this crate but the program
//! `ringway-lab`.
//!
//! [`demo`] is `ringway-lab demo`: real traffic through the gateway, and what becomes of it when
//! things die. [`benches`] are what `ringway-lab bench` measures, [`harness`] is how: a
//! [`harness::Scenario`] each. [`benches::calibrate`] is `ringway-lab size --calibrate`: what
//! packets, messages and sockets cost on this machine. [`generate`] are the packets of
//! `ringway-lab gen`: made, sent, received and counted. [`search`] finds the rate that a device
//! forwards at, and [`compare`] what changed from one run to another.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod benches;
pub mod compare;
pub mod demo;
mod error;
pub mod generate;
pub mod harness;
mod programs;
pub mod search;

pub use error::{CountError, Error};
pub use programs::{PEERS_HELP, find_ringway};

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says so before anything is tried: `command` is what follows `ringway-lab` on the command line.
fn needs_root(command: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::NotRoot { command: command.to_owned(), typed: typed(std::env::args_os()) })
}

/// This process's command line, for a shell.
fn typed(words: impl Iterator<Item = std::ffi::OsString>) -> String {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    // A word with a zero byte, which is the one thing that cannot be quoted, no process can be
    // given.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::typed;

    #[test]
    fn a_command_line_as_it_was_typed() {
        let words = ["./ringway-lab", "bench", "million", "--html", "my page.html", "--rate=5k"];
        let line = typed(words.into_iter().map(Into::into));
        assert_eq!(line, "./ringway-lab bench million --html 'my page.html' '--rate=5k'");
    }
}
