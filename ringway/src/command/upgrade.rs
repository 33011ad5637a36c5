//! `ringway check --upgrade`: what a start of this version would keep.

use ringway_config::Config;
use ringway_daemon::upgrade::{self, UpgradeReport};
use ringway_kernel::Fate;

use crate::cli::Output;
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};

/// Looks and tells; exit code 3 when something would be lost.
pub fn main(config: &Config, output: Output) -> anyhow::Result<Exit> {
    let report = upgrade::check(config)?;
    match output {
        Output::Json => table::json(&report)?,
        Output::Table => table::print(&render(&report, table::colour()))?,
    }
    Ok(if report.takes_over { Exit::Done } else { Exit::Unhealthy })
}

fn versions(report: &UpgradeReport) -> String {
    let from = match &report.version {
        Some(version) => format!("from {version}, which the running daemon is"),
        None => "from a version that no running daemon tells".to_owned(),
    };
    format!("{from}, to {}\n", report.own_version)
}

fn render(report: &UpgradeReport, colour: bool) -> String {
    let node = &report.node;
    let Some(layout) = report.layout else {
        return format!("node {node}: nothing is pinned; the first start makes everything\n");
    };
    let mut table = Table::new(&["table", "fate", "entries", "wanted", "why"]);
    let number = |n: Option<u32>| n.map_or_else(|| Cell::new("-"), Cell::number);
    for row in &report.tables {
        let tone = match row.fate {
            Fate::Lost => Tone::Bad,
            Fate::Kept | Fate::Rebuilt => Tone::Good,
            Fate::KeptAtSize | Fate::Added | Fate::Unused => Tone::Warn,
        };
        table.row(vec![
            Cell::new(&row.name),
            Cell::new(row.fate.name()).tone(tone),
            number(row.entries),
            number(row.wanted),
            Cell::new(&row.why),
        ]);
    }
    let mut text = versions(report);
    if !table.is_empty() {
        text += &format!("\n{}\n", table.render(colour));
    }
    for note in &report.notes {
        text += &format!("{note}\n");
    }
    text += &match report.takes_over {
        true => format!(
            "node {node}, layout {layout}: this version takes over; tables and flows are kept, and its programs \
             take the place of those on {}\n",
            if report.interfaces.is_empty() {
                "no interface".into()
            } else {
                report.interfaces.join(", ")
            }
        ),
        false if report.other_namespace => format!(
            "node {node}, layout {layout}: its tables can be taken over, but not from this network namespace\n"
        ),
        false => format!(
            "node {node}, layout {layout} (this version: {}): this version cannot take over; it would refuse to \
             start, and traffic would go on as it does\n",
            report.own_layout
        ),
    };
    if !report.remedy.is_empty() {
        text += &format!("  to do: {}\n", report.remedy);
    }
    text
}
