//! The traffic, and the machines.

use serde::Serialize;

use crate::Error;

/// Bytes of an Ethernet frame on the wire that are not in the packet: header 14, checksum 4,
/// preamble 8, gap 12 (IEEE 802.3, clauses 3 and 4).
const AROUND: u32 = 14 + 4 + 8 + 12;
/// The shortest frame on the wire, with preamble and gap.
const SHORTEST: u32 = 64 + 8 + 12;

/// Beyond these nothing is a plan: a second's packets, connections, bytes of each.
const MOST_RATE: f64 = 1e12;
const MOST_NUMBER: u64 = 1_000_000_000_000;
const MOST_STATE: u64 = 1 << 30;
/// All of them together.
const MOST_BYTES: f64 = 1e18;
/// Of a machine that packets may take, of a core that may be busy.
const LEAST_PART: f64 = 0.01;
/// Nor is a machine.
const MOST_CORES: u32 = 65_536;
const MOST_MEMORY: u64 = 1 << 50;
const MOST_LINK: u64 = 100_000_000_000_000;

/// The work on packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Messages over TCP connections are read and answered.
    Connections,
    /// Datagrams are answered by a program.
    Answer,
    /// Packets are sent on: balanced, routed, filtered.
    Forward,
}

impl Work {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Work::Connections => "connections",
            Work::Answer => "answer",
            Work::Forward => "forward",
        }
    }
}

/// One machine of those there may be several of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Processors as the kernel counts them.
    pub cores: u32,
    pub memory_bytes: u64,
    /// Bits a second, one way.
    pub link_bits: u64,
}

/// The traffic at its busiest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// The work on it.
    pub work: Work,
    /// Packets a second that come in; of connections: beyond what their messages make. None: those
    /// of requests and messages alone.
    pub packets_pps: Option<f64>,
    /// Bytes of a packet from its IP header on.
    pub packet_bytes: u32,
    /// Requests a second beyond the messages of connections.
    pub requests_per_s: f64,
    /// Connections that are open at once, or flows.
    pub connections: u64,
    /// Messages of one connection in an hour.
    pub messages_per_hour: f64,
    /// Bytes that the program keeps for one connection.
    pub state_bytes: u64,
    /// Sockets in TIME_WAIT at once.
    pub time_wait: u64,
    /// Addresses and ports that connections are made to; none: they are accepted here.
    pub destinations: Option<u64>,
    /// Local ports, the first and the last, that such connections may have:
    /// `net.ipv4.ip_local_port_range`.
    pub ports: (u16, u16),
    /// Packets a second of an attack, to be survived beside the rest.
    pub attack_pps: f64,
    pub machine: Machine,
    /// Part of a machine's cores that packets may take; the program needs the rest.
    pub share: f64,
    /// How busy a core may be on average, so that bursts find room.
    pub busy: f64,
}

impl Workload {
    /// Messages a second that are read and answered.
    pub fn messages_per_s(&self) -> f64 {
        self.requests_per_s + self.connections as f64 * self.messages_per_hour / 3600.0
    }

    /// Packets a second that were given, or none.
    pub fn packets(&self) -> f64 {
        self.packets_pps.unwrap_or(0.0)
    }

    /// Local ports that there are.
    pub fn ports(&self) -> u64 {
        u64::from(self.ports.1.saturating_sub(self.ports.0)) + 1
    }

    /// Packets a second that come in, the attack's left out. A message is one in each direction
    /// (its acknowledgement rides on the answer).
    pub fn packets_in_pps(&self) -> f64 {
        match self.work {
            Work::Connections => self.packets() + self.messages_per_s(),
            Work::Answer => self.packets().max(self.messages_per_s()),
            Work::Forward => self.packets(),
        }
    }

    /// Bits a second of one direction, on the wire.
    pub fn bandwidth_bits(&self) -> f64 {
        let bits = |bytes: u32| f64::from((bytes + AROUND).max(SHORTEST)) * 8.0;
        // Packets of an attack are small: their number is its means.
        self.packets_in_pps() * bits(self.packet_bytes) + self.attack_pps * bits(0)
    }

    /// # Errors
    ///
    /// Refuses contradictions, each with its remedy.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |what: String, remedy| Err(Error::Workload { what, remedy });
        let rates = [self.packets(), self.requests_per_s, self.messages_per_hour, self.attack_pps];
        if let Some(rate) = rates.iter().find(|rate| !(0.0..=MOST_RATE).contains(*rate)) {
            return wrong(format!("a rate of {rate} is out of range"), "0 to 1T is possible");
        }
        if self.packets_in_pps() > MOST_RATE {
            return wrong(
                format!("{:.0} packets a second are out of range", self.packets_in_pps()),
                "1T is the most; give fewer --connections or --messages-per-hour",
            );
        }
        let numbers = [self.connections, self.time_wait, self.destinations.unwrap_or(1)];
        if let Some(number) = numbers.iter().find(|number| **number > MOST_NUMBER) {
            return wrong(
                format!("{number} connections, or destinations, are out of range"),
                "0 to 1T is possible",
            );
        }
        if self.state_bytes > MOST_STATE {
            return wrong(
                format!("{} bytes of state for each connection are out of range", self.state_bytes),
                "1GiB is the most",
            );
        }
        if !(20..=65_535).contains(&self.packet_bytes) {
            return wrong(
                format!("packets of {} bytes", self.packet_bytes),
                "20 to 65535 is possible, counted from the IP header",
            );
        }
        if self.connections as f64 * self.state_bytes as f64 > MOST_BYTES {
            return wrong(
                format!(
                    "{} connections with {} bytes of state each are more memory than there is",
                    self.connections, self.state_bytes
                ),
                "give fewer --connections or less --state",
            );
        }
        let part = |part: f64| (LEAST_PART..=1.0).contains(&part);
        if !part(self.share) || !part(self.busy) {
            return wrong("share and busy are parts of one".to_owned(), "0.01 to 1 is possible");
        }
        if self.machine.cores == 0
            || self.machine.memory_bytes < 1 << 28
            || self.machine.link_bits < 1_000_000
        {
            return wrong(
                "no such machine".to_owned(),
                "it has 1 core, 256MiB and 1Mbit/s at least",
            );
        }
        let Machine { cores, memory_bytes, link_bits } = self.machine;
        if cores > MOST_CORES || memory_bytes > MOST_MEMORY || link_bits > MOST_LINK {
            return wrong(
                "no such machine".to_owned(),
                "it has 65536 cores, 1024TiB and 100Tbit/s at most",
            );
        }
        let (first, last) = self.ports;
        if first == 0 || first > last {
            return wrong(
                format!("no ports from {first} to {last}"),
                "write the first and the last: --port-range 32768-60999",
            );
        }
        self.contradictions()
    }

    fn contradictions(&self) -> Result<(), Error> {
        let wrong = |what: &str, remedy| Err(Error::Workload { what: what.to_owned(), remedy });
        if self.connections == 0 {
            if self.messages_per_hour > 0.0 {
                return wrong(
                    "messages of connections, but no connections",
                    "give --connections, or --requests for those of no connection",
                );
            }
            if self.state_bytes > 0 {
                return wrong(
                    "state for each connection, but no connections",
                    "give --connections",
                );
            }
        }
        if self.work == Work::Forward
            && (self.messages_per_s() > 0.0 || self.destinations.is_some() || self.time_wait > 0)
        {
            return wrong(
                "what is forwarded is not answered: requests, messages, TIME_WAIT and destinations are a program's",
                "give --packets and --connections (flows), or another --work",
            );
        }
        if self.work == Work::Answer && (self.time_wait > 0 || self.destinations.is_some()) {
            return wrong(
                "datagrams have no TIME_WAIT and use no port for each",
                "give --work connections",
            );
        }
        if self.work == Work::Answer
            && self.packets_pps.is_some_and(|packets| packets < self.messages_per_s())
        {
            return wrong(
                "fewer packets than requests, and a request is a packet",
                "leave --packets out, or raise it",
            );
        }
        if self.destinations == Some(0) {
            return wrong("connections to no destination", "1 is the least");
        }
        let nothing = self.packets_in_pps() + self.attack_pps == 0.0
            && self.connections + self.time_wait == 0;
        if nothing {
            return wrong(
                "there is nothing to size",
                "give --packets, --requests, --connections, --time-wait or --attack",
            );
        }
        Ok(())
    }
}
