//! Arguments and commands that both programs have.

use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};

use crate::exit::Exit;
use crate::table;

/// The last lines of `--help` of each program.
pub const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 unhealthy or findings.";

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people: aligned, with units.
    #[default]
    Table,
    /// For programs: one JSON document with a schema.
    Json,
}

/// `-o table|json`
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// How to print the result.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Output,
}

/// `completions SHELL`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    pub shell: clap_complete::Shell,
}

/// `man DIRECTORY`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where to write them; made when absent.
    pub directory: PathBuf,
}

/// Prints the script that completes a program's command line.
///
/// # Errors
/// It cannot be printed.
pub fn completions(args: &CompletionsArgs, mut program: Command) -> anyhow::Result<Exit> {
    let name = program.get_name().to_owned();
    // It panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    table::print(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}

/// Writes a program's manual page and one for each subcommand.
///
/// # Errors
/// The directory or a page cannot be written.
pub fn manual_pages(args: &ManArgs, program: Command) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(program, &args.directory)?;
    Ok(Exit::Done)
}
