//! What was seen at the kernel's tracepoints between the two samples. Who counts is no matter here.

use serde::{Deserialize, Serialize};

/// Where it is in a sample.
pub const TRACE: &str = "/trace/packets.json";

/// Where packets were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenAt {
    /// Handed to the stack by this interface, after GRO.
    Received,
    /// Came in by this interface, and were put before another's queue.
    PassedOn,
    /// Put before this interface's queue.
    Queued,
    /// Came in by this interface, and were freed for a reason.
    Lost,
    /// Freed at this interface before the stack knew of them, or on their way out of this host.
    LostNear,
}

/// Packets of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Where.
    pub at: SeenAt,
    /// Index of the interface.
    pub ifindex: u32,
    /// EtherType.
    pub protocol: u16,
    /// The kernel's name of the reason, without its prefix; empty unless lost.
    pub reason: String,
    /// The function that freed them; empty where that is not known.
    pub function: String,
    /// Packets by processor.
    pub packets: Vec<u64>,
    /// Packets as they were before GRO, or their sender, joined them.
    pub segments: u64,
}

impl Seen {
    /// Of all processors.
    pub fn all(&self) -> u64 {
        self.packets.iter().sum()
    }
}

/// Everything that was seen in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// By kind.
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
