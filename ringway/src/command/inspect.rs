//! `ringway engine inspect`: an engine, seen from another process.

use std::thread;
use std::time::Duration;

use ringway_engine::status::inspect::{InspectError, Inspection};

use crate::cli::{InspectArgs, Output};
use crate::exit::Exit;
use crate::table;

/// Looks once, or again and again until the engine ends.
pub fn main(args: &InspectArgs) -> anyhow::Result<Exit> {
    let inspection = Inspection::open(args.pid)?;
    if args.memory_map {
        table::print(&memory_map(&inspection)?)?;
        return Ok(Exit::Done);
    }
    for n in 0.. {
        let look = match inspection.sample(args.oldest) {
            // It was seen before; that it ends is no failure of ours.
            Err(ended @ InspectError::Ended(_)) if n > 0 => {
                eprintln!("{ended}");
                break;
            }
            look => look?,
        };
        match args.output.output {
            Output::Json => table::json(&look)?,
            Output::Table if args.hex => table::print(&format!("{look:#}"))?,
            Output::Table => table::print(&look.to_string())?,
        }
        let Some(seconds) = args.interval else { break };
        thread::sleep(Duration::from_secs(seconds.into()));
    }
    Ok(Exit::Done)
}

/// A line for each mapping and part.
pub fn memory_map(inspection: &Inspection) -> anyhow::Result<String> {
    Ok(inspection.memory_map()?.iter().map(|mapping| format!("{mapping}\n")).collect())
}
