//! Packets that were counted at the kernel's tracepoints.

use serde::{Deserialize, Serialize};

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
    pub at: SeenAt,
    pub ifindex: u32,
    /// EtherType, host byte order.
    pub protocol: u16,
    /// The kernel's name of the reason, without its prefix; empty unless lost.
    pub reason: String,
    /// The function that freed them; empty where that is not known.
    pub function: String,
    /// One count per processor.
    pub packets: Vec<u64>,
    /// Packets as they were before GRO, or their sender, joined them.
    pub segments: u64,
}

impl Seen {
    pub fn all(&self) -> u64 {
        self.packets.iter().sum()
    }
}
