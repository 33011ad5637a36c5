//! `ringway detach`: stop the packet path of a node.

use ringway_gateway::{ask, detach};

use crate::cli::{DetachArgs, Output};
use crate::exit::Exit;
use crate::table;

/// Removes everything, and says what.
pub fn main(args: &DetachArgs) -> anyhow::Result<Exit> {
    let whom = ask::Whom { config: args.node.config.as_deref(), node: args.node.node.as_deref() };
    let outcome = detach::run(&whom, args.verify)?;
    match args.output.output {
        Output::Json => table::json(&outcome)?,
        Output::Table => table::print(&render(&outcome))?,
    }
    Ok(if outcome.left.is_empty() { Exit::Done } else { Exit::Failed })
}

fn render(outcome: &detach::Outcome) -> String {
    let mut text = String::new();
    for line in &outcome.removed {
        text += &format!("removed {line}\n");
    }
    if outcome.removed.is_empty() {
        text += &format!("node {}: nothing to remove\n", outcome.node);
    }
    for line in &outcome.left {
        text += &format!("left: {line}\n");
    }
    if outcome.verified && outcome.left.is_empty() {
        text += "verified: no program, pin or neighbour entry of Ringway is left\n";
    }
    text
}
