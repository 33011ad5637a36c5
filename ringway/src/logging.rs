//! Structured logs on stderr.

use ringway_config::{Log, LogFormat};
use ringway_gateway::problem::Error;
use tracing_subscriber::EnvFilter;

/// Begins logging as configured; `wish` (from --log or RINGWAY_LOG) outranks the file's level.
pub fn start(log: Log, wish: Option<&str>) -> anyhow::Result<()> {
    let mut level = wish.map_or_else(|| log.level.to_string(), str::to_owned);
    if level == "debug" {
        // libbpf tells hundreds of lines per program; `trace` or `libbpf=debug` shows them.
        level += ",libbpf=info";
    }
    let filter = EnvFilter::try_new(&level).map_err(|error| {
        Error::configuration(
            format!("log filter {level:?}: {error}"),
            "use error, warn, info, debug, trace, or target=level",
        )
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text => builder.with_target(false).with_ansi(ansi()).init(),
    }
    Ok(())
}

fn ansi() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
