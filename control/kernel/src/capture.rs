//! Sees the packets of a node: before and after rewriting, with verdict, reason, service and backend
//! (packet/bpf/capture.bpf.c).
//!
//! While nobody captures, nothing of this is there. A capture is a [`Session`]; up to [`MOST`] share
//! what the first one has loaded, and the last one takes it away. A session that was killed is
//! cleaned up after by the daemon, the next session, or `ringway detach`; traffic never notices.
//!
//! Not seen: packets that the root program ends itself (no stage, no room for a header), and what
//! the kernel drops after the verdict.

use std::time::Duration;

use ringway_abi::{BackendRef, Reason, Verdict};
use ringway_filter::{Instruction, Surroundings};

use crate::{Error, Result, View};

/// Captures of one node at a time.
pub const MOST: usize = 12;

/// Bytes of a packet that can be kept, before and after rewriting each.
pub const MOST_BYTES: u32 = 16384;

/// Which packets a capture wants. A packet has to fit all of it.
pub struct Wanted<'a> {
    /// The filter's program, given where it will stand: [`ringway_filter::Filter::translate`]. It is
    /// asked about the packet as it came and, where that was rewritten, as it leaves: one of both
    /// has to match.
    pub filter: &'a dyn Fn(&Surroundings<'_>) -> Vec<Instruction>,
    /// Slot of the interface it came in by.
    pub iface: Option<u32>,
    /// Verdicts; none for any.
    pub verdicts: &'a [Verdict],
    /// Reasons; none for any.
    pub reasons: &'a [Reason],
    /// Id of its service.
    pub service: Option<u16>,
    /// Index of its backend.
    pub backend: Option<u32>,
    /// One in so many that the filter matches, on each CPU; 0 and 1: all.
    pub sample: u32,
    /// Bytes to keep of a packet, 1 to [`MOST_BYTES`].
    pub snaplen: u32,
    /// Room for records that are not read yet: bytes, rounded up to a power of two of pages.
    pub buffer_bytes: u32,
}

/// A packet as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When: nanoseconds since 1970.
    pub unix_ns: u64,
    /// Slot of the interface it came in by: of the VLAN device, where it has tags of one.
    pub iface: u32,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// Id of its service.
    pub service: Option<u16>,
    /// Its backend.
    pub backend: Option<BackendRef>,
    /// The frame as it came, from the Ethernet header on, tags included; not more of it than
    /// `snaplen`, and of one that the filter matches only as rewritten 128 bytes. A packet of a
    /// device without Ethernet header has the one it has within Ringway.
    pub before: &'a [u8],
    /// How long it was.
    pub before_len: u32,
    /// The frame as it leaves and how long it is; `None`: as it came, or dropped.
    pub after: Option<(&'a [u8], u32)>,
}

/// What a capture has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that fit.
    pub matched: u64,
    /// Of these: no room for their record, because the reader was too slow.
    pub lost: u64,
}

/// A capture under way. Dropping it ends it.
#[derive(Debug)]
pub struct Session {
    counts: Counts,
}

impl Session {
    /// Begins to capture on a node. Loads what captures share when this is the first: some hundred
    /// milliseconds. Fails when [`MOST`] captures are under way.
    pub fn start(view: &View, wanted: &Wanted<'_>) -> Result<Self> {
        let _ = (view, wanted);
        Err(Error::System { action: "capture", source: std::io::ErrorKind::Unsupported.into() })
    }

    /// Visits the records there are, in their order; where there are none, waits for some, up to
    /// `timeout`. Returns how many there were. Fails when the node was detached.
    pub fn poll(&mut self, timeout: Duration, visit: impl FnMut(Record<'_>)) -> Result<usize> {
        let _ = (timeout, visit);
        Ok(0)
    }

    /// Ends the capture; [`Self::poll`] still gives what is there. Doing it twice is fine.
    pub fn leave(&mut self) -> Result<()> {
        Ok(())
    }

    /// What it has met up to now.
    pub fn counts(&self) -> Result<Counts> {
        Ok(self.counts)
    }
}
