//! `ringway backend` and `ringway overrides`: what an operator sets at runtime.

use clap::{Args, Subcommand};

use super::{NodeArgs, OutputArgs};

/// `ringway backend`
#[derive(Debug, Args)]
pub struct BackendArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: BackendAction,
}

/// `ringway backend ACTION`
#[derive(Debug, Subcommand)]
pub enum BackendAction {
    /// No new flows; those it has go on.
    #[command(
        after_help = "It wins over the file, and over restarts, until `undrain` or `ringway overrides clear`.\n\n\
        Example:\n  ringway backend drain web 10.0.0.2"
    )]
    Drain(OneBackend),
    /// New flows again; with slow_start in its service, gradually.
    #[command(after_help = "Example:\n  ringway backend undrain web 10.0.0.2:80")]
    Undrain(OneBackend),
    /// Another weight.
    #[command(
        after_help = "It wins over the file, and over restarts, until `ringway overrides clear`. A backend that is \
        drained stays so, and has the weight once it is undrained.\n\n\
        Example:\n  ringway backend weight web 10.0.0.2 5"
    )]
    Weight {
        #[command(flatten)]
        of: OneBackend,
        /// Share of new flows relative to the others; 0: none.
        #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
        weight: u16,
    },
}

/// `SERVICE ADDRESS[:PORT]`
#[derive(Debug, Args)]
pub struct OneBackend {
    /// Name of the service.
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// The backend's own address, with its port where several have the address.
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub backend: String,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway overrides`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  ringway overrides\n  ringway overrides clear web 10.0.0.2"
)]
pub struct OverridesArgs {
    /// What to do; left out: list them.
    #[command(subcommand)]
    pub action: Option<OverridesAction>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway overrides ACTION`
#[derive(Debug, Subcommand)]
pub enum OverridesAction {
    /// Use the file's values again.
    #[command(
        after_help = "Exit code 2 when there is nothing to clear, as with `ringway backend undrain`.\n\nExamples:\n  ringway overrides clear\n  ringway overrides clear web\n  \
        ringway overrides clear web 10.0.0.2"
    )]
    Clear(ClearArgs),
}

/// `ringway overrides clear`
#[derive(Debug, Args)]
pub struct ClearArgs {
    /// Of this service alone; left out: all.
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Of this backend of it alone: its own address, with its port where several have the address.
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub backend: Option<String>,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
