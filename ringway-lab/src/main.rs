//! The `ringway-lab` command: shows Ringway at work, measures it beside what it replaces, and makes
//! the packets for that. A gateway needs none of it.

mod bench;
mod cli;
mod demo;
mod r#gen;
mod size;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use ringway_terminal::exit::{self, Exit};
use ringway_terminal::{command_line, table, units};

use crate::cli::{Cli, Command};

/// The text of `--version` after the name: the version and the commit. A `ringway` of another one
/// is not measured.
const VERSION: &str = env!("RINGWAY_VERSION");

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Demo(args) => demo::main(&args),
        Command::Bench(args) => bench::main(args),
        Command::Gen(args) => r#gen::main(&args),
        Command::Size(args) => size::main(&args),
        Command::Completions(args) => command_line::completions(&args, Cli::command()),
        Command::Man(args) => command_line::manual_pages(&args, Cli::command()),
    };
    let exit = outcome.unwrap_or_else(|error| {
        exit::complain("ringway-lab", &error);
        Exit::of(&error)
    });
    exit.into()
}

#[cfg(test)]
mod tests {
    use ringway_terminal::testing_documents;

    use super::*;

    #[test]
    fn documents_tell_commands_that_exist() {
        testing_documents::check_documents(&Cli::command(), 30);
    }

    #[test]
    fn messages_tell_commands_that_exist() {
        testing_documents::check_messages(&Cli::command(), 5);
    }

    #[test]
    fn help_shows_examples_that_work() {
        testing_documents::check_help(&Cli::command(), 20);
    }

    #[test]
    fn the_definition_holds() {
        Cli::command().debug_assert();
    }
}
