//! `ping`: echo requests to an address that is resolved by ARP or neighbour discovery (RFC 826,
//! 4861).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_wire::{
    Arp, BuildError, Builder, Ethernet, Frame, Header as _, Icmp, Icmpv6, Ip, IpHeader, Ipv4, Ipv6,
    Mac, ethertype, nd, protocol,
};
use ringway_xsk::Buffer;

use super::Host;
use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::stamp::{Arrival, Clock, Sequence, Stamp};
use crate::status::reason::Reason;

/// The address to ask, and how often.
#[derive(Clone, Copy, Debug)]
pub struct PingConfig {
    /// An address on the link.
    pub address: IpAddr,
    /// Time from one request to the next.
    pub interval: Duration,
    /// No more requests than this.
    pub count: Option<u64>,
    /// Bytes behind the header of ICMP: [`Stamp::BYTES`] to 3 778.
    pub size: u16,
}

/// Why an address cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PingError {
    #[error(
        "{0} cannot be asked from an address of the other family; give the host one of its own"
    )]
    Family(IpAddr),
    #[error("a request cannot carry {0} bytes; ask for {LEAST} to {MOST}")]
    Size(u16),
}

/// Addresses of a request.
#[derive(Clone, Copy, Debug)]
enum Tuple {
    V4 { source: Ipv4Addr, target: Ipv4Addr },
    V6 { source: Ipv6Addr, target: Ipv6Addr },
}

/// The results so far.
#[derive(Clone, Debug)]
pub struct PingResults {
    /// The MAC address, once it is resolved.
    pub mac: Option<Mac>,
    /// Questions of ARP or neighbour discovery.
    pub questions: u64,
    pub sent: u64,
    /// Answers, with repeated ones.
    pub received: u64,
    /// Repeated answers.
    pub duplicates: u64,
    /// Round-trip times of first answers, in nanoseconds.
    pub rtt: Times,
    /// Answers that were not read yet, as far as there is room.
    pub latest: VecDeque<PingReply>,
    sequence: Sequence,
    /// The clock of all workers.
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
pub struct PingReply {
    /// Bytes of the message of ICMP.
    pub bytes: usize,
    /// The request's number, from 1.
    pub sequence: u64,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Nanoseconds since the request.
    pub rtt_ns: u64,
    /// Whether it has come before.
    pub duplicate: bool,
}

/// Least, most, mean and deviation of times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    count: u64,
    min: u64,
    max: u64,
    sum: f64,
    squares: f64,
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += 1;
        self.sum += ns as f64;
        self.squares += (ns as f64).powi(2);
    }

    /// Least, mean, most and standard deviation in milliseconds, as `ping` prints them; none of
    /// nothing.
    pub fn milliseconds(&self) -> Option<[f64; 4]> {
        let count = (self.count > 0).then_some(self.count as f64)?;
        let mean = self.sum / count;
        let deviation = (self.squares / count - mean * mean).max(0.0).sqrt();
        Some([self.min as f64, mean, self.max as f64, deviation].map(|ns| ns / 1e6))
    }
}

/// Ethernet, IPv6 and ICMPv6: what precedes the payload of an echo request at most.
const HEADERS: usize = 14 + 40 + 8;
/// Bytes of payload; the frame fits into one of 4 096 bytes.
const LEAST: u16 = Stamp::BYTES as u16;
const MOST: u16 = 3840 - HEADERS as u16;
/// The first request's number, on the wire and where it is printed: as `ping` has it.
const FIRST: u64 = 1;
/// Most answers that wait to be read.
const LATEST: usize = 1024;
/// Time between questions of address resolution, and from the last request to the end.
const PATIENCE: u64 = 1_000_000_000;
/// Most unanswered questions, if the number of requests is limited.
const QUESTIONS: u64 = 3;

impl PingResults {
    pub fn new() -> Self {
        Self {
            mac: None,
            questions: 0,
            sent: 0,
            received: 0,
            duplicates: 0,
            rtt: Times::default(),
            latest: VecDeque::with_capacity(LATEST),
            sequence: Sequence::new(Some(FIRST)),
            clock: Clock::new(),
        }
    }

    pub fn answered(&self) -> u64 {
        self.received - self.duplicates
    }
}

impl Default for PingResults {
    fn default() -> Self {
        Self::new()
    }
}

/// Pings an address by port 0, and is a host itself. Of several workers one asks; the others, at
/// which answers may arrive, have a [`Ping::that_listens`].
pub struct Ping {
    host: Host,
    asked: PingConfig,
    asks: bool,
    clock: Clock,
    pinged: Arc<Mutex<PingResults>>,
    tuple: Tuple,
    /// Where requests are built.
    frame: Vec<u8>,
    identifier: u16,
    /// The time of the next packet.
    next: u64,
    /// Whether the address was resolved.
    knew: bool,
    /// The time of the last request.
    last: u64,
}

impl Ping {
    /// Pings from the first of the host's addresses of the same family. `identifier` must differ
    /// from that of other pings.
    ///
    /// # Errors
    /// [`PingError`].
    pub fn new(
        host: Host,
        asked: PingConfig,
        identifier: u16,
        pinged: Arc<Mutex<PingResults>>,
    ) -> Result<Self, PingError> {
        let tuple = match (host.address_towards(asked.address), asked.address) {
            (IpAddr::V4(source), IpAddr::V4(target)) => Tuple::V4 { source, target },
            (IpAddr::V6(source), IpAddr::V6(target)) => Tuple::V6 { source, target },
            _ => return Err(PingError::Family(asked.address)),
        };
        if !(LEAST..=MOST).contains(&asked.size) {
            return Err(PingError::Size(asked.size));
        }
        let frame = vec![0; HEADERS + usize::from(asked.size)];
        let clock = pinged.lock().unwrap_or_else(PoisonError::into_inner).clock;
        let (asks, next, knew, last) = (true, 0, false, 0);
        Ok(Self { host, asked, asks, clock, pinged, tuple, frame, identifier, next, knew, last })
    }

    /// The same without requests: it takes answers to another worker's requests.
    pub fn that_listens(self) -> Self {
        Self { asks: false, ..self }
    }

    /// Whether the packet was an answer for us.
    fn take(&self, packet: &impl Buffer, now: u64) -> Result<bool, Reason> {
        let frame = Frame::parse(packet.data())?;
        if frame.ethernet.destination != self.host.mac() {
            return Ok(false);
        }
        match frame.ethertype {
            ethertype::ARP => {
                let arp = Arp::parse(frame.payload)?.header;
                let reply = arp.operation.get() == Arp::REPLY;
                let about = IpAddr::from(arp.sender);
                Ok(reply && self.found(about, arp.sender_mac))
            }
            ethertype::IPV4 | ethertype::IPV6 => {
                let ip = Ip::parse(frame.payload)?;
                self.take_ip(&ip, frame.ethernet.source, now)
            }
            _ => Ok(false),
        }
    }

    fn take_ip(&self, ip: &Ip<&[u8]>, from: Mac, now: u64) -> Result<bool, Reason> {
        let payload = match (&ip.header, ip.protocol) {
            (IpHeader::V4(_), protocol::ICMP) => {
                let icmp = Icmp::parse(ip.payload)?;
                let reply = icmp.header.kind == Icmp::ECHO_REPLY && icmp.checksum_is_right();
                if reply { icmp.payload } else { return Ok(false) }
            }
            (IpHeader::V6(_), protocol::ICMPV6) => {
                let icmp = Icmpv6::parse(ip.payload)?;
                let right = icmp.checksum_is_right(ip.pseudo());
                match icmp.header.kind {
                    Icmpv6::ECHO_REPLY if right => icmp.payload,
                    Icmpv6::NEIGHBOUR_ADVERTISEMENT if right && ip.ttl() == 255 => {
                        return self.advertised(icmp.payload, from);
                    }
                    _ => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        let stamp = Stamp::of(payload).filter(|stamp| stamp.stream() == self.identifier);
        let Some(stamp) = stamp.filter(|_| ip.source() == self.asked.address) else {
            return Ok(false);
        };
        self.answered(&stamp, ip, now);
        Ok(true)
    }

    fn advertised(&self, payload: &[u8], from: Mac) -> Result<bool, Reason> {
        let neighbour = nd::Neighbour::parse(payload)?;
        let mut mac = from;
        for option in nd::NdOptions::new(neighbour.payload) {
            if let nd::NdOption::TargetLinkLayer(target) = option? {
                mac = target;
            }
        }
        Ok(self.found(Ipv6Addr::from(neighbour.header.target).into(), mac))
    }

    fn found(&self, address: IpAddr, mac: Mac) -> bool {
        let ours = address == self.asked.address && !mac.is_multicast();
        if ours {
            self.pinged().mac = Some(mac);
        }
        ours
    }

    fn answered(&self, stamp: &Stamp, ip: &Ip<&[u8]>, now: u64) {
        let mut pinged = self.pinged();
        // Not ours, whatever it says.
        if !(FIRST..FIRST + pinged.sent).contains(&stamp.sequence()) {
            return;
        }
        let arrival = pinged.sequence.arrive(stamp.sequence());
        let duplicate = matches!(arrival, Arrival::Duplicate | Arrival::TooLate);
        let rtt_ns = u64::try_from(stamp.age(now)).unwrap_or(0);
        let (bytes, sequence, ttl) = (ip.payload.len(), stamp.sequence(), ip.ttl());
        pinged.received += 1;
        pinged.duplicates += u64::from(duplicate);
        if !duplicate {
            pinged.rtt.add(rtt_ns);
        }
        if pinged.latest.len() < LATEST {
            pinged.latest.push_back(PingReply { bytes, sequence, ttl, rtt_ns, duplicate });
        }
    }

    /// Counts that are whole, whoever panicked.
    fn pinged(&self) -> std::sync::MutexGuard<'_, PingResults> {
        self.pinged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all hosts for the address's MAC.
    fn ask(&self, packet: &mut impl Buffer) -> Verdict {
        let (start, mac) = (packet.headroom(), self.host.mac());
        let built = match self.tuple {
            Tuple::V4 { source, target } => {
                arp_request(packet.buffer_mut(), start, mac, source, target)
            }
            Tuple::V6 { source, target } => {
                solicitation(packet.buffer_mut(), start, mac, source, target)
            }
        };
        match built.map(|range| packet.set_range(range)) {
            Ok(Ok(())) => Verdict::Forward(0),
            _ => Verdict::Drop(Reason::NoRoom),
        }
    }

    fn request(&mut self, packet: &mut impl Buffer, to: Mac, stamp: &Stamp) -> Verdict {
        match self.echo_request(to, stamp).map(|range| packet.append(&self.frame[range])) {
            Ok(Ok(())) => Verdict::Forward(0),
            _ => Verdict::Drop(Reason::NoRoom),
        }
    }

    /// The stamp, and zeroes behind it.
    fn echo_request(&mut self, to: Mac, stamp: &Stamp) -> Result<Range<usize>, BuildError> {
        let (identifier, number) = (self.identifier, stamp.sequence() as u16);
        let mut built = Builder::new(&mut self.frame, HEADERS)?;
        built.append(stamp)?.pad(self.asked.size.into())?;
        let ethertype = match self.tuple {
            Tuple::V4 { source, target } => {
                let ip = Ipv4::new(protocol::ICMP, source, target);
                built.icmp(Icmp::echo_request(identifier, number))?.ipv4(ip, &[])?;
                ethertype::IPV4
            }
            Tuple::V6 { source, target } => {
                let ip = Ipv6::new(protocol::ICMPV6, source, target);
                built.icmpv6(Icmpv6::echo_request(identifier, number), ip.pseudo())?.ipv6(ip)?;
                ethertype::IPV6
            }
        };
        built.ethernet(Ethernet::new(to, self.host.mac(), ethertype))?;
        Ok(built.range())
    }

    /// If the number of requests is limited, it does not wait without end.
    fn has_asked_enough(&self) -> bool {
        self.asked.count.is_some() && self.pinged().questions >= QUESTIONS
    }

    fn all_sent(&self, sent: u64) -> bool {
        self.asked.count.is_some_and(|count| sent >= count)
    }
}

fn arp_request(
    buffer: &mut [u8],
    start: usize,
    mac: Mac,
    source: Ipv4Addr,
    target: Ipv4Addr,
) -> Result<Range<usize>, BuildError> {
    // Behind the Ethernet header, which goes in front.
    let mut built = Builder::new(buffer, start + 14)?;
    built.put(&Ethernet::new(Mac::BROADCAST, mac, ethertype::ARP))?;
    built.append(&Arp::request(mac, source, target))?;
    built.pad(ringway_wire::MIN_FRAME)?;
    Ok(built.range())
}

fn solicitation(
    buffer: &mut [u8],
    start: usize,
    mac: Mac,
    source: Ipv6Addr,
    target: Ipv6Addr,
) -> Result<Range<usize>, BuildError> {
    let group = nd::Neighbour::solicited_nodes(target);
    let ip = Ipv6 { hop_limit: 255, ..Ipv6::new(protocol::ICMPV6, source, group) };
    let mut built = Builder::new(buffer, start + 14 + 40 + 8)?;
    built
        .append(&nd::Neighbour { target: target.octets() })?
        .append(&nd::LinkLayer::source(mac))?
        .icmpv6(Icmpv6::new(Icmpv6::NEIGHBOUR_SOLICITATION, 0, 0), ip.pseudo())?
        .ipv6(ip)?
        .ethernet(Ethernet::new(Mac::of_multicast(group), mac, ethertype::IPV6))?;
    Ok(built.range())
}

impl<P: BufferPool> App<P> for Ping {
    fn name(&self) -> &'static str {
        "ping"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        let (port, now) = (burst.from(), self.clock.now());
        burst.decide(|packet| match self.take(packet, now) {
            Ok(true) => Verdict::Drop(Reason::Consumed),
            // It says itself what is wrong with it.
            Ok(false) | Err(_) => self.host.answered(packet, port),
        });
    }

    fn on_round(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        if !self.asks {
            return;
        }
        let now = self.clock.now();
        let (mac, sent) = {
            let pinged = self.pinged();
            (pinged.mac, pinged.sent)
        };
        if mac.is_some() && !self.knew {
            // At once, and the next one an interval later.
            (self.knew, self.next) = (true, now);
        }
        if now < self.next || self.all_sent(sent) {
            return;
        }
        match mac {
            None => {
                if self.has_asked_enough() {
                    return;
                }
                if burst.originate(|packet| self.ask(packet)) {
                    self.pinged().questions += 1;
                    self.next = now + PATIENCE;
                }
            }
            Some(mac) => {
                // Counted first: its answer may be with another worker before this goes on.
                self.pinged().sent += 1;
                let stamp = Stamp::new(self.identifier, FIRST + sent, now);
                if !burst.originate(|packet| self.request(packet, mac, &stamp)) {
                    self.pinged().sent -= 1;
                } else {
                    self.last = now;
                    // From when it should have been, so that waking up late does not add up.
                    let interval = self.asked.interval.as_nanos() as u64;
                    let due = self.next.max(now.saturating_sub(interval)) + interval;
                    self.next = due;
                }
            }
        }
    }

    fn is_finished(&self) -> bool {
        // The asking worker decides when it is over.
        if !self.asks {
            return false;
        }
        let (now, enough) = (self.clock.now(), self.has_asked_enough());
        let pinged = self.pinged();
        let nobody = pinged.mac.is_none() && enough && now >= self.next;
        let waited = pinged.answered() == pinged.sent || now >= self.last + PATIENCE;
        nobody || self.all_sent(pinged.sent) && waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_ping_has_it() {
        let mut times = Times::default();
        assert_eq!(times.milliseconds(), None);
        [1_000_000, 3_000_000, 2_000_000].into_iter().for_each(|ns| times.add(ns));
        let [min, mean, max, deviation] = times.milliseconds().unwrap();
        assert_eq!((min, mean, max), (1.0, 2.0, 3.0));
        assert!((deviation - (2.0_f64 / 3.0).sqrt()).abs() < 1e-9, "{deviation}");
    }
}
