//! Packets intended, sent and received: as a table and as JSON (`ringway.gen/1`).

use std::fmt;
use std::time::{Duration, Instant};

use ringway_engine::Reason;
use ringway_engine::status::{Dropped, PortStatus};
use ringway_measure::generate::{Latency, ReceiveCounts, SendProgress, StreamCounts};
use ringway_terminal::text::counted;
use serde::Serialize;

use crate::cli::{GenArgs, GenPort, Output};
use crate::units;
use ringway_terminal::exit::say;

/// A rate that is missed by less is kept.
const KEPT: f64 = 0.99;
/// Packets that a rate may allow beyond a count in the last round: what the generator sends at
/// once.
const LAST_ROUND: u64 = 32;

#[derive(Debug, Serialize)]
pub(super) struct GenReport {
    schema: &'static str,
    /// From the first packet until all had come, or enough time had passed.
    pub(super) seconds: f64,
    sent: Option<Sent>,
    received: Option<Received>,
    /// As asked for with --interval.
    intervals: Vec<Interval>,
    /// Whether every packet and every frame is accounted for.
    pub(super) balanced: bool,
    /// Why it ended, unless it was told to or was done.
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Sent {
    port: String,
    stream: u16,
    /// From the first packet to the last.
    seconds: f64,
    /// By the rate, until the last, and no more than the count; without a rate as many as were
    /// sent.
    intended_packets: u64,
    /// Taken by the port.
    sent_packets: u64,
    /// Made, and not taken by the port.
    unsent_packets: u64,
    /// Of these, as far as the port said why.
    unsent: Vec<Dropped>,
    sent_bytes: u64,
    intended_pps: Option<f64>,
    sent_pps: f64,
    sent_bps: f64,
    /// Packets sent divided by packets intended: 0 to 1.
    sent_share: f64,
    kept_rate: bool,
}

#[derive(Debug, Serialize)]
struct Received {
    ports: Vec<String>,
    received_packets: u64,
    /// Each stamped packet once.
    unique_packets: u64,
    /// Sent, and not received; of other streams: missing below the highest that came.
    lost_packets: u64,
    lost_ppm: f64,
    duplicate_packets: u64,
    /// Behind one with a higher number (RFC 4737).
    late_packets: u64,
    late_by_most_packets: u64,
    /// So late that they may have been duplicates.
    too_late_packets: u64,
    /// Packets without our stamp.
    foreign_packets: u64,
    /// Packets of streams beyond those that are counted separately.
    other_streams_packets: u64,
    streams: Vec<Stream>,
    latency: Option<Latency>,
    /// The counters of each port.
    port_counters: Vec<PortStatus>,
}

#[derive(Debug, Serialize)]
struct Stream {
    stream: u16,
    unique_packets: u64,
    missing_packets: u64,
    duplicate_packets: u64,
    late_packets: u64,
}

/// Packets since the previous interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Interval {
    seconds: f64,
    intended_packets: u64,
    sent_packets: u64,
    received_packets: u64,
}

impl GenReport {
    pub(super) fn new(
        args: &GenArgs,
        stream: u16,
        made: &SendProgress,
        checked: &ReceiveCounts,
        ended: &[ringway_engine::WorkerReport],
        intervals: Vec<Interval>,
    ) -> Self {
        let sent = args.port.as_ref().map(|port| {
            // The last worker sends, the first receives: see `Run::start`.
            let worker = ended.last().filter(|_| matches!(port, GenPort::Engine(_)));
            let packets = worker.map(|report| &report.status.packets);
            let taken = packets.map_or(made.packets, |packets| packets.transmitted_packets);
            let dropped = packets.map(|packets| packets.dropped.clone()).unwrap_or_default();
            Sent::new(port, stream, args.count, made, taken, dropped)
        });
        let from = sent.as_ref().map(|sent| sent.sent_packets);
        let of_engine = ended.iter().all(|report| report.audit.balanced());
        let checker = ended.first().filter(|_| !args.sink.is_empty());
        let port_counters = checker.map(|report| report.status.ports.clone()).unwrap_or_default();
        let received = (!args.sink.is_empty())
            .then(|| Received { port_counters, ..Received::new(args, checked, from) });
        let arrived = checker.map_or(0, |report| report.status.packets.received_packets);
        // None may come that was not sent.
        let ours = checked.streams().iter().find(|one| sent.is_some() && one.stream == stream);
        let invented = ours.is_some_and(|ours| {
            ours.sequence.next() > made.packets || ours.sequence.unique() > made.packets
        });
        let balanced =
            of_engine && checked.balanced() && arrived == checked.received_packets() && !invented;
        let schema = "ringway.gen/1";
        Self { schema, seconds: 0.0, sent, received, intervals, balanced, error: None }
    }

    /// Packets were made, and the port took none: that is no result, but something that does not
    /// work.
    pub(super) fn nothing_sent(&self) -> Option<String> {
        let sent = self.sent.as_ref().filter(|s| s.sent_packets == 0 && s.unsent_packets > 0)?;
        let (port, packets) = (&sent.port, counted(sent.unsent_packets, "packet"));
        Some(format!("{port} has taken none of {packets}{}", reasons(&sent.unsent)))
    }
}

/// Why packets were not taken.
fn reasons(dropped: &[Dropped]) -> String {
    let each = |dropped: &Dropped| {
        let explanation = dropped.reason.explanation().trim_end_matches('.');
        format!("{} {}: {explanation}", dropped.packets, dropped.name)
    };
    let each: Vec<_> = dropped.iter().map(each).collect();
    if each.is_empty() { String::new() } else { format!(" ({})", each.join("; ")) }
}

impl Sent {
    fn new(
        port: &GenPort,
        stream: u16,
        count: Option<u64>,
        made: &SendProgress,
        sent: u64,
        dropped: Vec<Dropped>,
    ) -> Self {
        let seconds = made.ns as f64 / 1e9;
        let unsent_packets = made.packets.saturating_sub(sent);
        let ours = |dropped: &Dropped| dropped.reason != Reason::Consumed;
        let unsent = dropped.into_iter().filter(ours).collect();
        let bytes = match made.packets {
            0 => 0,
            packets => (u128::from(made.bytes) * u128::from(sent) / u128::from(packets)) as u64,
        };
        let (intended_packets, share) = intended(made, sent, count);
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let has_rate = made.intended_units > 0;
        Self {
            port: port.to_string(),
            stream,
            seconds,
            intended_packets,
            sent_packets: sent,
            unsent_packets,
            unsent,
            sent_bytes: bytes,
            intended_pps: has_rate.then(|| per_second(by_rate(made, sent) as f64)),
            sent_pps: per_second(sent as f64),
            sent_bps: per_second(bytes as f64 * 8.0),
            sent_share: share,
            kept_rate: kept_rate(made, sent, count),
        }
    }
}

/// Packets that were intended, and which share of them was sent. With a count never more than that.
fn intended(made: &SendProgress, sent: u64, count: Option<u64>) -> (u64, f64) {
    match by_rate(made, sent).min(count.unwrap_or(u64::MAX)) {
        0 if sent == 0 && made.intended_units > 0 => (0, 0.0),
        0 => (0, 1.0),
        intended => (intended, sent as f64 / intended as f64),
    }
}

/// Packets that the rate allowed in the time it took; without a rate those that were sent. Bits are
/// turned into packets by the mean of those that were made.
fn by_rate(made: &SendProgress, sent: u64) -> u64 {
    match (made.intended_units, made.units) {
        (0, _) => sent,
        (_, 0) => 0,
        (intended, units) => {
            let by_units = intended as f64 * made.packets as f64 / units as f64;
            (by_units as u64).max(made.packets)
        }
    }
}

fn kept_rate(made: &SendProgress, sent: u64, count: Option<u64>) -> bool {
    // The next packet, which cannot be sent yet, is not missed. In the round that sends the last of
    // a count, the rate mostly allows more than is left.
    let spare = if count == Some(sent) { LAST_ROUND } else { 1 };
    let wanted = by_rate(made, sent);
    sent as f64 >= wanted as f64 * KEPT || sent + spare >= wanted
}

impl Received {
    /// `sent`: what is known to have been sent, all of the first stream.
    fn new(args: &GenArgs, checked: &ReceiveCounts, sent: Option<u64>) -> Self {
        let streams = checked.streams();
        let sum = |of: fn(&StreamCounts) -> u64| streams.iter().map(of).sum::<u64>();
        let unique = checked.unique_packets();
        let missing = sum(|stream| stream.sequence.missing());
        let lost = match (sent, streams.first()) {
            // Packets behind the last that came are lost, too.
            (Some(sent), Some(ours)) => {
                missing - ours.sequence.missing() + sent.saturating_sub(ours.sequence.unique())
            }
            _ => missing,
        };
        let stream = |one: &StreamCounts| Stream {
            stream: one.stream,
            unique_packets: one.sequence.unique(),
            missing_packets: one.sequence.missing(),
            duplicate_packets: one.duplicate_packets,
            late_packets: one.late_packets,
        };
        Self {
            ports: args.sink.iter().map(ToString::to_string).collect(),
            received_packets: checked.received_packets(),
            unique_packets: unique,
            lost_packets: lost,
            lost_ppm: lost as f64 * 1e6 / (lost + unique).max(1) as f64,
            duplicate_packets: sum(|stream| stream.duplicate_packets),
            late_packets: sum(|stream| stream.late_packets),
            late_by_most_packets: streams.iter().map(|s| s.late_by_most_packets).max().unwrap_or(0),
            too_late_packets: sum(|stream| stream.too_late_packets),
            foreign_packets: checked.foreign_packets(),
            other_streams_packets: checked.other_streams_packets(),
            streams: streams.iter().map(stream).collect(),
            latency: checked.latency(),
            port_counters: Vec::new(),
        }
    }
}

impl fmt::Display for GenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(sent) = &self.sent {
            sent.fmt(f)?;
        }
        if let Some(received) = &self.received {
            received.fmt(f)?;
        }
        let balance = if self.balanced { "balance" } else { "do not balance" };
        writeln!(f, "the counters {balance}")
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, seconds, sent_packets, intended_packets, unsent_packets, .. } = self;
        write!(f, "sent by {port} in {seconds:.3} s: {sent_packets} packets")?;
        if self.intended_pps.is_some() {
            write!(f, " of {intended_packets} intended")?;
        }
        let pps = |value| units::decimal_of(value, "packets/s");
        let bps = units::decimal_of(self.sent_bps, "bit/s");
        writeln!(f, ", {}, {bps}", pps(self.sent_pps))?;
        if *unsent_packets > 0 {
            let why = reasons(&self.unsent);
            writeln!(f, "  {unsent_packets} packets were made and not taken by the port{why}")?;
        }
        if let (false, Some(intended)) = (self.kept_rate, self.intended_pps) {
            writeln!(
                f,
                "  THE RATE WAS NOT KEPT: sent/intended = {:.3}, {} were intended",
                self.sent_pps / intended,
                pps(intended)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received_packets, unique_packets, lost_packets, lost_ppm, .. } = self;
        let Self { late_by_most_packets, too_late_packets, .. } = self;
        writeln!(f, "received by {}: {received_packets} packets", self.ports.join(", "))?;
        writeln!(f, "  {unique_packets} once, {lost_packets} lost ({lost_ppm:.0} per million)")?;
        write!(f, "  {} duplicates, {} late", self.duplicate_packets, self.late_packets)?;
        if self.late_packets > 0 {
            write!(f, " (by {late_by_most_packets} packets at most)")?;
        }
        if *too_late_packets > 0 {
            write!(f, ", {too_late_packets} too late to tell from duplicates")?;
        }
        writeln!(f)?;
        self.port_counters.iter().try_for_each(|port| losses(f, port))?;
        match self.foreign_packets + self.other_streams_packets {
            0 => (),
            others => writeln!(f, "  {others} packets of others, not counted above")?,
        }
        match &self.latency {
            Some(latency) => {
                let Latency { min_us, p50_us, p90_us, p99_us, p999_us, max_us, .. } = latency;
                writeln!(
                    f,
                    "  latency in µs: min {min_us:.1}, p50 {p50_us:.1}, p90 {p90_us:.1}, p99 {p99_us:.1}, p99.9 {p999_us:.1}, max {max_us:.1}"
                )?;
                match latency.clock_behind_packets {
                    0 => Ok(()),
                    n => writeln!(
                        f,
                        "  {n} packets came before they were sent: the clocks do not agree"
                    ),
                }
            }
            None => Ok(()),
        }
    }
}

/// The losses of a port, if there are any.
fn losses(f: &mut fmt::Formatter<'_>, port: &PortStatus) -> fmt::Result {
    let s = &port.statistics;
    let known = |count: Option<u64>| count.unwrap_or(0);
    let losses = [
        (known(s.kernel_rx_dropped_packets), "dropped by the kernel"),
        (known(s.kernel_rx_ring_full_packets), "dropped since the ring was full"),
        (known(s.kernel_fill_ring_empty_times), "times the kernel had no frame"),
        (s.no_frame_times, "times no frame was free"),
        (s.too_long_packets, "too long"),
    ];
    let losses: Vec<_> = losses.iter().filter(|(count, _)| *count > 0).collect();
    if losses.is_empty() {
        return Ok(());
    }
    let losses: Vec<_> = losses.iter().map(|(count, what)| format!("{count} {what}")).collect();
    writeln!(f, "  at {}: {}", port.port, losses.join(", "))
}

/// Lines of progress, and their intervals.
pub(super) struct Log {
    every: Option<Duration>,
    start: Instant,
    last: (Instant, u64, u64, u64),
    intervals: Vec<Interval>,
}

impl Log {
    pub(super) fn new(every: Option<Duration>) -> Self {
        let now = Instant::now();
        Self { every, start: now, last: (now, 0, 0, 0), intervals: Vec::new() }
    }

    /// Says how it goes, if it is time to.
    pub(super) fn tick(&mut self, args: &GenArgs, made: &SendProgress, received: u64) {
        let (since, intended_before, sent_before, received_before) = self.last;
        let passed = since.elapsed();
        if made.finished || self.every.is_none_or(|every| passed < every) {
            return;
        }
        let (intended, _) = intended(made, made.packets, args.count);
        let interval = Interval {
            seconds: self.start.elapsed().as_secs_f64(),
            intended_packets: intended.saturating_sub(intended_before),
            sent_packets: made.packets - sent_before,
            received_packets: received - received_before,
        };
        self.last = (Instant::now(), intended, made.packets, received);
        self.intervals.push(interval);
        if args.output.output == Output::Table {
            let rate = |packets: u64| units::decimal(packets as f64 / passed.as_secs_f64());
            say(format_args!(
                "{:8.1} s  intended {:>7}/s  sent {:>7}/s  received {:>7}/s",
                interval.seconds,
                rate(interval.intended_packets),
                rate(interval.sent_packets),
                rate(interval.received_packets)
            ));
        }
    }

    pub(super) fn intervals(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.intervals)
    }
}

#[cfg(test)]
mod tests {
    use ringway_engine::PortStatistics;

    use super::*;

    #[test]
    fn no_more_than_the_count_is_intended() {
        let made = |intended_units| SendProgress {
            packets: 1000,
            units: 1000,
            intended_units,
            ns: 1_000_000,
            finished: true,
            ..SendProgress::default()
        };
        assert_eq!(intended(&made(1015), 1000, Some(1000)), (1000, 1.0));
        assert!(kept_rate(&made(1015), 1000, Some(1000)));
        // Twice as long as the rate takes: every packet was sent, and not at that rate.
        assert_eq!(intended(&made(2000), 1000, Some(1000)).0, 1000);
        assert!(!kept_rate(&made(2000), 1000, Some(1000)));
        // Ended by its time.
        let (wanted, share) = intended(&made(1015), 1000, Some(5000));
        assert!(wanted == 1015 && share < KEPT && !kept_rate(&made(1015), 1000, Some(5000)));
        assert_eq!(intended(&SendProgress::default(), 0, None), (0, 1.0));
    }

    #[test]
    fn what_a_sink_has_lost_is_said_with_where() {
        struct Losses(PortStatistics);
        impl fmt::Display for Losses {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                losses(
                    f,
                    &PortStatus {
                        port: "af_packet:eth1".into(),
                        statistics: self.0,
                        device_counters: Vec::new(),
                    },
                )
            }
        }
        let none = PortStatistics::default();
        assert_eq!(Losses(none).to_string(), "");
        let mut some = none;
        (some.kernel_rx_dropped_packets, some.too_long_packets) = (Some(7), 2);
        let said = Losses(some).to_string();
        assert_eq!(said, "  at af_packet:eth1: 7 dropped by the kernel, 2 too long\n");
        let mut others = none;
        (others.kernel_rx_ring_full_packets, others.no_frame_times) = (Some(3), 5);
        others.kernel_fill_ring_empty_times = Some(4);
        let said = Losses(others).to_string();
        for count in
            ["3 dropped since the ring was full", "4 times the kernel had", "5 times no frame"]
        {
            assert!(said.contains(count), "{said}");
        }
    }
}
