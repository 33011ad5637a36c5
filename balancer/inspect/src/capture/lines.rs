//! Packets as lines of text, or as JSON, one a line.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde::Serialize;

use super::packet::{Frame, Packet};

/// Name and version of a packet's JSON.
pub const SCHEMA: &str = "ringway.packet/1";

/// Flows that are told apart at a time; past that, the oldest half is forgotten.
const FLOWS: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for what came, and one for what leaves.
    Lines,
    /// One line a packet, by flow, with the time since the flow's last.
    Follow,
    /// One JSON document a packet and line.
    Json,
}

#[derive(Debug)]
pub struct Printer {
    form: Form,
    flows: Flows,
}

/// A packet in JSON: schema `ringway.packet/1`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    unix_ns: u64,
    verdict: &'static str,
    reason: &'static str,
    service: Option<&'a str>,
    backend: Option<&'a str>,
    /// Number of its flow within this output.
    flow: Option<u64>,
    /// Time since the flow's last packet.
    since_last_ns: Option<u64>,
    before: Side<'a>,
    after: Option<Side<'a>>,
}

#[derive(Debug, Serialize)]
struct Side<'a> {
    interface: &'a str,
    packet: String,
    wire_bytes: u32,
    captured_bytes: usize,
}

impl Printer {
    /// One that has printed nothing.
    pub fn new(form: Form) -> Printer {
        Printer { form, flows: Flows::default() }
    }

    pub fn packet(&mut self, out: &mut Vec<u8>, packet: &Packet<'_>) {
        match self.form {
            Form::Lines => lines(out, packet),
            Form::Follow => self.follow(out, packet),
            Form::Json => self.json(out, packet),
        }
    }

    fn follow(&mut self, out: &mut Vec<u8>, packet: &Packet<'_>) {
        let seen = self.flows.seen(packet);
        let flow = seen.map_or_else(|| "-".to_owned(), |seen| format!("flow {}", seen.number));
        let since = match seen.and_then(|seen| seen.since_last_ns) {
            Some(ns) => format!("+{}", span(ns)),
            None => String::new(),
        };
        let Packet { before, after, .. } = packet;
        let leaves = after.as_ref().map_or_else(String::new, |after| {
            let as_what = after.headers().map_or_else(|| after.words(), |headers| headers.who());
            format!("; leaves {} as {as_what}", after.interface)
        });
        let line = format!(
            "{} {flow:<7} {since:>9}  {} {}  {}{leaves}\n",
            time_of_day(packet.unix_ns),
            before.interface,
            before.words(),
            packet.fate.words,
        );
        out.extend(line.as_bytes());
    }

    fn json(&mut self, out: &mut Vec<u8>, packet: &Packet<'_>) {
        let seen = self.flows.seen(packet);
        let document = Document {
            schema: SCHEMA,
            unix_ns: packet.unix_ns,
            verdict: packet.fate.verdict.name(),
            reason: packet.fate.reason.name(),
            service: packet.fate.service.as_deref(),
            backend: packet.fate.backend.as_deref(),
            flow: seen.map(|seen| seen.number),
            since_last_ns: seen.and_then(|seen| seen.since_last_ns),
            before: Side::of(&packet.before),
            after: packet.after.as_ref().map(Side::of),
        };
        // Strings and numbers always have a JSON form, and memory takes it.
        let _ = serde_json::to_writer(&mut *out, &document);
        out.push(b'\n');
    }
}

impl<'a> Side<'a> {
    fn of(frame: &Frame<'a>) -> Side<'a> {
        Side {
            interface: frame.interface,
            packet: frame.words(),
            wire_bytes: frame.wire_len,
            captured_bytes: frame.bytes.len(),
        }
    }
}

fn lines(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let time = time_of_day(packet.unix_ns);
    let Packet { before, after, .. } = packet;
    let line =
        format!("{time} {} in  {}  {}\n", before.interface, before.words(), packet.fate.words);
    out.extend(line.as_bytes());
    if let Some(after) = after {
        out.extend(format!("{time} {} out {}\n", after.interface, after.words()).as_bytes());
    }
}

/// `10:21:07.481220`, UTC as in the log.
fn time_of_day(unix_ns: u64) -> String {
    let (seconds, us) = (unix_ns / 1_000_000_000, unix_ns / 1000 % 1_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{us:06}", seconds % 60)
}

/// A length of time with three digits or more: `481 us`, `20.4 ms`.
fn span(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Which flow a packet belongs to, by the addresses and ports of both of its sides: what a client
/// sends is known by them again when it leaves, and so is what the backend answers.
#[derive(Debug, Default)]
struct Flows {
    numbers: HashMap<(SocketAddr, SocketAddr), u64>,
    last: HashMap<u64, u64>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    number: u64,
    since_last_ns: Option<u64>,
}

impl Flows {
    fn seen(&mut self, packet: &Packet<'_>) -> Option<Seen> {
        let ends = |frame: &Frame<'_>| frame.headers()?.ends();
        let sides = [ends(&packet.before), packet.after.as_ref().and_then(ends)];
        let sides: Vec<_> =
            sides.into_iter().flatten().map(|(a, b)| (a.min(b), a.max(b))).collect();
        if sides.is_empty() {
            return None;
        }
        let known = sides.iter().find_map(|side| self.numbers.get(side).copied());
        let number = known.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.numbers.extend(sides.into_iter().map(|side| (side, number)));
        let last = self.last.insert(number, packet.unix_ns);
        if self.last.len() > FLOWS {
            self.forget();
        }
        // Processors do not take turns: a record may be older than the one before it.
        Some(Seen { number, since_last_ns: last.map(|last| packet.unix_ns.saturating_sub(last)) })
    }

    fn forget(&mut self) {
        let mut moments: Vec<u64> = self.last.values().copied().collect();
        moments.sort_unstable();
        let middle = moments[moments.len() / 2];
        self.last.retain(|_, moment| *moment > middle);
        let last = &self.last;
        self.numbers.retain(|_, number| last.contains_key(number));
    }
}

#[cfg(test)]
mod tests {
    use ringway_abi::{Reason, Verdict};
    use ringway_wire::{Builder, Ethernet, Ipv4, Mac, Tcp, U32, ethertype, protocol};

    use super::super::packet::Fate;
    use super::*;

    type End = ([u8; 4], u16);

    const CLIENT: End = ([192, 0, 2, 7], 4711);
    const SERVICE: End = ([203, 0, 113, 10], 80);
    const SOURCE: End = ([10, 0, 0, 1], 2048);
    const BACKEND: End = ([10, 0, 0, 2], 80);

    fn frame(from: End, to: End) -> Vec<u8> {
        let ip = Ipv4::new(protocol::TCP, from.0.into(), to.0.into());
        let tcp = Tcp { sequence: U32::new(5), ..Tcp::new(from.1, to.1, Tcp::SYN) };
        let ethernet = Ethernet::new(Mac([4; 6]), Mac([2; 6]), ethertype::IPV4);
        let mut frame = [0; 54];
        let mut packet = Builder::new(&mut frame, 54).expect("room");
        packet.tcp(tcp, &[], ip.pseudo()).expect("TCP").ipv4(ip, &[]).expect("IP");
        packet.ethernet(ethernet).expect("Ethernet");
        frame.to_vec()
    }

    fn on<'a>(interface: &'a str, bytes: &'a [u8]) -> Frame<'a> {
        Frame { slot: 0, interface, raw: false, bytes, wire_len: bytes.len() as u32 }
    }

    /// When, why, as it came and as it left.
    type Told = (u64, Reason, End, End, Option<(End, End)>);

    fn print(form: Form, packets: &[Told]) -> String {
        let (mut printer, mut out) = (Printer::new(form), Vec::new());
        for (unix_ns, reason, from, to, after) in packets {
            let before = frame(*from, *to);
            let after = after.map(|(from, to)| frame(from, to));
            let verdict = if after.is_some() { Verdict::Redirect } else { Verdict::Drop };
            let backend = after.is_some().then_some("10.0.0.2:80".into());
            let packet = Packet {
                unix_ns: *unix_ns,
                fate: &Fate::new(verdict, *reason, Some("web".into()), backend),
                before: on("eth0", &before),
                after: after.as_ref().map(|bytes| on("eth1", bytes)),
            };
            printer.packet(&mut out, &packet);
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn in_and_out() {
        let text = print(
            Form::Lines,
            &[
                (37_267_481_220_999, Reason::NatForward, CLIENT, SERVICE, Some((SOURCE, BACKEND))),
                (0, Reason::NoBackend, CLIENT, SERVICE, None),
            ],
        );
        let want = "10:21:07.481220 eth0 in  tcp 192.0.2.7:4711 > 203.0.113.10:80 syn seq 5 len 0  \
                    redirect nat-forward, service web, backend 10.0.0.2:80\n\
                    10:21:07.481220 eth1 out tcp 10.0.0.1:2048 > 10.0.0.2:80 syn seq 5 len 0\n\
                    00:00:00.000000 eth0 in  tcp 192.0.2.7:4711 > 203.0.113.10:80 syn seq 5 len 0  \
                    drop no-backend, service web\n";
        assert_eq!(text, want);
    }

    #[test]
    fn a_flow_is_the_same_on_both_sides() {
        let other = ([192, 0, 2, 8], 4711);
        let packets = [
            (0, Reason::NatForward, CLIENT, SERVICE, Some((SOURCE, BACKEND))),
            (281_000, Reason::NoBackend, other, SERVICE, None),
            (282_000, Reason::NatReply, BACKEND, SOURCE, Some((SERVICE, CLIENT))),
            (20_282_000, Reason::NoBackend, other, SERVICE, None),
        ];
        let text = print(Form::Follow, &packets);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("00:00:00.000000 flow 1             eth0 tcp "), "{text}");
        let end = "; leaves eth1 as tcp 10.0.0.1:2048 > 10.0.0.2:80";
        assert!(lines[0].ends_with(end), "{text}");
        assert!(lines[1].contains(" flow 2  ") && lines[1].ends_with("service web"), "{text}");
        assert!(lines[2].starts_with("00:00:00.000282 flow 1    +282 us  eth0 tcp "), "{text}");
        assert!(lines[3].contains(" flow 2   +20.0 ms  "), "{text}");
        let json = print(Form::Json, &packets);
        let third: serde_json::Value =
            serde_json::from_str(json.lines().nth(2).expect("a third")).expect("JSON");
        assert_eq!((&third["flow"], &third["since_last_ns"]), (&1.into(), &282_000.into()));
        assert_eq!((&third["schema"], &third["reason"]), (&SCHEMA.into(), &"nat-reply".into()));
        let want = "tcp 203.0.113.10:80 > 192.0.2.7:4711 syn seq 5 len 0";
        assert_eq!(third["after"]["packet"], want);
    }

    #[test]
    fn flows_are_bounded() {
        let mut flows = Flows::default();
        let fate = Fate::new(Verdict::Drop, Reason::NoBackend, None, None);
        for n in 0..3 * FLOWS as u64 {
            let client = ([10, 9, (n >> 8) as u8, n as u8], 1 + (n >> 16) as u16);
            let bytes = frame(client, SERVICE);
            let packet =
                Packet { unix_ns: n, fate: &fate, before: on("eth0", &bytes), after: None };
            let seen = flows.seen(&packet).expect("a flow");
            assert_eq!(seen, Seen { number: n + 1, since_last_ns: None });
            assert!(flows.last.len() <= FLOWS && flows.numbers.len() <= FLOWS + 1);
        }
    }
}
