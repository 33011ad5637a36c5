//! `ringway backend` and `ringway overrides`: weights that are set at runtime.

use ringway_api::client::requests::{self, Listed};
use ringway_api::overrides::OverrideChange;
use ringway_config::endpoint_text;

use super::reload;
use crate::cli::{BackendAction, BackendArgs, Output, OverridesAction, OverridesArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};

pub fn main(args: &OverridesArgs) -> anyhow::Result<Exit> {
    if let Some(OverridesAction::Clear(clear)) = &args.action {
        let (service, backend) = (clear.service.clone(), clear.backend.clone());
        let changes =
            requests::change(&clear.node.selector(), &OverrideChange::Clear { service, backend })?;
        reload::show(&changes, clear.output.output)?;
        return Ok(Exit::Done);
    }
    let listed = requests::overrides(&args.node.selector())?;
    match args.output.output {
        Output::Json => table::json(&listed)?,
        Output::Table => table::print(&render(&listed, table::colour()))?,
    }
    Ok(Exit::Done)
}

/// Another weight for a backend, without another file.
pub fn backend(args: &BackendArgs) -> anyhow::Result<Exit> {
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

fn render(listed: &Listed, colour: bool) -> String {
    if listed.overrides.is_empty() {
        return format!("node {}: no overrides: the file applies as it is\n", listed.node);
    }
    let mut text =
        format!("node {}: these win over the file until they are cleared\n", listed.node);
    if !listed.in_force {
        text += "no daemon runs: the next one will find them\n";
    }
    let mut table = Table::new(&["service", "backend", "override", "file", "since"]);
    for found in &listed.overrides {
        let weight = found.weight.map(|weight| format!("weight {weight}"));
        let words = match (found.drained, weight) {
            (true, Some(weight)) => format!("drained, then {weight}"),
            (true, None) => "drained".into(),
            (false, weight) => weight.unwrap_or_default(),
        };
        let file = match found.file_weight {
            Some(weight) => Cell::new(format!("weight {weight}")),
            None => Cell::new("has no such backend").tone(Tone::Warn),
        };
        let address = endpoint_text((found.address, found.port).into());
        table.row(vec![
            Cell::new(&found.service),
            Cell::new(address),
            Cell::new(words),
            file,
            Cell::new(found.since.to_string()).tone(Tone::Dim),
        ]);
    }
    text + &table.render(colour)
}
