//! `ringway forward`

use std::path::PathBuf;

use clap::Args;
use ringway_kernel::XdpMode;

/// `ringway forward`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground, as `ringway run` does with a file that has [forward] and no service. The kernel decides where \
    packets go, by a bridge that you have made of the interfaces, or with --route by its routes and neighbours; Ringway forwards those of \
    them that need nothing else, in XDP, and passes the rest to the kernel. Stopping it (SIGTERM, Ctrl-C) leaves the programs in place: five \
    seconds later they pass every packet to the kernel. `ringway detach` removes them. There is no file to reload: start it again with other \
    options.\n\nExit code 2 when the options are wrong or do not fit this machine, 1 when the machine is not fit for any.\n\nExamples:\n  \
    ringway forward -i eth1,eth2\n  ringway forward -i eth1,eth2 --route\n  \
    ringway forward -i eth1,eth2,eth3 --name lab --socket /run/ringway/lab.sock --metrics off --log debug"
)]
pub struct ForwardArgs {
    /// Interfaces that packets go between: ports of one bridge, or with --route any. May be
    /// repeated.
    #[arg(short, long, value_name = "IFACE", value_delimiter = ',', required = true)]
    pub interface: Vec<String>,
    /// Route packets; left out: bridge them.
    #[arg(long)]
    pub route: bool,
    /// Start also where rules of netfilter or tc are there that forwarded packets would not meet.
    #[arg(long)]
    pub bypass_firewall: bool,
    /// Name of the node: other commands know it by that.
    #[arg(long, value_name = "NODE", default_value = "forward")]
    pub name: String,
    /// How to attach: in the driver, in the kernel's receive path, or the best there is.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = super::xdp_mode())]
    pub xdp_mode: std::option::Option<XdpMode>,
    /// Attach even to an interface that carries the default route, for a minute unless you
    /// `ringway confirm`.
    #[arg(long)]
    pub allow_default_route: bool,
    /// Unix socket of `ringway status` and friends.
    #[arg(long, value_name = "PATH", default_value = ringway_config::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Where Prometheus asks, or off.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = ringway_config::DEFAULT_METRICS.to_string())]
    pub metrics: String,
    /// What to log, and how much of it.
    ///
    /// error, warn, info, debug, trace, off, or filters such as info,ringway_daemon=debug.
    #[arg(long, env = "RINGWAY_LOG", value_name = "LEVEL")]
    pub log: Option<String>,
}
