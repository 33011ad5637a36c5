//! The count of a thread's packets, by their mbufs.

use std::cell::Cell;

use ringway_xsk::Buffer;

/// What this thread's packets have done so far.
#[derive(Default)]
pub struct Tally {
    pub allocated: Cell<u64>,
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    pub freed: Cell<u64>,
    /// Mbufs behind the first of a packet that the thread has now: of long packets.
    pub chained: Cell<u64>,
}

thread_local! {
    pub static TALLY: Tally = const {
        Tally { chained: Cell::new(0), allocated: Cell::new(0), received: Cell::new(0), sent: Cell::new(0), freed: Cell::new(0) }
    };
}

/// Mbufs of packets that came.
#[inline]
pub fn came(packets: &[impl Buffer]) {
    let mbufs: usize = packets.iter().map(Buffer::frames).sum();
    count(|tally| &tally.received, mbufs);
    if mbufs > packets.len() {
        count(|tally| &tally.chained, mbufs - packets.len());
    }
}

/// Mbufs of packets that are about to go. Only where there are long ones each is looked at.
#[inline]
pub fn mbufs_of(packets: &[impl Buffer]) -> usize {
    if TALLY.with(|tally| tally.chained.get()) == 0 {
        return packets.len();
    }
    packets.iter().map(Buffer::frames).sum()
}

/// So many mbufs went, in so many packets.
#[inline]
pub fn went(of: impl FnOnce(&Tally) -> &Cell<u64>, mbufs: usize, packets: usize) {
    // At a thread's end nobody reads it any more.
    let _ = TALLY.try_with(|tally| {
        let cell = of(tally);
        cell.set(cell.get() + mbufs as u64);
        tally.chained.set(tally.chained.get().saturating_sub((mbufs - packets) as u64));
    });
}

#[inline]
pub fn count(of: impl FnOnce(&Tally) -> &Cell<u64>, packets: usize) {
    // At a thread's end nobody reads it any more.
    let _ = TALLY.try_with(|tally| {
        let cell = of(tally);
        cell.set(cell.get() + packets as u64);
    });
}
