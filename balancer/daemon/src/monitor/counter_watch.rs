//! Findings from moving counters: packets that stop, drops that begin, tables that are full.
//! Nothing of this makes the node unhealthy: it still serves, and the other node would meet the
//! same. Pure: fed with the kernel's counters twice a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringway_abi::raw::rw_ledger;
use ringway_abi::{Loss, Reason, Verdict};
use ringway_api::documents::status::{FlowTable, Problem, Tracked};
use ringway_api::problem_kind::{ProblemKind, Subject};
use ringway_api::text::counted;
use ringway_host::Fix;
use ringway_host::netlink::counters::Drops;

/// How often the counters are to be noted.
pub const PERIOD: Duration = Duration::from_millis(500);
/// Counters are compared with those of this long ago.
const WINDOW: Duration = Duration::from_secs(10);
/// A finding stays this long after what it tells of was seen last.
const HOLD: Duration = Duration::from_secs(60);
/// An interface carries packets steadily when at every look for this long ... A load test or a
/// burst is over sooner, and that it ends is no news.
const STEADY: Duration = Duration::from_secs(600);
/// ... so many came in a second.
const STEADY_PPS: f64 = 100.0;
/// Then one in so many, or none, is quiet; and that for this long is worth knowing.
const QUIETER: f64 = 100.0;
const QUIET: Duration = Duration::from_millis(1500);
/// And is the usual state after as long as the packets had been steady.
const FORGOTTEN: Duration = STEADY;
/// Drops are told of from so many on, and from one packet in a thousand.
const FEW: u64 = 10;
const ONE_IN: u64 = 1000;
/// A table this full is told of.
const NEARLY_FULL_PERCENT: u64 = 90;

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub ledger: rw_ledger,
    /// The device's own; absent when it does not tell.
    pub drops: Option<Drops>,
}

/// By the name of the interface.
pub type Sample = BTreeMap<String, Counts>;

/// A reason for dropping that means that something is full: what it is, and the key that makes it
/// larger.
struct Full {
    reason: Reason,
    what: &'static str,
    remedy: &'static str,
}

const FULL: [Full; 5] = [
    Full {
        reason: Reason::FlowTableFull,
        what: "the flow table has no room for new flows",
        remedy: "raise `flows` under [nat], `ringway detach` (ends connections), start again",
    },
    Full {
        reason: Reason::NatExhausted,
        what: "no port towards a backend is free",
        remedy: "more `addresses` or a wider `ports` under [nat], or more backends",
    },
    Full {
        reason: Reason::NatConflict,
        what: "two clients' flows towards one backend would have the same ports",
        remedy: "source = \"node\", or a backend port of its own for each service",
    },
    Full {
        reason: Reason::TrackFull,
        what: "records of dsr flows have no room while a ring changes",
        remedy: "raise `tracked` under [flows], `ringway detach` (ends connections), start again",
    },
    Full {
        reason: Reason::TrackQuota,
        what: "a source prefix opens more dsr flows a second than it may while a ring changes",
        remedy: "a flood: find its source; if these are clients: raise `new_per_prefix` under [flows]",
    },
];

/// Recent samples, and their findings.
#[derive(Debug, Default)]
pub struct CounterWatch {
    interfaces: BTreeMap<String, Memory>,
    /// When counters were noted last.
    noted: Option<Instant>,
    tables: Vec<Problem>,
}

#[derive(Debug, Default)]
struct Memory {
    noted: VecDeque<(Instant, Counts)>,
    pace: Pace,
    /// Findings by their subjects, and when each was seen last.
    told: BTreeMap<&'static str, (Instant, Problem)>,
}

#[derive(Debug, Default)]
struct Pace {
    busy: Option<Busy>,
    quiet_since: Option<Instant>,
    stopped: Option<Stopped>,
}

/// Packets come without a pause.
#[derive(Clone, Copy, Debug)]
struct Busy {
    since: Instant,
    packets: u64,
}

/// They do not come any more.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    since: Instant,
    usual_pps: f64,
}

impl CounterWatch {
    /// Takes the counters as they are now. Interfaces that are missing are forgotten.
    pub fn note(&mut self, now: Instant, sample: Sample) {
        self.noted = Some(now);
        self.interfaces.retain(|name, _| sample.contains_key(name));
        for (name, counts) in sample {
            self.interfaces.entry(name.clone()).or_default().note(now, &name, counts);
        }
    }

    /// Takes how full the tables are.
    pub fn tables(&mut self, flows: &FlowTable, tracked: &Tracked) {
        let records = tracked.promoted_flows + tracked.probation_flows;
        let flow_remedy = FULL[0].remedy;
        let track_remedy = FULL[3].remedy;
        self.tables = [
            nearly_full(Subject::FlowTable, flows.current_flows, flows.capacity_flows, flow_remedy),
            nearly_full(Subject::TrackedFlows, records, tracked.capacity_flows, track_remedy),
        ]
        .into_iter()
        .flatten()
        .collect();
    }

    /// The findings. `but`: interfaces whose trouble has been told already.
    pub fn findings(&self, but: impl Fn(&str) -> bool) -> Vec<Problem> {
        let told = |(name, memory): (&String, &Memory)| {
            let stopped =
                memory.pace.stopped.filter(|_| !but(name)).map(|it| stopped(name, it, self.noted));
            let told = memory.told.values().map(|(at, problem)| aged(problem, *at, self.noted));
            stopped.into_iter().chain(told).collect::<Vec<_>>()
        };
        self.interfaces.iter().flat_map(told).chain(self.tables.iter().cloned()).collect()
    }
}

impl Memory {
    fn note(&mut self, now: Instant, name: &str, counts: Counts) {
        // Slots are counted anew after `ringway detach`, devices when they are made anew.
        if self.noted.back().is_some_and(|(_, last)| last.is_after(&counts)) {
            self.noted.clear();
            self.pace = Pace::default();
        }
        while self.noted.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            self.noted.pop_front();
        }
        if let Some((at, last)) = self.noted.back() {
            self.pace.note(*at, now, counts.ledger.seen - last.ledger.seen);
        }
        self.told.retain(|_, (at, _)| now < *at + HOLD);
        if let Some((_, first)) = self.noted.front() {
            for (about, problem) in jumps(name, first, &counts) {
                self.told.insert(about, (now, problem));
            }
        }
        self.noted.push_back((now, counts));
    }
}

impl Counts {
    fn is_after(&self, other: &Counts) -> bool {
        self.ledger.seen > other.ledger.seen
    }
}

impl Busy {
    fn pps(&self, now: Instant) -> f64 {
        self.packets as f64 / (now - self.since).as_secs_f64().max(1.0)
    }
}

impl Pace {
    fn note(&mut self, before: Instant, now: Instant, packets: u64) {
        let pps = packets as f64 / (now - before).as_secs_f64().max(0.001);
        let usual = self.stopped.map(|stopped| stopped.usual_pps);
        let usual = usual.or(self.busy.map(|busy| busy.pps(before)));
        // ARP and routing protocols go on when the traffic has gone elsewhere; one packet is none
        // of a hundred a second.
        if packets <= 1 || usual.is_some_and(|usual| pps * QUIETER < usual) {
            return self.quiet(before, now);
        }
        (self.quiet_since, self.stopped) = (None, None);
        match pps >= STEADY_PPS {
            true => self.busy.get_or_insert(Busy { since: before, packets: 0 }).packets += packets,
            false => self.busy = None,
        }
    }

    fn quiet(&mut self, before: Instant, now: Instant) {
        let since = *self.quiet_since.get_or_insert(before);
        if now - since >= QUIET
            && let Some(busy) = self.busy.take()
            && since - busy.since >= STEADY
        {
            self.stopped = Some(Stopped { since, usual_pps: busy.pps(since) });
        }
        if self.stopped.is_some_and(|stopped| now - stopped.since > FORGOTTEN) {
            self.stopped = None;
        }
    }
}

/// What was seen last at this moment, and is only held: with how long ago it ended.
fn aged(problem: &Problem, seen: Instant, now: Option<Instant>) -> Problem {
    let mut problem = problem.clone();
    let ago = now.unwrap_or(seen).saturating_duration_since(seen);
    if ago > PERIOD {
        // Seen last when the drops were about to leave the window.
        let seconds = (ago + WINDOW).as_secs();
        problem.error += &format!("; none in the last {seconds} s");
    }
    problem
}

fn stopped(name: &str, Stopped { since, usual_pps }: Stopped, now: Option<Instant>) -> Problem {
    let seconds = now.unwrap_or(since).saturating_duration_since(since).as_secs();
    ProblemKind::TrafficStopped.of_interface(
        name,
        format!(
            "{name}: received {usual_pps:.0} packets a second, and almost none in the last {seconds} s: \
             routers may send them elsewhere, or the link in front is broken"
        ),
        Fix::Sequence(vec![
            Fix::command(["ip", "-s", "link", "show", "dev", name]),
            format!(
                "who announces the service addresses, and where do the routers send them? If the \
                 traffic ended on purpose: this clears in {} min, or when packets come again",
                FORGOTTEN.as_secs().saturating_sub(seconds).div_ceil(60)
            )
            .into(),
        ]),
    )
}

/// Counters that moved between two samples and should not have.
fn jumps(name: &str, first: &Counts, now: &Counts) -> Vec<(&'static str, Problem)> {
    let (old, new) = (&first.ledger, &now.ledger);
    let dropped = |reason: Reason| {
        let of = |ledger: &rw_ledger| ledger.count(Verdict::Drop, reason);
        of(new).saturating_sub(of(old))
    };
    let mut found = Vec::new();
    for Full { reason, what, remedy } in &FULL {
        let packets = dropped(*reason);
        if packets > 0 {
            let error = format!(
                "{name}: {} dropped within {} s: {what} ({})",
                counted(packets, "packet"),
                WINDOW.as_secs(),
                reason.name()
            );
            found.push((reason.name(), ProblemKind::TableFull.of_interface(name, error, *remedy)));
        }
    }
    let sent = new.sent().saturating_sub(old.sent());
    for loss in Loss::all() {
        let packets = new.lost[loss as usize].saturating_sub(old.lost[loss as usize]);
        if matters(packets, sent) {
            let error = format!(
                "{name}: of {sent} packets sent on within {} s the kernel dropped {packets} ({})",
                WINDOW.as_secs(),
                loss.name()
            );
            found.push((
                loss.name(),
                ProblemKind::PacketsLost.of_interface(name, error, loss.next()),
            ));
        }
    }
    if let (Some(before), Some(after)) = (first.drops, now.drops) {
        found.extend(device(name, (before, after), (old, new)));
    }
    found
}

fn device(
    name: &str,
    (before, after): (Drops, Drops),
    (old, new): (&rw_ledger, &rw_ledger),
) -> Vec<(&'static str, Problem)> {
    let ours = |ledger: &rw_ledger| {
        let dropped = ledger.entries().filter(|(verdict, ..)| *verdict == Verdict::Drop);
        dropped.map(|(.., packets)| packets).sum::<u64>()
    };
    let own = ours(new).saturating_sub(ours(old));
    let seen = new.seen.saturating_sub(old.seen);
    // Drivers that count our own drops are not to be believed about as many.
    let received = after.rx_dropped.saturating_sub(before.rx_dropped).saturating_sub(own);
    let missed = after.rx_missed.saturating_sub(before.rx_missed);
    let unsent = after.tx_dropped.saturating_sub(before.tx_dropped);
    let tell = |packets: u64, counter: &str, remedy: &str| {
        let error = format!(
            "{name}: the device's counter {counter} rose by {packets} within {} s",
            WINDOW.as_secs()
        );
        ProblemKind::DeviceDrops.of_interface(name, error, remedy.replace("IFACE", name))
    };
    let rings = "ethtool -S IFACE names them; larger rings (ethtool -G IFACE rx N), more queues \
                 (ethtool -L IFACE combined N, rx N on a veth), interrupts spread over the CPUs";
    let queue = "ethtool -S IFACE names them; larger rings (ethtool -G IFACE tx N); on veth: the far end \
                 without GRO or an XDP program (there: ethtool -K IFACE gro on)";
    let all = [
        ("rx_dropped", received, rings),
        ("rx_missed_errors", missed, rings),
        ("tx_dropped", unsent, queue),
    ];
    let matter = all.into_iter().filter(|(_, packets, _)| matters(*packets, seen));
    matter.map(|(counter, packets, remedy)| (counter, tell(packets, counter, remedy))).collect()
}

fn matters(packets: u64, of: u64) -> bool {
    packets >= FEW && packets * ONE_IN >= of
}

fn nearly_full(subject: Subject, used: u64, capacity: u64, remedy: &str) -> Option<Problem> {
    let percent = (used * 100).checked_div(capacity)?;
    (percent >= NEARLY_FULL_PERCENT).then(|| {
        let error = format!("{subject}: {used} of at most {capacity} flows ({percent} %)");
        Problem { subject, ..ProblemKind::TableFull.problem(error, remedy) }
    })
}

#[cfg(test)]
mod tests;
