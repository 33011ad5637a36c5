//! `ringway run`: the gateway in the foreground.

use crate::cli::RunArgs;
use crate::exit::Exit;
use crate::logging;

/// Runs until told to stop.
pub fn main(args: &RunArgs) -> anyhow::Result<Exit> {
    let config = ringway_config::load(&args.config.config)?;
    ringway_host::trim_memory();
    logging::start(config.log, args.log.as_deref())?;
    ringway_daemon::daemon::run(config, crate::version::commit())?;
    Ok(Exit::Done)
}
