//! Sums of what is counted, of several backends.

use crate::documents::durations::Counted;

/// What is counted for a backend, and for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// [`Backend::flows`](crate::documents::status::Backend::flows), `evicted_flows`, `packets`,
    /// `bytes`, `reply_packets`, `reply_bytes`.
    pub traffic: [u64; 6],
    /// [`Backend::checks_passed`](crate::documents::status::Backend::checks_passed),
    /// `checks_failed`.
    pub checks: [u64; 2],
    /// [`Backend::check_durations`](crate::documents::status::Backend::check_durations).
    pub durations: Counted,
}
