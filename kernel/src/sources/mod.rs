//! Where a gateway has its time and its random numbers from.

pub(crate) mod clock;
pub(crate) mod random;

pub use clock::{Clock, ManualClock, now_seconds};
pub use random::Randomness;

/// Time and random numbers of a gateway: the kernel's, or a test's own.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// What its programs and this crate go by.
    pub clock: Clock,
    /// What keys of hashes are made of.
    pub randomness: Randomness,
}
