//! `ringway forward`: packets between interfaces, by the daemon, without a file.

use ringway_config::{Config, ForwardMode, ForwardOptions};

use crate::cli::ForwardArgs;
use crate::exit::Exit;
use crate::logging;

/// Runs until told to stop.
pub fn main(args: &ForwardArgs) -> anyhow::Result<Exit> {
    let config = Config::forwarding(&options(args))?;
    ringway_host::trim_memory();
    logging::start(config.log, args.log.as_deref())?;
    ringway_daemon::daemon::run(config, crate::version::commit())?;
    Ok(Exit::Done)
}

fn options(args: &ForwardArgs) -> ForwardOptions {
    ForwardOptions {
        name: args.name.clone(),
        interfaces: args.interface.clone(),
        mode: if args.route { ForwardMode::Route } else { ForwardMode::Bridge },
        bypass_firewall: args.bypass_firewall,
        xdp_mode: args.xdp_mode,
        allow_default_route: args.allow_default_route,
        socket: args.socket.clone(),
        metrics: args.metrics.clone(),
    }
}
