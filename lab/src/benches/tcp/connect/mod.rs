//! How long it takes to connect, and why it sometimes takes a second more:
//! `ringway-lab bench tcp-connect`.

mod report;
mod site;
mod way;

use std::time::Duration;

use ringway_terminal::quantity::whole;
use serde_json::{Value, json};

use self::report::{ConnectFigures, Row};
use self::site::{Outcome, Server};
use self::way::{Delays, Way};
use super::limits;
use crate::error::raise_files;
use crate::harness::named_enum::named;
use crate::harness::{self, Case, Harness, Scenario};
use crate::{Error, Result};

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
/// For how long nobody accepts, where the accept queue is to overflow. Less than a retransmission
/// takes.
const ASLEEP: Duration = Duration::from_millis(500);
/// Ports that are left where they are to be scarce, spread evenly over all.
const LEFT: u32 = 100;
/// Ports that are taken at a time.
const PART: usize = 500;
/// And where they are to be rare.
const FEW: u32 = 4;
/// The first port of the range that is made scarce.
const FIRST_PORT: u32 = 20_000;

named! {
    pub enum Experiment {
        Loopback = "loopback",
        Veth = "veth",
        Delayed = "delayed",
        AcceptQueue = "accept-queue",
        SynQueue = "syn-queue",
        Ports = "ports",
    }
}

/// How long connecting takes, and what makes it a second longer.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root. Takes half a minute; runs in network namespaces of its own. Delays are made by `tc netem`; where the kernel \
    lacks it, by two TAP devices with this process between them. Numbers may end in k, M, G or T. Exit code 1 when an experiment failed.\n\nExamples:\n  ringway-lab bench tcp-connect\n  \
    ringway-lab bench tcp-connect --only accept-queue,syn-queue -o json\n  ringway-lab bench tcp-connect --html connect.html"
)]
pub struct TcpConnect {
    /// Only these experiments.
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',')]
    pub only: Vec<Experiment>,
    /// Connections of each case of loopback, veth and delayed; of delayed one by one at most 50.
    ///
    /// The other experiments have numbers of their own: 64 connections to each queue, 50 for ports.
    #[arg(long, value_name = "N", default_value = "500", value_parser = whole::<u32>(1..=20_000))]
    pub connections: u32,
    /// Sockets in TIME_WAIT that make ports scarce; for the experiment ports.
    #[arg(long, value_name = "N", default_value = "30k", value_parser = whole::<u32>(100..=40_000))]
    pub time_wait: u32,
}

named! {
    /// Whether a connection waits for the one before.
    pub enum Pace {
        OneByOne = "one by one",
        AllAtOnce = "all at once",
    }
}

impl Case for Experiment {
    fn key(&self) -> Value {
        json!({ "experiment": self })
    }
}

impl Scenario for TcpConnect {
    const NAME: &'static str = "tcp-connect";
    type Figures = ConnectFigures;

    fn check(&self) -> Result<()> {
        let needed = files_for(self.connections.into());
        enough_files(self.connections, limits::open_files_at_least(FILES, needed)?)
    }

    fn measure(&self, harness: &mut Harness<'_>) -> Result<ConnectFigures> {
        let mut experiments = harness::chosen(&Experiment::ALL, &self.only);
        let delays = Delays::here()?;
        let is_delayed = |one| matches!(one, &Experiment::Delayed | &Experiment::SynQueue);
        let mut figures = ConnectFigures { rows: Vec::new(), delays: None };
        if experiments.iter().any(is_delayed) {
            harness.say(format!("delays: {delays}"));
            figures.delays = Some(delays.to_string());
        }
        harness.each(&mut experiments, |harness, experiment| {
            let (experiment, delays) = (*experiment, &delays);
            let mut tell = |row: Row| {
                harness.say(row.in_words());
                figures.rows.push(row);
            };
            Bench { scenario: self, experiment, delays, tell: &mut tell }.run()
        });
        Ok(figures)
    }
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

struct Bench<'o> {
    scenario: &'o TcpConnect,
    experiment: Experiment,
    delays: &'o Delays,
    tell: &'o mut dyn FnMut(Row),
}

impl Bench<'_> {
    fn run(&mut self) -> Result<()> {
        match self.experiment {
            Experiment::Loopback => self.pace(&Way::loopback()?, ""),
            Experiment::Veth => self.pace(&Way::veth()?, ""),
            Experiment::Delayed => DELAYS.into_iter().try_for_each(|rtt| {
                let name = format!("{} ms, ", rtt.as_secs_f64() * 1000.0);
                self.pace(&Way::delayed(rtt, self.delays)?, &name)
            }),
            Experiment::AcceptQueue => self.accept_queue(),
            Experiment::SynQueue => self.syn_queue(),
            Experiment::Ports => self.ports(),
        }
    }

    fn row(&mut self, case: impl Into<String>, rtt: &[Duration], outcome: &Outcome) {
        (self.tell)(Row::new(self.experiment, case.into(), None, rtt, outcome));
    }

    /// One after the other, then all at once.
    fn pace(&mut self, way: &Way, before: &str) -> Result<()> {
        way.server.sysctl("net/core/somaxconn", &LONG.to_string())?;
        way.server.sysctl("net/ipv4/tcp_max_syn_backlog", &LONG.to_string())?;
        let rtt = Server::new(way, LONG)?.round_trips(TRIPS)?;
        let n = self.scenario.connections;
        // A delayed way takes that long each.
        let paced = if self.experiment == Experiment::Delayed { n.min(TRIPS as u32) } else { n };
        let outcome = Server::new(way, LONG)?.paced(paced)?;
        let row = |pace: Pace, outcome| {
            Row::new(self.experiment, format!("{before}{pace}"), Some(pace), &rtt, outcome)
        };
        (self.tell)(row(Pace::OneByOne, &outcome));
        let outcome = Server::new(way, LONG)?.at_once(n, Duration::ZERO)?;
        (self.tell)(row(Pace::AllAtOnce, &outcome));
        Ok(())
    }

    /// A server that is busy for half a second, and a client that does not wait for it.
    fn accept_queue(&mut self) -> Result<()> {
        let way = Way::loopback()?;
        for (case, backlog) in [("backlog of 16", SHORT), ("backlog of 4096", LONG)] {
            way.server.sysctl("net/core/somaxconn", &LONG.to_string())?;
            let outcome = Server::new(&way, backlog)?.at_once(TOO_MANY, ASLEEP)?;
            self.row(case, &[], &outcome);
        }
        Ok(())
    }

    /// Many handshakes under way at once: each takes a round trip.
    fn syn_queue(&mut self) -> Result<()> {
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
            self.row(case, &[Duration::from_millis(100)], &outcome);
        }
        Ok(())
    }

    /// As many sockets in TIME_WAIT as there are ports, but for a few.
    fn ports(&mut self) -> Result<()> {
        let time_wait = self.scenario.time_wait;
        let way = Way::loopback()?;
        let all = time_wait + LEFT;
        let left = |few: u32| (0..few).map(move |n| FIRST_PORT + n * (all / few));
        // The kernel gives reserved ports to nobody, so they stay free.
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
        self.row("all ports free", &[], &free.paced(some)?);
        reserve(left(LEFT).collect())?;
        // Part by part: with more than half of all ports taken, each connection would search for
        // milliseconds.
        for first in (FIRST_PORT..=last).step_by(PART) {
            let end = last.min(first + PART as u32 - 1);
            range(first, end)?;
            let kept = left(LEFT).filter(|port| (first..=end).contains(port)).count() as u32;
            scarce.leave_in_time_wait(end - first + 1 - kept)?;
        }
        range(FIRST_PORT, last)?;
        reserve(Vec::new())?;
        self.row(format!("{time_wait} TIME_WAIT, {LEFT} free"), &[], &scarce.paced(some)?);
        let rare: Vec<u32> = left(FEW).collect();
        reserve(left(LEFT).filter(|port| !rare.contains(port)).collect())?;
        self.row(format!("{time_wait} TIME_WAIT, {FEW} free"), &[], &scarce.paced(some)?);
        reserve(left(LEFT).chain(rare).collect())?;
        self.row(format!("{time_wait} TIME_WAIT, none free"), &[], &scarce.paced(some)?);
        way.client.sysctl("net/ipv4/tcp_tw_reuse", "1")?;
        // A timestamp must have moved on by tcp_tw_reuse_delay, 1 s by default
        // (net/ipv4/tcp_ipv4.c).
        std::thread::sleep(Duration::from_millis(1100));
        self.row("the same, tcp_tw_reuse = 1", &[], &scarce.paced(some)?);
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
