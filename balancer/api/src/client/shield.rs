//! The shield of a node, for `ringway shield`, `block`, `allow`, `unblock` and `blocked`.

use std::time::{Instant, SystemTime};

use serde::de::DeserializeOwned;

use crate::client::http::{self, Failure};
use crate::client::node_selector::NodeSelector;
use crate::client::requests::{configuration_without_daemon, send};
use crate::client::status_query;
use crate::documents::shield::{Blocked, ShieldStatus};
use crate::error::Error;
use crate::shield::{RuntimeShield, ShieldChange};
use crate::state_dir::StateDir;

/// Has something changed at run time.
///
/// # Errors
/// No daemon runs, its configuration has no shield, or why it cannot be; then nothing has changed.
pub fn change(selector: &NodeSelector<'_>, change: &ShieldChange) -> Result<ShieldStatus, Error> {
    send(selector, "/v1/shield", change)
}

/// The shield as it is.
///
/// # Errors
/// No daemon runs, or it does not answer.
pub fn status(selector: &NodeSelector<'_>) -> Result<ShieldStatus, Error> {
    ask(selector, "/v1/shield")
}

/// Lists what was blocked and allowed at run time: the daemon's, or where none runs what the next
/// one will find.
///
/// # Errors
/// Nothing is known about the node.
pub fn blocked(selector: &NodeSelector<'_>) -> Result<Blocked, Error> {
    let status = status_query::status(selector).ok();
    if status.as_ref().is_some_and(|status| !status.from_pins) {
        return ask(selector, "/v1/blocked");
    }
    let config = configuration_without_daemon(selector, status)?;
    let state = StateDir::new(config.node.state.clone().into_inner());
    let kept = RuntimeShield::load(&state, Instant::now(), SystemTime::now())?;
    Ok(Blocked::new(&config, false, &kept))
}

fn ask<T: DeserializeOwned>(selector: &NodeSelector<'_>, path: &str) -> Result<T, Error> {
    let target = selector.find()?;
    http::get(target.daemon()?, path).map_err(|failure| match failure {
        Failure::NotRunning => target.silent(),
        Failure::Late(error) | Failure::Failed(error) => error,
    })
}
