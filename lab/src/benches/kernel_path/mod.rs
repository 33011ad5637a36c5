//! The cost of a packet, a request and a copy in the kernel, by where the time goes: `ringway-lab
//! bench kernel-path`.

mod bypass;
mod clock;
mod copies;
mod cost;
pub(crate) mod receive;
mod report;
mod rules;
mod site;

use std::fmt;
use std::time::Duration;

use ringway_terminal::quantity::whole;
use serde_json::{Value, json};

use self::copies::Way;
use self::report::{KernelPathFigures, Resolution, Row};
use self::rules::Firewall;
use self::site::{Ran, Site};
use crate::benches::tcp::limits;
use crate::harness::named_enum::named;
use crate::harness::{self, Harness, Rounds, Scenario};
use crate::{Error, Result};

/// Rules that a packet goes through.
const RULES: [u32; 3] = [0, 50, 500];
/// Open files that everything needs, some to spare.
const FILES: u64 = 64;

named! {
    pub(crate) enum Style {
        Blocking = "recvfrom",
        Epoll = "epoll",
        Recvmmsg = "recvmmsg",
        IoUring = "io_uring",
        BusyPoll = "SO_BUSY_POLL",
        Spin = "spinning",
        AfPacket = "AF_PACKET",
        AfXdp = "AF_XDP",
        Xdp = "XDP drop",
    }
}

impl Style {
    /// Those that answer requests.
    const ANSWER: [Self; 5] =
        [Self::Blocking, Self::Epoll, Self::IoUring, Self::BusyPoll, Self::Spin];
}

named! {
    pub enum Group {
        /// A stream of packets, in each style.
        Receive = "receive",
        /// Requests that are answered one by one.
        Request = "request",
        /// Bytes to a TCP socket.
        Copy = "copy",
        /// Requests through rules of nftables and iptables.
        Rules = "rules",
    }
}

/// What a packet, a request and a copy cost in the kernel, and where the time goes.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("rounds", |rounds| rounds.default_value("3")),
    after_help = "Needs root. Takes three minutes; runs in network namespaces of its own. What this kernel does not allow is skipped, \
    with the reason. Keep the machine quiet: softirq time is that of all processors, and is not told where others are busy. A rate that this machine does not reach is reported as missed. \
    Numbers may end in k, M, G or T.\n\nExamples:\n  \
    ringway-lab bench kernel-path\n  ringway-lab bench kernel-path --only receive --rate 50k --seconds 5 -o json\n  \
    ringway-lab bench kernel-path --html kernel-path.html"
)]
pub struct KernelPath {
    /// Only these.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub only: Vec<Group>,
    /// Packets a second that come in; for the group receive.
    // Fewer than any style can take, so that all have the same work.
    #[arg(long, value_name = "N", default_value = "20k", value_parser = whole::<u32>(1..=10_000_000))]
    pub rate: u32,
    /// Length of one measurement, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = whole::<u64>(1..=600))]
    pub seconds: u64,
    #[command(flatten)]
    pub rounds: Rounds,
}

impl Scenario for KernelPath {
    const NAME: &'static str = "kernel-path";
    const PEERS: &'static [(&'static str, &'static str)] = &[("nft", "--version")];
    type Figures = KernelPathFigures;

    fn check(&self) -> Result<()> {
        limits::open_files_at_least(FILES, FILES).map(drop)
    }

    fn measure(&self, harness: &mut Harness<'_>) -> Result<KernelPathFigures> {
        let site = Site::new(self.rate, Duration::from_secs(self.seconds))?;
        let resolution = Resolution { split_ns: clock::resolution()?, softirq_ns: cost::TICK_NS };
        let mut measured = Vec::new();
        let groups = harness::chosen(&Group::ALL, &self.only);
        let mut cases = groups.into_iter().flat_map(cases_of).collect();
        harness.rounds(self.rounds.count, &mut cases, |harness, _, case| {
            // Any error means that this machine cannot do it.
            let ran = self.run(&site, case).map_err(|e| Error::Unavailable(e.to_string()))?;
            let row = Row::new(case.group(), case.name(), &ran);
            harness.say(row.in_words(self.rate));
            measured.push(row);
            Ok(())
        });
        Ok(KernelPathFigures {
            rows: report::medians(measured),
            rate_pps: self.rate,
            duration_s: self.seconds as f64,
            rounds: self.rounds.count,
            resolution,
        })
    }
}

impl KernelPath {
    fn run(&self, site: &Site, case: &Case) -> Result<Ran> {
        match case {
            Case::Stream(style) => site.stream(*style),
            Case::Requests(style) => site.requests(*style),
            Case::Rules(firewall, count) => {
                firewall.fill(site.namespace(), *count)?;
                let ran = site.requests(Style::Blocking);
                firewall.clear(site.namespace())?;
                ran
            }
            Case::Copy(way) => {
                let (namespace, time) = (site.namespace(), Duration::from_secs(self.seconds));
                let sent = namespace.run(|| copies::run(*way, namespace.directory(), time))??;
                let (units, spent, seconds) = (sent.chunks, sent.spent, sent.seconds);
                Ok(Ran {
                    sent: units,
                    units,
                    calls: Some(sent.calls),
                    spent,
                    seconds,
                    rtt: Vec::new(),
                })
            }
        }
    }
}

enum Case {
    Stream(Style),
    Requests(Style),
    Copy(Way),
    Rules(Firewall, u32),
}

impl Case {
    fn group(&self) -> Group {
        match self {
            Self::Stream(_) => Group::Receive,
            Self::Requests(_) => Group::Request,
            Self::Copy(_) => Group::Copy,
            Self::Rules(..) => Group::Rules,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Stream(style) | Self::Requests(style) => style.to_string(),
            Self::Copy(way) => way.to_string(),
            Self::Rules(firewall, count) => format!("{firewall} {count}"),
        }
    }

    /// The group that is skipped together: without its firewall, any number of rules is.
    fn needs(&self) -> String {
        if let Self::Rules(firewall, _) = self { firewall.to_string() } else { self.name() }
    }
}

impl harness::Case for Case {
    fn key(&self) -> Value {
        json!({ "group": self.group(), "case": self.needs() })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.group(), self.needs())
    }
}

fn cases_of(group: Group) -> Vec<Case> {
    match group {
        Group::Receive => Style::ALL.map(Case::Stream).into(),
        Group::Request => Style::ANSWER.map(Case::Requests).into(),
        Group::Copy => Way::ALL.map(Case::Copy).into(),
        Group::Rules => {
            let each = |it: Firewall| RULES.map(|count| Case::Rules(it, count));
            Firewall::ALL.into_iter().flat_map(each).collect()
        }
    }
}
