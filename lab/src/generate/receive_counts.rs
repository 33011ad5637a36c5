//! Counts of stamped packets at their receiver.

use hdrhistogram::Histogram;
use ringway_engine::stamp::{Arrival, Sequence, Stamp};
use ringway_wire::protocol;
use ringway_wire::{Frame, Header as _, Icmp, Icmpv6, Ip, Tcp, Udp, ethertype};
use serde::Serialize;

/// Streams that one receiver tells apart; packets of others are counted together.
const STREAMS: usize = 64;
/// The longest that is told apart from any longer time: a minute. Where all in between fits into
/// 100 KiB, two digits are exact.
const LONGEST: u64 = 60_000_000_000;

/// Packets that came, and those that did not.
#[derive(Clone, Debug)]
pub struct ReceiveCounts {
    streams: Vec<StreamCounts>,
    received_packets: u64,
    foreign_packets: u64,
    other_streams_packets: u64,
    clock_behind_packets: u64,
    latency: Histogram<u64>,
}

/// A stream as it came.
#[derive(Clone, Debug)]
pub struct StreamCounts {
    pub stream: u16,
    pub sequence: Sequence,
    /// Packets that came again.
    pub duplicate_packets: u64,
    /// Packets that came after one with a higher number (RFC 4737).
    pub late_packets: u64,
    /// How much lower a number was than the next in order, at most.
    pub late_by_most_packets: u64,
    /// Packets so late that nobody knows whether they came before.
    pub too_late_packets: u64,
}

/// Times from sender to receiver, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub packets: u64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Packets that were received before they were sent, by clocks that do not agree; they are in
    /// no other number here.
    pub clock_behind_packets: u64,
}

impl ReceiveCounts {
    /// Nothing came. These streams are known to begin at 0: what is missing at their beginning is
    /// lost, too.
    pub fn new(known: &[u16]) -> Self {
        let mut streams = Vec::with_capacity(STREAMS.max(known.len()));
        streams.extend(known.iter().map(|stream| StreamCounts::new(*stream, Some(0))));
        let latency = Histogram::new_with_bounds(1, LONGEST, 2);
        Self {
            streams,
            received_packets: 0,
            foreign_packets: 0,
            other_streams_packets: 0,
            clock_behind_packets: 0,
            // Its bounds are constants that it accepts.
            latency: latency.expect("a histogram of a minute's nanoseconds"),
        }
    }

    /// A frame has come, at this time (nanoseconds since 1970).
    #[inline]
    pub fn take(&mut self, frame: &[u8], now: u64) {
        self.received_packets += 1;
        match stamp(frame) {
            Some(stamp) => self.stamped(&stamp, now),
            None => self.foreign_packets += 1,
        }
    }

    fn stamped(&mut self, stamp: &Stamp, now: u64) {
        let known = self.streams.iter().position(|known| known.stream == stamp.stream());
        let at = known.or_else(|| {
            // Once in a stream's life.
            let room = self.streams.len() < STREAMS;
            room.then(|| self.streams.push(StreamCounts::new(stamp.stream(), None)))?;
            Some(self.streams.len() - 1)
        });
        let Some(at) = at else {
            self.other_streams_packets += 1;
            return;
        };
        self.streams[at].arrive(stamp.sequence());
        match u64::try_from(stamp.age(now)) {
            Ok(age) => self.latency.saturating_record(age),
            Err(_) => self.clock_behind_packets += 1,
        }
    }

    pub fn received_packets(&self) -> u64 {
        self.received_packets
    }

    /// Packets without a stamp.
    pub fn foreign_packets(&self) -> u64 {
        self.foreign_packets
    }

    /// Packets of streams that were too many to be told apart.
    pub fn other_streams_packets(&self) -> u64 {
        self.other_streams_packets
    }

    /// Its streams, as they began.
    pub fn streams(&self) -> &[StreamCounts] {
        &self.streams
    }

    /// Packets of all streams, each once.
    pub fn unique_packets(&self) -> u64 {
        self.streams.iter().map(|stream| stream.sequence.unique()).sum()
    }

    /// Of all packets with a stamp; none came: none.
    pub fn latency(&self) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| us(self.latency.value_at_quantile(quantile).min(self.latency.max()));
        (!self.latency.is_empty() || self.clock_behind_packets > 0).then(|| Latency {
            packets: self.latency.len(),
            min_us: us(self.latency.min()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.latency.max()),
            clock_behind_packets: self.clock_behind_packets,
        })
    }

    /// Whether each packet that came is in one number alone.
    pub fn balanced(&self) -> bool {
        let of_streams: u64 = self.streams.iter().map(StreamCounts::received_packets).sum();
        let others = self.foreign_packets + self.other_streams_packets;
        let timed = self.latency.len() + self.clock_behind_packets;
        self.received_packets == of_streams + others && timed == of_streams
    }
}

impl StreamCounts {
    fn new(stream: u16, first: Option<u64>) -> Self {
        Self {
            stream,
            sequence: Sequence::new(first),
            duplicate_packets: 0,
            late_packets: 0,
            late_by_most_packets: 0,
            too_late_packets: 0,
        }
    }

    #[inline]
    fn arrive(&mut self, number: u64) {
        match self.sequence.arrive(number) {
            Arrival::InOrder => (),
            Arrival::Duplicate => self.duplicate_packets += 1,
            Arrival::TooLate => self.too_late_packets += 1,
            Arrival::Late { by } => {
                self.late_packets += 1;
                self.late_by_most_packets = self.late_by_most_packets.max(by);
            }
        }
    }

    /// Packets of it, whether for the first time or again.
    pub fn received_packets(&self) -> u64 {
        self.sequence.unique() + self.duplicate_packets + self.too_late_packets
    }
}

/// The stamp of a frame, if it is one of ours.
#[inline]
fn stamp(frame: &[u8]) -> Option<Stamp> {
    let frame = Frame::parse(frame).ok()?;
    if !matches!(frame.ethertype, ethertype::IPV4 | ethertype::IPV6) {
        return None;
    }
    let ip = Ip::parse(frame.payload).ok()?;
    if ip.fragment.is_some() {
        return None;
    }
    Stamp::of(match ip.protocol {
        protocol::UDP => Udp::parse(ip.payload).ok()?.payload,
        protocol::TCP => Tcp::parse(ip.payload).ok()?.payload,
        protocol::ICMP => Icmp::parse(ip.payload).ok()?.payload,
        protocol::ICMPV6 => Icmpv6::parse(ip.payload).ok()?.payload,
        _ => return None,
    })
}
