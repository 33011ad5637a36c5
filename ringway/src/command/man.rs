//! `ringway man DIRECTORY`: manual pages from the command line's own definition.

use clap::CommandFactory;

use crate::cli::{Cli, ManArgs};
use crate::exit::Exit;

/// Writes ringway.1 and a page per subcommand.
pub fn main(args: &ManArgs) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(Cli::command(), &args.directory)?;
    Ok(Exit::Done)
}
