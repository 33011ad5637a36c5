//! What was seen at the kernel's tracepoints between the two samples. Who counts is no matter here.

use ringway_host::{Seen, SeenAt};
use serde::{Deserialize, Serialize};

/// Where it is in a sample.
pub const TRACE: &str = "/trace/packets.json";

/// Everything that was seen in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub seen: Vec<Seen>,
    /// Packets that there was no room to count.
    pub uncounted: u64,
}

impl Trace {
    /// Of an interface, at one place.
    pub(super) fn at(&self, at: SeenAt, ifindex: u32) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(move |seen| seen.at == at && seen.ifindex == ifindex)
    }

    /// How many of them.
    pub(super) fn sum(&self, at: SeenAt, ifindex: u32) -> u64 {
        self.at(at, ifindex).map(Seen::all).sum()
    }
}
