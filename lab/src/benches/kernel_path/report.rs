//! Figures: processor time of a packet, request or copy, by where it went.

use std::fmt;

use ringway_terminal::text::counted;
use serde::Serialize;

use super::Group;
use super::site::Ran;
use crate::harness::Figures;
use crate::harness::median::{middle, rounded};
use crate::harness::plot::{Bar, Page};
use crate::harness::table::{Column, or_dash, table};

/// Other processes' time, in per cent of one processor's, beside which softirqs may be theirs.
const OTHERS: f64 = 10.0;
/// Of the rate that was asked for, in per cent: a sender that has less has missed it.
const REACHED: f64 = 98.0;
/// Fewer samples do not tell user mode from the kernel.
const FEW_SAMPLES: f64 = 25.0;

#[derive(Debug, Serialize)]
pub struct KernelPathFigures {
    pub rows: Vec<Row>,
    /// Packets a second of a stream that were asked for; [`Row::offered_per_second`] has what the
    /// sender reached.
    pub rate_pps: u32,
    /// Length of one measurement in seconds.
    pub duration_s: f64,
    /// Each figure is the median of so many.
    pub rounds: u32,
    pub resolution: Resolution,
}

/// Steps in which times are counted, in nanoseconds. What a thread takes in all is exact.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Resolution {
    /// Between two samples that part a thread's time into user and system.
    pub split_ns: u64,
    pub softirq_ns: u64,
}

/// A way of doing something; all figures are of one packet, one request, or 64 KiB.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub group: Group,
    pub case: String,
    /// `packet`, `request` or `64 KiB`.
    pub unit: &'static str,
    /// How many of them a second.
    pub per_second: f64,
    /// Packets a second that were sent; none: the sender waits for each answer.
    pub offered_per_second: Option<f64>,
    /// Those that were sent and did not arrive, in per cent.
    pub lost_percent: f64,
    /// Nanoseconds of the receiver, of a copy the sender, in user mode.
    pub user_ns: f64,
    /// Nanoseconds of the same in the kernel.
    pub system_ns: f64,
    /// Nanoseconds of softirqs on all processors; none: others were busy, and they may be theirs.
    pub softirq_ns: Option<f64>,
    /// Time that other processes took meanwhile, in per cent of one processor's.
    pub others_percent: f64,
    /// Milliseconds of samples that told user and system apart, of all rounds together: with few
    /// steps of [`Resolution::split_ns`] the two are a guess, their sum is not.
    pub sampled_ms: f64,
    /// Milliseconds of softirqs that were counted, of all rounds together: few steps of
    /// [`Resolution::softirq_ns`] are a guess.
    pub softirq_ms: f64,
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
    pub user: f64,
    pub system: f64,
    /// Softirqs: devices, protocols, rules; none: not known, and the other two are shares of the
    /// thread's time.
    pub softirq: Option<f64>,
}

impl Went {
    /// Of times in these three, of any unit.
    fn of(user: f64, system: f64, softirq: Option<f64>) -> Self {
        let all = user + system + softirq.unwrap_or(0.0);
        let share = |part: f64| if all > 0.0 { rounded(part / all * 100.0, 1) } else { 0.0 };
        Self { user: share(user), system: share(system), softirq: softirq.map(share) }
    }
}

impl fmt::Display for Went {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let softirq = or_dash(self.softirq, 0);
        f.pad(&format!("{:.0}/{:.0}/{softirq}", self.user, self.system))
    }
}

impl Row {
    pub(super) fn new(group: Group, case: String, ran: &Ran) -> Self {
        let units = ran.units.max(1) as f64;
        let each = |n: u64| rounded(n as f64 / units, 3);
        let lost = ran.sent.saturating_sub(ran.units) as f64 / ran.sent.max(1) as f64;
        let spent = &ran.spent;
        let seconds = ran.seconds.max(1e-9);
        let others_percent = rounded(spent.others_ns as f64 / seconds / 1e7, 1);
        let (user_ns, system_ns) = (each(spent.user_ns), each(spent.system_ns));
        let softirq_ns = (others_percent <= OTHERS).then(|| each(spent.softirq_ns));
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
            per_second: (ran.units as f64 / seconds).round(),
            offered_per_second: (group == Group::Receive)
                .then(|| (ran.sent as f64 / seconds).round()),
            lost_percent: rounded(lost * 100.0, 3),
            user_ns,
            system_ns,
            softirq_ns,
            others_percent,
            sampled_ms: spent.sampled_ns as f64 / 1e6,
            softirq_ms: spent.softirq_ns as f64 / 1e6,
            went: Went::of(user_ns, system_ns, softirq_ns),
            context_switches: each(ran.spent.switches),
            system_calls: ran.calls.map(each),
            rtt_p50_us: rtt.get(rtt.len() / 2).map(|time| time.as_nanos() as f64 / 1e3),
        }
    }

    pub(super) fn in_words(&self, rate: u32) -> String {
        let Self { group, case, unit, user_ns, system_ns, softirq_ns, .. } = self;
        let softirq = softirq_ns.map_or("unknown".into(), |ns| format!("{ns:>8.0} ns"));
        let missed = if self.missed(rate) {
            format!("; sent {:.0}/s of {rate}/s", self.offered_per_second.unwrap_or(0.0))
        } else {
            String::new()
        };
        format!(
            "{group:<8} {case:<19} user {user_ns:>8.0} ns, system {system_ns:>8.0} ns, softirq {softirq} a {unit}{missed}"
        )
    }

    /// Whether the sender has not reached its rate.
    fn missed(&self, rate: u32) -> bool {
        self.offered_per_second.is_some_and(|sent| sent < f64::from(rate) * REACHED / 100.0)
    }
}

/// One row for each case, in the order in which they came first: the middle of each figure by
/// itself.
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
        let middle = |of: fn(&Self) -> Option<f64>| middle(rows.iter().filter_map(of));
        let number = |of: fn(&Self) -> Option<f64>| middle(of).unwrap_or(0.0);
        let (user_ns, system_ns) = (number(|r| Some(r.user_ns)), number(|r| Some(r.system_ns)));
        let softirq_ns = middle(|r| r.softirq_ns);
        Self {
            group: rows[0].group,
            case: rows[0].case.clone(),
            unit: rows[0].unit,
            per_second: number(|r| Some(r.per_second)),
            offered_per_second: middle(|r| r.offered_per_second),
            lost_percent: number(|r| Some(r.lost_percent)),
            user_ns,
            system_ns,
            softirq_ns,
            others_percent: number(|r| Some(r.others_percent)),
            sampled_ms: rows.iter().map(|row| row.sampled_ms).sum(),
            softirq_ms: rows.iter().map(|row| row.softirq_ms).sum(),
            went: Went::of(user_ns, system_ns, softirq_ns),
            context_switches: number(|r| Some(r.context_switches)),
            system_calls: middle(|r| r.system_calls),
            rtt_p50_us: middle(|r| r.rtt_p50_us),
        }
    }
}

impl KernelPathFigures {
    /// The sender's rate, if it is less than was asked for.
    fn missed(&self) -> Option<String> {
        let missed: Vec<&Row> = self.rows.iter().filter(|row| row.missed(self.rate_pps)).collect();
        let reached = missed.iter().filter_map(|row| row.offered_per_second);
        let (least, most) =
            reached.fold((f64::MAX, 0.0), |(least, most), sent| (sent.min(least), sent.max(most)));
        (!missed.is_empty()).then(|| {
            format!(
                "--rate missed: {}/s asked for, {least:.0} to {most:.0}/s sent, in {}: the sender has no more here; figures are at what was sent.",
                self.rate_pps,
                counted(missed.len(), "row")
            )
        })
    }

    fn shown<'r>(&self, rows: impl IntoIterator<Item = &'r Row>) -> Vec<Shown> {
        rows.into_iter().map(|row| (row.clone(), self.resolution)).collect()
    }
}

impl Figures for KernelPathFigures {
    fn tables(&self) -> String {
        table(&COLUMNS, self.shown(&self.rows))
    }

    fn notes(&self) -> Vec<String> {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mut notes = vec![
            "user, system: of the thread that receives or answers; of a copy, that sends. What it takes in all is exact; its two parts are \
             samples,"
                .to_owned(),
            format!(
                "one every {} ms; ~: fewer than {FEW_SAMPLES}, so that the parts are a guess, their sum is not. A thread that polls \
                 takes a whole processor at any rate.",
                ms(self.resolution.split_ns)
            ),
            format!(
                "softirq: on all processors, in steps of {} ms in all; ~: fewer than {FEW_SAMPLES}, a guess: measure longer. -: other processes had more than {OTHERS:.0} % of a processor, and it may be \
                 theirs.",
                ms(self.resolution.softirq_ns)
            ),
            "u/s/si: shares of the time in user, system and softirq. rtt: the median round trip. calls -: not counted."
                .to_owned(),
        ];
        notes.extend(self.missed());
        let (rounds, seconds) = (counted(self.rounds, "round"), self.duration_s);
        notes.push(format!("Medians of {rounds} of {seconds} s each."));
        notes
    }

    fn page(&self) -> Option<Page> {
        let lede = format!(
            "Processor time of one packet, one request, or 64 KiB, by where it went. Packets are to come at {} a second; requests one after the other.",
            self.rate_pps
        );
        let mut page = Page::new("What the kernel's way costs", &lede);
        for (title, group) in [
            ("Receiving a packet", Group::Receive),
            ("Answering a request", Group::Request),
            ("Sending 64 KiB by TCP", Group::Copy),
            ("A request through rules of a firewall", Group::Rules),
        ] {
            let rows = self.shown(self.rows.iter().filter(|row| row.group == group));
            if rows.is_empty() {
                continue;
            }
            let bars: Vec<Bar> = rows.iter().filter_map(|(row, fine)| row.bar(*fine)).collect();
            if !bars.is_empty() {
                page.bars(title, "ns", "", &bars);
            }
            if rows.iter().any(|(row, _)| row.softirq_ns.is_none()) {
                page.text(SOFTIRQ_UNKNOWN);
            }
            // Group and unit are what stands above.
            let columns = COLUMNS.iter().filter(|one| !["group", "of one"].contains(&one.heading));
            page.table(&columns.collect::<Vec<_>>(), rows);
        }
        Some(page)
    }
}

/// Below a plot of such rows.
const SOFTIRQ_UNKNOWN: &str = "* Without softirqs: other processes were busy, and the time may be theirs. What spent no other time is \
    not drawn.";

/// A row, and how fine its times are.
type Shown = (Row, Resolution);

const COLUMNS: [Column<Shown>; 13] = [
    Column::text("group", |(row, _)| row.group.to_string()),
    Column::text("case", |(row, _)| row.case.clone()),
    Column::number("of one", |(row, _)| row.unit.to_owned()),
    Column::number("a second", |(row, _)| format!("{:.0}", row.per_second)),
    Column::number("sent/s", |(row, _)| or_dash(row.offered_per_second, 0)),
    Column::number("lost %", |(row, _)| format!("{:.2}", row.lost_percent)),
    Column::number("user ns", |(row, _)| format!("{:.0}", row.user_ns)),
    Column::number("system ns", |(row, _)| format!("{:.0}", row.system_ns)),
    Column::number("softirq ns", |(row, fine)| row.softirq_in_words(*fine)),
    Column::number("u/s/si %", |(row, fine)| row.went_in_words(*fine)),
    Column::number("switches", |(row, _)| format!("{:.3}", row.context_switches)),
    Column::number("calls", |(row, _)| or_dash(row.system_calls, 3)),
    Column::number("rtt us", |(row, _)| or_dash(row.rtt_p50_us, 1)),
];

impl Row {
    fn softirq_in_words(&self, resolution: Resolution) -> String {
        let guess = self.softirq_ns.is_some() && self.softirq_is_a_guess(resolution);
        format!("{}{}", if guess { "~" } else { "" }, or_dash(self.softirq_ns, 0))
    }

    fn went_in_words(&self, resolution: Resolution) -> String {
        let has_time = self.user_ns + self.system_ns > 0.0;
        let guess = has_time && self.sampled_ms * 1e6 < FEW_SAMPLES * resolution.split_ns as f64;
        format!("{}{}", if guess { "~" } else { "" }, self.went)
    }

    fn softirq_is_a_guess(&self, resolution: Resolution) -> bool {
        self.softirq_ms * 1e6 < FEW_SAMPLES * resolution.softirq_ns as f64
    }

    /// None where all time that it took may be in softirqs, which are not known.
    fn bar(&self, resolution: Resolution) -> Option<Bar> {
        if self.softirq_ns.is_none() && self.user_ns + self.system_ns == 0.0 {
            return None;
        }
        let mut parts = vec![("user".into(), self.user_ns), ("system".into(), self.system_ns)];
        parts.extend(self.softirq_ns.map(|ns| ("softirq, all processors".into(), ns)));
        let unknown = match self.softirq_ns {
            None => " *",
            Some(_) if self.softirq_is_a_guess(resolution) => ", softirq a guess",
            Some(_) => "",
        };
        Some(Bar { label: format!("{}{unknown}", self.case), parts, marks: Vec::new() })
    }
}

#[cfg(test)]
mod tests;
