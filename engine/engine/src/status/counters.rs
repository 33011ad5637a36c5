//! What a worker counts. It alone writes; nobody reads but itself, when it is asked for its status.

use crate::status::reason::Reason;

/// Burst sizes are told apart by powers of two: 1, 2 to 3, 4 to 7, ..., 64 and more.
pub(crate) const BURST_SIZES: usize = 7;

/// On cache lines of its own: workers lie in memory beside each other.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub received: u64,
    pub originated: u64,
    pub transmitted: u64,
    /// Times the app wanted to originate, and no frame was free.
    pub no_frame: u64,
    pub rounds: u64,
    pub sleeps: u64,
    pub busy_cycles: u64,
    pub idle_cycles: u64,
    pub bursts: [u64; BURST_SIZES],
    dropped: Dropped,
}

#[derive(Debug)]
struct Dropped([u64; Reason::COUNT]);

impl Default for Dropped {
    fn default() -> Self {
        Self([0; Reason::COUNT])
    }
}

impl Tally {
    #[inline]
    pub(crate) fn burst(&mut self, packets: usize) {
        self.received += packets as u64;
        if let Some(size) = packets.checked_ilog2() {
            self.bursts[(size as usize).min(BURST_SIZES - 1)] += 1;
        }
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: Reason, packets: usize) {
        self.dropped.0[reason as usize] += packets as u64;
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::all().zip(self.dropped.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let mut tally = Tally::default();
        for packets in [0, 1, 2, 3, 4, 32, 63, 64, 1000] {
            tally.burst(packets);
        }
        assert_eq!(tally.bursts, [1, 2, 1, 0, 0, 2, 2]);
        assert_eq!(tally.received, 1 + 2 + 3 + 4 + 32 + 63 + 64 + 1000);
    }
}
