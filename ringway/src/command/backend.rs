//! `ringway backend`: another weight for a backend, without another file.

use ringway_api::client::requests;
use ringway_api::overrides::OverrideChange;

use super::reload;
use crate::cli::{BackendAction, BackendArgs};
use crate::exit::Exit;

/// Asks the daemon, and shows what has changed.
pub fn main(args: &BackendArgs) -> anyhow::Result<Exit> {
    let (change, of) = match &args.action {
        BackendAction::Drain(of) => {
            (OverrideChange::Drain { service: of.service.clone(), backend: of.backend.clone() }, of)
        }
        BackendAction::Undrain(of) => (
            OverrideChange::Undrain { service: of.service.clone(), backend: of.backend.clone() },
            of,
        ),
        BackendAction::Weight { of, weight } => {
            let (service, backend) = (of.service.clone(), of.backend.clone());
            (OverrideChange::Weight { service, backend, weight: *weight }, of)
        }
    };
    let changes = requests::change(&of.node.selector(), &change)?;
    reload::show(&changes, of.output.output)?;
    Ok(Exit::Done)
}
