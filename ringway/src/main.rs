//! The `ringway` command: reads the command line, hands over, turns results into exit codes.

mod cli;
mod command;
mod logging;
mod moved;
#[cfg(test)]
mod testing;
mod top;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use ringway_terminal::exit::Exit;
use ringway_terminal::{command_line, exit, table, units};

use crate::cli::{Cli, Command};

/// As whom it speaks on stderr.
const NAME: &str = "ringway";

fn main() -> ExitCode {
    if let Some(error) = moved::to_the_lab(std::env::args_os().skip(1)) {
        exit::complain(NAME, &error.into());
        return Exit::Usage.into();
    }
    let typed = match cli::options_file::expand(std::env::args_os(), Cli::command) {
        Ok(typed) => typed,
        Err(error) => {
            exit::complain(NAME, &error.into());
            return Exit::Usage.into();
        }
    };
    let cli = Cli::parse_from(typed);
    let outcome = match cli.command {
        Command::Run(args) => command::run::main(&args),
        Command::Forward(args) => command::forward::main(&args),
        Command::Check(args) => command::check::main(&args),
        Command::Status(args) => command::status::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Flows(args) => command::flows::main(&args),
        Command::Nic(args) => command::nic::main(&args),
        Command::Reload(args) => command::reload::main(&args),
        Command::Backend(args) => command::overrides::backend(&args),
        Command::Overrides(args) => command::overrides::main(&args),
        Command::Block(args) => command::shield::block(&args),
        Command::Allow(args) => command::shield::allow(&args),
        Command::Unblock(args) => command::shield::unblock(&args),
        Command::Blocked(args) => command::shield::blocked(&args),
        Command::Shield(args) => command::shield::main(&args),
        Command::Reasons(args) => command::reasons::main(&args),
        Command::Explain(args) => command::explain::main(&args),
        Command::Capture(args) => command::capture::main(&args),
        Command::Bundle(args) => command::bundle::main(&args),
        Command::Confirm(args) => command::confirm::main(&args),
        Command::Detach(args) => command::detach::main(&args),
        Command::Decap(args) => command::decap::main(&args),
        Command::Accept(args) => command::accept::main(&args),
        Command::Doctor(args) => command::doctor::main(&args),
        Command::Engine(args) => command::engine::main(&args),
        Command::Import(args) => command::import::main(&args),
        Command::Completions(args) => command_line::completions(&args, Cli::command()),
        Command::Man(args) => command_line::manual_pages(&args, Cli::command()),
    };
    let exit = outcome.unwrap_or_else(|error| {
        exit::complain(NAME, &error);
        if error.is::<ringway_config::Errors>() { Exit::Usage } else { Exit::of(&error) }
    });
    exit.into()
}

#[cfg(test)]
mod tests {
    use ringway_terminal::testing_documents;

    use super::*;

    #[test]
    fn documents_tell_commands_that_exist() {
        testing_documents::check_documents(&Cli::command(), 100);
    }

    #[test]
    fn messages_tell_commands_that_exist() {
        testing_documents::check_messages(&Cli::command(), 30);
    }

    #[test]
    fn help_shows_examples_that_work() {
        testing_documents::check_help(&Cli::command(), 20);
    }
}
