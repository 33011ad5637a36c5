//! TCP (RFC 9293).

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Pseudo;
use crate::network::ipv4::checked_options;
use crate::network::protocol;
use crate::{BuildError, Builder, Header, Layer, TcpOptions, U16, U32, View};

/// A TCP header without its options.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Tcp {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Sequence number of the first byte of the payload, or of SYN.
    pub sequence: U32,
    /// The next sequence number expected, with [`Tcp::ACK`].
    pub acknowledgment: U32,
    /// The header's length in units of four bytes (4 bits), then flags (12 bits, three of them
    /// reserved).
    pub offset_flags: U16,
    /// The number of bytes that may still be sent; to be scaled, except on SYN.
    pub window: U16,
    /// Over the pseudo header, header, options and payload.
    pub checksum: U16,
    /// Offset of urgent data; valid with [`Tcp::URG`].
    pub urgent: U16,
}

impl Header for Tcp {
    const LAYER: Layer = Layer::Tcp;

    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.offset_flags.get() >> 12) * 4
    }
}

impl Tcp {
    /// The sender has no more data.
    pub const FIN: u16 = 0x001;
    /// Opens a connection.
    pub const SYN: u16 = 0x002;
    /// A connection is broken off.
    pub const RST: u16 = 0x004;
    /// The receiver should deliver the data at once.
    pub const PSH: u16 = 0x008;
    /// The acknowledgment number is valid.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer counts.
    pub const URG: u16 = 0x020;
    /// Congestion was echoed (RFC 3168).
    pub const ECE: u16 = 0x040;
    /// The window was reduced (RFC 3168).
    pub const CWR: u16 = 0x080;
    /// Accurate ECN (RFC 9768).
    pub const AE: u16 = 0x100;

    /// A header with an empty window. [`Builder::tcp`] fills in length and checksum.
    #[inline]
    pub const fn new(source: u16, destination: u16, flags: u16) -> Self {
        Self {
            source: U16::new(source),
            destination: U16::new(destination),
            sequence: U32::ZERO,
            acknowledgment: U32::ZERO,
            offset_flags: U16::new(5 << 12 | flags & 0xfff),
            window: U16::ZERO,
            checksum: U16::ZERO,
            urgent: U16::ZERO,
        }
    }

    /// The flag bits, with NS.
    #[inline]
    pub const fn flags(&self) -> u16 {
        self.offset_flags.get() & 0xfff
    }

    /// Sets the lower twelve bits of `flags`.
    #[inline]
    pub fn set_flags(&mut self, flags: u16) {
        self.offset_flags.set(self.offset_flags.get() & 0xf000 | flags & 0xfff);
    }

    /// Whether all of these are set.
    #[inline]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags() & flags == flags
    }
}

impl<B: ByteSlice> View<B, Tcp> {
    /// Whether the segment's checksum is right, between these addresses. Not for one that is not
    /// whole.
    #[inline]
    pub fn checksum_is_right(&self, pseudo: Pseudo) -> bool {
        let own = pseudo.sum(protocol::TCP, self.len());
        self.sum(own).is_right()
    }

    /// The options, one by one.
    pub fn each_option(&self) -> TcpOptions<'_> {
        TcpOptions::new(&self.options)
    }
}

impl Builder<'_> {
    /// Puts a TCP header with these options in front ([`crate::TcpOption::write`] makes them), and
    /// fills in length and checksum.
    ///
    /// # Errors
    /// [`BuildError`]: no room, or options of more than 40 bytes or not a multiple of four.
    #[inline]
    pub fn tcp(
        &mut self,
        mut header: Tcp,
        options: &[u8],
        pseudo: Pseudo,
    ) -> Result<&mut Self, BuildError> {
        let header_len = size_of::<Tcp>() + checked_options(Layer::Tcp, options)?;
        header.offset_flags.set((header_len as u16 / 4) << 12 | header.flags());
        header.checksum = U16::ZERO;
        let own = pseudo.sum(protocol::TCP, header_len + self.len());
        header.checksum = own.with(header.as_bytes()).with(options).with(self.packet()).finish();
        self.put(options)?.put(&header)
    }
}
