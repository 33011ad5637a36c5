//! `ringway top`: a node as it changes. [`model`] is what is known and what keys do to it, [`sheet`]
//! the rows of each view, [`draw`] puts both on a screen, [`feed`] asks the node; only [`terminal`]
//! touches the terminal.

mod draw;
mod feed;
mod model;
mod sheet;
mod terminal;

use std::io::{self, IsTerminal};
use std::time::Instant;

use ringway_gateway::problem::Error;
use ringway_gateway::status::Status;
use serde::Serialize;

use crate::cli::{Output, TopArgs, TopView};
use crate::exit::Exit;
use crate::table::{self, Cell, Table};
use feed::{Feed, Look};
use model::Model;

/// Watches until it is told to end; with `--once` looks once.
pub fn main(args: &TopArgs) -> anyhow::Result<Exit> {
    if args.once || args.output.output == Output::Json {
        return once(args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::configuration(
            "this is no terminal",
            "print one look instead: ringway top --once, or --once -o json",
        )
        .into());
    }
    terminal::run(args)?;
    Ok(Exit::Done)
}

/// One look, as a document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    node: &'a str,
    /// Seconds that rates are measured over.
    interval_s: f64,
    /// With rates of that time.
    status: &'a Status,
    /// Only with `--view flows`.
    flows: Option<&'a [feed::FlowRow]>,
}

fn once(args: &TopArgs) -> anyhow::Result<Exit> {
    let mut feed = Feed::new(&args.node);
    let look = |feed: &mut Feed| feed.look(args.view == TopView::Flows, "");
    let begun = Instant::now();
    look(&mut feed)?;
    std::thread::sleep(args.delay);
    let Look { status, flows } = look(&mut feed)?;
    let exit = if status.healthy { Exit::Done } else { Exit::Unhealthy };
    if args.output.output == Output::Json {
        let interval_s = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let flows = flows.as_ref().map(|flows| flows.rows.as_slice());
        let node = &status.node;
        table::json(&Document {
            schema: "ringway.top/1",
            node,
            interval_s,
            status: &status,
            flows,
        })?;
        return Ok(exit);
    }
    let mut model = Model::new(args.view, args.delay);
    model.take(Ok(Look { status, flows }));
    let titles: Vec<&'static str> = model.columns().iter().map(|column| column.title).collect();
    let mut sheet = Table::new(&titles);
    for row in model.rows() {
        let cell = |(cell, column): (&sheet::Field, &sheet::Column)| match column.right {
            true => Cell::number(&cell.text).tone(cell.tone),
            false => Cell::new(&cell.text).tone(cell.tone),
        };
        sheet.row(row.iter().zip(model.columns()).map(cell).collect());
    }
    let heading = model.heading().into_iter().map(|line| line + "\n").collect::<String>();
    table::print(&format!("{heading}{}", sheet.render(table::colour())))?;
    Ok(exit)
}
