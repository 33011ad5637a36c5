//! `ringway confirm`: an administrator says that the machine can still be reached.

use serde::{Deserialize, Serialize};

use crate::client::http::{self, Failure};
use crate::client::node_selector::NodeSelector;
use crate::error::Error;

/// For tests: the guard holds in every network namespace, for so many seconds ("on": the usual
/// ones).
pub const VARIABLE: &str = "RINGWAY_GUARD";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmed {
    /// `ringway.confirm/1`.
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    /// Interfaces on which the program stays from now on; none: nothing waited for it.
    pub interfaces: Vec<String>,
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

/// Whether [`VARIABLE`] asks for the guard in every namespace.
pub fn forced() -> bool {
    std::env::var_os(VARIABLE).is_some()
}
