//! The count of a thread's packets.

use std::cell::Cell;

/// What this thread's packets have done so far.
#[derive(Default)]
pub struct Tally {
    pub allocated: Cell<u64>,
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    pub freed: Cell<u64>,
}

thread_local! {
    pub static TALLY: Tally = const {
        Tally {
            allocated: Cell::new(0),
            received: Cell::new(0),
            sent: Cell::new(0),
            freed: Cell::new(0),
        }
    };
}

#[inline]
pub fn count(of: impl FnOnce(&Tally) -> &Cell<u64>, packets: usize) {
    // At a thread's end nobody reads it any more.
    let _ = TALLY.try_with(|tally| {
        let cell = of(tally);
        cell.set(cell.get() + packets as u64);
    });
}
