//! `ringway detach`: stop the packet path of a node.

use ringway_inspect::detach;

use crate::cli::{DetachArgs, Output};
use crate::exit::Exit;
use crate::table;

/// Removes everything, and says what.
pub fn main(args: &DetachArgs) -> anyhow::Result<Exit> {
    let selector = args.node.selector();
    let outcome = detach::run(&selector, args.verify)?;
    match args.output.output {
        Output::Json => table::json(&outcome)?,
        Output::Table => table::print(&render(&outcome))?,
    }
    Ok(if outcome.left.is_empty() { Exit::Done } else { Exit::Failed })
}

fn render(outcome: &detach::DetachOutcome) -> String {
    let mut text = String::new();
    for line in &outcome.removed {
        text += &format!("removed {line}\n");
    }
    match (outcome.removed.is_empty(), outcome.node.as_str()) {
        (false, _) => {}
        (true, "") => text += "nothing to remove: no node of Ringway is loaded on this machine\n",
        (true, node) => text += &format!("nothing to remove: node {node} is not loaded\n"),
    }
    for line in &outcome.left {
        text += &format!("left: {line}\n");
    }
    if outcome.verified && outcome.left.is_empty() {
        text += "verified: no program, pin or neighbour entry of Ringway is left\n";
    }
    text
}
