//! The ledger balances, and the audit says so where it does not.

use std::cell::Cell;
use std::rc::Rc;

use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::ports::Memory;
use ringway_engine::{App, Burst, Cycles, Port, PortError, PortStatistics, Worker, WorkerOptions};
use ringway_xsk::{Batch, Packet, Pool};

use crate::bench_of::{Bench, pool};
use crate::frames;

struct Idle;

impl App for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn on_burst(&mut self, _now: Cycles, _burst: &mut Burst<'_>) {}
}

#[test]
fn what_nobody_decides_about_is_dropped() {
    let mut bench = Bench::new(Idle);
    bench.send(&vec![frames::ping(); 10]);
    assert!(bench.round().is_empty());
    assert_eq!(bench.dropped("undecided"), 10);
    bench.end();
}

#[test]
fn what_waits_at_the_end() {
    let pool = pool(256);
    let (mut outside, inside) = Memory::pair("test", &pool, 64).unwrap();
    let options = WorkerOptions { waiting: 70, ..WorkerOptions::default() };
    // Nobody takes what it sends.
    let app = L2fwd::new(Macs::AsIs);
    let mut worker = Worker::new(pool.clone(), vec![Box::new(inside)], app, options);
    for _ in 0..3 {
        send(&mut outside, &pool, 60);
        worker.round().unwrap();
    }
    let audit = worker.audit();
    assert!(audit.balanced(), "{audit}");
    let ended = worker.finish();
    assert!(ended.audit.balanced(), "{}", ended.audit);
    let packets = ended.status.packets;
    let named: Vec<_> = packets.dropped.iter().map(|d| (d.name, d.packets)).collect();
    // 64 are in the cable, 70 waited.
    assert_eq!(named, [("port-full", 46), ("stopped", 70)]);
    assert_eq!(packets.transmitted_packets, 64);
}

fn pings(pool: &Pool, count: usize) -> Batch {
    let mut batch = Batch::new(count);
    assert_eq!(pool.allocate_burst(&mut batch, count), count);
    batch.iter_mut().for_each(|packet| packet.append(&frames::ping()).unwrap());
    batch
}

fn send(outside: &mut Memory, pool: &Pool, count: usize) {
    assert_eq!(outside.tx_burst(&mut pings(pool, count)).unwrap(), count);
}

/// A port that keeps packets where nobody looks for them, sends none, or fails.
#[derive(Default)]
struct Strange {
    /// Of it come these, and then nothing works any more.
    brings: Vec<Packet>,
    kept: Rc<Cell<Vec<Packet>>>,
    keeps: bool,
    frees: bool,
    fails: bool,
}

impl Port for Strange {
    fn name(&self) -> &str {
        "strange"
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        if self.brings.is_empty() {
            return Ok(0);
        }
        self.brings.drain(..).for_each(|packet| batch.push(packet).unwrap());
        let (port, why) = ("strange".into(), "it ends here".into());
        Err(PortError::Refused { port, why, remedy: "look elsewhere" })
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len();
        if self.keeps {
            let mut kept = self.kept.take();
            kept.extend(batch.drain());
            self.kept.set(kept);
            return Ok(count);
        }
        if self.frees || self.fails {
            batch.clear();
        }
        if self.fails && count > 0 {
            let (port, why) = ("strange".into(), "it was told to fail".into());
            return Err(PortError::Refused { port, why, remedy: "do not tell it" });
        }
        Ok(0)
    }

    fn statistics(&mut self) -> PortStatistics {
        PortStatistics::default()
    }
}

fn with_strange(strange: Strange) -> (Memory, Worker<L2fwd>) {
    let pool = pool(256);
    let (mut outside, inside) = Memory::pair("test", &pool, 64).unwrap();
    let ports: Vec<Box<dyn Port>> = vec![Box::new(inside), Box::new(strange)];
    send(&mut outside, &pool, 10);
    let app = L2fwd::new(Macs::AsIs);
    (outside, Worker::new(pool, ports, app, WorkerOptions::default()))
}

#[test]
fn a_leak_is_seen() {
    let kept = Rc::default();
    let strange = Strange { kept: Rc::clone(&kept), keeps: true, ..Strange::default() };
    let (_outside, mut worker) = with_strange(strange);
    worker.round().unwrap();
    let audit = worker.audit();
    assert!(!audit.balanced() && audit.lost_frames == 10, "{audit}");
    drop(kept.take());
    assert!(worker.audit().balanced());
}

/// Packets in the batch came in, even if the port then fails.
#[test]
fn what_came_before_a_port_failed_is_no_leak() {
    let pool = pool(256);
    let (mut outside, inside) = Memory::pair("test", &pool, 64).unwrap();
    let mut batch = pings(&pool, 10);
    let strange = Strange { brings: batch.drain().collect(), ..Strange::default() };
    let ports: Vec<Box<dyn Port>> = vec![Box::new(strange), Box::new(inside)];
    let mut worker = Worker::new(pool, ports, L2fwd::new(Macs::AsIs), WorkerOptions::default());
    let error = worker.round().unwrap_err().to_string();
    assert_eq!(error, "strange: it ends here; look elsewhere");
    assert_eq!(outside.rx_burst(&mut batch).unwrap(), 10);
    let packets = worker.status().packets;
    assert_eq!((packets.received_packets, packets.transmitted_packets), (10, 10));
    batch.clear();
    assert!(worker.audit().balanced(), "{}", worker.audit());
}

#[test]
fn what_a_port_frees_or_loses() {
    let (_outside, mut worker) = with_strange(Strange { frees: true, ..Strange::default() });
    worker.round().unwrap();
    let packets = worker.status().packets;
    assert_eq!((packets.dropped[0].name, packets.dropped[0].packets), ("unsendable", 10));
    assert!(worker.audit().balanced());

    let (_outside, mut worker) = with_strange(Strange { fails: true, ..Strange::default() });
    let error = worker.round().unwrap_err().to_string();
    assert_eq!(error, "strange: it was told to fail; do not tell it");
    let packets = worker.status().packets;
    assert_eq!((packets.dropped[0].name, packets.dropped[0].packets), ("port-failed", 10));
    assert!(worker.audit().balanced());
}

#[test]
fn status_as_a_table_and_as_json() {
    let mut bench = Bench::new(L2fwd::new(Macs::Swap));
    bench.send(&[frames::ping(), vec![0; 13]]);
    bench.round();
    let status = bench.worker.status();
    let text = status.to_string();
    for want in [
        "worker 0: l2fwd, idle ",
        "memory:test         2            1        0",
        "packets: 2 received, 0 originated = 1 transmitted, 0 waiting, 1 malformed-ethernet; difference 0",
        "frames: 512 free, 0 fill, 0 held, 0 tx",
        "bursts: 1 of 2+",
    ] {
        assert!(text.contains(want), "no `{want}` in\n{text}");
    }
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["packets"]["dropped"][0]["reason"], "malformed-ethernet");
    assert_eq!(json["ports"][0]["received_packets"], 2);
    assert!(json["ports"][0]["filled_frames"].is_null());
    bench.end();
}
