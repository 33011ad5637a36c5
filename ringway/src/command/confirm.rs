//! `ringway confirm`: the machine can still be reached; the programs stay.

use ringway_api::client::requests::{self, Confirmed};

use crate::cli::{ConfirmArgs, Output};
use crate::exit::Exit;
use crate::table;

/// Asks the daemon to pin what it attached provisionally.
pub fn main(args: &ConfirmArgs) -> anyhow::Result<Exit> {
    let selector = args.node.selector();
    let confirmed = requests::confirm(&selector)?;
    match args.output.output {
        Output::Json => table::json(&confirmed)?,
        Output::Table => table::print(&render(&confirmed))?,
    }
    Ok(Exit::Done)
}

fn render(confirmed: &Confirmed) -> String {
    match confirmed.interfaces.as_slice() {
        [] => format!("node {}: nothing waited to be confirmed\n", confirmed.node),
        names => format!("node {}: stays attached to {}\n", confirmed.node, names.join(", ")),
    }
}
