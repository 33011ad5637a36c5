//! A host that asks another one, with somebody between who loses and repeats answers.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringway_engine::apps::{Host, Icmp, Ping, PingConfig, PingError, PingResults};
use ringway_engine::ports::Memory;
use ringway_engine::{App, Burst, Cycles, Port, Reason, Verdict, Worker, WorkerOptions};
use ringway_wire::Mac;
use ringway_xsk::{Batch, Pool};

use crate::bench_of::pool;

fn host(last: u8) -> Host {
    let addresses = [IpAddr::from([10, 0, 0, last]), format!("fd00::{last}").parse().unwrap()];
    Host::new(Mac([2, 0, 0, 0, 0, last]), addresses)
}

fn asked(address: &str, interval: Duration, count: Option<u64>) -> PingConfig {
    PingConfig { address: address.parse().unwrap(), interval, count, size: 18 }
}

fn worker<A: App>(pool: &Pool, ports: Vec<Memory>, app: A) -> Worker<A> {
    let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
    Worker::new(pool.clone(), ports, app, WorkerOptions::default())
}

/// Between port 0, who asks, and port 1, who answers: of the answers after the first, which says
/// where the other is, drops every fifth and sends every seventh twice.
#[derive(Default)]
struct Bad(u64);

impl App for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let (to, mut again) = (1 - burst.from(), Vec::new());
        burst.decide(|packet| {
            if to == 1 {
                return Verdict::Forward(1);
            }
            self.0 += 1;
            match self.0 - 1 {
                0 => (),
                n if n % 5 == 0 => return Verdict::Drop(Reason::Consumed),
                n if n % 7 == 0 => again.push(packet.data().to_vec()),
                _ => (),
            }
            Verdict::Forward(0)
        });
        for frame in again {
            let made = burst.originate(|packet| {
                packet.append(&frame).unwrap();
                Verdict::Forward(0)
            });
            assert!(made);
        }
    }
}

/// Between port 0, who asks, and port 2, who answers: all answers go to port 1, where somebody else
/// listens.
struct Astray;

impl App for Astray {
    fn name(&self) -> &'static str {
        "astray"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let to = if burst.from() == 2 { 1 } else { 2 };
        burst.decide(|_packet| Verdict::Forward(to));
    }
}

/// The NIC may bring an answer to another queue than the question left by.
#[test]
fn answers_arrive_at_another_worker() {
    for address in ["10.0.0.2", "fd00::2"] {
        let (pool, pinged) = (pool(512), Arc::new(Mutex::new(PingResults::new())));
        let asked = asked(address, Duration::from_millis(1), Some(50));
        let ping = || Ping::new(host(1), asked, 77, pinged.clone()).unwrap();
        let ends = ["a", "b", "c"].map(|name| Memory::pair(name, &pool, 64).unwrap());
        let [(a, to_a), (b, to_b), (c, to_c)] = ends;
        let mut asks = worker(&pool, vec![a], ping());
        let mut listens = worker(&pool, vec![b], ping().that_listens());
        let mut answers = worker(&pool, vec![c], Icmp::new(host(2)));
        let mut between = worker(&pool, vec![to_a, to_b, to_c], Astray);
        let deadline = Instant::now() + Duration::from_secs(30);
        while !asks.is_finished() {
            assert!(Instant::now() < deadline, "{:?}", pinged.lock().unwrap());
            asks.round().unwrap();
            between.round().unwrap();
            answers.round().unwrap();
            listens.round().unwrap();
        }
        assert!(!listens.is_finished(), "it waits for whoever asks");
        assert_eq!(asks.status().packets.received_packets, 0);
        assert_eq!(listens.status().packets.transmitted_packets, 0, "one asks, and no other");
        let pinged = pinged.lock().unwrap();
        assert_eq!((pinged.sent, pinged.answered(), pinged.duplicates), (50, 50, 0));
    }
}

fn pinged(address: &str, count: u64) -> PingResults {
    let (pool, pinged) = (pool(512), Arc::new(Mutex::new(PingResults::new())));
    let asked = asked(address, Duration::from_millis(1), Some(count));
    let ping = Ping::new(host(1), asked, 77, pinged.clone()).unwrap();
    let (one, two) = Memory::pair("a", &pool, 64).unwrap();
    let (three, four) = Memory::pair("b", &pool, 64).unwrap();
    let mut asks = worker(&pool, vec![one], ping);
    let mut between = worker(&pool, vec![two, three], Bad::default());
    let mut answers = worker(&pool, vec![four], Icmp::new(host(2)));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !asks.is_finished() {
        assert!(Instant::now() < deadline, "{:?}", pinged.lock().unwrap());
        asks.round().unwrap();
        between.round().unwrap();
        answers.round().unwrap();
    }
    for status in [asks.status(), between.status(), answers.status()] {
        assert_eq!(status.packets.difference_packets, 0, "{status}");
    }
    drop(asks);
    Arc::into_inner(pinged).unwrap().into_inner().unwrap()
}

#[test]
fn what_is_lost_and_what_comes_twice() {
    for address in ["10.0.0.2", "fd00::2"] {
        let pinged = pinged(address, 70);
        assert_eq!((pinged.mac, pinged.questions), (Some(Mac([2, 0, 0, 0, 0, 2])), 1));
        assert_eq!(pinged.sent, 70);
        assert_eq!(pinged.answered(), 70 - 14, "every fifth of the answers 1 to 70 is lost");
        // 7, 14, ..., 70, but those that are lost: 35 and 70.
        assert_eq!(pinged.duplicates, 8);
        assert_eq!(pinged.latest.len() as u64, pinged.received);
        assert!(pinged.latest.iter().all(|answer| answer.ttl == 64 && answer.bytes == 26));
        let [min, mean, max, _] = pinged.rtt.milliseconds().unwrap();
        assert!(0.0 < min && min <= mean && mean <= max);
    }
}

/// As `ping` numbers and spaces them.
#[test]
fn the_first_request_is_number_one_and_the_second_comes_an_interval_later() {
    for address in ["10.0.0.2", "fd00::2"] {
        let (pool, pinged) = (pool(512), Arc::new(Mutex::new(PingResults::new())));
        let asked = asked(address, Duration::from_secs(3600), None);
        let ping = Ping::new(host(1), asked, 77, pinged.clone()).unwrap();
        let (inside, mut outside) = Memory::pair("a", &pool, 64).unwrap();
        let mut asks = worker(&pool, vec![inside], ping);
        let (mut numbers, mut batch) = (Vec::new(), Batch::new(8));
        for _ in 0..100 {
            asks.round().unwrap();
            outside.rx_burst(&mut batch).unwrap();
            for packet in batch.iter_mut() {
                if let Some(number) = echo_number(packet.data()) {
                    numbers.push(number);
                }
                // Answers ARP, neighbour solicitations and echo requests.
                host(2).answer(packet).unwrap();
            }
            outside.tx_burst(&mut batch).unwrap();
        }
        assert_eq!(numbers, [1], "{address}");
        let pinged = pinged.lock().unwrap();
        assert_eq!((pinged.sent, pinged.answered()), (1, 1), "{address}");
        assert_eq!(pinged.latest[0].sequence, 1, "{address}");
    }
}

/// Of an echo request, whose header ends with it (RFC 792, RFC 4443).
fn echo_number(frame: &[u8]) -> Option<u16> {
    let at = match (&frame[12..14], frame[23], frame[20]) {
        ([0x08, 0x00], 1, _) => 14 + 20,
        ([0x86, 0xdd], _, 58) => 14 + 40,
        _ => return None,
    };
    let asks = matches!(frame[at], 8 | 128);
    asks.then(|| u16::from_be_bytes([frame[at + 6], frame[at + 7]]))
}

#[test]
fn nobody_is_there() {
    let pinged = pinged("10.0.0.3", 70);
    assert_eq!((pinged.mac, pinged.questions, pinged.sent), (None, 3, 0));
}

#[test]
fn requests_that_cannot_be_made() {
    let ping = |host: Host, size| {
        let asked = PingConfig { size, ..asked("10.0.0.2", Duration::from_secs(1), None) };
        Ping::new(host, asked, 77, Arc::default()).map(drop)
    };
    for (size, possible) in [(17, false), (18, true), (3778, true), (3779, false)] {
        let expected = if possible { Ok(()) } else { Err(PingError::Size(size)) };
        assert_eq!(ping(host(1), size), expected);
    }
    let v6_alone = Host::new(Mac([2; 6]), ["fd00::1".parse().unwrap()]);
    assert_eq!(ping(v6_alone, 56), Err(PingError::Family([10, 0, 0, 2].into())));
}
