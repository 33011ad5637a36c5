//! Ringway's configuration: the only place that reads it.
//!
//! [`load`] and [`parse`] give a [`Config`] that holds in itself, or every error found, each with
//! its line and column and what to write instead.

mod check;
mod daemon;
mod flows;
mod located;
mod model;
mod nat;
mod node;
mod report;
mod section;
mod service;
mod suggest;
mod syntax;
mod tunnel;
mod validate;
mod value;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use toml::de::DeTable;

pub use check::{
    Check, CheckKind, DnsCheck, DnsRecord, ExecCheck, HttpCheck, Rcode, Statuses, TlsCheck,
    UdpCheck,
};
pub use located::Located;
pub use model::*;
pub use report::{Error, Errors};
pub use suggest::nearest;

use report::{Report, Source};
use section::Section;

/// Where `ringway run` looks when it is not told.
pub const DEFAULT_PATH: &str = "/etc/ringway/ringway.toml";
/// Where the API listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ringway/api.sock";
/// Below it each node has its state directory unless configured otherwise.
pub const DEFAULT_STATE: &str = "/var/lib/ringway";

/// The largest file worth parsing, bytes: ten times what every limit reached at once takes.
const MAX_FILE: u64 = 32 << 20;

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with its content.
pub fn load(path: &Path) -> Result<Config, Errors> {
    let filename = path.display().to_string();
    let fail = |message: String| Errors::from(Error::of_file(&filename, message));
    let remedy = match path == Path::new(DEFAULT_PATH) {
        true => "name the file with -c FILE",
        false => "give the path of a configuration file that this user may read",
    };
    let unreadable = |error: io::Error| fail(format!("cannot be read ({error}): {remedy}"));
    // Before it is opened: to open a named pipe waits for its writer. A pipe behind a link is one
    // that is open already: `-c <(...)`, /dev/fd/N.
    let kind = fs::metadata(path).map_err(unreadable)?.file_type();
    let link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if !(kind.is_file() || kind.is_fifo() && link) {
        return Err(fail(format!("is not a regular file: {remedy}")));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(fail("is larger than 32 MiB: this is no configuration".into()));
    }
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, &filename),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
            Err(fail(format!("is not UTF-8 in line {line}: save it as UTF-8 text")))
        }
    }
}

/// Checks a configuration; `filename` is how errors name it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(text: &str, filename: &str) -> Result<Config, Errors> {
    let report = Report::new(Source::new(filename, text));
    let (document, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        for error in syntax {
            syntax::error(&report, error.message(), error.span());
        }
        return report.finish(None);
    }
    let config = read(&report, document.get_ref());
    report.finish(config)
}

/// The whole file. Every section is read whatever is wrong with the others.
fn read(report: &Report, document: &DeTable) -> Option<Config> {
    let mut file = Section::new(report, "the file", 0..0, document);
    let node = node::read(&mut file);
    let nat = nat::read(&mut file);
    let flows = flows::read(&mut file);
    let tunnel = tunnel::read(&mut file);
    let mut services = service::read_all(&mut file, &tunnel);
    let metrics = daemon::metrics(&mut file);
    let api = daemon::api(&mut file);
    let log = daemon::log(&mut file);
    check::log_all(&mut services, &log);
    file.finish();
    validate::services(report, &services);
    validate::nat(report, &services, &nat);
    validate::tunnel(report, &services, &tunnel);
    let source = report.source.clone();
    Some(Config { node: node?, nat, flows, tunnel, services, metrics, api, log, source })
}
