//! How long it takes to connect, and why it sometimes takes a second more: `ringway-lab bench tcp-connect`.

mod report;
mod site;
mod way;

use std::time::Duration;

pub use report::{NotRun, Report, Row, SCHEMA};

use self::site::{Outcome, Server};
use self::way::{Delays, Way};
use super::limits;
use crate::demo::clean::{Guard, end_on_signals};
use crate::error::raise_files;
use crate::harness::machine::Machine;
use crate::harness::named::named;
use crate::{Error, Result, needs_root};

/// Round trips that a delayed way adds.
const DELAYS: [Duration; 4] = [
    Duration::from_micros(500),
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(40),
];
/// Files that the process has beside its sockets; and with those of an overflowing queue.
const OTHER_FILES: u64 = 64;
const FILES: u64 = OTHER_FILES + 2 * TOO_MANY as u64;
/// Bytes that go there and back, for the round trip.
const TRIPS: usize = 50;
/// Queues that are long enough for all, and one that is not.
const LONG: i32 = 4096;
const SHORT: i32 = 16;
/// Connections to a short queue.
const TOO_MANY: u32 = 64;
/// For how long nobody accepts, where the accept queue is to overflow. Less than a retransmission takes.
const ASLEEP: Duration = Duration::from_millis(500);
/// Ports that are left where they are to be scarce, spread evenly over all.
const LEFT: u32 = 100;
/// Ports that are taken at a time.
const PART: usize = 500;
/// And where they are to be rare.
const FEW: u32 = 4;
/// The first port of the range that is made scarce.
const FIRST_PORT: u32 = 20_000;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Their names and `what` say it.
pub enum Experiment {
    Loopback,
    Veth,
    Delayed,
    AcceptQueue,
    SynQueue,
    Ports,
}

impl Experiment {
    /// All, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Loopback, Self::Veth, Self::Delayed, Self::AcceptQueue, Self::SynQueue, Self::Ports];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
            Self::Delayed => "delayed",
            Self::AcceptQueue => "accept-queue",
            Self::SynQueue => "syn-queue",
            Self::Ports => "ports",
        }
    }
}

named!(Experiment, Error::NoSuchCase);

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections of each row.
    pub connections: u32,
    /// Sockets in TIME_WAIT that make ports scarce.
    pub time_wait: u32,
    /// Only these experiments; empty: all.
    pub only: Vec<Experiment>,
}

impl Default for Options {
    /// All of them, 500 connections each, 30 000 in TIME_WAIT.
    fn default() -> Self {
        Self { connections: 500, time_wait: 30_000, only: Vec::new() }
    }
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process does so should this
/// one be killed. `progress` is told in words what goes on. Needs root.
///
/// # Errors
/// It cannot be measured here at all. An experiment alone that fails is in [`Report::failed`].
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench tcp-connect")?;
    let needed = files_for(options.connections.into());
    enough_files(options.connections, limits::open_files_at_least(FILES, needed)?)?;
    let guard = Guard::start()?;
    end_on_signals()?;
    let report = run(options, &mut progress);
    guard.dismiss();
    report
}

/// Each connection has two ends here.
fn files_for(connections: u64) -> u64 {
    2 * connections + OTHER_FILES
}

fn enough_files(connections: u32, files: u64) -> Result<()> {
    let (asked, possible) = (connections.into(), files.saturating_sub(OTHER_FILES) / 2);
    if asked <= possible {
        return Ok(());
    }
    let more = raise_files(files_for(asked));
    Err(Error::TooMany { asked, possible, short: "open files (`ulimit -Hn`)".into(), more })
}

fn run(options: &Options, progress: &mut impl FnMut(&str)) -> Result<Report> {
    let mut report = Report::new(Machine::with(&[]));
    let wanted = |one: &Experiment| options.only.is_empty() || options.only.contains(one);
    let delays = Delays::here()?;
    if [Experiment::Delayed, Experiment::SynQueue].iter().any(wanted) {
        progress(&format!("delays: {delays}"));
        report.delays = Some(delays.to_string());
    }
    for experiment in Experiment::ALL.into_iter().filter(wanted) {
        let mut bench = Bench { options, experiment, delays: &delays, rows: Vec::new() };
        let ran = bench.run(&mut |row: &Row| progress(&row.in_words()));
        report.rows.append(&mut bench.rows);
        if let Err(error) = ran {
            let reason = error.to_string();
            progress(&format!("{experiment}: FAILED: {reason}"));
            report.failed.push(NotRun { experiment, reason });
        }
    }
    Ok(report)
}

struct Bench<'o> {
    options: &'o Options,
    experiment: Experiment,
    delays: &'o Delays,
    rows: Vec<Row>,
}

type Tell<'t> = &'t mut dyn FnMut(&Row);

impl Bench<'_> {
    fn run(&mut self, tell: Tell<'_>) -> Result<()> {
        match self.experiment {
            Experiment::Loopback => self.pace(&Way::loopback()?, "", tell),
            Experiment::Veth => self.pace(&Way::veth()?, "", tell),
            Experiment::Delayed => DELAYS.into_iter().try_for_each(|rtt| {
                let name = format!("{} ms, ", rtt.as_secs_f64() * 1000.0);
                self.pace(&Way::delayed(rtt, self.delays)?, &name, tell)
            }),
            Experiment::AcceptQueue => self.accept_queue(tell),
            Experiment::SynQueue => self.syn_queue(tell),
            Experiment::Ports => self.ports(tell),
        }
    }

    fn row(
        &mut self,
        case: impl Into<String>,
        rtt: &[Duration],
        outcome: &Outcome,
        tell: Tell<'_>,
    ) {
        let row = Row::new(self.experiment, case.into(), rtt, outcome);
        tell(&row);
        self.rows.push(row);
    }

    /// One after the other, then all at once.
    fn pace(&mut self, way: &Way, before: &str, tell: Tell<'_>) -> Result<()> {
        way.server.sysctl("net/core/somaxconn", &LONG.to_string())?;
        way.server.sysctl("net/ipv4/tcp_max_syn_backlog", &LONG.to_string())?;
        let rtt = Server::new(way, LONG)?.round_trips(TRIPS)?;
        let n = self.options.connections;
        // A delayed way takes that long each.
        let paced = if self.experiment == Experiment::Delayed { n.min(TRIPS as u32) } else { n };
        let outcome = Server::new(way, LONG)?.paced(paced)?;
        self.row(format!("{before}one by one"), &rtt, &outcome, tell);
        let outcome = Server::new(way, LONG)?.at_once(n, Duration::ZERO)?;
        self.row(format!("{before}all at once"), &rtt, &outcome, tell);
        Ok(())
    }

    /// A server that is busy for half a second, and a client that does not wait for it.
    fn accept_queue(&mut self, tell: Tell<'_>) -> Result<()> {
        let way = Way::loopback()?;
        for (case, backlog) in [("backlog of 16", SHORT), ("backlog of 4096", LONG)] {
            way.server.sysctl("net/core/somaxconn", &LONG.to_string())?;
            let outcome = Server::new(&way, backlog)?.at_once(TOO_MANY, ASLEEP)?;
            self.row(case, &[], &outcome, tell);
        }
        Ok(())
    }

    /// Many handshakes under way at once: each takes a round trip.
    fn syn_queue(&mut self, tell: Tell<'_>) -> Result<()> {
        let way = Way::delayed(Duration::from_millis(100), self.delays)?;
        let cases = [
            ("backlog of 16, no cookies", SHORT, LONG, "0"),
            ("max_syn_backlog of 16", LONG, SHORT, "0"),
            ("backlog of 16, cookies", SHORT, LONG, "1"),
            ("both of 4096", LONG, LONG, "0"),
        ];
        way.server.sysctl("net/core/somaxconn", &LONG.to_string())?;
        for (case, backlog, syns, cookies) in cases {
            way.server.sysctl("net/ipv4/tcp_syncookies", cookies)?;
            way.server.sysctl("net/ipv4/tcp_max_syn_backlog", &syns.to_string())?;
            let outcome = Server::new(&way, backlog)?.at_once(TOO_MANY, Duration::ZERO)?;
            self.row(case, &[Duration::from_millis(100)], &outcome, tell);
        }
        Ok(())
    }

    /// As many sockets in TIME_WAIT as there are ports, but for a few.
    fn ports(&mut self, tell: Tell<'_>) -> Result<()> {
        let time_wait = self.options.time_wait;
        let way = Way::loopback()?;
        let all = time_wait + LEFT;
        let left = |few: u32| (0..few).map(move |n| FIRST_PORT + n * (all / few));
        // What is reserved is given to nobody, so it stays free.
        let reserve = |ports: Vec<u32>| {
            let ports: Vec<String> = ports.iter().map(u32::to_string).collect();
            // An empty write says nothing to the kernel.
            let ports = if ports.is_empty() { "1".into() } else { ports.join(",") };
            way.client.sysctl("net/ipv4/ip_local_reserved_ports", &ports)
        };
        let last = FIRST_PORT + all - 1;
        let range = |first: u32, last: u32| {
            way.client.sysctl("net/ipv4/ip_local_port_range", &format!("{first} {last}"))
        };
        // Listeners are not to take one of those that are counted.
        range(FIRST_PORT - 100, FIRST_PORT - 1)?;
        let (free, scarce) = (Server::new(&way, LONG)?, Server::new(&way, LONG)?);
        range(FIRST_PORT, last)?;
        // Over lo a port would be used again at once.
        way.client.sysctl("net/ipv4/tcp_tw_reuse", "0")?;
        way.client.sysctl("net/ipv4/tcp_max_tw_buckets", "200000")?;
        let some = LEFT / 2;
        self.row("all ports free", &[], &free.paced(some)?, tell);
        reserve(left(LEFT).collect())?;
        // Part by part: with more than half of all ports taken, each connection would search for milliseconds.
        for first in (FIRST_PORT..=last).step_by(PART) {
            let end = last.min(first + PART as u32 - 1);
            range(first, end)?;
            let kept = left(LEFT).filter(|port| (first..=end).contains(port)).count() as u32;
            scarce.leave_in_time_wait(end - first + 1 - kept)?;
        }
        range(FIRST_PORT, last)?;
        reserve(Vec::new())?;
        self.row(format!("{time_wait} TIME_WAIT, {LEFT} free"), &[], &scarce.paced(some)?, tell);
        let rare: Vec<u32> = left(FEW).collect();
        reserve(left(LEFT).filter(|port| !rare.contains(port)).collect())?;
        self.row(format!("{time_wait} TIME_WAIT, {FEW} free"), &[], &scarce.paced(some)?, tell);
        reserve(left(LEFT).chain(rare).collect())?;
        self.row(format!("{time_wait} TIME_WAIT, none free"), &[], &scarce.paced(some)?, tell);
        way.client.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
        // A timestamp must have moved on by tcp_tw_reuse_delay, 1 s by default (net/ipv4/tcp_ipv4.c).
        std::thread::sleep(Duration::from_millis(1100));
        self.row("the same, tcp_tw_reuse = 1", &[], &scarce.paced(some)?, tell);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_files_allow() {
        assert!(enough_files(96, 256).is_ok() && enough_files(500, 1064).is_ok());
        let refused = enough_files(500, 256).unwrap_err().to_string();
        assert!(refused.contains("write `--connections 96`, or raise the limit"), "{refused}");
        assert!(refused.contains("`prlimit --nofile=1064 "), "{refused}");
    }

    #[test]
    fn ports_fit_into_the_range() {
        assert!(FIRST_PORT + 40_000 + LEFT <= u32::from(u16::MAX));
        assert_eq!(LEFT % FEW, 0);
    }
}
