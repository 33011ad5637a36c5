//! `ringway-lab size`: which I/O path, and how much of everything.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use ringway_measure::benches::calibrate;
use ringway_sizing::{Answer, Costs, SPREAD, Unit, Work, size};
use ringway_terminal::error::Error as Problem;
use ringway_terminal::output_file;

use crate::cli::{Output, SizeArgs};
use crate::units;
use ringway_terminal::exit::{self, Exit};
use ringway_terminal::table::{self, Cell, Table, Tone};

pub fn main(args: &SizeArgs) -> anyhow::Result<Exit> {
    if let Some(file) = &args.calibrate {
        return calibrate(file, args.overwrite);
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

fn calibrate(file: &Path, overwrite: bool) -> anyhow::Result<Exit> {
    // Refused before minutes are spent, not after.
    let new = !file.exists();
    if new || !overwrite {
        output_file::create(file, overwrite)?;
    }
    if new {
        // Interrupted, it leaves nothing.
        fs::remove_file(file).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let reference = Costs::reference()?;
    let costs = calibrate::calibrate(reference.clone(), &mut |line| exit::say(line))?;
    let mut out = output_file::create(file, overwrite)?;
    out.write_all(costs.to_toml()?.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))?;
    table::print(&calibrated(&costs, &reference).take(table::colour()))?;
    for doubt in costs.doubts() {
        exit::say(format!("warning: {doubt}; measure again where nothing else runs"));
    }
    exit::say(format!("wrote {0}; use it by `ringway-lab size --costs {0}`", file.display()));
    Ok(Exit::Done)
}

/// Costs that were measured, and those that are still the reference's.
fn calibrated(costs: &Costs, reference: &Costs) -> Table {
    let mut table = Table::new(&["cost", "", "spread", "measured by"]);
    let mut row = |what: String, value: String, spread: Option<f64>, from: &str, kept: bool| {
        let tone =
            if spread.is_some_and(|spread| spread > SPREAD) { Tone::Warn } else { Tone::Plain };
        let spread = spread.map_or_else(|| "-".to_owned(), |part| format!("{:.0} %", part * 100.0));
        let from = if kept { format!("not measured here: {from}") } else { from.to_owned() };
        table.row(vec![
            Cell::new(what),
            Cell::number(value),
            Cell::number(spread).tone(tone),
            Cell::new(from).tone(Tone::Dim),
        ]);
    };
    for (work, io_path, cost) in costs.times() {
        let kept = reference.times().any(|other| other == (work, io_path, cost));
        row(
            format!("{work}, {}", io_path.name()),
            format!("{:.0} ns", cost.ns),
            cost.spread,
            &cost.from,
            kept,
        );
    }
    for (what, cost) in costs.sizes() {
        let kept = reference.sizes().contains(&(what, cost));
        row(what.to_owned(), format!("{:.0} B", cost.bytes), cost.spread, &cost.from, kept);
    }
    table
}

/// Bytes of a file of costs; ours have some thousands.
const LONGEST: u64 = 1 << 20;

fn costs(file: Option<&Path>) -> anyhow::Result<Costs> {
    let Some(file) = file else { return Ok(Costs::reference()?) };
    let mut text = String::new();
    // A device may have no end.
    let opened = File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    opened.with_context(|| format!("cannot read the costs in {}", file.display()))?;
    Ok(Costs::parse(&text).map_err(|error| not_costs(format!("{}: {error}", file.display())))?)
}

fn not_costs(why: impl std::fmt::Display) -> Problem {
    Problem::configuration(
        why.to_string(),
        "write the file anew: `ringway-lab size --calibrate FILE`",
    )
}

fn text(answer: &Answer, colour: bool) -> String {
    let mut out = format!(
        "work      {}\npath      {}: {}\nmachines  {}, one of them to spare; {} asks for {}\n\n",
        work(answer.workload.work),
        table::paint(answer.io_path.name(), Tone::Good, colour),
        answer.why,
        answer.machines,
        answer.demand.limit.name(),
        answer.demand.machines,
    );
    out += &figures(answer).take(colour);
    out += "\n";
    out += &io_paths(answer).take(colour);
    for (heading, lines) in [("", &answer.notes), ("what would change it", &changes(answer))] {
        if !lines.is_empty() {
            out += &format!("\n{heading}{}", if heading.is_empty() { "" } else { "\n" });
            lines.iter().for_each(|line| out += &format!("  {line}\n"));
        }
    }
    let _ = writeln!(
        out,
        "\nrule of thumb: {} ({}); what is above is calculated\ncosts of {}",
        answer.rule_of_thumb, answer.rule_from, answer.costs_of
    );
    for doubt in &answer.doubts {
        let _ = writeln!(out, "{}: {doubt}", table::paint("doubtful", Tone::Warn, colour));
    }
    out
}

/// The assumed work in words.
fn work(work: Work) -> &'static str {
    match work {
        Work::Connections => "connections: a program reads messages of TCP and answers them",
        Work::Answer => "answer: a program answers datagrams; of TCP: --work connections",
        Work::Forward => "forward: packets are sent on to others",
    }
}

fn figures(answer: &Answer) -> Table {
    let mut table = Table::new(&["all machines", "", "calculated", "measured by"]);
    for line in &answer.lines {
        let value = match line.unit {
            Unit::Cores => format!("{:.2}", line.value),
            Unit::Bytes => units::bytes(line.value as u64),
            Unit::BitsPerSecond => units::decimal_of(line.value, "bit/s"),
            Unit::Ports | Unit::Queues | Unit::Machines => format!("{:.0}", line.value),
        };
        let cells = [
            Cell::new(line.what),
            Cell::number(value),
            Cell::new(&line.how),
            Cell::new(&line.from).tone(Tone::Dim),
        ];
        table.row(cells.to_vec());
    }
    table
}

fn io_paths(answer: &Answer) -> Table {
    let mut table = Table::new(&[
        "path",
        "ns each",
        "cores",
        "machines",
        "most by its cores",
        "why, or why not",
    ]);
    for io_path in &answer.io_paths {
        let demand = io_path.demand.as_ref();
        let dash = || "-".to_owned();
        let tone = if io_path.io_path == answer.io_path { Tone::Good } else { Tone::Plain };
        table.row(vec![
            Cell::new(io_path.io_path.name()).tone(tone),
            Cell::number(io_path.cost.as_ref().map_or_else(dash, |cost| format!("{:.0}", cost.ns))),
            Cell::number(
                demand.map_or_else(dash, |demand| {
                    format!("{:.2}", demand.cores + demand.attack_cores)
                }),
            ),
            Cell::number(io_path.machines.map_or_else(dash, |machines| machines.to_string())),
            Cell::number(
                io_path.most_per_s.map_or_else(dash, |most| format!("{}/s", units::decimal(most))),
            ),
            Cell::new(&io_path.why),
        ]);
    }
    table
}

fn changes(answer: &Answer) -> Vec<String> {
    let line = |change: &ringway_sizing::InputChange| {
        format!("{}: {}, {} machines", change.what, change.io_path.name(), change.machines)
    };
    answer.changes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ringway_sizing::IoPath;

    use super::*;
    use crate::cli::{Cli, Command};

    fn sized(arguments: &str) -> Answer {
        let words = ["ringway-lab", "size"].into_iter().chain(arguments.split(' '));
        let Command::Size(args) = Cli::parse_from(words).command else { panic!("{arguments}") };
        size(&args.workload(), &Costs::reference().expect("the reference")).expect(arguments)
    }

    /// The questions of docs/sizing.md, and what it says of them.
    #[test]
    fn worked_questions() {
        let document = include_str!("../../docs/sizing.md");
        let told = |arguments: &str| {
            let command = format!("ringway-lab size {arguments}");
            assert!(document.contains(&command), "docs/sizing.md lacks {command:?}");
        };
        let push =
            "--connections 100M --messages-per-hour 6 --state 16KiB --memory 128GiB --cores 32";
        for (arguments, machines, kernel, cores) in [
            ("--time-wait 30000 --destinations 1", 3, "15.3 MiB", 0.0),
            ("--connections 6000 --messages-per-hour 3600 --destinations 1", 2, "23.5 MiB", 0.06),
            ("--connections 20k --messages-per-hour 3600 --destinations 1", 2, "78.2 MiB", 0.21),
            ("--work forward --packets 2M", 2, "0 B", 3.46),
            (push, 20, "351.4 GiB", 1.72),
        ] {
            let Answer { io_path, machines: found, demand, .. } = sized(arguments);
            assert_eq!((io_path, found), (IoPath::Kernel, machines), "{arguments}");
            assert_eq!(units::bytes(demand.kernel_bytes as u64), kernel, "{arguments}");
            assert!((demand.cores - cores).abs() < 0.005, "{arguments}: {}", demand.cores);
            told(arguments);
            assert!(kernel == "0 B" || document.contains(kernel), "{kernel}");
        }
        let wide = "--time-wait 30000 --destinations 1 --port-range 1024-65535";
        told(wide);
        for (arguments, words) in [
            ("--work forward --packets 2M", "which the load average does not count"),
            ("--time-wait 30000 --destinations 1", "EADDRNOTAVAIL"),
            (wide, "30000 of 64512"),
        ] {
            let notes = sized(arguments).notes;
            assert!(notes.iter().any(|note| note.contains(words)), "{words}: {notes:?}");
        }
    }

    /// Source: an account of a bidding platform. Its kernel took 1.8 Mpps with 32 cores, its DPDK
    /// 9.2 with 12; XDP dropped 4.8 M.
    #[test]
    fn thresholds_are_plausible() {
        for (arguments, io_paths) in [
            ("--packets 500k --cores 32", &[IoPath::Kernel][..]),
            ("--packets 1.8M --cores 32", &[IoPath::TunedKernel, IoPath::AfXdp]),
            ("--packets 9.2M --cores 32", &[IoPath::Dpdk]),
            ("--work forward --packets 10M --cores 16", &[IoPath::Xdp]),
        ] {
            let io_path = sized(&format!("{arguments} --packet-size 50")).io_path;
            assert!(io_paths.contains(&io_path), "{arguments}: {}", io_path.name());
        }
        // A program that drops costs tens of nanoseconds, not a veth's thousand.
        let answer = sized("--packets 200k --attack 4.8M");
        assert!((0.1..1.5).contains(&answer.demand.attack_cores), "{:?}", answer.demand);
    }

    #[test]
    fn costs_that_are_there_stay_unless_told() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("costs.toml");
        fs::write(&file, "precious").expect("written");
        let refused = calibrate(&file, false).expect_err("there").to_string();
        assert!(refused.contains("costs.toml") && refused.contains("there already"), "{refused}");
        assert_eq!(fs::read_to_string(&file).expect("read"), "precious");
        // Without an end, too.
        assert!(costs(Some(Path::new("/dev/zero"))).is_err());
    }

    /// The JSON has everything that the table shows, except its prefixes.
    #[test]
    fn json_has_what_the_table_has() {
        let load = "--connections 20k --messages-per-hour 60 --state 1KiB --destinations 2";
        let answer = sized(&format!("{load} --attack 1M"));
        let json = serde_json::to_value(&answer).expect("JSON");
        let (told, table) = (json.to_string(), text(&answer, false));
        for line in &answer.lines {
            assert!(table.contains(&line.how) && told.contains(&line.how), "{}", line.what);
            assert!(table.contains(&line.from) && told.contains(&line.from), "{}", line.what);
        }
        for key in ["doubts", "rule_from", "notes", "nic_queues", "costs_of"] {
            assert!(!json[key].is_null(), "{key}");
        }
        let kernel = &json["roads"][0];
        assert!(kernel["cost"]["ns"].is_number() && kernel["cost"]["from"].is_string());
        assert_eq!(kernel["machines"], json["machines"]);
        assert!(table.starts_with("work      connections: "), "{table}");
    }

    #[test]
    fn doubtful_costs_are_said() {
        let mut costs = Costs::reference().expect("the reference");
        costs.others = Some(1.5);
        let Command::Size(args) = Cli::parse_from(["ringway-lab", "size", "-p", "1"]).command
        else {
            panic!("size");
        };
        let answer = size(&args.workload(), &costs).expect("sized");
        assert!(text(&answer, false).contains("doubtful: other work kept 1.5 processors busy"));
    }
}
