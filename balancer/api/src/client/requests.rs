//! Orders to a node's daemon: `ringway reload`, `ringway backend`, `ringway overrides`, `ringway
//! confirm`.

use std::path::{Path, PathBuf};

use ringway_config::Config;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::client::http::{self, Failure};
use crate::client::node_selector::NodeSelector;
use crate::client::status_query;
use crate::documents::changes::Changes;
use crate::documents::status;
use crate::error::Error;
use crate::overrides::{OverrideChange, Overrides, SCHEMA};
use crate::state_dir::StateDir;

/// For tests: the guard holds in every network namespace, for so many seconds ("on": the usual
/// ones).
pub const GUARD_VARIABLE: &str = "RINGWAY_GUARD";

/// The body of `POST /v1/reload`; may be left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reload {
    /// Tell what would change, no more.
    #[serde(default)]
    pub dry_run: bool,
    /// The file that is meant, as an absolute path; refused when it is not the daemon's.
    #[serde(default)]
    pub file: Option<PathBuf>,
}

/// The body of `POST /v1/overrides/clear`; may be left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Clear {
    /// Only this service.
    pub service: Option<String>,
    /// Only this backend of it: ADDRESS or ADDRESS:PORT.
    pub backend: Option<String>,
}

/// All overrides, as `ringway overrides` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// `ringway.overrides/1`.
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Whether a daemon holds them in force.
    pub in_force: bool,
    /// Oldest first.
    pub overrides: Vec<status::Override>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// `ringway.confirm/1`.
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Interfaces on which the program stays from now on; none: nothing waited for it.
    pub interfaces: Vec<String>,
}

/// Has the configuration file read again.
///
/// # Errors
/// No daemon runs, it was started with another file, or what is wrong with the file; then nothing
/// has changed.
pub fn reload(selector: &NodeSelector<'_>, dry_run: bool) -> Result<Changes, Error> {
    const PATH: &str = "/v1/reload";
    let absolute = |file: &Path| std::path::absolute(file).unwrap_or_else(|_| file.into());
    let file = selector.config.map(absolute);
    match send(selector, PATH, &Reload { dry_run, file: file.clone() }) {
        // A file that does not name its node, or another one: whoever runs by it is told all the
        // same, so that its status has that the file is refused. A daemon of another file takes no
        // notice.
        Err(error) if !dry_run && selector.node.is_none() => {
            let file = file.unwrap_or_else(|| ringway_config::DEFAULT_PATH.into());
            let body = Reload { dry_run, file: Some(file) };
            let strangers = selector.misnamed();
            let mut told = strangers.iter().map(|socket| http::order(socket, PATH, &body));
            told.find_map(Result::ok).ok_or(error)
        }
        other => other,
    }
}

/// Has an override made, or cleared.
///
/// # Errors
/// No daemon runs, there is no such backend, or it cannot be kept; then nothing has changed.
pub fn change(selector: &NodeSelector<'_>, change: &OverrideChange) -> Result<Changes, Error> {
    match change {
        OverrideChange::Clear { service, backend } => {
            let clear = Clear { service: service.clone(), backend: backend.clone() };
            send(selector, "/v1/overrides/clear", &clear)
        }
        change => send(selector, "/v1/backend", change),
    }
}

/// Lists overrides: the daemon's, or where none runs those that the next one will find.
///
/// # Errors
/// Nothing is known about the node.
pub fn overrides(selector: &NodeSelector<'_>) -> Result<Listed, Error> {
    let status = status_query::status(selector);
    if let Ok(status) = &status
        && !status.from_pins
    {
        return Ok(Listed {
            schema: SCHEMA.into(),
            node: status.node.clone(),
            in_force: true,
            overrides: status.overrides.clone(),
        });
    }
    let config = configuration_without_daemon(selector, status.ok())?;
    let kept = Overrides::load(&StateDir::new(config.node.state.clone().into_inner()))?;
    let node = config.node.name.to_string();
    let overrides = kept.shown(&config);
    Ok(Listed { schema: SCHEMA.into(), node, in_force: false, overrides })
}

/// The configuration of a node that has this status, to look into its state directory.
///
/// # Errors
/// Its daemon runs, and does not answer; or there is no configuration.
pub(super) fn configuration_without_daemon(
    selector: &NodeSelector<'_>,
    status: Option<status::Status>,
) -> Result<Config, Error> {
    if let Some(status) = status
        && status.daemon.running
        && let Some(problem) = status.problems.into_iter().next()
    {
        return Err(Error::failed(problem.error, problem.remedy));
    }
    let path = selector.config.unwrap_or(Path::new(ringway_config::DEFAULT_PATH));
    ringway_config::load(path).map_err(|errors| {
        Error::configuration(errors.to_string(), "name the node's configuration with -c FILE")
    })
}

pub(super) fn send<T: DeserializeOwned>(
    selector: &NodeSelector<'_>,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Error> {
    let target = selector.find()?;
    http::order(target.daemon()?, path, body).map_err(|failure| match failure {
        Failure::NotRunning => target.silent(),
        Failure::Late(error) | Failure::Failed(error) => error,
    })
}

/// `ringway confirm`: asks the node's daemon.
///
/// # Errors
/// It does not run, it was too late, or the kernel refused.
pub fn confirm(selector: &NodeSelector<'_>) -> Result<Confirmed, Error> {
    let target = selector.find()?;
    http::post(target.daemon()?, "/v1/confirm").map_err(|failure| match failure {
        Failure::NotRunning => target.silent(),
        Failure::Late(error) | Failure::Failed(error) => error,
    })
}

/// Whether [`GUARD_VARIABLE`] asks for the guard in every namespace.
pub fn guard_is_forced() -> bool {
    std::env::var_os(GUARD_VARIABLE).is_some()
}
