//! From a generator to a checker, with somebody between who loses, repeats and delays packets;
//! every one of them is found.

#![allow(clippy::unwrap_used)]

#[path = "../../engine/engine/tests/engine/counting_allocator.rs"]
mod counting_allocator;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringway_engine::ports::{Memory, Pcap};
use ringway_engine::stamp::Clock;
use ringway_engine::{App, Burst, Cycles, Port as _, Reason, Verdict, Worker, WorkerOptions};
use ringway_measure::generate::{
    Checker, Flows, Generator, GeneratorControl, Rate, ReceiveCounts, Recipe, Template, Traffic,
    Transport,
};
use ringway_wire::Mac;
use ringway_xsk::{Batch, Packet, Pool, Umem, UmemConfig};

use counting_allocator::allocations;

const STREAM: u16 = 7;

fn pool(frames: u32) -> Pool {
    Umem::new(&UmemConfig { frames, ..UmemConfig::default() }).unwrap().pool().unwrap()
}

fn worker<A: App>(pool: &Pool, port: Memory, app: A) -> Worker<A> {
    Worker::new(pool.clone(), vec![Box::new(port)], app, WorkerOptions::default())
}

fn recipe(sizes: &[u16]) -> Recipe {
    Recipe {
        source_mac: Mac([2, 0, 0, 0, 0, 1]),
        destination_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        sources: "10.0.0.0/28".parse().unwrap(),
        destinations: "10.1.0.1".parse().unwrap(),
        transport: Transport::Udp,
        source_ports: "1024-1030".parse().unwrap(),
        destination_ports: 9.into(),
        sizes: sizes.to_vec(),
    }
}

fn generated(count: u64) -> Traffic {
    let recipe = recipe(&[60, 590, 1514]);
    Traffic {
        templates: recipe.templates().unwrap(),
        flows: Some(Flows::of(&recipe)),
        stream: STREAM,
        rate: None,
        count: Some(count),
        duration: None,
    }
}

/// Drops every 10th packet, sends every 100th twice, and lets every 1 000th wait until 20 others
/// have passed.
#[derive(Default)]
struct Bad {
    packets: u64,
    waits: Option<(u64, Vec<u8>)>,
}

fn forward(packet: &mut Packet, frame: &[u8]) -> Verdict {
    packet.append(frame).unwrap();
    Verdict::Forward(1)
}

impl App for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let mut again = Vec::new();
        burst.decide(|packet| {
            let n = self.packets;
            self.packets += 1;
            match n {
                n if n % 10 == 3 => Verdict::Drop(Reason::Consumed),
                n if n % 1000 == 500 => {
                    self.waits = Some((n, packet.data().to_vec()));
                    Verdict::Drop(Reason::Consumed)
                }
                n => {
                    if n % 100 == 50 {
                        again.push(packet.data().to_vec());
                    }
                    Verdict::Forward(1)
                }
            }
        });
        for frame in again {
            assert!(burst.originate(|packet| forward(packet, &frame)));
        }
        if let Some((n, frame)) = self.waits.take() {
            if self.packets > n + 20 {
                assert!(burst.originate(|packet| forward(packet, &frame)));
            } else {
                self.waits = Some((n, frame));
            }
        }
    }
}

#[test]
fn what_is_lost_late_or_twice_is_counted_exactly() {
    const PACKETS: u64 = 100_000;
    let (pool, clock, control) = (pool(2048), Clock::new(), Arc::new(GeneratorControl::default()));
    let checked = Arc::new(Mutex::new(ReceiveCounts::new(&[STREAM])));
    let (from, to) = Memory::pair("a", &pool, 256).unwrap();
    let (out, end) = Memory::pair("b", &pool, 256).unwrap();
    let generator = Generator::new(generated(PACKETS), clock, control.clone());
    let mut generator = worker(&pool, from, generator);
    let ports: Vec<Box<dyn ringway_engine::Port>> = vec![Box::new(to), Box::new(out)];
    let mut bad = Worker::new(pool.clone(), ports, Bad::default(), WorkerOptions::default());
    let mut checker = worker(&pool, end, Checker::new(clock, checked.clone()));
    while !control.made().finished {
        generator.round().unwrap();
        bad.round().unwrap();
        checker.round().unwrap();
    }
    for _ in 0..10 {
        bad.round().unwrap();
        checker.round().unwrap();
    }
    let checked = checked.lock().unwrap();
    let stream = &checked.streams()[0];
    let made = control.made();
    assert_eq!(made.packets, PACKETS);
    assert_eq!(made.bytes, (PACKETS / 3) * (60 + 590 + 1514) + 60);
    assert_eq!(PACKETS - checked.unique_packets(), PACKETS / 10);
    assert_eq!(stream.sequence.missing(), PACKETS / 10, "the last is not lost");
    assert_eq!(stream.duplicate_packets, PACKETS / 100);
    assert_eq!(stream.late_packets, PACKETS / 1000);
    assert!(stream.late_by_most_packets >= 20, "{}", stream.late_by_most_packets);
    assert_eq!((checked.foreign_packets(), stream.too_late_packets), (0, 0));
    assert!(checked.balanced());
    let latency = checked.latency().unwrap();
    assert_eq!((latency.packets, latency.clock_behind_packets), (checked.received_packets(), 0));
    assert!(latency.min_us <= latency.p50_us && latency.p999_us <= latency.max_us, "{latency:?}");
    for (audit, status) in [
        (generator.audit(), generator.status()),
        (bad.audit(), bad.status()),
        (checker.audit(), checker.status()),
    ] {
        assert_eq!(audit.difference_packets, 0, "{status}");
    }
}

/// Nothing will arrive from a capture that is written alone, which is no reason to send nothing.
#[test]
fn into_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, out) = (pool(256), directory.path().join("out.pcap"));
    let port = Pcap::open("pcap::out".into(), &pool, None, Some(&out)).unwrap();
    let generator = Generator::new(generated(9), Clock::new(), Arc::default());
    let mut worker = Worker::new(pool, vec![Box::new(port)], generator, WorkerOptions::default());
    worker.run(|_| false).unwrap();
    assert_eq!(worker.status().packets.transmitted_packets, 9);
}

#[test]
fn frames_as_they_are_and_strangers() {
    let pool = pool(256);
    let (mut outside, inside) = Memory::pair("a", &pool, 64).unwrap();
    let frame = vec![8; 98];
    let generated = Traffic {
        templates: vec![Template::fixed(frame.clone()), Template::fixed(vec![7; 20])],
        flows: None,
        ..generated(3)
    };
    let control = Arc::new(GeneratorControl::default());
    let generator = Generator::new(generated, Clock::new(), control.clone());
    let mut worker = worker(&pool, inside, generator);
    worker.round().unwrap();
    let mut batch = Batch::new(8);
    assert_eq!(outside.rx_burst(&mut batch).unwrap(), 3);
    let mut checked = ReceiveCounts::new(&[]);
    for (packet, expected) in batch.iter().zip([&frame[..], &[7; 20], &frame]) {
        assert_eq!(packet.data(), expected);
        checked.take(packet.data(), 0);
    }
    assert_eq!((checked.received_packets(), checked.foreign_packets()), (3, 3));
    assert!(checked.balanced() && checked.latency().is_none());
}

/// The rate is neither exceeded nor missed, and Ctrl-C is heard.
#[test]
fn at_a_rate_until_it_is_stopped() {
    let pool = pool(256);
    let (mut outside, inside) = Memory::pair("a", &pool, 64).unwrap();
    let control = Arc::new(GeneratorControl::default());
    let generated = Traffic { rate: Some(Rate::Bits(8 * 2164 * 500)), count: None, ..generated(0) };
    let generator = Generator::new(generated, Clock::new(), control.clone());
    let mut worker = worker(&pool, inside, generator);
    let mut batch = Batch::new(64);
    while control.made().packets < 300 {
        worker.round().unwrap();
        outside.rx_burst(&mut batch).unwrap();
        batch.clear();
        let made = control.made();
        assert!(made.units <= made.intended_units, "{made:?}");
        assert_eq!(made.units, made.bytes * 8);
    }
    control.stop();
    worker.round().unwrap();
    assert!(control.made().finished && !worker.is_finished(), "it lingers");
    std::thread::sleep(Duration::from_millis(101));
    assert!(worker.is_finished());
}

#[test]
fn nothing_is_allocated_for_packets() {
    let (pool, clock) = (pool(1024), Clock::new());
    let checked = Arc::new(Mutex::new(ReceiveCounts::new(&[STREAM])));
    let (from, to) = Memory::pair("a", &pool, 256).unwrap();
    let generator = Generator::new(generated(1_000_000), clock, Arc::default());
    let mut generator = worker(&pool, from, generator);
    let mut checker = worker(&pool, to, Checker::new(clock, checked.clone()));
    let mut round = || {
        generator.round().unwrap();
        checker.round().unwrap();
    };
    round();
    assert_eq!(allocations(|| (0..100).for_each(|_| round())), 0);
    assert_eq!(checked.lock().unwrap().unique_packets(), 101 * 32);
}
