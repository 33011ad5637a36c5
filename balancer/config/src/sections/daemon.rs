//! `[metrics]`, `[api]` and `[log]`: what the daemon shows of itself.

use std::path::PathBuf;

use toml::de::DeValue;

use crate::model::{Api, Log, LogFormat, LogLevel, Metrics};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, boolean, choice, integer, listen, text};
use crate::{DEFAULT_METRICS, DEFAULT_SOCKET};

/// sun_path without the NUL (linux/un.h).
const MAX_SOCKET_PATH: usize = 107;

/// Eleven series each, a kilobyte of a scrape.
const DEFAULT_BACKENDS: u32 = 2000;
/// As many as the tables can hold.
const MAX_BACKENDS: u32 = 131_072;

const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

pub(crate) fn metrics(file: &mut Section) -> Metrics {
    let mut section = file.table_or_empty("metrics", "[metrics]".into());
    let listen = section.or("listen", Some(DEFAULT_METRICS), listen);
    let backends = *section.or("backends", DEFAULT_BACKENDS, |v| integer(v, 0..=MAX_BACKENDS));
    section.finish();
    let span = listen.span();
    Metrics { listen: listen.into_inner().map(|address| Located::new(address, span)), backends }
}

pub(crate) fn api(file: &mut Section) -> Api {
    let mut section = file.table_or_empty("api", "[api]".into());
    let socket = section.or("socket", PathBuf::from(DEFAULT_SOCKET), socket);
    section.finish();
    Api { socket }
}

pub(crate) fn socket(value: &DeValue) -> Read<PathBuf> {
    const REMEDY: &str = "write an absolute path such as \"/run/ringway/api.sock\"";
    let path = text(value, REMEDY)?;
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err(format!("is not the absolute path of a file: {REMEDY}"));
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "is longer than the {MAX_SOCKET_PATH} bytes a Unix socket's path can have: write a \
             shorter one"
        ));
    }
    Ok(path.into())
}

pub(crate) fn log(file: &mut Section) -> Log {
    let mut section = file.table_or_empty("log", "[log]".into());
    let format = *section.or("format", LogFormat::Text, |v| choice(v, &FORMATS));
    let level = *section.or("level", LogLevel::Info, |v| choice(v, &LEVELS));
    let log_checks = *section.or("log_checks", false, boolean);
    section.finish();
    Log { format, level, log_checks }
}
