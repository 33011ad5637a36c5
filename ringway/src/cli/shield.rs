//! `ringway block`, `allow`, `unblock`, `blocked` and `shield`: what is typed about the shield.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Args, Subcommand};
use ringway_plan::prefix_list::Prefix;

use super::{NodeArgs, OutputArgs};

/// Lengths of time for `--for`.
const LASTING: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(366 * 24 * 3600);

fn lasting(text: &str) -> Result<Duration, String> {
    ringway_config::duration(text, LASTING)
}

/// `ringway block` and `ringway allow`
#[derive(Debug, Args)]
pub struct PrefixArgs {
    /// Network, as 192.0.2.0/24 or 2001:db8::/32, or one address.
    #[arg(value_name = "PREFIX")]
    pub prefix: Prefix,
    /// Only for this long, such as 10m; left out: until `ringway unblock`.
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    pub lasting: Option<Duration>,
    /// Why, for whoever asks `ringway blocked`: at most 128 bytes.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Also a prefix that holds a large part of all clients; with `block` also one that holds a
    /// backend, a service's address, or an address of the gateway.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway unblock`
#[derive(Debug, Args)]
pub struct UnblockArgs {
    /// The prefix as it was typed: not one within it, nor one around it.
    #[arg(value_name = "PREFIX")]
    pub prefix: Prefix,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `ringway blocked`
#[derive(Debug, Args)]
pub struct BlockedArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `ringway shield`
#[derive(Debug, Args)]
pub struct ShieldArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ShieldAction,
}

/// `ringway shield ACTION`
#[derive(Debug, Subcommand)]
pub enum ShieldAction {
    /// Show modes, lists, rules, and what was typed.
    #[command(after_help = "Examples:\n  ringway shield status\n  ringway shield status -o json")]
    Status(BlockedArgs),
    /// Let every packet pass for a time.
    #[command(
        after_help = "It goes before the modes of the configuration and of its services, and survives a restart.\n\n\
        Example:\n  ringway shield off --for 15m"
    )]
    Off(ModeArgs),
    /// Count for a time what would be dropped, and drop nothing.
    #[command(
        after_help = "It goes before the modes of the configuration and of its services, and survives a restart.\n\n\
        Example:\n  ringway shield observe --for 15m"
    )]
    Observe(ModeArgs),
    /// End `off` or `observe` before their time: the configuration's modes are in force again.
    #[command(after_help = "Example:\n  ringway shield enforce")]
    Enforce(EnforceArgs),
}

/// `--for TIME`
#[derive(Debug, Args)]
pub struct ModeArgs {
    /// For this long, such as 15m: it is never for good.
    #[arg(long = "for", value_name = "TIME", value_parser = lasting)]
    pub lasting: Duration,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// `ringway shield enforce`
#[derive(Debug, Args)]
pub struct EnforceArgs {
    #[command(flatten)]
    pub node: NodeArgs,
}
