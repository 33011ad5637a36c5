//! `ringway completions SHELL`

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::Exit;
use crate::table;

/// Prints the script.
pub fn main(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    // It panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ringway", &mut script);
    table::print(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}
