//! Packets of several frames on their way in.

use crate::packet::{MAX_FRAMES, Packet};
use crate::queue::Tally;

/// A packet of several frames on its way in.
pub(crate) enum Reassembly {
    Nothing,
    Packet(Packet),
    /// It cannot be had; the rest of it is dropped.
    Broken,
}

impl Reassembly {
    /// The next frame of a packet; the packet, if it was the last.
    #[inline]
    pub(crate) fn join(
        &mut self,
        frame: Option<Packet>,
        continued: bool,
        tally: &Tally,
    ) -> Option<Packet> {
        match (&mut *self, frame) {
            // Nearly always.
            (Reassembly::Nothing, Some(packet)) if !continued => return Some(packet),
            (Reassembly::Nothing, Some(packet)) => *self = Reassembly::Packet(packet),
            (Reassembly::Packet(reassembly), Some(frame)) if reassembly.frames() < MAX_FRAMES => {
                reassembly.attach(frame)
            }
            // A frame that was not to be believed, too many of them, or what follows one of these.
            (_, _) => *self = Reassembly::Broken,
        }
        if continued {
            return None;
        }
        match std::mem::replace(self, Reassembly::Nothing) {
            Reassembly::Packet(packet) => Some(packet),
            Reassembly::Nothing => None,
            Reassembly::Broken => {
                tally.broken_packets.add(1);
                None
            }
        }
    }
}
