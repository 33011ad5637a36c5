//! What a packet, a request and a copy cost on the kernel's way, and where the time goes: `ringway-lab bench kernel-path`.

mod bypass;
mod clock;
mod copies;
mod cost;
pub(crate) mod receive;
mod report;
mod rules;
mod site;

use std::time::Duration;

pub use report::{NotRun, Report, Resolution, Row, SCHEMA, Went};

use self::copies::Way;
use self::rules::Firewall;
use self::site::{Ran, Site};
use crate::benches::tcp::limits;
use crate::demo::clean::{Guard, end_on_signals};
use crate::harness::machine::Machine;
use crate::harness::named::named;
use crate::{Error, Result, needs_root};

/// Rules that a packet goes through.
const RULES: [u32; 3] = [0, 50, 500];
/// Open files that everything needs, some to spare.
const FILES: u64 = 64;

/// How packets are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Their names say it.
pub enum Style {
    Blocking,
    Epoll,
    Recvmmsg,
    IoUring,
    BusyPoll,
    Spin,
    AfPacket,
    AfXdp,
    Xdp,
}

impl Style {
    /// All, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Blocking,
        Self::Epoll,
        Self::Recvmmsg,
        Self::IoUring,
        Self::BusyPoll,
        Self::Spin,
        Self::AfPacket,
        Self::AfXdp,
        Self::Xdp,
    ];
    /// Those that answer requests.
    const ANSWER: [Self; 5] =
        [Self::Blocking, Self::Epoll, Self::IoUring, Self::BusyPoll, Self::Spin];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "recvfrom",
            Self::Epoll => "epoll",
            Self::Recvmmsg => "recvmmsg",
            Self::IoUring => "io_uring",
            Self::BusyPoll => "SO_BUSY_POLL",
            Self::Spin => "spinning",
            Self::AfPacket => "AF_PACKET",
            Self::AfXdp => "AF_XDP",
            Self::Xdp => "XDP drop",
        }
    }
}

named!(Style, Error::NoSuchCase);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A stream of packets, in each style.
    Receive,
    /// Requests that are answered one by one.
    Request,
    /// Bytes to a TCP socket.
    Copy,
    /// Requests through rules of nftables and iptables.
    Rules,
}

impl Group {
    /// All, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Request, Self::Copy, Self::Rules];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Request => "request",
            Self::Copy => "copy",
            Self::Rules => "rules",
        }
    }
}

named!(Group, Error::NoSuchCase);

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Packets a second of a stream: fewer than any style can take, so that all have the same work.
    pub rate: u32,
    /// Length of one measurement.
    pub duration: Duration,
    /// Times that everything is measured, in turn; the medians count.
    pub rounds: u32,
    /// Only these groups; empty: all.
    pub only: Vec<Group>,
}

impl Default for Options {
    /// All groups, 20 000 packets a second, three times two seconds each.
    fn default() -> Self {
        Self { rate: 20_000, duration: Duration::from_secs(2), rounds: 3, only: Vec::new() }
    }
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process does so should this
/// one be killed. What this machine cannot do is in [`Report::skipped`] with the reason. Needs root.
///
/// # Errors
/// Nothing can be measured here.
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench kernel-path")?;
    limits::open_files_at_least(FILES, FILES)?;
    let guard = Guard::start()?;
    end_on_signals()?;
    let report = run(options, &mut progress);
    guard.dismiss();
    report
}

fn run(options: &Options, progress: &mut impl FnMut(&str)) -> Result<Report> {
    let site = Site::new(options)?;
    let resolution = Resolution { split_ns: clock::resolution()?, softirq_ns: cost::TICK_NS };
    let mut report = Report::new(options, resolution, Machine::with(&[("nft", "--version")]));
    let mut measured = Vec::new();
    for round in 1..=options.rounds.max(1) {
        for (group, case) in cases(options) {
            if report.skips(group, &case.needs()) {
                continue;
            }
            match measure(&site, options, &case) {
                Ok(ran) => {
                    let row = Row::new(group, case.name(), &ran);
                    progress(&format!(
                        "round {round}/{}  {}",
                        options.rounds,
                        row.in_words(options.rate)
                    ));
                    measured.push(row);
                }
                Err(error) => {
                    let (case, reason) = (case.needs(), error.to_string());
                    progress(&format!("{group} {case}: SKIPPED: {reason}"));
                    report.skipped.push(NotRun { group, case, reason });
                }
            }
        }
    }
    report.rows = report::medians(measured);
    Ok(report)
}

enum Case {
    Stream(Style),
    Requests(Style),
    Copy(Way),
    Rules(Firewall, u32),
}

impl Case {
    fn name(&self) -> String {
        match self {
            Self::Stream(style) | Self::Requests(style) => style.to_string(),
            Self::Copy(way) => way.to_string(),
            Self::Rules(firewall, count) => format!("{firewall} {count}"),
        }
    }

    /// What is skipped with it: of a firewall that is not there, any number of rules.
    fn needs(&self) -> String {
        if let Self::Rules(firewall, _) = self { firewall.to_string() } else { self.name() }
    }
}

/// Those that are asked for, in the order of reports.
fn cases(options: &Options) -> Vec<(Group, Case)> {
    let wanted = |group: &Group| options.only.is_empty() || options.only.contains(group);
    let groups = Group::ALL.into_iter().filter(wanted);
    groups.flat_map(|group| cases_of(group).into_iter().map(move |case| (group, case))).collect()
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

fn measure(site: &Site, options: &Options, case: &Case) -> Result<Ran> {
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
            let namespace = site.namespace();
            let run = || copies::run(*way, namespace.directory(), options.duration);
            let sent = namespace.run(run)??;
            let (units, spent, seconds) = (sent.chunks, sent.spent, sent.seconds);
            Ok(Ran { sent: units, units, calls: Some(sent.calls), spent, seconds, rtt: Vec::new() })
        }
    }
}
