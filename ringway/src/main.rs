//! The `ringway` command: reads the command line, hands over, turns results into exit codes.

mod cli;
mod command;
#[cfg(test)]
mod documented;
mod exit;
mod logging;
mod table;
mod top;
mod units;
mod version;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Run(args) => command::run::main(&args),
        Command::Check(args) => command::check::main(&args),
        Command::Status(args) => command::status::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Flows(args) => command::flows::main(&args),
        Command::Reload(args) => command::reload::main(&args),
        Command::Backend(args) => command::backend::main(&args),
        Command::Overrides(args) => command::overrides::main(&args),
        Command::Reasons(args) => command::reasons::main(&args),
        Command::Explain(args) => command::explain::main(&args),
        Command::Capture(args) => command::capture::main(&args),
        Command::Bundle(args) => command::bundle::main(&args),
        Command::Confirm(args) => command::confirm::main(&args),
        Command::Detach(args) => command::detach::main(&args),
        Command::Decap(args) => command::decap::main(&args),
        Command::Doctor(args) => command::doctor::main(&args),
        Command::Engine(args) => command::engine::main(&args),
        Command::Gen(args) => command::r#gen::main(&args),
        Command::Import(args) => command::import::main(&args),
        Command::Demo(args) => command::demo::main(&args),
        Command::Bench(args) => command::bench::main(&args),
        Command::Size(args) => command::size::main(&args),
        Command::Completions(args) => command::completions::main(&args),
        Command::Man(args) => command::man::main(&args),
    };
    let exit = outcome.unwrap_or_else(|error| {
        exit::complain(&error);
        Exit::of(&error)
    });
    exit.into()
}
