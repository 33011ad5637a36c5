//! The result: JSON by serde, and a table.

use std::fmt;

use serde::Serialize;

use super::case::{Case, Goals};
use super::{Figure, Options, Turn};
use crate::harness::machine::Machine;
use crate::harness::median::median;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.engine/1";

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Medians.
    pub cases: Vec<Row>,
    /// What this machine cannot measure: a case, or its peer.
    pub skipped: Vec<NotRun>,
    /// What should have been measured and was not.
    pub failed: Vec<NotRun>,
    /// Where this was measured.
    pub machine: Machine,
    /// Rounds, of which the figures are the medians.
    pub rounds: u32,
    /// Length of one measurement in seconds.
    pub duration_s: u64,
    /// Memory that dpdk-testpmd had: huge pages or not.
    pub testpmd_memory: Option<&'static str>,
}

/// One case. What there is nothing to compare with, or nothing to be counted of, is none.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The case.
    pub name: Case,
    /// What it was measured beside.
    pub peer: Option<&'static str>,
    /// Packets a second that Ringway dealt with, at most.
    pub ringway_pps: u64,
    /// Packets a second that the peer dealt with, at most.
    pub peer_pps: Option<u64>,
    /// The first by the second.
    pub ratio: Option<f64>,
    /// Ringway's time in user mode at that rate.
    pub ringway_user_ns_per_packet: Option<f64>,
    /// The peer's.
    pub peer_user_ns_per_packet: Option<f64>,
    /// Packets that Ringway lost of a million, at 90 % of its most.
    pub loss_ppm: Option<f64>,
    /// Microseconds that 99 of 100 of Ringway's answers took at most, at half of what the slower one can.
    pub p99_us: Option<u64>,
    /// The peer's, at the same load.
    pub peer_p99_us: Option<u64>,
    /// `ringway_pps` of each round.
    pub ringway_pps_by_round: Vec<u64>,
    /// `peer_pps` of each round.
    pub peer_pps_by_round: Vec<u64>,
    /// What was to be reached, and was or not.
    pub goals: Vec<Goal>,
}

/// Something to be reached.
#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    /// What is counted.
    pub what: &'static str,
    /// What it came to.
    pub figure: f64,
    /// What it should.
    pub goal: f64,
    /// Whether it did.
    pub met: bool,
}

/// A case without figures, or without those of its peer.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun {
    /// The case.
    pub name: Case,
    /// Why, and what would change it.
    pub reason: String,
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            schema: SCHEMA,
            cases: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
            machine: Machine::with(&[]),
            rounds: options.rounds.max(1),
            duration_s: options.duration.as_secs().max(1),
            testpmd_memory: None,
        }
    }

    /// Whether all that can be measured here was.
    pub fn ok(&self) -> bool {
        self.failed.is_empty()
    }
}

impl Row {
    pub(super) fn new(name: Case, turns: &[Turn]) -> Self {
        let all = |side: fn(&Turn) -> Option<Figure>, of: fn(&Figure) -> Option<u64>| {
            turns.iter().filter_map(|turn| of(&side(turn)?)).collect::<Vec<u64>>()
        };
        let middle = |found: Vec<u64>| (!found.is_empty()).then(|| median(&found));
        let thousandths = |found| middle(found).map(|n| n as f64 / 1000.0);
        let (ours, peers) = (|turn: &Turn| Some(turn.ringway), |turn: &Turn| turn.peer);
        let (our_pps, peer_pps) = (all(ours, |f| Some(f.pps)), all(peers, |f| Some(f.pps)));
        let (ringway_pps, peer) = (median(&our_pps), middle(peer_pps.clone()));
        let mut row = Self {
            name,
            peer: name.peer().filter(|_| peer.is_some()),
            ringway_pps,
            peer_pps: peer,
            ratio: peer.map(|peer| ringway_pps as f64 / peer.max(1) as f64),
            ringway_user_ns_per_packet: thousandths(all(ours, |f| f.user_ps)),
            peer_user_ns_per_packet: thousandths(all(peers, |f| f.user_ps)),
            loss_ppm: thousandths(all(ours, |f| f.lost_ppb)),
            p99_us: middle(all(ours, |f| f.p99_us)),
            peer_p99_us: middle(all(peers, |f| f.p99_us)),
            ringway_pps_by_round: our_pps,
            peer_pps_by_round: peer_pps,
            goals: Vec::new(),
        };
        row.goals = row.judge(name.goals());
        row
    }

    fn judge(&self, goals: Goals) -> Vec<Goal> {
        let by = |a: Option<f64>, b: Option<f64>| Some(a? / b.filter(|b| *b > 0.0)?);
        let user = by(self.ringway_user_ns_per_packet, self.peer_user_ns_per_packet);
        let us = |us: Option<u64>| us.map(|us| us as f64);
        let p99 = by(us(self.p99_us), us(self.peer_p99_us));
        let at_least = |a: f64, b: f64| a >= b;
        let at_most = |a: f64, b: f64| a <= b;
        let below = |a: f64, b: f64| a < b;
        type Met = fn(f64, f64) -> bool;
        let all: [(&str, Option<f64>, Option<f64>, Met); 5] = [
            ("packets, of the peer's, at least", self.ratio, goals.ratio, at_least),
            ("user-mode time, of the peer's, at most", user, goals.user, at_most),
            ("lost of a million at 90 %, fewer than", self.loss_ppm, goals.loss_ppm, below),
            ("p99 at equal load, of the peer's, below", p99, goals.p99, below),
            ("ns, below", self.ringway_user_ns_per_packet, goals.ns, below),
        ];
        let judged = all.into_iter().filter_map(|(what, figure, goal, met)| {
            let (figure, goal) = (figure?, goal?);
            Some(Goal { what, figure, goal, met: met(figure, goal) })
        });
        judged.collect()
    }
}

/// A figure, or that there is none.
fn or_none<T: fmt::Display>(figure: Option<T>, digits: usize) -> String {
    figure.map_or_else(|| "-".into(), |figure| format!("{figure:.digits$}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<19} {:>12} {:>12} {:>6} {:>9} {:>9} {:>9} {:>7} {:>9}",
            "case",
            "packets/s",
            "peer's",
            "ratio",
            "user ns",
            "peer's",
            "lost ppm",
            "p99 us",
            "peer's"
        )?;
        for row in &self.cases {
            writeln!(
                f,
                "  {:<19} {:>12} {:>12} {:>6} {:>9} {:>9} {:>9} {:>7} {:>9}",
                row.name,
                row.ringway_pps,
                or_none(row.peer_pps.map(|n| n as f64), 0),
                or_none(row.ratio, 2),
                or_none(row.ringway_user_ns_per_packet, 1),
                or_none(row.peer_user_ns_per_packet, 1),
                or_none(row.loss_ppm, 1),
                or_none(row.p99_us.map(|n| n as f64), 0),
                or_none(row.peer_p99_us.map(|n| n as f64), 0),
            )?;
        }
        writeln!(f, "\ngoals")?;
        for row in &self.cases {
            for Goal { what, figure, goal, met } in &row.goals {
                let met = if *met { "met" } else { "MISSED" };
                writeln!(f, "  {:<19} {what} {goal:.2}: {figure:.2}: {met}", row.name)?;
            }
        }
        for (what, list) in [("skipped", &self.skipped), ("FAILED", &self.failed)] {
            for not in list {
                writeln!(f, "{what}: {}: {}", not.name, not.reason)?;
            }
        }
        let m = &self.machine;
        writeln!(f, "\n{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        let versions: Vec<String> = m.versions.iter().map(|(k, v)| format!("{k} {v}")).collect();
        write!(f, "{}", versions.join(", "))?;
        if let Some(memory) = self.testpmd_memory {
            write!(f, "; dpdk-testpmd in {memory}")?;
        }
        writeln!(f, "; medians of {} rounds of {} s, in turns", self.rounds, self.duration_s)?;
        writeln!(f, "Network namespaces on one machine: these figures say nothing about hardware.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(pps: u64, user_ps: u64) -> Figure {
        Figure { pps, user_ps: Some(user_ps), ..Figure::default() }
    }

    fn report() -> Report {
        let mut report = Report::new(&Options::default());
        let turn = |ours, peers| Turn {
            ringway: Figure { lost_ppb: Some(500), ..figure(ours, 9_000) },
            peer: Some(figure(peers, 13_000)),
        };
        report.cases = vec![
            Row::new(Case::AfXdpReceive, &[turn(90, 200), turn(196, 200), turn(300, 100)]),
            Row::new(Case::WireParse, &[Turn { ringway: figure(7, 5_000), peer: None }]),
        ];
        report.skipped.push(NotRun { name: Case::Bid, reason: "no reason".into() });
        report
    }

    #[test]
    fn medians_and_goals() {
        let report = report();
        let row = &report.cases[0];
        assert_eq!((row.ringway_pps, row.peer_pps, row.ratio), (196, Some(200), Some(0.98)));
        assert_eq!((row.ringway_user_ns_per_packet, row.loss_ppm), (Some(9.0), Some(0.5)));
        assert!(row.goals.len() == 3 && row.goals.iter().all(|goal| goal.met), "{:?}", row.goals);
        let missed: Vec<_> = report.cases[1].goals.iter().map(|goal| goal.met).collect();
        assert_eq!(missed, [false], "5 ns are not below 5 ns");
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        assert!(json["machine"]["cores"].is_u64());
        let (row, alone) = (&json["cases"][0], &json["cases"][1]);
        assert_eq!((&row["name"], &row["ratio"]), (&"af_xdp-receive".into(), &0.98.into()));
        for key in ["ringway_pps", "peer_pps"] {
            assert!(row[key].is_u64(), "{key}");
        }
        for key in ["ringway_user_ns_per_packet", "peer_user_ns_per_packet", "loss_ppm"] {
            assert!(row[key].is_f64(), "{key}");
        }
        for key in ["peer", "peer_pps", "ratio", "peer_user_ns_per_packet", "loss_ppm", "p99_us"] {
            assert!(alone[key].is_null(), "{key}");
        }
        assert_eq!(json["skipped"][0]["reason"], "no reason");
    }

    #[test]
    fn table_lines_up() {
        let table = report().to_string();
        let lines: Vec<&str> = table.lines().take(3).collect();
        assert!(lines.iter().all(|l| l.len() == lines[0].len()), "{table}");
        assert!(table.contains("of the peer's, at least 0.98: 0.98: met"), "{table}");
        assert!(table.contains("ns, below 5.00: 5.00: MISSED"), "{table}");
        assert!(table.contains("skipped: bid: no reason"), "{table}");
    }
}
