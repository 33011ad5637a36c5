//! Packets of several frames on their way in.

use crate::packet::{MAX_FRAMES, Packet};
use crate::queue::Tally;

/// A packet of several frames on its way in.
pub(crate) enum Begun {
    Nothing,
    Packet(Packet),
    /// It cannot be had; the rest of it is dropped.
    Broken,
}

impl Begun {
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
            (Begun::Nothing, Some(packet)) if !continued => return Some(packet),
            (Begun::Nothing, Some(packet)) => *self = Begun::Packet(packet),
            (Begun::Packet(begun), Some(frame)) if begun.frames() < MAX_FRAMES => {
                begun.attach(frame)
            }
            // A frame that was not to be believed, too many of them, or what follows one of these.
            (_, _) => *self = Begun::Broken,
        }
        if continued {
            return None;
        }
        match std::mem::replace(self, Begun::Nothing) {
            Begun::Packet(packet) => Some(packet),
            Begun::Nothing => None,
            Begun::Broken => {
                tally.broken_packets.add(1);
                None
            }
        }
    }
}
