//! Packets on their way from one worker to another: one by one ([`Transfer`]), or through a ring.
//! Nothing is copied.
//!
//! In the ledger a packet is away while it is in the ring: handed over by the giver's pool, adopted
//! by the taker's. No frame is lost, whichever end goes first: packets in the ring are taken, or
//! return to their pool.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use ringway_ring::{self, Consumer, Corrupt, Producer};

use crate::ledger::Place;
use crate::packet::batch::Batch;
use crate::packet::pool::{Pool, end_if_last};
use crate::packet::{Link, Packet, Parts};
use crate::umem::Umem;

/// A packet between two pools of one [`Umem`]: it may go to any thread, where a pool adopts it. If
/// it is dropped, on any thread, its frames return to their pool, which has them again with its
/// next [`receive`](crate::Queue::receive), or when it is short of frames.
///
/// Adopted frames stay with the pool that adopted them. If packets flow one way only, hand frames
/// back as empty packets, or copy the packets ([`Packet::copy_to`]).
#[derive(Debug)]
pub struct Transfer {
    /// None where it was adopted.
    umem: Option<Umem>,
    home: u8,
    pub(crate) parts: Parts,
}

impl Packet {
    /// Makes it ready to go to another thread.
    pub fn into_transfer(self) -> Transfer {
        let (inner, pool) = (self.inner(), self.pool());
        self.places().for_each(|(frame, ..)| inner.note(frame, Place::Away, inner.stage()));
        inner.ledger().handed.add(self.frames() as u64);
        inner.let_go(self.frames() as u64);
        let transfer =
            Transfer { umem: Some(inner.umem.clone()), home: inner.number, parts: self.parts() };
        // Its frames have another owner now.
        std::mem::forget(self);
        // SAFETY: it has not ended, since the packet was held; nothing refers to it here any more.
        unsafe { end_if_last(pool) };
        transfer
    }
}

impl Pool {
    /// Makes it a packet of this pool.
    ///
    /// # Errors
    /// Hands it back if it is of another UMEM, or this pool has not been claimed.
    pub fn adopt(&self, mut transfer: Transfer) -> Result<Packet, Transfer> {
        let inner = self.inner();
        let ours = transfer.umem.as_ref().is_some_and(|umem| umem.is(&inner.umem));
        if !ours || !inner.is_usable() {
            return Err(transfer);
        }
        transfer.umem = None;
        let packet = Packet::of_parts(self.pointer(), transfer.parts);
        packet.places().for_each(|(frame, ..)| inner.note(frame, Place::Held, inner.stage()));
        inner.ledger().adopted.add(packet.frames() as u64);
        inner.hold(packet.frames() as u64);
        Ok(packet)
    }
}

impl Transfer {
    /// Of frames that are away, and have no other owner.
    pub(crate) fn of_parts(umem: &Umem, home: u8, parts: Parts) -> Self {
        Self { umem: Some(umem.clone()), home, parts }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Some(umem) = self.umem.take() else { return };
        let links = umem.links();
        let link = &links[self.parts.last(links) as usize];
        umem.returns(self.home).add(self.parts.frame(), |next| {
            let next = next.map_or(0, |frame| frame + 1);
            link.store(Link { next, ..Link::unpack(link.load(Relaxed)) }.pack(), Relaxed);
        });
    }
}

/// Bits that both ends share: which end is gone.
const TAKER_GONE: u8 = 1;
const GIVER_GONE: u8 = 2;

/// A parcel whose UMEM is known.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    parts: Parts,
    home: u8,
}

/// The giver's end of a channel. It may go to another thread.
pub struct Giver {
    ring: Producer<Entry>,
    gone: Arc<AtomicU8>,
    umem: Umem,
}

/// The taker's end of a channel. It may go to another thread.
pub struct Taker {
    ring: Consumer<Entry>,
    foreign_frames: u64,
    gone: Arc<AtomicU8>,
    umem: Umem,
}

/// A channel for up to `slots` packets, a power of two, between pools of one UMEM.
///
/// # Panics
/// `slots` is not a power of two.
pub fn way(umem: &Umem, slots: u32) -> (Giver, Taker) {
    let (producer, consumer) = ringway_ring::in_memory(slots);
    let gone = Arc::new(AtomicU8::new(0));
    let giver = Giver { ring: producer, gone: gone.clone(), umem: umem.clone() };
    (giver, Taker { ring: consumer, foreign_frames: 0, gone, umem: umem.clone() })
}

impl Giver {
    /// Gives packets from the front of the batch, as far as there is room; the others stay there.
    /// Packets of another UMEM are freed. Returns the number of packets given.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn give(&mut self, from: &mut Batch) -> Result<usize, Corrupt> {
        let umem = &self.umem;
        from.retain(|packet| packet.inner().umem.is(umem));
        if self.is_abandoned() {
            return Ok(0);
        }
        // A ring has u32 slots.
        let mut reserved = self.ring.reserve(from.len().min(u32::MAX as usize) as u32)?;
        let count = reserved.remaining() as usize;
        for packet in from.iter().take(count) {
            let inner = packet.inner();
            packet.places().for_each(|(frame, ..)| inner.note(frame, Place::Away, inner.stage()));
            inner.ledger().handed.add(packet.frames() as u64);
            inner.let_go(packet.frames() as u64);
            // As many were reserved.
            let _ = reserved.push(Entry { parts: packet.parts(), home: inner.number });
        }
        reserved.submit();
        from.forget_first(count);
        Ok(count)
    }

    /// Whether the taker is gone: nothing can be given any more.
    pub fn is_abandoned(&self) -> bool {
        self.gone.load(Acquire) & TAKER_GONE != 0
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        if self.gone.fetch_or(GIVER_GONE, AcqRel) & TAKER_GONE == 0 {
            return;
        }
        // Packets that were given while the taker went; nobody else has written to this ring.
        if let Ok(left) = self.ring.unconsumed() {
            left.for_each(|entry| drop(Transfer::of_parts(&self.umem, entry.home, entry.parts)));
        }
    }
}

impl Taker {
    /// Adds packets that were given, as far as the batch has room; they belong to this pool from
    /// now on. Returns their number; none if the pool is of another UMEM.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn take(&mut self, pool: &Pool, into: &mut Batch) -> Result<usize, Corrupt> {
        let inner = pool.inner();
        if !inner.umem.is(&self.umem) || !inner.is_usable() {
            return Ok(0);
        }
        let given = self.ring.peek(into.room().min(u32::MAX as usize) as u32)?;
        let mut frames = 0;
        for entry in given.iter() {
            let packet = Packet::of_parts(pool.pointer(), entry.parts);
            packet.places().for_each(|(frame, ..)| inner.note(frame, Place::Held, inner.stage()));
            frames += packet.frames() as u64;
            if entry.home != inner.number {
                self.foreign_frames += packet.frames() as u64;
            }
            into.extend_one(packet);
        }
        inner.ledger().adopted.add(frames);
        inner.hold(frames);
        Ok(given.release() as usize)
    }

    /// Frames that were taken so far and belonged to another pool before.
    pub fn foreign_frames(&self) -> u64 {
        self.foreign_frames
    }

    /// Whether the giver is gone: no packets follow those in the ring.
    pub fn is_abandoned(&self) -> bool {
        self.gone.load(Acquire) & GIVER_GONE != 0
    }

    /// Whether there is nothing to take now.
    pub fn is_empty(&self) -> bool {
        self.ring.unread().map_or(true, |unread| unread.len() == 0)
    }

    fn send_home(&mut self) {
        let Ok(left) = self.ring.peek(u32::MAX) else { return };
        left.iter().for_each(|entry| drop(Transfer::of_parts(&self.umem, entry.home, entry.parts)));
        left.release();
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.send_home();
        // Else the giver sends home what it gave meanwhile.
        if self.gone.fetch_or(TAKER_GONE, AcqRel) & GIVER_GONE != 0 {
            self.send_home();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::UmemConfig;

    const FRAMES: u32 = 64;

    fn umem() -> Umem {
        Umem::new(&UmemConfig { frames: FRAMES, pools: 2, ..UmemConfig::default() }).unwrap()
    }

    fn fill(pool: &Pool, batch: &mut Batch, count: usize) {
        for n in 0..count {
            let mut packet = pool.allocate().unwrap();
            packet.append(&[n as u8; 60]).unwrap();
            batch.push(packet).unwrap();
        }
    }

    #[track_caller]
    fn balanced(pool: &Pool) {
        let audit = pool.audit(&[]);
        assert!(audit.balanced(), "{audit}");
    }

    #[test]
    fn frames_change_pools() {
        let umem = umem();
        let (here, there) = (umem.pool().unwrap(), umem.pool().unwrap());
        let (mut giver, mut taker) = way(&umem, 8);
        let mut batch = Batch::new(16);
        fill(&here, &mut batch, 9);
        batch[0].append(&[7; 3000]).unwrap();
        let frames = batch[0].frames() as u64;
        assert_eq!(giver.give(&mut batch), Ok(8), "the ring is full");
        assert_eq!((batch.len(), here.audit(&[]).found.away), (1, 7 + frames));
        balanced(&here);
        batch.clear();
        assert_eq!(taker.take(&there, &mut batch), Ok(8));
        assert_eq!(batch[0].len(), 3060);
        assert!((1..8).all(|n| batch[n].data() == [n as u8; 60]));
        balanced(&here);
        balanced(&there);
        batch.clear();
        assert_eq!(u64::from(there.free()), u64::from(FRAMES / 2) + 7 + frames);
        assert_eq!(here.counts().handed, there.counts().adopted);
        assert_eq!(taker.foreign_frames(), 7 + frames);
    }

    /// Nothing is lost, whoever goes first and whatever is in the ring.
    #[test]
    fn whoever_goes_first() {
        for giver_first in [true, false] {
            let umem = umem();
            let (here, there) = (umem.pool().unwrap(), umem.pool().unwrap());
            let (mut giver, mut taker) = way(&umem, 8);
            let mut batch = Batch::new(16);
            fill(&here, &mut batch, 5);
            giver.give(&mut batch).unwrap();
            let mut first = Batch::new(2);
            assert_eq!(taker.take(&there, &mut first), Ok(2));
            if giver_first {
                drop(giver);
                assert!(taker.is_abandoned() && !taker.is_empty());
                assert_eq!(taker.take(&there, &mut batch), Ok(3));
            } else {
                drop(taker);
                assert!(giver.is_abandoned());
                fill(&here, &mut batch, 1);
                assert_eq!(giver.give(&mut batch), Ok(0));
            }
            drop((batch, first));
            // All of them, with those that came home.
            let mut all = Batch::new(FRAMES as usize);
            here.allocate_burst(&mut all, FRAMES as usize);
            there.allocate_burst(&mut all, FRAMES as usize);
            assert_eq!(all.len(), FRAMES as usize);
            all.clear();
            balanced(&here);
            balanced(&there);
        }
    }

    #[test]
    fn another_memory() {
        let (one, two) = (umem(), umem());
        let (mut giver, mut taker) = way(&one, 8);
        let (here, there) = (one.pool().unwrap(), two.pool().unwrap());
        let mut batch = Batch::new(4);
        fill(&there, &mut batch, 2);
        assert_eq!((giver.give(&mut batch), batch.len()), (Ok(0), 0));
        fill(&here, &mut batch, 2);
        assert_eq!(giver.give(&mut batch), Ok(2));
        assert_eq!(taker.take(&there, &mut batch), Ok(0));
        balanced(&there);
        balanced(&here);
    }

    #[test]
    fn between_threads() {
        const PACKETS: u64 = 20_000;
        let umem = umem();
        let (mut giver, mut their_taker) = way(&umem, 16);
        let (mut their_giver, mut taker) = way(&umem, 16);
        let there = umem.clone();
        let other = std::thread::spawn(move || {
            let pool = there.pool().unwrap();
            let (mut batch, mut sum) = (Batch::new(16), 0_u64);
            while !their_taker.is_abandoned() || !batch.is_empty() {
                let had = batch.len();
                their_taker.take(&pool, &mut batch).unwrap();
                sum += batch[had..].iter().map(|p| u64::from(p.data()[0])).sum::<u64>();
                their_giver.give(&mut batch).unwrap();
                if their_giver.is_abandoned() {
                    batch.clear();
                }
            }
            drop((batch, their_taker, their_giver));
            balanced(&pool);
            sum
        });
        let pool = umem.pool().unwrap();
        let (mut out, mut back) = (Batch::new(16), Batch::new(16));
        let (mut sent, mut returned, mut sum) = (0, 0, 0_u64);
        while returned < PACKETS {
            while sent < PACKETS && out.room() > 0 {
                let Some(mut packet) = pool.allocate() else { break };
                packet.append(&[sent as u8; 20]).unwrap();
                sum += u64::from(sent as u8);
                sent += 1;
                out.push(packet).unwrap();
            }
            giver.give(&mut out).unwrap();
            returned += taker.take(&pool, &mut back).unwrap() as u64;
            back.clear();
            balanced(&pool);
            std::thread::yield_now();
        }
        drop((giver, taker));
        assert_eq!(other.join().unwrap(), sum);
        balanced(&pool);
    }
}
