//! `ringway size`: which road, and how much of everything.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use ringway_gateway::problem::Error as Problem;
use ringway_sizing::{Answer, Costs, size};

use crate::cli::{Output, SizeArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};
use crate::units;

/// Sizes a workload.
pub fn main(args: &SizeArgs) -> anyhow::Result<Exit> {
    let costs = costs(args.costs.as_deref())?;
    let answer = size(&args.workload(), &costs).map_err(|error| match error {
        ringway_sizing::Error::Workload { what, remedy } => {
            Problem::configuration(what, remedy).into()
        }
        error @ ringway_sizing::Error::Costs(_) => anyhow::Error::new(error),
    })?;
    match args.output.output {
        Output::Table => table::print(&text(&answer, table::colour()))?,
        Output::Json => table::json(&answer)?,
    }
    Ok(Exit::Done)
}

fn costs(file: Option<&Path>) -> anyhow::Result<Costs> {
    let Some(file) = file else { return Ok(Costs::reference()?) };
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the costs in {}", file.display()))?;
    Costs::parse(&text).with_context(|| file.display().to_string())
}

fn text(answer: &Answer, colour: bool) -> String {
    let mut out = format!(
        "road      {}: {}\nmachines  {}, one of them to spare; {} asks for {}\n\n",
        table::paint(answer.road.name(), Tone::Good, colour),
        answer.why,
        answer.machines,
        answer.demand.limit.name(),
        answer.demand.machines,
    );
    out += &figures(answer).take(colour);
    out += "\n";
    out += &roads(answer).take(colour);
    for (heading, lines) in [("", &answer.notes), ("what would change it", &changes(answer))] {
        if !lines.is_empty() {
            out += &format!("\n{heading}{}", if heading.is_empty() { "" } else { "\n" });
            lines.iter().for_each(|line| out += &format!("  {line}\n"));
        }
    }
    let _ = writeln!(
        out,
        "\nrule of thumb: {}; what is above is calculated\ncosts of {}",
        answer.rule_of_thumb, answer.costs_of
    );
    out
}

fn figures(answer: &Answer) -> Table {
    let mut table = Table::new(&["all machines", "", "calculated", "measured by"]);
    for line in &answer.lines {
        let value = match line.what {
            what if what.starts_with("bytes") => units::bytes(line.value as u64),
            what if what.starts_with("bits") => format!("{}bit/s", units::decimal(line.value)),
            _ => format!("{:.2}", line.value),
        };
        let what = line.what.trim_start_matches("bits/s ").trim_start_matches("bytes ");
        let cells = [
            Cell::new(what),
            Cell::number(value),
            Cell::new(&line.how),
            Cell::new(&line.from).tone(Tone::Dim),
        ];
        table.row(cells.to_vec());
    }
    table.row(vec![
        Cell::new("NIC queues, each machine"),
        Cell::number(answer.nic_queues),
        Cell::new("one for each core that packets keep busy"),
        Cell::new("rule").tone(Tone::Dim),
    ]);
    table
}

fn roads(answer: &Answer) -> Table {
    let mut table =
        Table::new(&["road", "cores", "machines", "most of one machine", "why, or why not"]);
    for road in &answer.roads {
        let demand = road.demand.as_ref();
        let dash = || "-".to_owned();
        let tone = if road.road == answer.road { Tone::Good } else { Tone::Plain };
        table.row(vec![
            Cell::new(road.road.name()).tone(tone),
            Cell::number(
                demand.map_or_else(dash, |demand| {
                    format!("{:.2}", demand.cores + demand.attack_cores)
                }),
            ),
            Cell::number(demand.map_or_else(dash, |demand| (demand.machines + 1).to_string())),
            Cell::number(
                road.most_per_s.map_or_else(dash, |most| format!("{}/s", units::decimal(most))),
            ),
            Cell::new(&road.why),
        ]);
    }
    table
}

fn changes(answer: &Answer) -> Vec<String> {
    let line = |change: &ringway_sizing::Change| {
        format!("{}: {}, {} machines", change.what, change.road.name(), change.machines)
    };
    answer.changes.iter().map(line).collect()
}
