//! `ringway demo`: real traffic through Ringway, in namespaces.

use ringway_gateway::problem::Error;

use crate::cli::DemoArgs;
use crate::exit::Exit;

/// Runs the demo.
pub fn main(_args: &DemoArgs) -> anyhow::Result<Exit> {
    Err(Error::failed("the demo is not part of this build", "").into())
}
