//! What a program needs of a packet, in whatever memory it lies.

use std::ops::Range;

use super::NoRoom;

/// A packet in a buffer, or several. It owns them: dropping it frees them.
///
/// [`crate::Packet`] is one, in frames of a UMEM; each function of that name says more.
pub trait Buffer: Sized {
    /// Its bytes in its first buffer.
    fn data(&self) -> &[u8];

    /// Its bytes in its first buffer, to be changed in place.
    fn data_mut(&mut self) -> &mut [u8];

    /// Its bytes in each of its buffers.
    fn segments(&self) -> impl Iterator<Item = &[u8]>;

    /// The number of its buffers.
    fn frames(&self) -> usize;

    /// The whole first buffer, with headroom, for builders.
    fn buffer_mut(&mut self) -> &mut [u8];

    /// Its place in its first buffer.
    fn range(&self) -> Range<usize>;

    /// Sets the part of [`Buffer::buffer_mut`] that is the packet.
    ///
    /// # Errors
    /// [`NoRoom`] if the buffer has no such part.
    fn set_range(&mut self, range: Range<usize>) -> Result<(), NoRoom>;

    /// Appends bytes.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing has changed then.
    fn append(&mut self, bytes: &[u8]) -> Result<(), NoRoom>;

    /// Frees all of them, for less than one by one where that can be.
    fn free_all(packets: &mut Vec<Self>) {
        packets.clear();
    }

    /// Bytes of the packet, in all its buffers.
    #[inline]
    fn len(&self) -> usize {
        self.segments().map(<[u8]>::len).sum()
    }

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes free in front of it.
    #[inline]
    fn headroom(&self) -> usize {
        self.range().start
    }
}
