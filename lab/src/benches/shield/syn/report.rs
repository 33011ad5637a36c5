//! Figures of answers to SYNs, and whether they are as fast as they shall be.

use serde::Serialize;

use super::super::goal::ShieldGoal;
use super::Answerer;
use super::costs::AnswerCost;
use super::floods::Flooded;
use crate::harness::report::Goal;
use crate::harness::table::{Column, or_dash, table};

/// Answers a second, of the bare program's, at least.
const OF_BARE: f64 = 0.7;
/// Nanoseconds of an answer, of the bare program's, at most.
const TIMES_BARE: f64 = 1.5;

#[derive(Debug, Default, Serialize)]
pub struct SynFigures {
    pub costs: Vec<AnswerCost>,
    pub floods: Vec<Flooded>,
}

impl SynFigures {
    #[cfg(test)]
    pub(in super::super) fn example() -> Self {
        use super::floods::Good;
        use crate::benches::packet::path::Ip;
        let cost = |answerer, ns| AnswerCost { answerer, ip: Ip::V4, ns, ns_by_round: vec![ns] };
        let flooded = |answerer, of_bare| Flooded {
            answerer,
            answered_pps: 600,
            bare_answered_pps: 1000,
            of_bare,
            of_bare_by_round: vec![of_bare],
            backend_syns: 0,
            flows_opened: Some(1),
            flood_pps: 500,
            flood_wanted_pps: 500,
            good: Good { established_failed: 1, ..Good::default() },
            good_in_peace: Good::default(),
        };
        Self {
            costs: vec![cost(Answerer::BareAnswer, 20), cost(Answerer::Challenge, 40)],
            floods: vec![flooded(Answerer::Challenge, 0.6), flooded(Answerer::KernelCookies, 0.1)],
        }
    }

    /// How many times what the bare program takes.
    fn times_bare(&self, cost: &AnswerCost) -> Option<f64> {
        let is_bare = |it: &&AnswerCost| (it.ip, it.answerer) == (cost.ip, Answerer::BareAnswer);
        let bare = self.costs.iter().find(is_bare)?;
        Some(cost.ns as f64 / bare.ns.max(1) as f64)
    }

    pub(in super::super) fn goals(&self) -> Vec<ShieldGoal> {
        let ours = |answerer: Answerer| answerer.path().is_some();
        let mut goals = Vec::new();
        for cost in self.costs.iter().filter(|cost| ours(cost.answerer)) {
            goals.extend(self.times_bare(cost).map(|times| ShieldGoal {
                case: format!("answer to a SYN, IPv{}, {}", cost.ip.number(), cost.answerer),
                goal: Goal::at_most("times a bare program at most", times, TIMES_BARE),
            }));
        }
        for row in self.floods.iter().filter(|row| ours(row.answerer)) {
            let none = |what, figure: u64| Goal::at_most(what, figure as f64, 0.0);
            let own = [
                Goal::at_least("of the bare program's answers at least", row.of_bare, OF_BARE),
                none("SYNs at the backend at most", row.backend_syns),
                none("flows at most", row.flows_opened.unwrap_or(0)),
                none(
                    "requests of established connections lost at most",
                    row.good.established_failed,
                ),
                none("new connections lost at most", row.good.new_failed),
            ];
            let case = format!("SYNs upon {}", row.answerer);
            goals.extend(own.map(|goal| ShieldGoal { case: case.clone(), goal }));
        }
        goals
    }

    pub(in super::super) fn tables(&self) -> String {
        let mut text = String::new();
        if !self.costs.is_empty() {
            let rows: Vec<_> =
                self.costs.iter().map(|cost| (cost, self.times_bare(cost))).collect();
            text +=
                &table(&COST_COLUMNS, rows.iter().map(|(cost, times)| ((*cost).clone(), *times)));
            text.push('\n');
        }
        if !self.floods.is_empty() {
            text += &table(&FLOOD_COLUMNS, &self.floods);
        }
        text
    }

    pub(in super::super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.costs.is_empty() {
            notes.push("answers: nanoseconds by BPF_PROG_TEST_RUN without those of the feeder, a million sources in turns.".into());
        }
        if !self.floods.is_empty() {
            notes.push("SYNs: of bare is without good traffic, each beside a run of bare-answer; lost and p99 are beside 70 % of the answerer's own rate.".into());
        }
        notes
    }
}

const COST_COLUMNS: [Column<(AnswerCost, Option<f64>)>; 5] = [
    Column::text("answer by", |(cost, _)| cost.answerer.to_string()),
    Column::number("IPv", |(cost, _)| cost.ip.number().to_string()),
    Column::number("ns", |(cost, _)| cost.ns.to_string()),
    Column::number("x bare", |(_, times)| or_dash(*times, 2)),
    Column::text("by round", |(cost, _)| format!("{:?}", cost.ns_by_round)),
];

const FLOOD_COLUMNS: [Column<Flooded>; 11] = [
    Column::text("SYNs upon", |row| row.answerer.to_string()),
    Column::number("answers/s", |row| row.answered_pps.to_string()),
    Column::number("of bare", |row| format!("{:.2}", row.of_bare)),
    Column::number("at backend", |row| row.backend_syns.to_string()),
    Column::number("flows", |row| or_dash(row.flows_opened.map(|count| count as f64), 0)),
    Column::number("beside/s", |row| row.flood_pps.to_string()),
    Column::number("requests", |row| row.good.established_requests.to_string()),
    Column::number("lost", |row| row.good.established_failed.to_string()),
    Column::number("new lost", |row| {
        format!("{}/{}", row.good.new_failed, row.good.new_connections)
    }),
    Column::number("p99 us", |row| us(row.good.new_p99_ns)),
    Column::number("in peace", |row| us(row.good_in_peace.new_p99_ns)),
];

fn us(ns: Option<u64>) -> String {
    or_dash(ns.map(|ns| ns as f64 / 1000.0), 0)
}
