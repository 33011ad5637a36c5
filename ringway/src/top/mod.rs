//! `ringway top`: a node as it changes. [`model`] is what is known and what keys do to it,
//! [`sheet`] the rows of each view, [`draw`] puts both on a screen, [`feed`] asks the node; only
//! [`terminal`] touches the terminal.

mod draw;
mod feed;
mod model;
mod sheet;
mod terminal;

use std::io::{self, IsTerminal};
use std::time::Instant;

use ringway_api::documents::shield::ShieldStatus;
use ringway_api::documents::status::Status;
use ringway_api::error::Error;
use serde::Serialize;

use crate::cli::{Output, TopArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table};

use feed::{Feed, Reading};
use model::{Heading, Model};
pub use sheet::verdict_tone;

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
    /// Only with `--view shield`.
    shield: Option<&'a ShieldStatus>,
}

fn once(args: &TopArgs) -> anyhow::Result<Exit> {
    let mut feed = Feed::new(&args.node);
    let mut model = Model::new(args.view, args.delay);
    let more = model.more_wanted();
    let sample = |feed: &mut Feed| feed.sample(&more);
    let begun = Instant::now();
    sample(&mut feed)?;
    std::thread::sleep(args.delay);
    let Reading { status, flows, shield } = sample(&mut feed)?;
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
            shield: shield.as_ref(),
        })?;
        return Ok(exit);
    }
    model.take(Ok(Reading { status, flows, shield }));
    // A pipe is as wide as one likes.
    let terminal = io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
    let width = terminal.and_then(Result::ok).map_or(u16::MAX, |(width, _)| width);
    table::print(&printed(&model, width, table::colour()))?;
    Ok(exit)
}

/// One look as text: the columns that fit, as on a screen.
fn printed(model: &Model, width: u16, colour: bool) -> String {
    let (columns, rows) = (model.columns(), model.rows());
    // A table is indented by two.
    let shown = draw::fit(columns, &rows, width.saturating_sub(2));
    let titles: Vec<&'static str> =
        shown.iter().map(|(column, _)| columns[*column].title).collect();
    let mut sheet = Table::new(&titles);
    for row in &rows {
        let cell = |(column, width): &(usize, usize)| {
            let text = draw::cut(&row[*column].text, *width);
            let cell = if columns[*column].right() { Cell::number(text) } else { Cell::new(text) };
            cell.tone(row[*column].tone)
        };
        sheet.row(shown.iter().map(cell).collect());
    }
    let over = format!("  over {} s", model.delay.as_secs_f64());
    let Heading { health, figures, .. } = model.heading();
    let figures = draw::fitting(&figures, usize::from(width).saturating_sub(over.len()));
    let instead = if rows.is_empty() { model.instead() } else { Vec::new() };
    let instead: String = instead.iter().map(|line| format!("{line}\n")).collect();
    format!("{health}\n{figures}{over}\n{}{instead}", sheet.render(colour))
}
