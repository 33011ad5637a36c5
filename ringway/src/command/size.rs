//! `ringway size`: which road, and how much of everything.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use ringway_gateway::problem::Error as Problem;
use ringway_lab::calibrate;
use ringway_sizing::{Answer, Costs, size};

use crate::cli::{Output, SizeArgs};
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone};
use crate::units;

/// Sizes a workload.
pub fn main(args: &SizeArgs) -> anyhow::Result<Exit> {
    if let Some(file) = &args.calibrate {
        return calibrate(file);
    }
    let costs = costs(args.costs.as_deref())?;
    let answer = size(&args.workload(), &costs).map_err(|error| match error {
        ringway_sizing::Error::Workload { what, remedy } => Problem::configuration(what, remedy),
        error @ ringway_sizing::Error::Costs(_) => not_costs(error),
    })?;
    match args.output.output {
        Output::Table => table::print(&text(&answer, table::colour()))?,
        Output::Json => table::json(&answer)?,
    }
    Ok(Exit::Done)
}

fn calibrate(file: &Path) -> anyhow::Result<Exit> {
    // Known before two minutes are spent.
    let refused = || format!("cannot write {}", file.display());
    let new = !file.exists();
    fs::OpenOptions::new().create(true).append(true).open(file).with_context(refused)?;
    if new {
        // Interrupted, it leaves nothing.
        fs::remove_file(file).with_context(refused)?;
    }
    let costs = calibrate::run_guarded(Costs::reference()?, |line| exit::say(line))?;
    fs::write(file, costs.to_toml()?).with_context(refused)?;
    exit::say(format!("wrote {0}; use it by `ringway size --costs {0}`", file.display()));
    Ok(Exit::Done)
}

fn costs(file: Option<&Path>) -> anyhow::Result<Costs> {
    let Some(file) = file else { return Ok(Costs::reference()?) };
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the costs in {}", file.display()))?;
    Ok(Costs::parse(&text).map_err(|error| not_costs(format!("{}: {error}", file.display())))?)
}

fn not_costs(why: impl std::fmt::Display) -> Problem {
    Problem::configuration(why.to_string(), "write the file anew: `ringway size --calibrate FILE`")
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ringway_sizing::Road;

    use super::*;
    use crate::cli::{Cli, Command};

    fn sized(command: &str) -> Answer {
        let Command::Size(args) = Cli::parse_from(command.split(' ')).command else {
            panic!("{command}");
        };
        size(&args.workload(), &Costs::reference().expect("the reference")).expect(command)
    }

    /// The questions of docs/sizing.md, and what it says of them.
    #[test]
    fn worked_questions() {
        let document = include_str!("../../../docs/sizing.md");
        let told = |text: &str| assert!(document.contains(text), "docs/sizing.md lacks {text:?}");
        for (command, road, machines, kernel, cores) in [
            ("ringway size --time-wait 30000 --destinations 1", Road::Kernel, 2, "15.4 MiB", 0.0),
            (
                "ringway size --connections 6000 --messages-per-hour 3600 --destinations 1",
                Road::Kernel,
                2,
                "21.5 MiB",
                0.12,
            ),
            (
                "ringway size --connections 20k --messages-per-hour 3600 --destinations 1",
                Road::Kernel,
                2,
                "71.7 MiB",
                0.40,
            ),
            ("ringway size --packets 200k --packet-size 50", Road::Kernel, 2, "0 B", 3.39),
            (
                "ringway size --connections 100M --messages-per-hour 6 --state 16KiB --memory 128GiB --cores 32",
                Road::Kernel,
                20,
                "350.3 GiB",
                3.31,
            ),
        ] {
            let answer = sized(command);
            assert_eq!((answer.road, answer.machines), (road, machines), "{command}");
            assert_eq!(units::bytes(answer.demand.kernel_bytes as u64), kernel, "{command}");
            assert!(
                (answer.demand.cores - cores).abs() < 0.005,
                "{command}: {}",
                answer.demand.cores
            );
            told(command);
        }
        let answer = sized("ringway size --packets 200k --packet-size 50");
        assert!(
            answer.notes.iter().any(|note| note.contains("which the load average does not count"))
        );
        let answer = sized("ringway size --time-wait 30000 --destinations 1");
        assert!(answer.notes.iter().any(|note| note.contains("EADDRNOTAVAIL")));
    }
}
