//! What a start of this version would do with what a node has pinned; see
//! [`ringway_kernel::upgrade`].

use std::path::Path;

use ringway_api::client::http;
use ringway_api::documents::status::Status;
use ringway_api::error::Error;
use ringway_api::node::{netns_hint, service_manager};
use ringway_config::Config;
use ringway_kernel::{DEFAULT_BPFFS, Fate, GatewayOptions, OrphanCause, Upgrade, View};
use serde::{Serialize, Serializer};

/// How the packet path of this configuration is opened.
pub(crate) fn options(config: &Config) -> GatewayOptions {
    let entries = config.services.iter().map(|s| s.backends.len() * s.protocols.len());
    // And one for each address.
    let rows = config
        .services
        .iter()
        .map(|s| s.ports().blocks().len() * s.protocols.len() + 1 + s.backends.len());
    GatewayOptions {
        node: config.node.name.to_string(),
        flows: config.nat.flows,
        tracked: config.flows.tracked,
        // With room for as many new ones.
        backends: 2 * entries.sum::<usize>() as u32,
        services: 2 * rows.sum::<usize>() as u32,
        ..GatewayOptions::default()
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct UpgradeReport {
    /// `ringway.upgrade/1`.
    pub schema: &'static str,
    pub node: String,
    /// Version of the daemon that runs; absent: none runs, or it does not answer, and the pins do
    /// not tell.
    pub version: Option<String>,
    pub own_version: &'static str,
    /// Layout of the pinned tables; absent: nothing is pinned.
    pub layout: Option<u32>,
    /// Layout that this version has.
    pub own_layout: u32,
    /// A start takes the pins over: no flow is lost. True also when nothing is pinned.
    pub takes_over: bool,
    /// Refused here alone: an interface of the node is in another network namespace.
    pub other_namespace: bool,
    /// A daemon looks after the node now.
    pub daemon_runs: bool,
    pub tables: Vec<Table>,
    /// Interfaces that keep their attachment and get this version's program through it.
    pub interfaces: Vec<String>,
    /// Other consequences and obstacles, each in a sentence.
    pub notes: Vec<String>,
    /// The remedy; empty where nothing is to be done.
    pub remedy: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub name: String,
    /// `kept`, `rebuilt`, `kept-at-size`, `added`, `unused`, `lost`.
    #[serde(serialize_with = "by_name")]
    pub fate: Fate,
    /// Entries it has; absent: it is not there, or is no table.
    pub entries: Option<u32>,
    /// Entries that this version would give it; absent: it has no such table.
    pub wanted: Option<u32>,
    /// Why; may be empty.
    pub why: String,
}

fn by_name<S: Serializer>(fate: &Fate, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(fate.name())
}

/// Looks at the pins of this configuration's node. Changes nothing.
///
/// # Errors
/// They may not be looked at, or cannot be seen here.
pub fn check(config: &Config) -> Result<UpgradeReport, Error> {
    let node = config.node.name.as_str();
    let pins = format!("what is pinned for node {node}");
    if let Some((what, remedy)) = netns_hint::hidden(&pins, "ringway check --upgrade") {
        return Err(Error::unhealthy(what, remedy));
    }
    let found = ringway_kernel::upgrade(&options(config))
        .map_err(|error| Error::failed(error.to_string(), ""))?;
    let view = View::open(Path::new(DEFAULT_BPFFS), node).ok();
    let enter = view.as_ref().and_then(|view| netns_hint::locate(view).enter());
    let enter = enter.unwrap_or_else(netns_hint::here);
    let daemon = view.and_then(|view| view.daemon().ok().flatten());
    let restart = match daemon.filter(|daemon| daemon.running) {
        Some(daemon) => service_manager::restart(daemon.pid, false),
        None => "restart the daemon".to_owned(),
    };
    let status = http::get::<Status>(&config.api.socket, "/v1/status").ok();
    let own = status.filter(|status| status.node == node);
    let version = own.and_then(|status| status.daemon.version);
    Ok(UpgradeReport { version, ..report(node, found, restart, &enter) })
}

/// `restart`: how the daemon that runs is restarted. `enter`: the way to where the node is.
fn report(node: &str, found: Upgrade, restart: String, enter: &str) -> UpgradeReport {
    let takes_over = found.takes_over();
    let fits = found.tables.iter().all(|table| table.fate != Fate::Lost);
    let mut notes: Vec<String> = found.refused.iter().cloned().collect();
    for orphan in &found.orphans {
        let what = match orphan.cause {
            OrphanCause::Vanished => "is gone",
            OrphanCause::Renamed => "has another name now",
            OrphanCause::NeverAttached => "was never attached",
        };
        notes.push(format!("interface {} {what}: its pins will be removed", orphan.iface));
    }
    if found.tables.iter().any(|table| table.fate == Fate::KeptAtSize) {
        notes.push(
            "tables keep their size, whatever [nat] flows and [flows] tracked say, until `ringway detach`"
                .to_owned(),
        );
    }
    let remedy = match (takes_over, found.layout) {
        (_, None) => String::new(),
        (true, Some(_)) if found.held => restart,
        (true, Some(_)) => String::new(),
        (false, _) if found.elsewhere && fits => {
            format!("run it in the gateway's network namespace: {enter} ringway check --upgrade")
        }
        (false, _) => format!(
            "to change over: stop the daemon, `ringway detach --node {node}` (ends its connections), start this \
             version; or stay with the version that made the pins"
        ),
    };
    let tables = found.tables.into_iter().map(|table| Table {
        name: table.name,
        fate: table.fate,
        entries: table.entries,
        wanted: table.wanted,
        why: table.why,
    });
    UpgradeReport {
        schema: "ringway.upgrade/1",
        node: node.to_owned(),
        version: None,
        own_version: env!("CARGO_PKG_VERSION"),
        layout: found.layout,
        own_layout: Upgrade::own_layout(),
        takes_over,
        other_namespace: found.elsewhere && fits,
        daemon_runs: found.held,
        tables: tables.collect(),
        interfaces: found.interfaces,
        notes,
        remedy,
    }
}
