//! Verdicts of neighbours are carried out together: none is lost, none overtakes another.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_engine::ports::Memory;
use ringway_engine::{App, Burst, Cycles, Port as _, Reason, Verdict, Worker, WorkerOptions};
use ringway_xsk::{Batch, Packet, Pool};

use crate::bench_of::pool;

const BURST: usize = 16;
/// The first packet of a burst says by it that all go to port 1.
const ALL: u8 = 5;

/// Does with a packet what its 15th byte says.
struct Obeys;

impl App for Obeys {
    fn name(&self) -> &'static str {
        "obeys"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let mut all = false;
        burst.decide_some(|packet| {
            all |= told(packet) == ALL;
            match told(packet) {
                _ if all => None,
                to @ 0..=1 => Some(Verdict::Forward(to.into())),
                2 => Some(Verdict::Forward(7)),
                3 => Some(Verdict::Drop(Reason::BadRequest)),
                _ => None,
            }
        });
        if all {
            return burst.forward_all(1);
        }
        burst.decide(|_| Verdict::Drop(Reason::Consumed));
    }
}

fn told(packet: &Packet) -> u8 {
    packet.data()[14]
}

/// The ends of a worker's two cables.
struct Outside {
    ends: [Memory; 2],
    came: [Vec<u8>; 2],
    pool: Pool,
}

impl Outside {
    fn send(&mut self, from: usize, told: &[u8]) {
        let mut batch = Batch::new(told.len());
        for (n, what) in (from..).zip(told) {
            let mut packet = self.pool.allocate().unwrap();
            let mut frame = [0; 60];
            (frame[14], frame[15]) = (*what, n as u8);
            packet.append(&frame).unwrap();
            batch.push(packet).unwrap();
        }
        self.ends[0].tx_burst(&mut batch).unwrap();
        assert!(batch.is_empty());
    }

    fn receive(&mut self) {
        let mut batch = Batch::new(64);
        for (end, came) in self.ends.iter_mut().zip(&mut self.came) {
            while end.rx_burst(&mut batch).unwrap() > 0 {
                came.extend(batch.drain().map(|packet| packet.data()[15]));
            }
        }
    }
}

proptest! {
    #[test]
    fn each_is_carried_out_in_order(
        bursts in vec((vec(0..=ALL, 1..=BURST), any::<bool>()), 1..12),
    ) {
        let pool = pool(512);
        let [(first, a), (second, b)] = [16, 8].map(|n| Memory::pair("test", &pool, n).unwrap());
        let options = WorkerOptions { burst: BURST, waiting: 20, ..WorkerOptions::default() };
        let mut worker =
            Worker::new(pool.clone(), vec![Box::new(a), Box::new(b)], Obeys, options);
        let mut outside = Outside { ends: [first, second], came: Default::default(), pool };
        let (mut to, mut dropped) = ([Vec::new(), Vec::new()], BTreeMap::new());
        let mut sent = 0;
        for (burst, reads) in &bursts {
            outside.send(sent, burst);
            let all = burst.iter().position(|told| *told == ALL).unwrap_or(burst.len());
            let is_left = |n: usize, told: u8| n >= all || told == 4;
            // What is left to the end is decided about after all others.
            for left in [false, true] {
                for (n, told) in burst.iter().enumerate().filter(|(n, t)| is_left(*n, **t) == left)
                {
                    let port = match told {
                        _ if left && all < burst.len() => Ok(1),
                        _ if left => Err("consumed"),
                        0 | 1 => Ok(usize::from(*told)),
                        2 => Err("no-such-port"),
                        _ => Err("bad-request"),
                    };
                    match port {
                        Ok(port) => to[port].push((sent + n) as u8),
                        Err(reason) => *dropped.entry(reason).or_insert(0) += 1,
                    }
                }
            }
            sent += burst.len();
            worker.round().unwrap();
            if *reads {
                outside.receive();
            }
        }
        for _ in 0..8 {
            outside.receive();
            worker.round().unwrap();
        }
        let status = worker.status();
        let mut counted: BTreeMap<_, _> =
            status.packets.dropped.iter().map(|d| (d.name, d.packets)).collect();
        let full = counted.remove("port-full").unwrap_or(0);
        counted.retain(|_, count| *count > 0);
        prop_assert_eq!(counted, dropped);
        let came: usize = outside.came.iter().map(Vec::len).sum();
        let wanted: usize = to.iter().map(Vec::len).sum();
        prop_assert_eq!(came as u64 + full, wanted as u64);
        for (came, to) in outside.came.iter().zip(&to) {
            // What came is what was told, in order, but for what found its port full.
            let mut left = to.iter();
            prop_assert!(came.iter().all(|n| left.any(|m| m == n)), "{came:?} of {to:?}");
        }
        let audit = worker.finish().audit;
        prop_assert!(audit.balanced(), "{}", audit);
    }
}
