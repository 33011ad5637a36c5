//! Figures: medians, and Ringway beside the others.

use std::collections::BTreeMap;

use serde::Serialize;

use std::time::Duration;

use super::cost::Spent;
use super::path::{LbPath, Measured};
use super::{Found, Lb};
use crate::harness::median::median;
use crate::harness::report::Goal;
use crate::harness::table::{Column, or_dash, table};
use crate::harness::{Figures, Repeated};

#[derive(Debug, Serialize)]
pub struct LbFigures {
    /// In the order of paths, then connections.
    pub runs: Vec<Run>,
    pub comparisons: Vec<Comparison>,
    pub rounds: u32,
    pub duration_s: u64,
    /// Interface settings that all paths had.
    pub offloads: &'static str,
    /// The command that measured, for each number of connections.
    pub command: String,
    /// With `--configurations` only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configurations: BTreeMap<LbPath, String>,
}

/// One path at one number of connections: the median of each figure over the rounds.
#[derive(Debug, Serialize)]
pub struct Run {
    pub path: LbPath,
    pub connections: u32,
    pub requests_per_s: u64,
    pub latency_p50_ns: u64,
    pub latency_p99_ns: u64,
    /// Failed requests and connections, all rounds together.
    pub errors: u64,
    pub requests_per_s_by_round: Vec<u64>,
    /// What all processors spent on a request: client, balancer and backends.
    pub cpu_ns: u64,
    /// Of that, in softirqs.
    pub softirq_ns: u64,
    /// What the balancer's process spent on a request, where there is one.
    pub balancer_ns: Option<u64>,
    /// What programs that have no part in it took of the processors' time, in per cent.
    pub others_percent: u64,
    /// Past TCP, all rounds together, where sockets have a short cut.
    pub redirected_bytes: Option<u64>,
    /// Of the requests that there are without a balancer.
    #[serde(skip)]
    pub of_direct: Option<f64>,
}

/// How one path stands to another, in requests a second.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub path: LbPath,
    pub with: LbPath,
    pub connections: u32,
    pub ratio: f64,
    /// The least ratio that meets the goal.
    pub goal: f64,
    pub met: bool,
}

impl LbFigures {
    pub(super) fn new(
        scenario: &Lb,
        found: &Found,
        configurations: BTreeMap<LbPath, String>,
    ) -> Self {
        let mut runs: Vec<Run> =
            found.iter().map(|((path, n), rounds)| Run::new(*path, *n, rounds)).collect();
        let direct: BTreeMap<u32, f64> = (runs.iter())
            .filter_map(|run| {
                Some((run.connections, rate(&runs, LbPath::Direct, run.connections)?))
            })
            .collect();
        for run in &mut runs {
            let direct = direct.get(&run.connections);
            run.of_direct = direct.map(|direct| run.requests_per_s as f64 / direct);
        }
        let Repeated { rounds, seconds } = scenario.repeated;
        Self {
            comparisons: comparisons(&runs),
            runs,
            rounds: rounds.count,
            duration_s: seconds,
            offloads: "checksum, TSO, GSO and GRO offloads off at every interface",
            command: format!("wrk -t1 -cN -d{seconds}s --latency"),
            configurations,
        }
    }
}

impl Run {
    fn new(path: LbPath, connections: u32, rounds: &[Measured]) -> Self {
        let each = |f: fn(&Measured) -> u64| rounds.iter().map(f).collect::<Vec<_>>();
        let rates = each(|m| m.figures.requests_per_s.round() as u64);
        let balancer: Option<Vec<u64>> =
            rounds.iter().map(|m| Some(of_request(m, m.spent.balancer?))).collect();
        let redirected = rounds.iter().map(|m| Some(m.redirected?.bytes));
        Self {
            path,
            connections,
            requests_per_s: median(&rates),
            latency_p50_ns: median(&each(|m| m.figures.latency_p50_ns)),
            latency_p99_ns: median(&each(|m| m.figures.latency_p99_ns)),
            errors: each(|m| m.figures.errors).iter().sum(),
            requests_per_s_by_round: rates,
            cpu_ns: median(&each(|m| of_request(m, m.spent.all.saturating_sub(m.spent.others)))),
            softirq_ns: median(&each(|m| of_request(m, m.spent.softirq))),
            balancer_ns: balancer.map(|rounds| median(&rounds)),
            others_percent: median(&each(others_percent)),
            redirected_bytes: redirected.sum(),
            of_direct: None,
        }
    }
}

/// Nanoseconds.
fn of_request(measured: &Measured, time: Duration) -> u64 {
    time.as_nanos() as u64 / measured.figures.requests.max(1)
}

/// Of the time that was not idle.
fn others_percent(measured: &Measured) -> u64 {
    let Spent { all, others, .. } = measured.spent;
    (others.as_nanos() * 100 / all.as_nanos().max(1)) as u64
}

fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

/// From here on the report says so.
const OTHERS_PERCENT: u64 = 5;

const COLUMNS: [Column<Run>; 9] = [
    Column::text("path", |run| run.path.to_string()),
    Column::number("requests/s", |run| run.requests_per_s.to_string()),
    Column::number("p50 ms", |run| format!("{:.2}", run.latency_p50_ns as f64 / 1e6)),
    Column::number("p99 ms", |run| format!("{:.2}", run.latency_p99_ns as f64 / 1e6)),
    Column::number("errors", |run| run.errors.to_string()),
    Column::number("x direct", |run| or_dash(run.of_direct, 2)),
    Column::number("CPU us", |run| us(run.cpu_ns)),
    Column::number("softirq us", |run| us(run.softirq_ns)),
    Column::number("balancer us", |run| run.balancer_ns.map_or_else(|| "-".into(), us)),
];

impl Figures for LbFigures {
    fn tables(&self) -> String {
        let of = |connections| {
            let runs = self.runs.iter().filter(|run| run.connections == connections);
            format!("{connections} connections\n{}", table(&COLUMNS, runs))
        };
        numbers_of_connections(&self.runs).into_iter().map(of).collect::<Vec<_>>().join("\n")
    }

    fn goals(&self) -> Vec<String> {
        let goal = |c: &Comparison| {
            let Comparison { path, with, connections, ratio, goal, .. } = c;
            let goal = Goal::at_least("at least", *ratio, *goal);
            format!("{:<32} {connections:>5} connections, {goal}", format!("{path} / {with}"))
        };
        self.comparisons.iter().map(goal).collect()
    }

    fn notes(&self) -> Vec<String> {
        let configuration =
            |(path, text): (&LbPath, &String)| format!("--- {path}\n{}\n", text.trim_end());
        let mut notes: Vec<String> = self.configurations.iter().map(configuration).collect();
        let Self { command, rounds, offloads, .. } = self;
        notes.push(format!("{command}, medians of {rounds} rounds; {offloads}"));
        notes.push(
            "CPU us: processor time of a request, of client, balancer and backends together; in it, softirqs \
             and the balancer's process."
                .into(),
        );
        notes.extend(self.others());
        notes.extend(self.redirected());
        notes.extend(self.context());
        notes.push(
            "Network namespaces on one machine: these figures say nothing about hardware.".into(),
        );
        notes
    }
}

impl LbFigures {
    fn others(&self) -> Option<String> {
        let most = self.runs.iter().max_by_key(|run| run.others_percent)?;
        let Run { path, connections, others_percent, .. } = most;
        (*others_percent >= OTHERS_PERCENT).then(|| {
            format!(
                "Other programs took up to {others_percent} % of the processors' busy time ({path}, {connections} \
                 connections), which CPU us leaves out: measure again, alone on the machine."
            )
        })
    }

    fn redirected(&self) -> Option<String> {
        let bytes: u64 = self.runs.iter().filter_map(|run| run.redirected_bytes).sum();
        (bytes > 0).then(|| format!("nginx-sockmap: {bytes} bytes went from socket to socket."))
    }

    /// An XDP balancer and nginx with its sockets short-cut, of a course on eBPF, and the same pair
    /// here.
    fn context(&self) -> Option<String> {
        let of = |path| rate(&self.runs, path, 100);
        let ratio = of(LbPath::RingwayGeneric)? / of(LbPath::NginxSockmap)?;
        Some(format!(
            "ringway-generic / nginx-sockmap, 100 connections: {ratio:.2}. For context, on other hardware: an XDP balancer in \
             generic mode 18048 requests/s and 6.37 ms, nginx with sockops and sk_msg 15300 and 6.88 ms, a ratio of 1.18."
        ))
    }
}

fn numbers_of_connections(runs: &[Run]) -> Vec<u32> {
    let mut all: Vec<u32> = runs.iter().map(|run| run.connections).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn rate(runs: &[Run], path: LbPath, connections: u32) -> Option<f64> {
    let run = runs.iter().find(|r| r.path == path && r.connections == connections)?;
    Some(run.requests_per_s as f64).filter(|r| *r > 0.0)
}

/// Ringway costs next to nothing over the bare rewriter, its best path beats the others, and past
/// the bridge it is nearly as fast as no balancer at all.
fn comparisons(runs: &[Run]) -> Vec<Comparison> {
    let mut list = Vec::new();
    for connections in numbers_of_connections(runs) {
        let rate = |path| rate(runs, path, connections);
        let ours = LbPath::ALL.into_iter().filter(|p| p.is_ringway());
        let best = ours
            .filter_map(|p| Some((rate(p)?, p)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(LbPath::RingwayHost, |(_, path)| path);
        let goals = [
            (LbPath::RingwayGeneric, LbPath::BareGeneric, 0.97),
            (LbPath::RingwayNative, LbPath::BareNative, 0.97),
            (best, LbPath::NginxStream, 1.5),
            (best, LbPath::Haproxy, 1.5),
            (best, LbPath::Nftables, 1.1),
            (LbPath::RingwayHost, LbPath::Direct, 0.95),
            (LbPath::RingwayHost, LbPath::NginxStream, 1.7),
            (LbPath::RingwayShifted, LbPath::RingwayHost, 0.95),
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
    use crate::benches::lb::sockmap::Redirected;
    use crate::harness::Rounds;
    use crate::harness::report::testing;
    use crate::harness::wrk;

    fn figures() -> LbFigures {
        let ran = |requests_per_s| Measured {
            figures: wrk::Figures {
                requests: 10,
                requests_per_s,
                latency_p50_ns: 1_000_000,
                latency_p99_ns: 2_500_000,
                errors: 1,
            },
            spent: Spent {
                all: Duration::from_micros(400),
                softirq: Duration::from_micros(100),
                balancer: Some(Duration::from_micros(50)),
                others: Duration::from_micros(40),
            },
            redirected: None,
        };
        let redirected = Redirected { messages: 20, bytes: 1_000 };
        let short_cut = Measured { redirected: Some(redirected), ..ran(50.0) };
        let found = Found::from([
            ((LbPath::Direct, 100), vec![ran(100.0), ran(80.0), ran(90.0)]),
            ((LbPath::NginxStream, 100), vec![ran(50.0)]),
            ((LbPath::NginxSockmap, 100), vec![short_cut, short_cut]),
            ((LbPath::RingwayGeneric, 100), vec![ran(60.0)]),
            ((LbPath::RingwayHost, 100), vec![ran(88.0)]),
        ]);
        let scenario = Lb {
            only: Vec::new(),
            connections: vec![100],
            repeated: Repeated { rounds: Rounds { count: 3 }, seconds: 5 },
            show_configs: false,
            ringway: "ringway".into(),
        };
        LbFigures::new(&scenario, &found, BTreeMap::new())
    }

    #[test]
    fn medians_and_sums() {
        let runs = figures().runs;
        assert_eq!((runs[0].requests_per_s, runs[0].errors), (90, 3));
        let Run { cpu_ns, softirq_ns, balancer_ns, .. } = runs[0];
        assert_eq!((cpu_ns, softirq_ns, balancer_ns), (36_000, 10_000, Some(5_000)));
        let redirected: Vec<_> = runs.iter().map(|run| run.redirected_bytes).collect();
        assert_eq!(redirected, [None, None, Some(2_000), None, None]);
    }

    #[test]
    fn compares_what_it_has() {
        let figures = figures();
        assert!(figures.comparisons.iter().all(|one| one.path == LbPath::RingwayHost && one.met));
        let with: Vec<_> = figures.comparisons.iter().map(|one| one.with).collect();
        assert_eq!(with, [LbPath::NginxStream, LbPath::Direct, LbPath::NginxStream]);
    }

    #[test]
    fn json_has_the_promised_keys() {
        let mut figures = figures();
        figures.configurations.insert(LbPath::Direct, "none".into());
        assert_eq!(
            testing::names(&testing::report("lb", figures, Vec::new())),
            "command comparisons comparisons.connections comparisons.goal comparisons.met comparisons.path \
             comparisons.ratio comparisons.with configurations configurations.direct duration_s failed machine \
             offloads rounds runs runs.balancer_ns runs.connections runs.cpu_ns runs.errors runs.latency_p50_ns \
             runs.latency_p99_ns runs.others_percent runs.path runs.redirected_bytes runs.requests_per_s runs.requests_per_s_by_round \
             runs.softirq_ns schema skipped"
        );
    }

    #[test]
    fn table_lines_up() {
        let table = figures().tables();
        let lines: Vec<&str> = table.lines().collect();
        testing::lines_up(&lines[1..].join("\n"), 8);
        assert!(lines[6].trim_start().starts_with("ringway-host"), "{table}");
        assert!(lines[6].contains(" 0.98 "), "{table}");
        assert!(lines[6].ends_with("5.0"), "{table}");
        let goals = figures().goals();
        assert!(goals[1].ends_with("100 connections, at least 0.95: 0.98: met"), "{goals:?}");
        let notes = figures().notes().join("\n");
        assert!(notes.contains("up to 10 % of the processors"), "{notes}");
        assert!(notes.contains("100 connections: 1.20. For context"), "{notes}");
    }
}
