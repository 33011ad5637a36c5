//! Nothing is allocated for packets.

use ringway_engine::apps::{Bid, Icmp, L2fwd, Macs, Sink, Source, UdpEcho};
use ringway_engine::ports::{Memory, Null};
use ringway_engine::{App, Port as _, Worker, WorkerOptions};
use ringway_wire::IntoBytes as _;
use ringway_xsk::Batch;

use crate::bench_of::pool;
use crate::counting_allocator::allocations;
use crate::frames;

/// Packets that every app likes and such that it drops, round and round.
#[test]
fn none_for_a_packet() {
    let apps: [Box<dyn App>; 6] = [
        Box::new(L2fwd::new(Macs::Swap)),
        Box::new(Icmp::new(frames::host())),
        Box::new(UdpEcho::new(frames::host(), frames::PORT)),
        Box::new(Bid::new(frames::host(), frames::PORT, frames::offers(), 4)),
        Box::new(Sink::default()),
        Box::new(Source::new(frames::ping(), 1_000_000, 32)),
    ];
    for app in apps {
        let (pool, name) = (pool(1024), app.name());
        let (mut outside, inside) = Memory::pair("test", &pool, 256).unwrap();
        let mut worker =
            Worker::new(pool.clone(), vec![Box::new(inside)], app, WorkerOptions::default());
        let questions = [
            frames::ping(),
            frames::solicitation(frames::THEIR_V6),
            frames::udp(b"hello"),
            frames::udp_v6(frames::request(1, frames::SEGMENT, 1).as_bytes()),
            frames::tcp()[..30].to_vec(),
            vec![0; 13],
        ];
        let mut batch = Batch::new(64);
        let mut round = || {
            for _ in 0..64 / questions.len() {
                for question in &questions {
                    let mut packet = pool.allocate().unwrap();
                    packet.append(question).unwrap();
                    batch.push(packet).unwrap();
                }
            }
            outside.tx_burst(&mut batch).unwrap();
            worker.round().unwrap();
            outside.rx_burst(&mut batch).unwrap();
            batch.clear();
        };
        round();
        assert_eq!(allocations(|| (0..100).for_each(|_| round())), 0, "{name}");
        assert!(worker.audit().balanced());
    }
}

/// A port that costs nothing, with which the rest can be measured.
#[test]
fn none_between_null_ports() {
    let bid = || Bid::new(frames::host(), frames::PORT, frames::offers(), 4);
    let request = frames::udp(frames::request(1, frames::SEGMENT, 1).as_bytes());
    let apps: [(Vec<u8>, Box<dyn App>); 6] = [
        (vec![0; 64], Box::new(L2fwd::new(Macs::Swap))),
        (frames::ping(), Box::new(Icmp::new(frames::host()))),
        (frames::udp(b"hello"), Box::new(UdpEcho::new(frames::host(), frames::PORT))),
        (request, Box::new(bid())),
        (vec![0; 64], Box::new(Sink::default())),
        (vec![0; 64], Box::new(Source::new(frames::ping(), 1_000_000, 32))),
    ];
    for (template, app) in apps {
        let (pool, name) = (pool(1024), app.name());
        let ends_here = name == "sink";
        let port = Null::open("null".into(), &pool, template).unwrap();
        let mut worker =
            Worker::new(pool.clone(), vec![Box::new(port)], app, WorkerOptions::default());
        worker.round().unwrap();
        let rounds = || (0..1000).for_each(|_| assert!(worker.round().unwrap()));
        assert_eq!(allocations(rounds), 0, "{name}");
        // Packets that are not dropped go back: the app accepts them.
        let transmitted = worker.status().packets.transmitted_packets;
        assert!(transmitted >= 1001 * 32 || ends_here, "{name}: {transmitted}");
        assert!(worker.audit().balanced(), "{name}");
    }
}
