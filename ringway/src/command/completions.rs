//! `ringway completions SHELL`

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::Exit;

/// Prints the script.
pub fn main(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    clap_complete::generate(args.shell, &mut Cli::command(), "ringway", &mut std::io::stdout());
    Ok(Exit::Done)
}
