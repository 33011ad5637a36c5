//! Orders to a node's daemon: `ringway reload`, `ringway backend`, `ringway overrides`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::api::client::{self, Failure};
use crate::api::control::{Clear, Reload};
use crate::ask;
use crate::changes::Changes;
use crate::overrides::{Change, Overrides, SCHEMA};
use crate::problem::Error;
use crate::state::State;
use crate::status;
use crate::whom::Whom;

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

/// Has the configuration file read again.
///
/// # Errors
/// No daemon runs, it was started with another file, or what is wrong with the file; then nothing has changed.
pub fn reload(whom: &Whom<'_>, dry_run: bool) -> Result<Changes, Error> {
    const PATH: &str = "/v1/reload";
    let absolute = |file: &Path| std::path::absolute(file).unwrap_or_else(|_| file.into());
    let file = whom.config.map(absolute);
    match send(whom, PATH, &Reload { dry_run, file: file.clone() }) {
        // A file that does not name its node, or another one: whoever runs by it is told all the same, so that its status has that the
        // file is refused. A daemon of another file takes no notice.
        Err(error) if !dry_run && whom.node.is_none() => {
            let file = file.unwrap_or_else(|| ringway_config::DEFAULT_PATH.into());
            let body = Reload { dry_run, file: Some(file) };
            let strangers = whom.misnamed();
            let mut told = strangers.iter().map(|socket| client::order(socket, PATH, &body));
            told.find_map(Result::ok).ok_or(error)
        }
        other => other,
    }
}

/// Has an override made, or cleared.
///
/// # Errors
/// No daemon runs, there is no such backend, or it cannot be kept; then nothing has changed.
pub fn change(whom: &Whom<'_>, change: &Change) -> Result<Changes, Error> {
    match change {
        Change::Clear { service, backend } => {
            let clear = Clear { service: service.clone(), backend: backend.clone() };
            send(whom, "/v1/overrides/clear", &clear)
        }
        change => send(whom, "/v1/backend", change),
    }
}

/// Lists overrides: the daemon's, or where none runs those that the next one will find.
///
/// # Errors
/// Nothing is known about the node.
pub fn overrides(whom: &Whom<'_>) -> Result<Listed, Error> {
    let status = ask::status(whom);
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
    if let Ok(status) = status
        && status.daemon.running
        && let Some(problem) = status.problems.into_iter().next()
    {
        return Err(Error::failed(problem.error, problem.remedy));
    }
    let path = whom.config.unwrap_or(Path::new(ringway_config::DEFAULT_PATH));
    let config = ringway_config::load(path).map_err(|errors| {
        Error::configuration(errors.to_string(), "name the node's configuration with -c FILE")
    })?;
    let kept = Overrides::load(&State::new(config.node.state.clone().into_inner()))?;
    let node = config.node.name.to_string();
    let overrides = kept.shown(&config);
    Ok(Listed { schema: SCHEMA.into(), node, in_force: false, overrides })
}

fn send<T: DeserializeOwned>(
    whom: &Whom<'_>,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Error> {
    let target = whom.find()?;
    client::order(target.daemon()?, path, body).map_err(|failure| match failure {
        Failure::NotRunning => target.silent(),
        Failure::Late(error) | Failure::Failed(error) => error,
    })
}
