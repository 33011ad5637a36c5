//! Measures Ringway beside what it replaces. Nothing depends on this crate but the program `ringway-lab`.
//!
//! [`demo`] is `ringway-lab demo`: real traffic through the gateway, and what becomes of it when things die.
//! [`lb`] is `ringway-lab bench lb`: HTTP through several load balancers, in turn, on this machine.
//! [`calibrate`] is `ringway-lab size --calibrate`: what packets, messages and sockets cost on this machine.
//! [`capture`] is `ringway-lab bench capture`: what it costs to look at every packet, and to look at none.
//! [`engine`] is `ringway-lab bench engine`: packet programs in user space, beside DPDK's and the kernel's sockets.
//! [`kernel_path`] is `ringway-lab bench kernel-path`: what a packet, a request and a copy cost in the kernel.
//! [`live`] is `ringway-lab gen --port xdp:IFACE`: frames out of the kernel itself.
//! [`packet`] is `ringway-lab bench packet`: nanoseconds that a packet costs in the gateway's programs.
//! [`tcp`] is `ringway-lab bench tcp-memory`, `million` and `tcp-connect`: what TCP costs this machine.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod benches;
pub mod demo;
mod error;
mod harness;
pub mod live;
mod programs;

pub use error::Error;
pub use programs::find_ringway;

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says so before anything is tried: `command` is what follows `ringway-lab` on the command line.
fn needs_root(command: &'static str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::NotRoot { command, typed: typed(std::env::args_os()) })
}

/// This process's command line, for a shell.
fn typed(words: impl Iterator<Item = std::ffi::OsString>) -> String {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    // A word with a zero byte, which is the one thing that cannot be quoted, no process can be given.
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
