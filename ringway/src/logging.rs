//! Structured logs on stderr: as lines with a time, or for the journal, which has its own, with
//! their priority.

mod stderr;

use ringway_api::error::Error;
use ringway_config::{Log, LogFormat};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use stderr::Stderr;

/// Begins logging as configured; `wish` (from --log or RINGWAY_LOG) outranks the file's level.
pub fn start(log: Log, wish: Option<&str>) -> anyhow::Result<()> {
    let mut level =
        wish.filter(|wish| !wish.is_empty()).map_or_else(|| log.level.to_string(), str::to_owned);
    if level == "debug" {
        // libbpf tells hundreds of lines per program; `trace` or `libbpf=debug` shows them.
        level += ",libbpf=info";
    }
    let filter = filter(&level)?;
    let stderr = Stderr::new();
    let journal = stderr.is_journal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match (log.format, journal) {
        (LogFormat::Json, _) => builder.json().flatten_event(true).init(),
        (LogFormat::Text, false) => builder.with_target(false).with_ansi(ansi()).init(),
        // The journal knows when, and by the priority how bad it is.
        (LogFormat::Text, true) => {
            builder.with_target(false).with_ansi(false).with_level(false).without_time().init();
        }
    }
    Ok(())
}

/// A bare word is a level here. The library takes any other for a target at level `trace`, so that
/// a misspelt level would silence everything else.
fn filter(wish: &str) -> Result<EnvFilter, Error> {
    let refused = |why: String| {
        let what = format!("log filter {wish:?}: {why}");
        Error::configuration(what, "use error, warn, info, debug, trace, off, or target=level")
    };
    let parts = wish.split(',').map(str::trim);
    for word in parts.filter(|part| !part.contains(['=', '['])) {
        if word.parse::<LevelFilter>().is_err() {
            return Err(refused(format!("{word:?} is not a level")));
        }
    }
    EnvFilter::try_new(wish).map_err(|error| refused(error.to_string()))
}

fn ansi() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_refused() {
        for good in ["info", "WARN", "off", "debug,libbpf=info", "ringway_daemon=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["lloud", "info,lloud", "ringway_daemon=lloud"] {
            let error = filter(bad).expect_err(bad).to_string();
            assert!(error.contains("use error, warn"), "{error}");
        }
    }
}
