//! VXLAN (RFC 7348): an Ethernet frame in UDP.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::malformed::Fault;
use crate::{Header, Layer, U32};

/// A VXLAN header; an Ethernet frame follows.
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
pub struct Vxlan {
    /// [`Vxlan::HAS_VNI`]; without it the header is [`Fault::Kind`] (RFC 7348, section 5).
    pub flags: u8,
    /// 0 when sent, ignored when received.
    pub reserved: [u8; 3],
    /// The network's number in the upper 24 bits.
    pub vni_reserved: U32,
}

impl Header for Vxlan {
    const LAYER: Layer = Layer::Vxlan;

    #[inline]
    fn check(&self) -> Result<(), Fault> {
        if self.flags & Self::HAS_VNI != 0 { Ok(()) } else { Err(Fault::Kind) }
    }
}

impl Vxlan {
    /// The UDP port that was assigned to it.
    pub const PORT: u16 = 4789;
    /// There is a network's number.
    pub const HAS_VNI: u8 = 0x08;

    /// Sets the VNI to the lower 24 bits of `vni`.
    #[inline]
    pub const fn new(vni: u32) -> Self {
        Self { flags: Self::HAS_VNI, reserved: [0; 3], vni_reserved: U32::new(vni << 8) }
    }

    /// The network's number, 24 bits.
    #[inline]
    pub const fn vni(&self) -> u32 {
        self.vni_reserved.get() >> 8
    }
}
