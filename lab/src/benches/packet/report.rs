//! The result: JSON by serde, and a table.

use std::fmt;

use serde::Serialize;

use super::Options;
use super::path::{Ip, Path};
use crate::harness::machine::Machine;
use crate::harness::median::median;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.packet/1";

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What the measuring itself costs per packet; subtracted from every figure. Median of all rounds.
    pub wrapper_ns: u64,
    /// Medians, in the order of paths, then IP versions, then flows.
    pub paths: Vec<Row>,
    /// What was not measured, and why.
    pub skipped: Vec<NotRun>,
    /// What should have been and could not.
    pub failed: Vec<NotRun>,
    /// Where this was measured.
    pub machine: Machine,
    /// Rounds, of which the figures are the medians.
    pub rounds: u32,
}

/// One path with one number of flows.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The path.
    pub name: Path,
    /// IP version.
    pub ip: Ip,
    /// Flows that take turns, one packet each.
    pub flows: u32,
    /// Nanoseconds per packet through the loaded program.
    pub net_ns: u64,
    /// The same of each round.
    pub net_ns_by_round: Vec<u64>,
}

/// A row without a figure.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun {
    /// The path.
    pub name: Path,
    /// IP version.
    pub ip: Ip,
    /// Flows.
    pub flows: u32,
    /// Why, and what would change it.
    pub reason: String,
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            schema: SCHEMA,
            wrapper_ns: 0,
            paths: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
            machine: Machine::with(&[]),
            rounds: options.rounds.max(1),
        }
    }

    /// Whether all that was to be measured was.
    pub fn ok(&self) -> bool {
        self.failed.is_empty()
    }
}

impl Row {
    pub(super) fn new((name, ip, flows): (Path, Ip, u32), rounds: &[u64]) -> Self {
        Self { name, ip, flows, net_ns: median(rounds), net_ns_by_round: rounds.to_vec() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<9} {:>4} {:>9} {:>7} {:>13}",
            "path", "IPv", "flows", "net ns", "least - most"
        )?;
        for row in &self.paths {
            let least = row.net_ns_by_round.iter().min().unwrap_or(&0);
            let most = row.net_ns_by_round.iter().max().unwrap_or(&0);
            let (ip, span) = (row.ip.number(), format!("{least} - {most}"));
            writeln!(f, "  {:<9} {ip:>4} {:>9} {:>7} {span:>13}", row.name, row.flows, row.net_ns)?;
        }
        for (what, list) in [("skipped", &self.skipped), ("FAILED", &self.failed)] {
            for not in list {
                let ip = not.ip.number();
                writeln!(f, "{what}: {}, IPv{ip}, {} flows: {}", not.name, not.flows, not.reason)?;
            }
        }
        let m = &self.machine;
        writeln!(f, "\n{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        let versions: Vec<String> = m.versions.iter().map(|(k, v)| format!("{k} {v}")).collect();
        writeln!(
            f,
            "{}; medians of {} rounds, less {} ns for the measuring itself",
            versions.join(", "),
            self.rounds,
            self.wrapper_ns
        )?;
        writeln!(
            f,
            "BPF_PROG_TEST_RUN on one core: no driver, no device; these figures are not packet rates."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(&Options::default());
        report.paths = vec![
            Row::new((Path::Nat, Ip::V4, 1), &[90, 70, 80]),
            Row::new((Path::NewFlow, Ip::V6, 10_000_000), &[1234]),
        ];
        let reason = "no room".to_owned();
        report.skipped.push(NotRun { name: Path::Nat, ip: Ip::V6, flows: 5, reason });
        report
    }

    #[test]
    fn medians() {
        assert_eq!(report().paths[0].net_ns, 80);
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        assert!(json["wrapper_ns"].is_u64() && json["machine"]["cores"].is_u64());
        let row = &json["paths"][1];
        assert_eq!((&row["name"], &row["ip"]), (&"new-flow".into(), &6.into()));
        assert_eq!((&row["flows"], &row["net_ns"]), (&10_000_000.into(), &1234.into()));
        assert_eq!(json["skipped"][0]["reason"], "no room");
    }

    #[test]
    fn table_lines_up() {
        let table = report().to_string();
        let lines: Vec<&str> = table.lines().take(3).collect();
        assert!(lines.iter().all(|l| l.len() == lines[0].len()), "{table}");
        assert!(lines[1].ends_with("80       70 - 90"), "{table}");
        assert!(table.contains("skipped: nat, IPv6, 5 flows: no room"), "{table}");
    }
}
