//! Packets on their way from one worker to another.

use std::mem;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::Place;
use crate::packet::pool::{Pool, end_if_last};
use crate::packet::{Link, Packet, Parts};
use crate::umem::Umem;

/// A packet between two pools of one [`Umem`]: it may go to any thread, where a pool adopts it. Dropped on whatever thread, its
/// frames find back to the pool that they came from, which has them again with its next [`receive`](crate::Queue::receive),
/// or when it is short of frames.
///
/// Frames that are adopted stay with the pool that adopted them: what flows one way only is to be handed back as well, as
/// empty packets, or to be copied ([`Packet::copy_to`]).
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
        mem::forget(self);
        // SAFETY: it has not ended, since the packet was held; nothing refers to it here any more.
        unsafe { end_if_last(pool) };
        transfer
    }
}

impl Pool {
    /// Makes it a packet of this pool.
    ///
    /// # Errors
    /// Hands it back where it is of another UMEM, or this pool has not been claimed.
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
