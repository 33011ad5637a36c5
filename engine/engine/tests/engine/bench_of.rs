//! A worker with one port, and the other end of its cable.

use ringway_engine::ports::Memory;
use ringway_engine::{App, Port as _, Worker, WorkerOptions};
use ringway_xsk::{Batch, Pool, Umem, UmemConfig};

pub struct Bench<A> {
    pub pool: Pool,
    pub outside: Memory,
    pub worker: Worker<A>,
    batch: Batch,
}

pub fn pool(frames: u32) -> Pool {
    pool_with_headroom(frames, 0)
}

pub fn pool_with_headroom(frames: u32, headroom: u32) -> Pool {
    let config = UmemConfig { frames, headroom, ..UmemConfig::default() };
    Umem::new(&config).unwrap().pool().unwrap()
}

impl<A: App> Bench<A> {
    pub fn new(app: A) -> Self {
        Self::of_pool(app, pool(512))
    }

    pub fn of_pool(app: A, pool: Pool) -> Self {
        let (outside, inside) = Memory::pair("test", &pool, 256).unwrap();
        let worker =
            Worker::new(pool.clone(), vec![Box::new(inside)], app, WorkerOptions::default());
        Self { pool, outside, worker, batch: Batch::new(256) }
    }

    /// Sends frames to the worker, of at least 14 bytes or not at all.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            let mut packet = self.pool.allocate().unwrap();
            packet.append(frame).unwrap();
            self.batch.push(packet).unwrap();
        }
        self.outside.tx_burst(&mut self.batch).unwrap();
        assert!(self.batch.is_empty());
    }

    /// Runs one round; the frames that come back.
    pub fn round(&mut self) -> Vec<Vec<u8>> {
        self.worker.round().unwrap();
        self.outside.rx_burst(&mut self.batch).unwrap();
        let frames = self.batch.iter().map(|packet| packet.segments().flatten().copied().collect());
        let frames = frames.collect();
        self.batch.clear();
        frames
    }

    /// Sends one frame; the frame that comes back, if any.
    pub fn ask(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        self.send(&[frame]);
        let mut answers = self.round();
        assert!(answers.len() <= 1);
        answers.pop()
    }

    pub fn dropped(&mut self, reason: &str) -> u64 {
        let dropped = self.worker.status().packets.dropped;
        dropped.iter().find(|d| d.name == reason).map_or(0, |d| d.packets)
    }

    #[track_caller]
    pub fn balanced(&mut self) {
        // Nothing is in the cable or outside of it, so all that is held the worker holds.
        let audit = self.worker.audit();
        assert!(audit.balanced(), "{audit}");
    }

    #[track_caller]
    pub fn end(mut self) -> A {
        self.balanced();
        let ended = self.worker.finish();
        assert!(ended.audit.balanced(), "{}", ended.audit);
        drop((ended.ports, self.outside, self.batch));
        let audit = self.pool.audit(&[]);
        assert!(audit.balanced() && audit.found.held == 0, "{audit}");
        ended.app
    }
}
