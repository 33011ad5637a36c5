//! VLAN tags (IEEE 802.1Q): behind an Ethernet header or another tag whose EtherType announces
//! them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Header, Layer, U16};

/// The part of a tag behind the EtherType that announced it.
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
pub struct Vlan {
    /// Priority (3 bits), drop eligible (1 bit), VLAN id (12 bits).
    pub tci: U16,
    /// EtherType of what the tag precedes ([`crate::ethertype`]).
    pub ethertype: U16,
}

impl Header for Vlan {
    const LAYER: Layer = Layer::Vlan;
}

impl Vlan {
    /// A tag of priority 0; of `id` the lower 12 bits.
    #[inline]
    pub const fn new(id: u16, ethertype: u16) -> Self {
        Self { tci: U16::new(id & 0xfff), ethertype: U16::new(ethertype) }
    }

    /// 0 to 4 095; 0 stands for no VLAN, only a priority.
    #[inline]
    pub const fn id(&self) -> u16 {
        self.tci.get() & 0xfff
    }

    /// Sets the VLAN id to the lower 12 bits of `id`; priority and drop eligibility stay.
    #[inline]
    pub fn set_id(&mut self, id: u16) {
        self.tci.set(self.tci.get() & 0xf000 | id & 0xfff);
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub const fn priority(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }

    /// Sets the priority to the lower 3 bits of `priority`.
    #[inline]
    pub fn set_priority(&mut self, priority: u8) {
        self.tci.set(self.tci.get() & 0x1fff | u16::from(priority & 7) << 13);
    }

    /// Whether it may be dropped first.
    #[inline]
    pub const fn drop_eligible(&self) -> bool {
        self.tci.get() & 0x1000 != 0
    }

    /// Sets or clears the drop-eligible bit.
    #[inline]
    pub fn set_drop_eligible(&mut self, eligible: bool) {
        self.tci.set(self.tci.get() & 0xefff | u16::from(eligible) << 12);
    }
}
