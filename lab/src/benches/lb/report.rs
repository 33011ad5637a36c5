//! The result: JSON by serde, and a table.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::path::Path;
use super::{Found, Options};
use crate::harness::machine::Machine;
use crate::harness::median::median;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.lb/1";

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Medians, in the order of paths, then connections.
    pub runs: Vec<Run>,
    /// Ringway beside the others.
    pub comparisons: Vec<Comparison>,
    /// What this machine cannot run.
    pub skipped: Vec<NotRun>,
    /// What should have run and did not.
    pub failed: Vec<NotRun>,
    /// Where this was measured.
    pub machine: Machine,
    /// Rounds, of which the runs are the medians.
    pub rounds: u32,
    /// Length of one measurement in seconds.
    pub duration_s: u64,
    /// Interface settings that all paths had.
    pub offloads: &'static str,
    /// The command that measured, for each number of connections.
    pub command: String,
    /// Each path's configuration, if asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configurations: BTreeMap<Path, String>,
}

/// One path at one number of connections: the median of each figure over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The path.
    pub path: Path,
    /// Concurrent connections.
    pub connections: u32,
    /// Completed requests per second.
    pub requests_per_s: u64,
    /// Half of the requests took no longer.
    pub latency_p50_ns: u64,
    /// 99 of 100 requests took no longer.
    pub latency_p99_ns: u64,
    /// Failed requests and connections, all rounds together.
    pub errors: u64,
    /// Requests per second of each round.
    pub requests_per_s_by_round: Vec<u64>,
}

/// How one path stands to another.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The path looked at.
    pub path: Path,
    /// The path it is compared with.
    pub with: Path,
    /// Concurrent connections.
    pub connections: u32,
    /// Requests per second of the first, divided by the second's.
    pub ratio: f64,
    /// What the ratio should be at least.
    pub goal: f64,
    /// Whether it is.
    pub met: bool,
}

/// A path without figures.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun {
    /// The path.
    pub path: Path,
    /// Why, and what would change it.
    pub reason: String,
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            schema: SCHEMA,
            runs: Vec::new(),
            comparisons: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
            machine: Machine::here(),
            rounds: options.rounds.max(1),
            duration_s: options.duration.as_secs().max(1),
            offloads: "checksum, TSO, GSO and GRO offloads off at every interface",
            command: format!("wrk -t1 -cN -d{}s --latency", options.duration.as_secs().max(1)),
            configurations: BTreeMap::new(),
        }
    }

    /// Whether all that can run here did.
    pub fn ok(&self) -> bool {
        self.failed.is_empty()
    }

    pub(super) fn summarize(&mut self, found: &Found) {
        for (&(path, connections), rounds) in found {
            let each = |f: fn(&crate::harness::wrk::Figures) -> u64| {
                rounds.iter().map(f).collect::<Vec<_>>()
            };
            self.runs.push(Run {
                path,
                connections,
                requests_per_s: median(&each(|f| f.requests_per_s.round() as u64)),
                latency_p50_ns: median(&each(|f| f.latency_p50_ns)),
                latency_p99_ns: median(&each(|f| f.latency_p99_ns)),
                errors: each(|f| f.errors).iter().sum(),
                requests_per_s_by_round: each(|f| f.requests_per_s.round() as u64),
            });
        }
        self.comparisons = comparisons(&self.runs);
    }

    fn connections(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.runs.iter().map(|r| r.connections).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn write_runs(&self, f: &mut fmt::Formatter<'_>, connections: u32) -> fmt::Result {
        let direct = rate(&self.runs, Path::Direct, connections);
        writeln!(f, "{connections} connections")?;
        writeln!(
            f,
            "  {:<17} {:>10} {:>9} {:>9} {:>8} {:>10}",
            "path", "requests/s", "p50 ms", "p99 ms", "errors", "x direct"
        )?;
        for run in self.runs.iter().filter(|r| r.connections == connections) {
            let mut ratio = String::from("-");
            if let Some(direct) = direct {
                ratio.clear();
                write!(ratio, "{:.2}", run.requests_per_s as f64 / direct)?;
            }
            writeln!(
                f,
                "  {:<17} {:>10} {:>9.2} {:>9.2} {:>8} {ratio:>10}",
                run.path,
                run.requests_per_s,
                run.latency_p50_ns as f64 / 1e6,
                run.latency_p99_ns as f64 / 1e6,
                run.errors,
            )?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for connections in self.connections() {
            self.write_runs(f, connections)?;
        }
        if !self.comparisons.is_empty() {
            writeln!(f, "goals")?;
        }
        for c in &self.comparisons {
            let met = if c.met { "met" } else { "MISSED" };
            let what = format!("{} / {}", c.path, c.with);
            writeln!(
                f,
                "  {what:<32} {:>5} connections {:>6.2}, at least {:.2}: {met}",
                c.connections, c.ratio, c.goal
            )?;
        }
        for (what, list) in [("skipped", &self.skipped), ("FAILED", &self.failed)] {
            for not_run in list {
                writeln!(f, "{what}: {}: {}", not_run.path, not_run.reason)?;
            }
        }
        for (path, configuration) in &self.configurations {
            writeln!(f, "\n--- {path}\n{}", configuration.trim_end())?;
        }
        let m = &self.machine;
        writeln!(f, "\n{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        let versions: Vec<String> = m.versions.iter().map(|(k, v)| format!("{k} {v}")).collect();
        writeln!(f, "{}", versions.join(", "))?;
        writeln!(f, "{}, medians of {} rounds; {}", self.command, self.rounds, self.offloads)?;
        writeln!(f, "Network namespaces on one machine: these figures say nothing about hardware.")
    }
}

fn rate(runs: &[Run], path: Path, connections: u32) -> Option<f64> {
    let run = runs.iter().find(|r| r.path == path && r.connections == connections)?;
    Some(run.requests_per_s as f64).filter(|r| *r > 0.0)
}

/// Ringway costs next to nothing over the bare rewriter, its best path beats the others, and past the bridge it is
/// nearly as fast as no balancer at all.
fn comparisons(runs: &[Run]) -> Vec<Comparison> {
    let mut all_connections: Vec<u32> = runs.iter().map(|r| r.connections).collect();
    all_connections.dedup();
    all_connections.sort_unstable();
    all_connections.dedup();
    let mut list = Vec::new();
    for connections in all_connections {
        let rate = |path| rate(runs, path, connections);
        let ours = Path::ALL.into_iter().filter(|p| p.is_ringway());
        let best = ours
            .filter_map(|p| Some((rate(p)?, p)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(Path::RingwayHost, |(_, path)| path);
        let goals = [
            (Path::RingwayGeneric, Path::BareGeneric, 0.97),
            (Path::RingwayNative, Path::BareNative, 0.97),
            (best, Path::NginxStream, 1.5),
            (best, Path::Haproxy, 1.5),
            (best, Path::Nftables, 1.1),
            (Path::RingwayHost, Path::Direct, 0.95),
            (Path::RingwayHost, Path::NginxStream, 1.7),
        ];
        list.extend(goals.into_iter().filter_map(|(path, with, goal)| {
            let ratio = rate(path)? / rate(with)?;
            Some(Comparison { path, with, connections, ratio, goal, met: ratio >= goal })
        }));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::wrk::Figures;

    fn figures(requests_per_s: f64) -> Figures {
        Figures {
            requests: 1,
            requests_per_s,
            latency_p50_ns: 1_000_000,
            latency_p99_ns: 2_500_000,
            errors: 1,
        }
    }

    fn report() -> Report {
        let mut report = Report::new(&Options::default());
        let found = Found::from([
            ((Path::Direct, 100), vec![figures(100.0), figures(80.0), figures(90.0)]),
            ((Path::NginxStream, 100), vec![figures(50.0)]),
            ((Path::RingwayHost, 100), vec![figures(88.0)]),
        ]);
        report.summarize(&found);
        report
    }

    #[test]
    fn medians_and_sums() {
        let report = report();
        assert_eq!((report.runs[0].requests_per_s, report.runs[0].errors), (90, 3));
    }

    #[test]
    fn compares_what_it_has() {
        let report = report();
        let host: Vec<_> = report.comparisons.iter().map(|c| (c.path, c.with, c.met)).collect();
        assert_eq!(
            host,
            [
                (Path::RingwayHost, Path::NginxStream, true),
                (Path::RingwayHost, Path::Direct, true),
                (Path::RingwayHost, Path::NginxStream, true),
            ]
        );
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        let run = &json["runs"][0];
        assert_eq!(run["path"], "direct");
        for key in ["connections", "requests_per_s", "latency_p50_ns", "latency_p99_ns", "errors"] {
            assert!(run[key].is_u64(), "{key}");
        }
        assert!(json["machine"]["cores"].is_u64());
        assert!(json.get("configurations").is_none());
    }

    #[test]
    fn table_lines_up() {
        let table = report().to_string();
        let lines: Vec<&str> = table.lines().skip(1).take(4).collect();
        assert!(lines.iter().all(|l| l.len() == lines[0].len()), "{table}");
        assert!(lines[3].trim_start().starts_with("ringway-host"), "{table}");
        assert!(lines[3].ends_with("0.98"), "{table}");
    }
}
