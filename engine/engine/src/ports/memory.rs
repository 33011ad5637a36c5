//! `memory:NAME`: two ports with a cable between them, in one worker or in two. No kernel, no
//! privileges, no copy.
//!
//! Packets change pools on the way ([`ringway_xsk::worker_channel`]), so this is also how workers
//! hand packets to each other. For frames that one side got more of than it gave, it gives empty
//! ones back, lest the other run dry: an empty packet on a cable is a present of its frame.

use ringway_ring::Corrupt;
use ringway_xsk::worker_channel::{Giver, Taker, way};
use ringway_xsk::{Batch, Pool, Umem};

use crate::port::{Port, PortError, PortStatistics};

/// Frames that one side may be ahead by.
const AHEAD: i64 = 32;

/// An end of a cable; it may go to another thread before it is opened.
pub struct Plug {
    giver: Giver,
    taker: Taker,
    umem: Umem,
}

/// The two ends of a cable between pools of one UMEM. `slots` packets, a power of two, fit in each
/// direction.
///
/// # Panics
/// `slots` is not a power of two.
pub fn cable(umem: &Umem, slots: u32) -> (Plug, Plug) {
    let (there, back) = (way(umem, slots), way(umem, slots));
    let plug = |giver, taker| Plug { giver, taker, umem: umem.clone() };
    (plug(there.0, back.1), plug(back.0, there.1))
}

impl Plug {
    /// Opens it on the thread of the pool that gives and takes its packets.
    ///
    /// # Errors
    /// The pool is of another UMEM than the cable.
    pub fn open(self, name: &str, pool: &Pool) -> Result<Memory, PortError> {
        let name = format!("memory:{name}");
        if !pool.umem().is(&self.umem) {
            let why = "its cable is in one UMEM, and the pool is of another".into();
            let remedy = "make the cable in the UMEM that the pool is of";
            return Err(PortError::Refused { port: name, why, remedy });
        }
        Ok(Memory {
            name,
            giver: self.giver,
            taker: self.taker,
            pool: pool.clone(),
            presents: Batch::new(AHEAD as usize * 2),
            ahead: 0,
            statistics: PortStatistics::default(),
        })
    }
}

/// An end of a cable, in use.
pub struct Memory {
    name: String,
    giver: Giver,
    taker: Taker,
    pool: Pool,
    presents: Batch,
    /// Frames of another pool that came, less those that went.
    ahead: i64,
    statistics: PortStatistics,
}

impl Memory {
    /// Both ends, opened by one pool.
    ///
    /// # Errors
    /// None today; see [`Plug::open`].
    ///
    /// # Panics
    /// `slots` is not a power of two.
    pub fn pair(name: &str, pool: &Pool, slots: u32) -> Result<(Memory, Memory), PortError> {
        let (one, other) = cable(pool.umem(), slots);
        Ok((one.open(name, pool)?, other.open(name, pool)?))
    }

    /// Whether the other end is gone.
    pub fn is_abandoned(&self) -> bool {
        self.taker.is_abandoned() || self.giver.is_abandoned()
    }

    /// Gives frames back that came for nothing.
    fn even_out(&mut self) -> Result<(), PortError> {
        if self.ahead > AHEAD {
            self.pool.allocate_burst(&mut self.presents, AHEAD as usize);
            let given = self.giver.give(&mut self.presents);
            self.ahead -= given.map_err(|source| failed(&self.name, source))? as i64;
            self.presents.clear();
        }
        Ok(())
    }
}

fn failed(port: &str, source: Corrupt) -> PortError {
    PortError::Ring { port: port.into(), source }
}

fn frames(packets: &[ringway_xsk::Packet]) -> i64 {
    // Far fewer than there are frames.
    packets.iter().map(|packet| packet.frames() as i64).sum()
}

impl Port for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let (before, foreign) = (batch.len(), self.taker.foreign_frames());
        self.taker.take(&self.pool, batch).map_err(|source| failed(&self.name, source))?;
        self.ahead += (self.taker.foreign_frames() - foreign) as i64;
        if batch[before..].iter().any(|packet| packet.data().is_empty()) {
            batch.retain(|packet| !packet.data().is_empty());
        }
        let received = batch.len() - before;
        self.statistics.received_packets += received as u64;
        self.even_out()?;
        Ok(received)
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        // It would be taken for a present.
        if batch.iter().any(|packet| packet.data().is_empty()) {
            batch.retain(|packet| !packet.data().is_empty());
        }
        let all = frames(batch);
        let sent = self.giver.give(batch).map_err(|source| failed(&self.name, source))?;
        self.ahead -= all - frames(batch);
        self.statistics.transmitted_packets += sent as u64;
        self.statistics.tx_full_packets += batch.len() as u64;
        self.statistics.unsendable_packets += (before - sent - batch.len()) as u64;
        Ok(sent)
    }

    fn statistics(&mut self) -> PortStatistics {
        self.statistics
    }

    fn is_finished(&self) -> bool {
        self.taker.is_abandoned() && self.taker.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_xsk::UmemConfig;

    #[test]
    fn frames_come_back_from_a_side_that_sends_nothing() {
        let umem = Umem::new(&UmemConfig { frames: 256, pools: 2, ..UmemConfig::default() });
        let umem = umem.unwrap();
        let (here, there) = (umem.pool().unwrap(), umem.pool().unwrap());
        let (one, other) = cable(&umem, 64);
        let (mut one, mut other) =
            (one.open("a", &here).unwrap(), other.open("a", &there).unwrap());
        let mut batch = Batch::new(32);
        for _ in 0..100 {
            assert_eq!(here.allocate_burst(&mut batch, 32), 32, "{here:?}");
            batch.iter_mut().for_each(|packet| packet.append(&[1; 60]).unwrap());
            assert_eq!(one.tx_burst(&mut batch).unwrap(), 32);
            assert_eq!(other.rx_burst(&mut batch).unwrap(), 32);
            batch.clear();
            assert_eq!(one.rx_burst(&mut batch).unwrap(), 0, "presents are not packets");
        }
        for pool in [&here, &there] {
            let audit = pool.audit(&[]);
            assert!(audit.balanced(), "{audit}");
        }
        assert_eq!(here.free() + there.free(), 256);
        assert!(i64::from(there.free()) - i64::from(here.free()) <= 4 * AHEAD);
    }

    #[test]
    fn an_empty_packet_is_not_sent() {
        let umem = Umem::new(&UmemConfig { frames: 8, ..UmemConfig::default() }).unwrap();
        let pool = umem.pool().unwrap();
        let (mut one, mut other) = Memory::pair("a", &pool, 4).unwrap();
        let mut batch = Batch::new(8);
        pool.allocate_burst(&mut batch, 6);
        batch[1].append(&[1; 14]).unwrap();
        assert_eq!(one.tx_burst(&mut batch).unwrap(), 1);
        assert!(batch.is_empty());
        assert_eq!(one.statistics().unsendable_packets, 5);
        assert_eq!(other.rx_burst(&mut batch).unwrap(), 1);
        assert!(!other.is_finished());
        drop(one);
        assert!(other.is_finished() && other.is_abandoned());
    }
}
