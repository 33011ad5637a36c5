//! `l2fwd`: packets that come in by one port go out by the other.

use ringway_wire::{Ethernet, Header as _, Mac};
use ringway_xsk::Buffer as _;

use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// The change of a frame's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Macs {
    AsIs,
    /// They change places, so that a frame returns to its sender.
    Swap,
    Static {
        destination: Mac,
        source: Mac,
    },
}

/// Forwards between neighbours: 0 and 1, 2 and 3, and so on; the last of an odd number to itself.
pub struct L2fwd {
    macs: Macs,
}

impl L2fwd {
    pub fn new(macs: Macs) -> Self {
        Self { macs }
    }

    #[inline]
    fn rewrite(&self, frame: &mut [u8]) -> Result<(), Reason> {
        let (mut ethernet, _) = Ethernet::peek(frame)?;
        match self.macs {
            Macs::AsIs => (),
            Macs::Swap => ethernet.swap(),
            Macs::Static { destination, source } => {
                (ethernet.destination, ethernet.source) = (destination, source);
            }
        }
        Ok(())
    }
}

impl<P: BufferPool> App<P> for L2fwd {
    fn name(&self) -> &'static str {
        "l2fwd"
    }

    fn reads_packets(&self) -> bool {
        self.macs != Macs::AsIs
    }

    /// Not inlined: it would share the registers of the worker's round, at three instructions a packet.
    #[inline(never)]
    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        let neighbour = burst.from() ^ 1;
        let to = if neighbour < burst.ports() { neighbour } else { burst.from() };
        if self.macs == Macs::AsIs {
            return burst.forward_all(to);
        }
        burst.decide(|packet| match self.rewrite(packet.data_mut()) {
            Ok(()) => Verdict::Forward(to),
            Err(reason) => Verdict::Drop(reason),
        });
    }
}
