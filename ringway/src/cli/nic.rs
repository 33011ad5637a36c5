//! `ringway nic`: NICs, and the roads that they can take.

use clap::{Args, Subcommand};

use super::OutputArgs;

/// `ringway nic`
#[derive(Debug, Args)]
pub struct NicArgs {
    #[command(subcommand)]
    pub action: NicAction,
}

/// What to do with NICs.
#[derive(Debug, Subcommand)]
pub enum NicAction {
    /// List them: driver, interface, queues, NUMA node, IOMMU group, link, and for which ports of
    /// the engine each is ready.
    #[command(
        after_help = "Reads sysfs and netlink, and changes nothing. An interface in another network namespace is not seen: run it there.\n\n\
        Examples:\n  ringway nic list\n  ringway nic list -o json"
    )]
    List(OutputArgs),
}
