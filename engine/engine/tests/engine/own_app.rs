//! A program as somebody else writes it: a server of datagrams with reasons of its own, in front of
//! a host that can be pinged.

use ringway_engine::apps::{Datagram, Host, Icmp};
use ringway_engine::{App, Burst, Cycles, Reason, Verdict};
use ringway_wire::{Frame, Header as _, Ip, MIN_FRAME, Udp, UdpChecksum};
use ringway_xsk::Packet;

use crate::bench_of::Bench;
use crate::frames::*;

const EMPTY: Reason = Reason::own(0);
const UNNAMED: Reason = Reason::own(1);

/// Repeats what comes three times; a datagram that begins with "-" is answered by nothing.
struct Parrot {
    host: Host,
    icmp: Icmp,
}

impl Parrot {
    fn repeat(&self, packet: &mut Packet, from: usize) -> Result<Option<Verdict>, Reason> {
        let Some(datagram) = Datagram::find(packet, &self.host, PORT)? else { return Ok(None) };
        assert_eq!(datagram.source().port(), 4711);
        match datagram.payload.first() {
            None => return Err(EMPTY),
            Some(b'?') => return Err(UNNAMED),
            Some(_) => {}
        }
        let answered = self.host.answer_datagram(packet, PORT, |room, len| match room[0] {
            b'-' => Ok(0),
            _ => {
                room.get(..3 * len).ok_or(Reason::NoRoom)?;
                room.copy_within(..len, len);
                room.copy_within(..len, 2 * len);
                Ok(3 * len)
            }
        })?;
        Ok(answered.then_some(Verdict::Forward(from)))
    }
}

impl App for Parrot {
    fn name(&self) -> &'static str {
        "parrot"
    }

    fn reasons(&self) -> &'static [&'static str] {
        &["empty"]
    }

    fn on_burst(&mut self, now: Cycles, burst: &mut Burst<'_>) {
        let from = burst.from();
        burst.decide_some(|packet| {
            self.repeat(packet, from).unwrap_or_else(|reason| Some(Verdict::Drop(reason)))
        });
        self.icmp.on_burst(now, burst);
    }
}

fn bench() -> Bench<Parrot> {
    Bench::new(Parrot { host: host(), icmp: Icmp::new(host()) })
}

#[test]
fn answers_are_shorter_or_longer_than_questions() {
    let mut bench = bench();
    for (question, answer) in
        [(&b"hello"[..], b"hello".repeat(3)), (b"-", vec![]), (&[b'x'; 400], vec![b'x'; 1200])]
    {
        for frame in [udp(question), udp_v6(question), tagged(&udp(question))] {
            let headers = frame.len() - question.len();
            let came = bench.ask(frame).unwrap();
            let frame = Frame::parse(&came[..]).unwrap();
            assert_eq!((frame.ethernet.destination, frame.ethernet.source), (THEM, US));
            let ip = Ip::parse(frame.payload).unwrap();
            let udp = Udp::parse(ip.payload).unwrap();
            assert_eq!(udp.verify(ip.pseudo()), UdpChecksum::Right);
            assert_eq!((udp.header.source.get(), udp.header.destination.get()), (PORT, 4711));
            assert_eq!(udp.payload, answer);
            assert_eq!(came.len(), MIN_FRAME.max(headers + answer.len()));
            assert_eq!(frame.header_len() + ip.header_len() + udp.header_len(), headers);
            assert!(came[headers + answer.len()..].iter().all(|byte| *byte == 0));
        }
    }
    assert!(bench.ask(udp(&[b'x'; 1400])).is_none());
    assert_eq!(bench.dropped("no-room"), 1);
    bench.end();
}

#[test]
fn one_app_decides_what_the_other_leaves() {
    let mut bench = bench();
    bench.send(&[ping(), udp(b""), tcp(), udp(b"a"), udp(b"?"), arp(), udp(b"bc")]);
    // Those of the first app wait first.
    let came: Vec<usize> = bench.round().iter().map(Vec::len).collect();
    assert_eq!(came, [MIN_FRAME, MIN_FRAME, ping().len(), arp().len()]);
    for reason in ["empty", "own", "other-protocol"] {
        assert_eq!(bench.dropped(reason), 1, "{reason}");
    }
    bench.end();
}

#[path = "../../examples/hello_app.rs"]
mod hello_app;

#[test]
fn the_example_runs() {
    hello_app::main().unwrap();
}
