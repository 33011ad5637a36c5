//! Ringway's configuration: the only place that reads it.
//!
//! [`load`] and [`parse`] give a [`Config`] that holds in itself, or every error found, each with
//! its line and column and what to write instead.

mod command_line;
mod files;
pub mod ipvs;
mod model;
mod reader;
mod sections;
mod validate;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use toml::de::DeTable;

pub use command_line::{ForwardOptions, Setting};
pub use files::identity::{Identity, identity};
pub use files::redact::{REMOVED, Redacted, redacted};
pub use model::*;
pub use reader::diagnostics::{Error, Errors};
pub use reader::located::Located;
pub use reader::suggest::nearest;
pub use reader::value::duration_text as duration;
pub use sections::check::{
    Check, CheckAt, CheckKind, DnsCheck, DnsRecord, ExecCheck, HttpCheck, Rcode, Statuses,
    TlsCheck, UdpCheck,
};

use files::include::{self, Includes};
use reader::diagnostics::{Diagnostics, Source};
use reader::section::Section;
use reader::syntax;
use sections::{check, daemon, flows, forward, nat, node, service, shield, tunnel};

/// Where `ringway run` looks when it is not told.
pub const DEFAULT_PATH: &str = "/etc/ringway/ringway.toml";
/// Where the API listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ringway/api.sock";
/// Where Prometheus asks unless configured otherwise.
pub const DEFAULT_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9810);
/// Below it each node has its state directory unless configured otherwise.
pub const DEFAULT_STATE: &str = "/var/lib/ringway";

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with its content.
pub fn load(path: &Path) -> Result<Config, Errors> {
    let filename = path.display().to_string();
    match files::read_text(path, files::MAX_FILE) {
        Ok(text) => parse(&text, &filename),
        Err(message) => Err(Error::of_file(&filename, message).into()),
    }
}

/// Checks a configuration; `filename` is how errors name it, and what it includes is relative to.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(text: &str, filename: &str) -> Result<Config, Errors> {
    let report = Diagnostics::new(Source::new(filename, text));
    let Some(document) = syntax::parse(&report, text, 0) else { return report.finish(None) };
    let config = read(&report, filename, document.get_ref());
    report.finish(config)
}

/// The whole file. Every section is read whatever is wrong with the others.
fn read(report: &Diagnostics, filename: &str, document: &DeTable) -> Option<Config> {
    let mut file = Section::file(report, 0, document);
    let node = node::read(&mut file);
    let nat = nat::read(&mut file);
    let flows = flows::read(&mut file);
    let tunnel = tunnel::read(&mut file);
    let shield = shield::read(&mut file);
    let forwards = file.has("forward");
    let forward = forward::read(&mut file, node.as_ref());
    let includes = include::patterns(&mut file);
    let mut services = match includes.is_empty() && !forwards {
        true => service::read_all(&mut file, &tunnel),
        false => service::read_any(&mut file, &tunnel),
    };
    services.append(&mut Includes::new(report, &tunnel, filename).read(&includes));
    let idle = services.is_empty() && !forwards;
    if let (Some(first), true, true) = (includes.first(), idle, report.is_clean()) {
        let message = "neither the file nor what it includes has a service: add [[service]]";
        report.error(first.span(), message);
    }
    let metrics = daemon::metrics(&mut file);
    let api = daemon::api(&mut file);
    let log = daemon::log(&mut file);
    check::log_all(&mut services, &log);
    file.finish();
    validate::services(report, &services);
    validate::nat(report, &services, &nat);
    validate::tunnel(report, &services, &tunnel);
    if !document.contains_key("shield") {
        validate::no_shield(report, &services);
    }
    validate::syn(report, shield.as_ref(), &services);
    let source = report.source();
    Some(Config {
        node: node?,
        nat,
        flows,
        tunnel,
        shield,
        forward,
        services,
        metrics,
        api,
        log,
        source,
    })
}
