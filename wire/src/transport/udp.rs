//! UDP (RFC 768; over IPv6 RFC 8200 section 8.1, RFC 6935).

use zerocopy::{ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{self, Pseudo};
use crate::network::protocol;
use crate::{BuildError, Builder, Header, Layer, U16, View};

/// A UDP header.
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
pub struct Udp {
    /// Source port.
    pub source: U16,
    /// Destination port.
    pub destination: U16,
    /// Bytes of header and payload.
    pub length: U16,
    /// Over the pseudo header, header and payload; 0 stands for none.
    pub checksum: U16,
}

impl Header for Udp {
    const LAYER: Layer = Layer::Udp;

    #[inline]
    fn total_len(&self) -> Option<usize> {
        Some(self.length.get().into())
    }
}

/// The state of a datagram's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// The checksum is correct.
    Right,
    /// The checksum does not match.
    Wrong,
    /// There is none. Fine over IPv4; over IPv6 only where the receiver expects a tunnel there (RFC
    /// 6935, section 5).
    None,
}

impl Udp {
    /// A header. [`Builder::udp`] fills in length and checksum.
    #[inline]
    pub const fn new(source: u16, destination: u16) -> Self {
        Self {
            source: U16::new(source),
            destination: U16::new(destination),
            length: U16::new(8),
            checksum: U16::ZERO,
        }
    }

    /// Mends the checksum after `old`, which it covers (an address, a port), became `new`: none
    /// stays none, and one that comes to zero is sent as all ones.
    #[inline]
    pub fn replace<T: IntoBytes + Immutable + ?Sized>(&mut self, old: &T, new: &T) {
        if self.checksum != U16::ZERO {
            checksum::replace(&mut self.checksum, old, new);
            self.checksum = sent(self.checksum);
        }
    }
}

/// As it is sent: all ones for zero, which is the same to the sum (RFC 768).
#[inline]
fn sent(checksum: U16) -> U16 {
    if checksum == U16::ZERO { U16::MAX_VALUE } else { checksum }
}

impl<B: ByteSlice> View<B, Udp> {
    /// Verifies the checksum, between these addresses. Wrong for a datagram that is not whole.
    #[inline]
    pub fn verify(&self, pseudo: Pseudo) -> UdpChecksum {
        if self.header.checksum == U16::ZERO {
            return UdpChecksum::None;
        }
        let own = pseudo.sum(protocol::UDP, self.len());
        match self.sum(own).is_right() {
            true => UdpChecksum::Right,
            false => UdpChecksum::Wrong,
        }
    }
}

impl Builder<'_> {
    /// Puts a UDP header in front, and fills in length and checksum; without a pseudo header it has
    /// none.
    ///
    /// # Errors
    /// [`BuildError`]: no room, or a datagram of over 65 535 bytes.
    #[inline]
    pub fn udp(
        &mut self,
        mut header: Udp,
        pseudo: Option<Pseudo>,
    ) -> Result<&mut Self, BuildError> {
        header.length = self.length(Layer::Udp, size_of::<Udp>())?;
        header.checksum = U16::ZERO;
        if let Some(pseudo) = pseudo {
            let own = pseudo.sum(protocol::UDP, header.length.get().into());
            header.checksum = sent(own.with(header.as_bytes()).with(self.packet()).finish());
        }
        self.put(&header)
    }
}
