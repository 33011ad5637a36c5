//! The result: JSON by serde, a table, a page.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Experiment;
use super::site::Outcome;
use crate::benches::tcp::counters::in_words;
use crate::harness::machine::Machine;
use crate::harness::plot::{Bar, Line, Page};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.tcp-connect/1";
/// What waited longer than this waited for a SYN to be sent again, which is after one second (RFC 6298).
const RETRANSMITTED: Duration = Duration::from_millis(900);

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What made ways take time: netem, or a relay and why; none where no way did.
    pub delays: Option<String>,
    /// Experiments that could not be made, or not to their end.
    pub failed: Vec<NotRun>,
    /// Where this was measured.
    pub machine: Machine,
}

/// Connections of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The experiment.
    pub experiment: Experiment,
    /// What of it.
    pub case: String,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were not.
    pub failed: u64,
    /// Round trip of a byte over a connection, median, in microseconds.
    pub rtt_us: Option<f64>,
    /// connect(), or until it could be written to: the median, in microseconds; none where none was made.
    pub connect_p50_us: Option<f64>,
    /// 99 of 100 took at most this.
    pub connect_p99_us: Option<f64>,
    /// The slowest.
    pub connect_max_us: Option<f64>,
    /// From connect() to accept(), the median; none where all are made at once.
    pub accept_p50_us: Option<f64>,
    /// Connections that took 0.9 s or more: a SYN was lost and sent again.
    pub a_second_late: u64,
    /// Counters of trouble that moved, of both ends.
    pub counters: BTreeMap<&'static str, u64>,
}

/// An experiment without an end.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun {
    /// Which.
    pub experiment: Experiment,
    /// Why, and what would change it.
    pub reason: String,
}

impl Row {
    pub(super) fn new(
        experiment: Experiment,
        case: String,
        rtt: &[Duration],
        outcome: &Outcome,
    ) -> Self {
        let quantile = |times: &[Duration], share: f64| -> Option<f64> {
            let mut times = times.to_vec();
            times.sort();
            let place = (times.len() as f64 * share) as usize;
            let time = times.get(place.min(times.len().checked_sub(1)?))?;
            Some((time.as_nanos() as f64 / 100.0).round() / 10.0)
        };
        let connect = |share| quantile(&outcome.connect, share);
        let late = outcome.connect.iter().filter(|time| **time >= RETRANSMITTED);
        Self {
            experiment,
            case,
            connections: outcome.connect.len() as u64,
            failed: outcome.failed,
            rtt_us: quantile(rtt, 0.5),
            connect_p50_us: connect(0.5),
            connect_p99_us: connect(0.99),
            connect_max_us: connect(1.0),
            accept_p50_us: quantile(&outcome.accept, 0.5),
            a_second_late: late.count() as u64,
            counters: outcome.counters.clone(),
        }
    }

    /// A line of progress.
    pub(super) fn in_words(&self) -> String {
        let (experiment, case) = (self.experiment, &self.case);
        let (Some(p50), Some(max)) = (self.connect_p50_us, self.connect_max_us) else {
            return format!("{experiment:<12} {case:<30} none connected");
        };
        format!("{experiment:<12} {case:<30} median {p50:>10.1} us, slowest {max:>10.1} us")
    }

    fn in_cells(&self) -> [String; 10] {
        let or_none = |us: Option<f64>| us.map_or_else(|| "-".into(), |us| format!("{us:.1}"));
        [
            self.case.clone(),
            self.connections.to_string(),
            self.failed.to_string(),
            or_none(self.rtt_us),
            or_none(self.connect_p50_us),
            or_none(self.connect_p99_us),
            or_none(self.connect_max_us),
            or_none(self.accept_p50_us),
            self.a_second_late.to_string(),
            in_words(&self.counters),
        ]
    }
}

/// Columns of the table and of the page's.
const HEADING: [&str; 10] = [
    "case",
    "made",
    "never",
    "rtt us",
    "median us",
    "p99 us",
    "slowest us",
    "accept us",
    "+1 s",
    "counters",
];
/// What they are.
const NOTES: &str = "made: connections; never: those that were not. rtt: the median round trip of a byte; for syn-queue the delay that was set. median, p99, slowest: of connect(), or until the \
    connection\ncan be written to; accept: the median from connect() to accept(). +1 s: connections that took 0.9 s or more, since a SYN was lost \
    and sent again.\n--connections counts for loopback, veth and delayed (of delayed one by one at most 50); queues get 64 each, ports 50.\n\
    source (2022): one round trip when healthy; on one host 540 us unpaced, 48 us paced; connect() 22 us, with 30 000 in TIME_WAIT 2500 us.";

impl Report {
    pub(super) fn new(machine: Machine) -> Self {
        Self { schema: SCHEMA, rows: Vec::new(), delays: None, failed: Vec::new(), machine }
    }

    /// Whether all was measured.
    pub fn ok(&self) -> bool {
        self.failed.is_empty()
    }

    fn of(&self, experiment: Experiment) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.experiment == experiment)
    }

    /// One self-contained page with plots.
    pub fn html(&self) -> String {
        let lede = "connect(), from the call until the connection can be written to.";
        let mut page = Page::new("How long it takes to connect", lede);
        let kinds = ["one by one", "all at once"];
        let lines: Vec<Line> = kinds.map(|kind| self.by_rtt(kind)).into();
        if lines.iter().any(|line| !line.points.is_empty()) {
            let title = "A handshake is a round trip";
            page.lines(title, ("round trip, ms", "connect(), ms, median"), &lines);
            let rows = self.of(Experiment::Delayed);
            page.table(&HEADING, rows.map(|row| row.in_cells().into()));
            page.text(&format!("Delays: {}.", self.delays.as_deref().unwrap_or("none")));
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
                page.table(&HEADING, rows.iter().map(|row| row.in_cells().into()));
            }
        }
        for NotRun { experiment, reason } in &self.failed {
            page.text(&format!("Failed: {experiment}: {reason}"));
        }
        page.text(NOTES);
        page.finish(&self.machine)
    }

    fn by_rtt(&self, kind: &str) -> Line {
        let rows = self.of(Experiment::Delayed).filter(|row| row.case.ends_with(kind));
        let points = rows.filter_map(|row| Some((row.rtt_us? / 1e3, row.connect_p50_us? / 1e3)));
        Line { label: kind.into(), points: points.collect() }
    }
}

/// The median and the slowest, where there are any.
fn bars(row: &Row, unit_us: f64) -> impl Iterator<Item = Bar> {
    let figures = [("median", row.connect_p50_us), ("slowest", row.connect_max_us)];
    figures.into_iter().filter_map(move |(what, us)| {
        let label = format!("{}, {what}", row.case);
        Some(Bar { label, parts: vec![(what.into(), us? / unit_us)], mark: None })
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |experiment: &str, cells: [&str; 10]| {
            let [case, made, never, rtt, median, p99, slowest, accept, late, counters] = cells;
            writeln!(
                f,
                "  {experiment:<12} {case:<28} {made:>5} {never:>5} {rtt:>10} {median:>11} {p99:>11} {slowest:>11} {accept:>11} {late:>6}  \
                 {counters}"
            )
        };
        line("experiment", HEADING)?;
        for row in &self.rows {
            line(row.experiment.name(), row.in_cells().each_ref().map(String::as_str))?;
        }
        for NotRun { experiment, reason } in &self.failed {
            writeln!(f, "FAILED: {experiment}: {reason}")?;
        }
        let m = &self.machine;
        writeln!(f)?;
        if let Some(delays) = &self.delays {
            writeln!(f, "delays: {delays}")?;
        }
        writeln!(f, "{NOTES}")?;
        writeln!(f, "{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let times = |all: &[u64]| all.iter().map(|us| Duration::from_micros(*us)).collect();
        let outcome = Outcome {
            connect: times(&[30, 10, 1_000_100, 20]),
            accept: times(&[15]),
            failed: 2,
            counters: [("ListenOverflows", 3)].into(),
        };
        let mut report = Report::new(Machine::with(&[]));
        let rtt = [Duration::from_micros(9)];
        report.rows.push(Row::new(Experiment::AcceptQueue, "short".into(), &rtt, &outcome));
        let case = "2 ms, one by one".into();
        report.rows.push(Row::new(Experiment::Delayed, case, &rtt, &outcome));
        report.delays = Some("a relay".into());
        report
    }

    #[test]
    fn quantiles_and_the_second() {
        let row = &report().rows[0];
        assert_eq!((row.connect_p50_us, row.connect_max_us), (Some(30.0), Some(1_000_100.0)));
        assert_eq!((row.connections, row.failed, row.a_second_late), (4, 2, 1));
        assert_eq!((row.rtt_us, row.accept_p50_us), (Some(9.0), Some(15.0)));
        let nothing = Row::new(Experiment::Veth, String::new(), &[], &Outcome::default());
        assert_eq!((nothing.connect_p50_us, nothing.rtt_us), (None, None));
    }

    #[test]
    fn table_and_page() {
        let report = report();
        let text = report.to_string();
        assert!(
            text.contains("ListenOverflows 3")
                && text.contains("short                            4     2 "),
            "{text}"
        );
        assert!(HEADING.iter().all(|column| text.contains(column)), "{text}");
        assert!(text.contains("\ndelays: a relay\n"), "{text}");
        let page = report.html();
        assert!(
            page.contains("<polyline") && page.contains("accept queue that overflows"),
            "{page}"
        );
        assert!(
            HEADING.iter().all(|column| page.contains(&format!("<th>{column}</th>"))),
            "{page}"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["experiment"], "accept-queue");
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let outcome = Outcome { failed: 50, ..Outcome::default() };
        let row = Row::new(Experiment::Ports, "none free".into(), &[], &outcome);
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
