//! `ringway-lab demo`: real traffic through Ringway, and what happens to it when things die.
//!
//! A client, a gateway and three backends, each in a network namespace of its own. Needs root, less
//! than a minute, and leaves nothing behind unless told to.

pub(crate) mod clean;
mod commands;
pub(crate) mod daemon;
mod echo;
mod http;
mod judge;
pub(crate) mod load;
mod phases;
mod report;
mod site;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use clean::{Cleaned, clean};
pub use commands::Command;
pub use phases::{Info, PHASES};
pub use report::{DemoReport, Phase, SCHEMA};

use crate::{Result, needs_root};
use ringway_testnet::tools;
use site::Site;

/// Takes a line whenever something happens.
pub type Say<'a> = &'a dyn Fn(&str);

/// The phases to show, and how.
#[derive(Debug, Clone, Default)]
pub struct DemoOptions {
    pub ringway: PathBuf,
    /// Only the phases of these names, see [`PHASES`]; empty: all.
    pub only: Vec<String>,
    /// Leave everything standing; [`clean`] takes it down.
    pub keep: bool,
}

/// Runs the demo. `say` gets a line whenever something happens. The commands are empty unless it
/// was kept.
///
/// # Errors
/// The demo could not be built, or not taken down. What does not hold once it stands is in the
/// report.
pub fn run(options: &DemoOptions, say: Say) -> Result<(DemoReport, Vec<Command>)> {
    let chosen = phases::choose(&options.only)?;
    needs_root("demo")?;
    for tool in ["ip", "nginx", "curl", "wrk"] {
        tools::find(tool)?;
    }
    if options.keep {
        ringway_testnet::keep_everything();
    }
    clean::remove_stale()?;
    clean::guarded(|| {
        let outcome = show(&options.ringway, &chosen, options.keep, say);
        if outcome.is_err() {
            clean::remove_own()?;
        }
        outcome
    })
}

fn show(
    ringway: &Path,
    phases: &[Info],
    keep: bool,
    say: Say,
) -> Result<(DemoReport, Vec<Command>)> {
    let mut site = Site::build(ringway, say)?;
    let mut results = Vec::new();
    for phase in phases {
        say(&format!("{}: {}", phase.name, phase.what));
        let result = phases::run(phase, &mut site, say);
        say(&phases::outcome(&result));
        if !result.ok {
            say(&format!("  the daemon's last words:\n{}", site.daemon.last_words()));
        }
        results.push(result);
    }
    let mut commands = Vec::new();
    if keep {
        commands = commands::commands(ringway, &mut site)?;
    } else {
        site.take_down()?;
    }
    Ok((DemoReport::new(results), commands))
}

/// The demo's own helpers, run by this program itself as `ringway-lab demo --inner JOB`: `guard`
/// removes what a killed demo leaves; `echo,ADDRESS:PORT,NAME` answers UDP.
///
/// # Errors
/// An unknown job, or it could not be done.
pub fn inner(job: &str) -> io::Result<()> {
    let unknown = || io::Error::new(ErrorKind::InvalidInput, format!("no such inner job: {job}"));
    let fields: Vec<&str> = job.split(',').collect();
    match fields.as_slice() {
        ["guard", pid] => clean::guard(pid.parse().map_err(|_| unknown())?),
        ["echo", address, name] => {
            let address: SocketAddr = address.parse().map_err(|_| unknown())?;
            echo::serve(address, name)
        }
        _ => Err(unknown()),
    }
}
