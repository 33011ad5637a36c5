//! Nothing is allocated for packets.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

use ringway_engine::apps::{
    Bid, Checker, Control, Generator, Icmp, L2fwd, Macs, Sink, Source, UdpEcho,
};
use ringway_engine::generate::{Checked, Clock};
use ringway_engine::ports::{Memory, Null};
use ringway_engine::{App, Options, Port as _, Worker};
use ringway_wire::IntoBytes as _;
use ringway_xsk::Batch;

use crate::bench_of::pool;
use crate::{frames, generate};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's, with a count for each thread.
struct Counting;

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Where a thread ends there is nothing to count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(of: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    of();
    ALLOCATIONS.get() - before
}

#[test]
fn it_is_counted() {
    assert_eq!(allocations(|| drop(Box::new(1_u64))), 1);
}

/// Packets that every app likes and such that it drops, round and round.
#[test]
fn none_for_a_packet() {
    let clock = Clock::new();
    let checked = Arc::new(Mutex::new(Checked::new(&[])));
    let control = Arc::new(Control::default());
    let apps: [Box<dyn App>; 8] = [
        Box::new(L2fwd::new(Macs::Swap)),
        Box::new(Icmp::new(frames::host())),
        Box::new(UdpEcho::new(frames::host(), frames::PORT)),
        Box::new(Bid::new(frames::host(), frames::PORT, frames::offers(), 4)),
        Box::new(Sink::default()),
        Box::new(Source::new(frames::ping(), 1_000_000, 32)),
        Box::new(Generator::new(generate::generated(1_000_000), clock, control)),
        Box::new(Checker::new(clock, checked)),
    ];
    for app in apps {
        let (pool, name) = (pool(1024), app.name());
        let (mut outside, inside) = Memory::pair("test", &pool, 256).unwrap();
        let mut worker = Worker::new(pool.clone(), vec![Box::new(inside)], app, Options::default());
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
        let mut worker = Worker::new(pool.clone(), vec![Box::new(port)], app, Options::default());
        worker.round().unwrap();
        let rounds = || (0..1000).for_each(|_| assert!(worker.round().unwrap()));
        assert_eq!(allocations(rounds), 0, "{name}");
        // What is not dropped goes back: the packets are such as the app likes.
        let transmitted = worker.status().packets.transmitted_packets;
        assert!(transmitted >= 1001 * 32 || ends_here, "{name}: {transmitted}");
        assert!(worker.audit().balanced(), "{name}");
    }
}
