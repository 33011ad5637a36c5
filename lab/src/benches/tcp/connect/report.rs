//! Figures: the time of connecting, experiment by experiment.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::site::Outcome;
use super::{Experiment, Pace};
use crate::benches::tcp::counters::in_words;
use crate::harness::Figures;
use crate::harness::median::{middle, percentile, rounded};
use crate::harness::plot::{Bar, Line, Page};
use crate::harness::table::{Column, or_dash, table};

/// A connection that takes longer waited for a second SYN, which follows after one second (RFC
/// 6298).
const RETRANSMITTED: Duration = Duration::from_millis(900);

#[derive(Debug, Serialize)]
pub struct ConnectFigures {
    pub rows: Vec<Row>,
    /// The means by which ways took time: netem, or a relay and why; none if no way did.
    pub delays: Option<String>,
}

/// Connections of one kind.
#[derive(Debug, Serialize)]
pub struct Row {
    pub experiment: Experiment,
    pub case: String,
    #[serde(skip)]
    pub pace: Option<Pace>,
    pub connections: u64,
    /// Connections that were not.
    pub failed: u64,
    /// Round trip of a byte over a connection, median, in microseconds.
    pub rtt_us: Option<f64>,
    /// connect(), or until it could be written to: the median, in microseconds; none where none was
    /// made.
    pub connect_p50_us: Option<f64>,
    /// 99 of 100 took at most this.
    pub connect_p99_us: Option<f64>,
    pub connect_max_us: Option<f64>,
    /// From connect() to accept(), the median; none where all are made at once.
    pub accept_p50_us: Option<f64>,
    /// Connections that took 0.9 s or more: a SYN was lost and sent again.
    pub a_second_late: u64,
    /// Counters of trouble that moved, of both ends.
    pub counters: BTreeMap<&'static str, u64>,
}

impl Row {
    pub(super) fn new(
        experiment: Experiment,
        case: String,
        pace: Option<Pace>,
        rtt: &[Duration],
        outcome: &Outcome,
    ) -> Self {
        let us = |ns: f64| rounded(ns / 1e3, 1);
        let p50_us = |times: &[Duration]| middle(times.iter().map(|t| t.as_nanos() as f64)).map(us);
        let mut connect: Vec<_> = outcome.connect.iter().map(|time| (*time, 1)).collect();
        connect.sort();
        let connect_us = |percent| Some(us(percentile(&connect, percent)?.as_nanos() as f64));
        let late = outcome.connect.iter().filter(|time| **time >= RETRANSMITTED);
        Self {
            experiment,
            case,
            pace,
            connections: outcome.connect.len() as u64,
            failed: outcome.failed,
            rtt_us: p50_us(rtt),
            connect_p50_us: p50_us(&outcome.connect),
            connect_p99_us: connect_us(99),
            connect_max_us: connect_us(100),
            accept_p50_us: p50_us(&outcome.accept),
            a_second_late: late.count() as u64,
            counters: outcome.counters.clone(),
        }
    }

    pub(super) fn in_words(&self) -> String {
        let (experiment, case) = (self.experiment, &self.case);
        let (Some(p50), Some(max)) = (self.connect_p50_us, self.connect_max_us) else {
            return format!("{experiment:<12} {case:<30} none connected");
        };
        format!("{experiment:<12} {case:<30} median {p50:>10.1} us, slowest {max:>10.1} us")
    }
}

const COLUMNS: [Column<Row>; 11] = [
    Column::text("experiment", |row| row.experiment.to_string()),
    Column::text("case", |row| row.case.clone()),
    Column::number("made", |row| row.connections.to_string()),
    Column::number("never", |row| row.failed.to_string()),
    Column::number("rtt us", |row| or_dash(row.rtt_us, 1)),
    Column::number("median us", |row| or_dash(row.connect_p50_us, 1)),
    Column::number("p99 us", |row| or_dash(row.connect_p99_us, 1)),
    Column::number("slowest us", |row| or_dash(row.connect_max_us, 1)),
    Column::number("accept us", |row| or_dash(row.accept_p50_us, 1)),
    Column::number("+1 s", |row| row.a_second_late.to_string()),
    Column::text("counters", |row| in_words(&row.counters)),
];
const NOTES: &str = "made: connections; never: those that were not. rtt: the median round trip of a byte; for syn-queue the delay that was set. median, p99, slowest: of connect(), or until the \
    connection\ncan be written to; accept: the median from connect() to accept(). +1 s: connections that took 0.9 s or more, since a SYN was lost \
    and sent again.\n--connections counts for loopback, veth and delayed (of delayed one by one at most 50); queues get 64 each, ports 50.\n\
    source (2022): one round trip when healthy; on one host 540 us unpaced, 48 us paced; connect() 22 us, with 30 000 in TIME_WAIT 2500 us.";

impl ConnectFigures {
    fn of(&self, experiment: Experiment) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.experiment == experiment)
    }

    fn by_rtt(&self, pace: Pace) -> Line {
        let rows = self.of(Experiment::Delayed).filter(|row| row.pace == Some(pace));
        let points = rows.filter_map(|row| Some((row.rtt_us? / 1e3, row.connect_p50_us? / 1e3)));
        Line { label: pace.name().into(), points: points.collect() }
    }
}

impl Figures for ConnectFigures {
    fn tables(&self) -> String {
        table(&COLUMNS, &self.rows)
    }

    fn notes(&self) -> Vec<String> {
        let delays = self.delays.as_ref().map(|delays| format!("delays: {delays}"));
        delays.into_iter().chain([NOTES.to_owned()]).collect()
    }

    fn page(&self) -> Option<Page> {
        let lede = "connect(), from the call until the connection can be written to.";
        let mut page = Page::new("How long it takes to connect", lede);
        // The experiment is what stands above.
        let columns = &COLUMNS.each_ref()[1..];
        let lines = Pace::ALL.map(|pace| self.by_rtt(pace));
        if lines.iter().any(|line| !line.points.is_empty()) {
            let title = "A handshake is a round trip";
            page.lines(title, ("round trip, ms", "connect(), ms, median"), &lines);
            page.table(columns, self.of(Experiment::Delayed));
        }
        for (title, experiment) in [
            ("Over lo", Experiment::Loopback),
            ("Over a veth pair", Experiment::Veth),
            ("An accept queue that overflows", Experiment::AcceptQueue),
            ("A SYN queue that overflows, 100 ms away", Experiment::SynQueue),
            ("Few ports left", Experiment::Ports),
        ] {
            let rows: Vec<&Row> = self.of(experiment).collect();
            let slowest = rows.iter().filter_map(|row| row.connect_max_us).fold(0.0, f64::max);
            let (unit, us) = if slowest >= 100_000.0 { ("ms", 1e3) } else { ("us", 1.0) };
            let bars: Vec<Bar> = rows.iter().flat_map(|row| bars(row, us)).collect();
            if !bars.is_empty() {
                page.bars(title, unit, "", &bars);
                page.table(columns, rows);
            }
        }
        Some(page)
    }
}

/// The median and the slowest, where there are any.
fn bars(row: &Row, unit_us: f64) -> impl Iterator<Item = Bar> {
    let figures = [("median", row.connect_p50_us), ("slowest", row.connect_max_us)];
    figures.into_iter().filter_map(move |(what, us)| {
        let label = format!("{}, {what}", row.case);
        Some(Bar { label, parts: vec![(what.into(), us? / unit_us)], marks: Vec::new() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::report::testing;

    fn figures() -> ConnectFigures {
        let times = |all: &[u64]| all.iter().map(|us| Duration::from_micros(*us)).collect();
        let outcome = Outcome {
            connect: times(&[30, 10, 1_000_100, 20]),
            accept: times(&[15]),
            failed: 2,
            counters: [("ListenOverflows", 3)].into(),
        };
        let rtt = [Duration::from_micros(9)];
        let row =
            |experiment, case: &str, pace| Row::new(experiment, case.into(), pace, &rtt, &outcome);
        let rows = vec![
            row(Experiment::AcceptQueue, "short", None),
            row(Experiment::Delayed, "2 ms, one by one", Some(Pace::OneByOne)),
        ];
        ConnectFigures { rows, delays: Some("a relay".into()) }
    }

    #[test]
    fn quantiles_and_the_second() {
        let row = &figures().rows[0];
        assert_eq!((row.connect_p50_us, row.connect_max_us), (Some(25.0), Some(1_000_100.0)));
        assert_eq!((row.connections, row.failed, row.a_second_late), (4, 2, 1));
        assert_eq!((row.rtt_us, row.accept_p50_us), (Some(9.0), Some(15.0)));
        let nothing = Row::new(Experiment::Veth, String::new(), None, &[], &Outcome::default());
        assert_eq!((nothing.connect_p50_us, nothing.rtt_us), (None, None));
    }

    #[test]
    fn table_and_page() {
        let report = testing::report("tcp-connect", figures(), Vec::new());
        let text = report.to_string();
        testing::lines_up(&text.replace("ListenOverflows 3", "counters"), 3);
        assert!(text.contains("ListenOverflows 3"), "{text}");
        assert!(text.contains("\ndelays: a relay\n"), "{text}");
        let page = report.html().unwrap();
        assert!(page.contains("<polyline"), "{page}");
        assert!(page.contains("accept queue that overflows"), "{page}");
        for column in COLUMNS[1..].iter().map(|column| column.heading) {
            assert!(text.contains(column), "{column}: {text}");
            assert!(page.contains(&format!("<th>{column}</th>")), "{column}: {page}");
        }
    }

    #[test]
    fn json_has_the_promised_keys() {
        let report = testing::report("tcp-connect", figures(), Vec::new());
        assert_eq!(
            testing::names(&report),
            "delays failed machine rows rows.a_second_late rows.accept_p50_us rows.case rows.connect_max_us \
             rows.connect_p50_us rows.connect_p99_us rows.connections rows.counters rows.counters.ListenOverflows \
             rows.experiment rows.failed rows.rtt_us schema skipped"
        );
        assert_eq!(serde_json::to_value(&report).unwrap()["rows"][0]["experiment"], "accept-queue");
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let outcome = Outcome { failed: 50, ..Outcome::default() };
        let row = Row::new(Experiment::Ports, "none free".into(), None, &[], &outcome);
        assert!(row.in_words().ends_with("none connected"), "{}", row.in_words());
        let json = serde_json::to_value(&row).unwrap();
        for figure in
            ["connect_p50_us", "connect_p99_us", "connect_max_us", "accept_p50_us", "rtt_us"]
        {
            assert!(json[figure].is_null(), "{json}");
        }
        assert_eq!(bars(&row, 1.0).count(), 0);
    }
}
