//! Building a packet in a buffer, from the inside out.

use core::fmt;
use core::ops::Range;

use zerocopy::{Immutable, IntoBytes};

use crate::{Layer, U16};

/// A packet that grows in a buffer: its payload is appended, then each header is put in front of
/// what is there, into the buffer's headroom. Nothing is moved; lengths and checksums are known by
/// the time a header is written.
///
/// `put` takes any header as it is. Those with a length or checksum have a method each, beside
/// their type (`ipv4`, `ipv6`, `extension`, `icmp`, `icmpv6`, `udp`, `tcp`), and so has `ethernet`.
#[derive(Debug)]
pub struct Builder<'a> {
    buffer: &'a mut [u8],
    /// Where the packet lies; never beyond the buffer.
    packet: Range<usize>,
}

/// Why a packet cannot be built. What was put before is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Too little room in front of the packet.
    Headroom {
        /// Bytes to be put there.
        needed: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// Too little room behind the packet.
    Tailroom {
        /// Bytes to be put there.
        needed: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// Longer than the header's length field can say.
    TooLong {
        /// The header that was to be written.
        layer: Layer,
        /// How long it would be, in bytes.
        len: usize,
    },
    /// Options of a length that the header cannot have.
    Options {
        /// The header that was to be written.
        layer: Layer,
        /// How long they are, in bytes.
        len: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Headroom { needed, free } => {
                write!(f, "{needed} bytes do not fit in front of the packet: {free} are free; ")?;
                f.write_str("begin with more headroom")
            }
            Self::Tailroom { needed, free } => {
                write!(f, "{needed} bytes do not fit behind the packet: {free} are free; ")?;
                f.write_str("take a larger buffer or less headroom")
            }
            Self::TooLong { layer, len } => {
                write!(f, "{len} bytes are more than the length of {layer} can say; send less")
            }
            Self::Options { layer, len } => {
                write!(f, "{layer} cannot have options of {len} bytes; pad or shorten them")
            }
        }
    }
}

impl core::error::Error for BuildError {}

impl<'a> Builder<'a> {
    /// An empty packet, in front of which `headroom` bytes of the buffer are free.
    ///
    /// # Errors
    /// [`BuildError::Tailroom`] where the buffer is shorter than that.
    #[inline]
    pub fn new(buffer: &'a mut [u8], headroom: usize) -> Result<Self, BuildError> {
        Self::around(buffer, headroom..headroom)
    }

    /// Around a packet that lies in the buffer already: to put it into a tunnel, or to answer in
    /// place.
    ///
    /// # Errors
    /// [`BuildError::Tailroom`] where the range ends beyond the buffer, or before it begins.
    #[inline]
    pub fn around(buffer: &'a mut [u8], packet: Range<usize>) -> Result<Self, BuildError> {
        if packet.start > packet.end || packet.end > buffer.len() {
            return Err(BuildError::Tailroom { needed: packet.end, free: buffer.len() });
        }
        Ok(Self { buffer, packet })
    }

    /// Puts a header, or any bytes, in front.
    ///
    /// # Errors
    /// [`BuildError::Headroom`].
    #[inline]
    pub fn put<T: IntoBytes + Immutable + ?Sized>(
        &mut self,
        header: &T,
    ) -> Result<&mut Self, BuildError> {
        let bytes = header.as_bytes();
        self.front(bytes.len())?.copy_from_slice(bytes);
        Ok(self)
    }

    /// Room for `len` bytes in front, to be written.
    #[inline]
    pub(crate) fn front(&mut self, len: usize) -> Result<&mut [u8], BuildError> {
        let free = self.packet.start;
        let no_room = BuildError::Headroom { needed: len, free };
        let start = free.checked_sub(len).ok_or(no_room)?;
        let room = self.buffer.get_mut(start..free).ok_or(no_room)?;
        self.packet.start = start;
        Ok(room)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`BuildError::Tailroom`].
    #[inline]
    pub fn append<T: IntoBytes + Immutable + ?Sized>(
        &mut self,
        bytes: &T,
    ) -> Result<&mut Self, BuildError> {
        let bytes = bytes.as_bytes();
        self.space(bytes.len())?.copy_from_slice(bytes);
        Ok(self)
    }

    /// Appends `len` bytes, as the buffer has them, to be written by the caller.
    ///
    /// # Errors
    /// [`BuildError::Tailroom`].
    #[inline]
    pub fn space(&mut self, len: usize) -> Result<&mut [u8], BuildError> {
        let from = self.packet.end;
        let no_room = BuildError::Tailroom { needed: len, free: self.buffer.len() - from };
        let end = from.checked_add(len).ok_or(no_room)?;
        let space = self.buffer.get_mut(from..end).ok_or(no_room)?;
        self.packet.end = end;
        Ok(space)
    }

    /// Appends zeroes until the packet has `len` bytes ([`crate::MIN_FRAME`], say); a longer one
    /// stays as it is.
    ///
    /// # Errors
    /// [`BuildError::Tailroom`].
    #[inline]
    pub fn pad(&mut self, len: usize) -> Result<&mut Self, BuildError> {
        self.space(len.saturating_sub(self.len()))?.fill(0);
        Ok(self)
    }

    /// The packet as it is now.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        // The range is within the buffer: there is always something to get.
        self.buffer.get(self.packet.clone()).unwrap_or_default()
    }

    /// Its place in the buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.packet.clone()
    }

    /// Bytes of the packet as it is now.
    #[inline]
    pub fn len(&self) -> usize {
        self.packet.end - self.packet.start
    }

    /// Whether nothing has been put or appended.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packet.is_empty()
    }

    /// The length of the packet with `header` bytes more, for a length field.
    #[inline]
    pub(crate) fn length(&self, layer: Layer, header: usize) -> Result<U16, BuildError> {
        let len = header + self.len();
        Ok(U16::new(u16::try_from(len).map_err(|_| BuildError::TooLong { layer, len })?))
    }
}
