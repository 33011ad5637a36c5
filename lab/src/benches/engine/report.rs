//! Figures: medians of each case, and Ringway beside its peer.

use serde::Serialize;

use super::case::{Case, Goals};
use super::{Figure, Turn};
use crate::harness::Figures;
use crate::harness::median::median;
use crate::harness::report::Goal;
use crate::harness::table::{Column, or_dash, table};

#[derive(Debug, Serialize)]
pub struct EngineFigures {
    pub cases: Vec<Row>,
    pub rounds: u32,
    /// Length of one measurement in seconds.
    pub duration_s: u64,
    /// Memory that dpdk-testpmd had: huge pages or not.
    pub testpmd_memory: Option<&'static str>,
}

/// Medians of one case. What there is nothing to compare with, or nothing to be counted of, is
/// none.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: Case,
    /// The peer beside which it was measured.
    pub peer: Option<&'static str>,
    /// Packets a second that Ringway dealt with, at most.
    pub ringway_pps: u64,
    pub peer_pps: Option<u64>,
    /// The first by the second.
    pub ratio: Option<f64>,
    /// Time in user mode at that rate.
    pub ringway_user_ns_per_packet: Option<f64>,
    pub peer_user_ns_per_packet: Option<f64>,
    /// Packets that Ringway lost of a million, at 90 % of its most.
    pub loss_ppm: Option<f64>,
    /// Those of them that the kernel dropped before Ringway's socket.
    pub loss_before_socket_ppm: Option<f64>,
    /// Microseconds of that time in which Ringway's thread was ready to run, and did not.
    pub waited_us: Option<u64>,
    /// Microseconds that 99 of 100 of Ringway's answers took at most, at half of what the slower
    /// one can.
    pub p99_us: Option<u64>,
    /// The peer's, at the same load.
    pub peer_p99_us: Option<u64>,
    pub ringway_pps_by_round: Vec<u64>,
    pub peer_pps_by_round: Vec<u64>,
    pub goals: Vec<Goal>,
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
            loss_ppm: thousandths(all(ours, |f| f.loss.map(|loss| loss.ppb))),
            loss_before_socket_ppm: thousandths(all(ours, |f| f.loss.map(|loss| loss.before_ppb))),
            waited_us: middle(all(ours, |f| Some(f.loss?.waited?.as_micros() as u64))),
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
        type Judge = fn(&'static str, f64, f64) -> Goal;
        let all: [(Judge, &str, Option<f64>, Option<f64>); 5] = [
            (Goal::at_least, "packets, of the peer's, at least", self.ratio, goals.ratio),
            (Goal::at_most, "user-mode time, of the peer's, at most", user, goals.user),
            (Goal::below, "lost of a million at 90 %, fewer than", self.loss_ppm, goals.loss_ppm),
            (Goal::below, "p99 at equal load, of the peer's, below", p99, goals.p99),
            (Goal::below, "ns, below", self.ringway_user_ns_per_packet, goals.ns),
        ];
        all.into_iter()
            .filter_map(|(judge, what, is, goal)| Some(judge(what, is?, goal?)))
            .collect()
    }
}

const COLUMNS: [Column<Row>; 11] = [
    Column::text("case", |row| row.name.to_string()),
    Column::number("packets/s", |row| row.ringway_pps.to_string()),
    Column::number("peer's", |row| or_dash(row.peer_pps.map(|n| n as f64), 0)),
    Column::number("ratio", |row| or_dash(row.ratio, 2)),
    Column::number("user ns", |row| or_dash(row.ringway_user_ns_per_packet, 1)),
    Column::number("peer's", |row| or_dash(row.peer_user_ns_per_packet, 1)),
    Column::number("lost ppm", |row| or_dash(row.loss_ppm, 1)),
    Column::number("before", |row| or_dash(row.loss_before_socket_ppm, 1)),
    Column::number("waited us", |row| or_dash(row.waited_us.map(|n| n as f64), 0)),
    Column::number("p99 us", |row| or_dash(row.p99_us.map(|n| n as f64), 0)),
    Column::number("peer's", |row| or_dash(row.peer_p99_us.map(|n| n as f64), 0)),
];

impl Figures for EngineFigures {
    fn tables(&self) -> String {
        table(&COLUMNS, &self.cases)
    }

    fn goals(&self) -> Vec<String> {
        let of = |row: &Row| {
            let name = row.name;
            row.goals.iter().map(|goal| format!("{name:<19} {goal}")).collect::<Vec<_>>()
        };
        self.cases.iter().flat_map(of).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        notes.extend(self.testpmd_memory.map(|memory| format!("dpdk-testpmd in {memory}")));
        notes.push(format!("medians of {} rounds of {} s, in turns", self.rounds, self.duration_s));
        if self.cases.iter().any(|case| case.loss_ppm.is_some()) {
            notes.push(
                "lost ppm: at 90 % of Ringway's most, of a million sent; before: those of them that the kernel dropped before Ringway's socket; waited us: how long Ringway's thread was then ready to run, and its processor had others"
                    .into(),
            );
        }
        notes.push(
            "Network namespaces on one machine: these figures say nothing about hardware.".into(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::super::Loss;
    use super::*;
    use crate::harness::report::testing;

    fn figures() -> EngineFigures {
        let figure = |pps, user_ps| Figure { pps, user_ps: Some(user_ps), ..Figure::default() };
        let turn = |ours, peers| Turn {
            ringway: Figure {
                loss: Some(Loss { ppb: 500, ..Loss::default() }),
                ..figure(ours, 9_000)
            },
            peer: Some(figure(peers, 13_000)),
        };
        let cases = vec![
            Row::new(Case::AfXdpReceive, &[turn(90, 200), turn(196, 200), turn(300, 100)]),
            Row::new(Case::WireParse, &[Turn { ringway: figure(7, 5_000), peer: None }]),
        ];
        EngineFigures { cases, rounds: 3, duration_s: 5, testpmd_memory: None }
    }

    #[test]
    fn medians_and_goals() {
        let cases = figures().cases;
        let row = &cases[0];
        assert_eq!((row.ringway_pps, row.peer_pps, row.ratio), (196, Some(200), Some(0.98)));
        assert_eq!((row.ringway_user_ns_per_packet, row.loss_ppm), (Some(9.0), Some(0.5)));
        assert!(row.goals.len() == 3 && row.goals.iter().all(|goal| goal.met), "{:?}", row.goals);
        let missed: Vec<_> = cases[1].goals.iter().map(|goal| goal.met).collect();
        assert_eq!(missed, [false], "5 ns are not below 5 ns");
    }

    #[test]
    fn json_has_the_promised_keys() {
        let report = testing::report("engine", figures(), Vec::new());
        assert_eq!(
            testing::names(&report),
            "cases cases.goals cases.goals.figure cases.goals.goal cases.goals.met cases.goals.what \
             cases.loss_before_socket_ppm cases.loss_ppm cases.name cases.p99_us cases.peer cases.peer_p99_us cases.peer_pps cases.peer_pps_by_round \
             cases.peer_user_ns_per_packet cases.ratio cases.ringway_pps cases.ringway_pps_by_round \
             cases.ringway_user_ns_per_packet cases.waited_us duration_s failed machine rounds schema skipped testpmd_memory"
        );
        let json = serde_json::to_value(report).unwrap();
        let (row, alone) = (&json["cases"][0], &json["cases"][1]);
        assert_eq!((&row["name"], &row["ratio"]), (&"af_xdp-receive".into(), &0.98.into()));
        for key in ["peer", "peer_pps", "ratio", "peer_user_ns_per_packet", "loss_ppm", "p99_us"] {
            assert!(alone[key].is_null(), "{key}");
        }
    }

    #[test]
    fn table_lines_up() {
        testing::lines_up(&figures().tables(), 3);
        let goals = figures().goals().join("\n");
        assert!(goals.contains("of the peer's, at least 0.98: 0.98: met"), "{goals}");
        assert!(goals.contains("ns, below 5.00: 5.00: MISSED"), "{goals}");
    }
}
