//! The result: JSON by serde, a table, a page.

use std::fmt;

use serde::Serialize;

use super::site::Ran;
use super::{Group, Options};
use crate::machine::Machine;
use crate::plot::{Bar, Page};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.kernel-path/1";

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What this machine cannot do, and why.
    pub skipped: Vec<NotRun>,
    /// Packets a second of a stream.
    pub rate_pps: u32,
    /// Length of one measurement in seconds.
    pub duration_s: f64,
    /// Rounds, of which each figure is the median.
    pub rounds: u32,
    /// Where this was measured.
    pub machine: Machine,
}

/// A way of doing something; all figures are of one packet, one request, or 64 KiB.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What is done.
    pub group: Group,
    /// How.
    pub case: String,
    /// `packet`, `request` or `64 KiB`.
    pub unit: &'static str,
    /// How many of them a second.
    pub per_second: f64,
    /// Those that were sent and did not arrive, in per cent.
    pub lost_percent: f64,
    /// Nanoseconds of the receiver, of a copy the sender, in user mode.
    pub user_ns: f64,
    /// Nanoseconds of the same in the kernel.
    pub system_ns: f64,
    /// Nanoseconds of softirqs on all processors, strangers' too.
    pub softirq_ns: f64,
    /// Of the three, in per cent: where the time went.
    pub went: Went,
    /// Context switches of the same thread.
    pub context_switches: f64,
    /// System calls; none: not counted.
    pub system_calls: Option<f64>,
    /// The middle of all round trips, in microseconds.
    pub rtt_p50_us: Option<f64>,
}

/// Shares of the time, in per cent; all zero where none was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Went {
    /// The program itself.
    pub user: f64,
    /// System calls.
    pub system: f64,
    /// Softirqs: devices, protocols, rules.
    pub softirq: f64,
}

impl Went {
    /// Of times in these three, of any unit.
    fn of(parts: [f64; 3]) -> Self {
        let all: f64 = parts.iter().sum();
        let share = |part: f64| if all > 0.0 { (part / all * 1000.0).round() / 10.0 } else { 0.0 };
        let [user, system, softirq] = parts.map(share);
        Self { user, system, softirq }
    }
}

impl fmt::Display for Went {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.0}/{:.0}/{:.0}", self.user, self.system, self.softirq))
    }
}

/// Something without figures.
#[derive(Debug, Clone, Serialize)]
pub struct NotRun {
    /// What was to be done.
    pub group: Group,
    /// How.
    pub case: String,
    /// Why not, and what would change it.
    pub reason: String,
}

impl Row {
    pub(super) fn new(group: Group, case: String, ran: &Ran) -> Self {
        let units = ran.units.max(1) as f64;
        let each = |n: u64| (n as f64 / units * 1000.0).round() / 1000.0;
        let lost = ran.sent.saturating_sub(ran.units) as f64 / ran.sent.max(1) as f64;
        let spent = &ran.spent;
        let mut rtt = ran.rtt.clone();
        rtt.sort();
        Self {
            group,
            case,
            unit: match group {
                Group::Receive => "packet",
                Group::Request | Group::Rules => "request",
                Group::Copy => "64 KiB",
            },
            per_second: (ran.units as f64 / ran.seconds.max(1e-9)).round(),
            lost_percent: (lost * 1e5).round() / 1e3,
            user_ns: each(ran.spent.user_ns),
            system_ns: each(ran.spent.system_ns),
            softirq_ns: each(ran.spent.softirq_ns),
            went: Went::of([spent.user_ns, spent.system_ns, spent.softirq_ns].map(|ns| ns as f64)),
            context_switches: each(ran.spent.switches),
            system_calls: ran.calls.map(each),
            rtt_p50_us: rtt.get(rtt.len() / 2).map(|time| time.as_nanos() as f64 / 1e3),
        }
    }

    /// A line of progress.
    pub(super) fn in_words(&self) -> String {
        let Self { group, case, unit, user_ns, system_ns, softirq_ns, .. } = self;
        format!(
            "{group:<8} {case:<19} user {user_ns:>8.0} ns, system {system_ns:>8.0} ns, softirq {softirq_ns:>8.0} ns a {unit}"
        )
    }
}

/// One row for each case, in the order in which they came first: the middle of each figure by itself.
pub(super) fn medians(measured: Vec<Row>) -> Vec<Row> {
    let mut cases: Vec<Vec<Row>> = Vec::new();
    for row in measured {
        let same = |rows: &&mut Vec<Row>| rows[0].group == row.group && rows[0].case == row.case;
        match cases.iter_mut().find(same) {
            Some(rows) => rows.push(row),
            None => cases.push(vec![row]),
        }
    }
    cases.iter().map(|rows| Row::middle(rows)).collect()
}

impl Row {
    fn middle(rows: &[Self]) -> Self {
        let middle = |of: fn(&Self) -> Option<f64>| {
            let mut all: Vec<f64> = rows.iter().filter_map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied()
        };
        let number = |of: fn(&Self) -> Option<f64>| middle(of).unwrap_or(0.0);
        let (user_ns, system_ns) = (number(|r| Some(r.user_ns)), number(|r| Some(r.system_ns)));
        let softirq_ns = number(|r| Some(r.softirq_ns));
        Self {
            group: rows[0].group,
            case: rows[0].case.clone(),
            unit: rows[0].unit,
            per_second: number(|r| Some(r.per_second)),
            lost_percent: number(|r| Some(r.lost_percent)),
            user_ns,
            system_ns,
            softirq_ns,
            went: Went::of([user_ns, system_ns, softirq_ns]),
            context_switches: number(|r| Some(r.context_switches)),
            system_calls: middle(|r| r.system_calls),
            rtt_p50_us: middle(|r| r.rtt_p50_us),
        }
    }
}

impl Report {
    /// Whether something is known not to work.
    pub(super) fn skips(&self, group: Group, case: &str) -> bool {
        self.skipped.iter().any(|skipped| skipped.group == group && skipped.case == case)
    }

    pub(super) fn new(options: &Options, machine: Machine) -> Self {
        Self {
            schema: SCHEMA,
            rows: Vec::new(),
            skipped: Vec::new(),
            rate_pps: options.rate,
            duration_s: options.duration.as_secs_f64(),
            rounds: options.rounds,
            machine,
        }
    }

    /// One self-contained page with plots: where the time went.
    pub fn html(&self) -> String {
        let lede = format!(
            "Processor time by where it went. Packets come at {} a second; requests one after the other.",
            self.rate_pps
        );
        let mut page = Page::new("What the kernel's way costs", &lede);
        for (title, group) in [
            ("Receiving a packet", Group::Receive),
            ("Answering a request", Group::Request),
            ("Sending 64 KiB by TCP", Group::Copy),
            ("A request through rules of a firewall", Group::Rules),
        ] {
            let rows = self.rows.iter().filter(|row| row.group == group);
            let bar = |row: &Row| Bar {
                label: row.case.clone(),
                parts: vec![
                    ("user".into(), row.user_ns),
                    ("system".into(), row.system_ns),
                    ("softirq, all processors".into(), row.softirq_ns),
                ],
                mark: None,
            };
            let bars: Vec<Bar> = rows.map(bar).collect();
            if !bars.is_empty() {
                page.bars(title, "ns", "", &bars);
            }
        }
        for NotRun { group, case, reason } in &self.skipped {
            page.text(&format!("Skipped: {group}, {case}: {reason}"));
        }
        page.finish(&self.machine)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<8} {:<19} {:>8} {:>10} {:>7} {:>9} {:>9} {:>10} {:>10} {:>9} {:>7} {:>8}",
            "",
            "",
            "of one",
            "a second",
            "lost %",
            "user ns",
            "system ns",
            "softirq ns",
            "u/s/si %",
            "switches",
            "calls",
            "rtt us"
        )?;
        let or_none =
            |n: Option<f64>, digits| n.map_or_else(|| "-".into(), |n| format!("{n:.digits$}"));
        for row in &self.rows {
            writeln!(
                f,
                "  {:<8} {:<19} {:>8} {:>10.0} {:>7.2} {:>9.0} {:>9.0} {:>10.0} {:>10} {:>9.3} {:>7} {:>8}",
                row.group,
                row.case,
                row.unit,
                row.per_second,
                row.lost_percent,
                row.user_ns,
                row.system_ns,
                row.softirq_ns,
                row.went,
                row.context_switches,
                or_none(row.system_calls, 3),
                or_none(row.rtt_p50_us, 1)
            )?;
        }
        for NotRun { group, case, reason } in &self.skipped {
            writeln!(f, "skipped: {group}, {case}: {reason}")?;
        }
        let m = &self.machine;
        writeln!(
            f,
            "\nu/s/si: where the time went: user, system, softirq. Softirqs are those of all processors, strangers' too, in steps\n\
             of 10 ms. What polls takes a whole processor, whatever comes."
        )?;
        writeln!(f, "{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        writeln!(f, "medians of {} rounds of {} s each.", self.rounds, self.duration_s)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cost::Spent;
    use super::*;

    fn report() -> Report {
        let spent = Spent { user_ns: 1000, system_ns: 9000, softirq_ns: 500, switches: 20 };
        let rtt = [3, 1, 2].map(Duration::from_micros).into();
        let ran = Ran { sent: 12, units: 10, calls: Some(30), spent, seconds: 2.0, rtt };
        let mut report = Report::new(&Options::default(), Machine::with(&[]));
        report.rows.push(Row::new(Group::Request, "epoll".into(), &ran));
        let nothing = Ran { calls: None, ..Ran::default() };
        report.rows.push(Row::new(Group::Receive, "AF_XDP".into(), &nothing));
        let (case, reason) = ("io_uring".into(), "not allowed".into());
        report.skipped.push(NotRun { group: Group::Receive, case, reason });
        report
    }

    #[test]
    fn figures_of_one() {
        let report = report();
        let row = &report.rows[0];
        assert_eq!((row.user_ns, row.system_ns, row.softirq_ns), (100.0, 900.0, 50.0));
        assert_eq!(row.went, Went { user: 9.5, system: 85.7, softirq: 4.8 });
        assert_eq!(row.went.to_string(), "10/86/5");
        assert_eq!(report.rows[1].went, Went::default());
        assert_eq!((row.context_switches, row.system_calls), (2.0, Some(3.0)));
        assert_eq!((row.per_second, row.lost_percent), (5.0, 16.667));
        assert_eq!(row.rtt_p50_us, Some(2.0));
        assert_eq!((report.rows[1].system_calls, report.rows[1].rtt_p50_us), (None, None));
    }

    #[test]
    fn each_figure_by_itself() {
        let row = |ns: u64, rtt| {
            let spent = Spent { user_ns: ns, system_ns: 100 - ns, ..Spent::default() };
            let rtt = vec![Duration::from_micros(rtt)];
            let ran = Ran { units: 1, calls: Some(ns), spent, seconds: 1.0, rtt, ..Ran::default() };
            Row::new(Group::Request, "epoll".into(), &ran)
        };
        let other = Row::new(Group::Copy, "epoll".into(), &Ran::default());
        let rows = medians(vec![row(10, 9), other, row(90, 1), row(20, 5)]);
        let [epoll, copy] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((epoll.user_ns, epoll.system_ns), (20.0, 80.0));
        assert_eq!((epoll.system_calls, epoll.rtt_p50_us), (Some(20.0), Some(5.0)));
        assert_eq!((copy.group, copy.system_calls), (Group::Copy, None));
    }

    #[test]
    fn table_and_page() {
        let report = report();
        let text = report.to_string();
        assert!(text.contains("skipped: receive, io_uring: not allowed"), "{text}");
        assert!(report.html().contains("Answering a request"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["group"], "request");
    }
}
