//! The command line. One definition for parsing, help, completions and manual pages.

mod bench;
mod demo;
mod r#gen;
mod size;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ringway_measure::find_ringway;
use ringway_terminal::command_line::{CompletionsArgs, EXIT_CODES, ManArgs};
pub use ringway_terminal::command_line::{Output, OutputArgs};
use ringway_terminal::error::Error;

pub use self::bench::{Bench, BenchArgs, CompareArgs, OfRingway, Plotted, Printed};
pub use self::demo::DemoArgs;
pub use self::r#gen::{GenArgs, GenPort, PacketArgs};
pub use self::size::SizeArgs;

/// Shows Ringway at work, and measures it beside what it replaces.
#[derive(Debug, Parser)]
#[command(name = "ringway-lab", version = crate::VERSION, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch real traffic go through Ringway and survive a backend's death.
    Demo(DemoArgs),
    /// Measure Ringway beside its alternatives.
    Bench(BenchArgs),
    /// Send packets at a rate, receive them, and tell what was lost, late or twice, and how long it
    /// took.
    Gen(GenArgs),
    /// Which I/O path a workload takes through the machine, and how many cores, how much memory,
    /// how many machines.
    Size(SizeArgs),
    /// Print a completion script for a shell.
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write manual pages into a directory.
    #[command(hide = true)]
    Man(ManArgs),
}

/// `--ringway PATH`
#[derive(Debug, Args)]
pub struct RingwayArgs {
    /// The `ringway` program to run, of this very version [default: the one beside ringway-lab,
    /// else in PATH].
    #[arg(long, value_name = "PATH")]
    pub ringway: Option<PathBuf>,
}

impl RingwayArgs {
    pub fn find(&self) -> Result<PathBuf, Error> {
        find_ringway(self.ringway.as_deref(), crate::VERSION)
    }
}
