//! The flow record's key: one 64-bit word, packed as abi.h says.

use crate::UnknownValue;
use crate::raw::{
    FlowState, RW_BACKEND_BITS, RW_BUCKET_FLOWS, RW_INDEX_ENTRIES, RW_MAX_BACKENDS, RW_NAT_CLIENT,
};

/// An unpacked `rw_flow.key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Backend reference ([`BackendRef::pack`]).
    pub backend: u32,
    /// Translated source port, host byte order.
    pub nat_port: u16,
    /// Index into the nat addresses, or [`FlowKey::CLIENT`] when the source stays the client's.
    pub nat_addr: u8,
    /// Where the flow is in its life.
    pub state: FlowState,
}

impl FlowKey {
    /// `nat_addr` of a flow that keeps its client's address.
    pub const CLIENT: u8 = RW_NAT_CLIENT as u8;

    /// The word as it stands in the record.
    pub fn pack(self) -> u64 {
        u64::from(self.backend)
            | u64::from(self.nat_port) << 32
            | u64::from(self.nat_addr) << 48
            | u64::from(self.state as u32) << 56
    }

    /// Unpacks a record's word. Fails on a state that abi.h does not have.
    pub fn unpack(word: u64) -> Result<Self, UnknownValue> {
        Ok(Self {
            backend: word as u32,
            nat_port: (word >> 32) as u16,
            nat_addr: (word >> 48) as u8,
            state: FlowState::try_from((word >> 56) as u32)?,
        })
    }

    /// Index of the backend in the packet path's table.
    pub fn backend_index(self) -> u32 {
        BackendRef::unpack(self.backend).index
    }
}

/// An unpacked backend reference, as rings and records hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendRef {
    /// Index in the packet path's table; below `RW_MAX_BACKENDS`.
    pub index: u32,
    /// The number of the index's owner; 1 to [`BackendRef::GENERATIONS`].
    pub generation: u16,
}

impl BackendRef {
    /// The highest generation; 1 follows.
    pub const GENERATIONS: u16 = (u32::MAX >> RW_BACKEND_BITS) as u16;

    /// The reference as a number; never 0.
    pub const fn pack(self) -> u32 {
        self.index | (self.generation as u32) << RW_BACKEND_BITS
    }

    /// Unpacks a packed reference.
    pub const fn unpack(reference: u32) -> Self {
        let index = reference & (RW_MAX_BACKENDS - 1);
        Self { index, generation: (reference >> RW_BACKEND_BITS) as u16 }
    }
}

/// Buckets of the flow table for at least `flows` flows: a power of two.
pub const fn flow_buckets(flows: u32) -> u32 {
    let buckets = flows.div_ceil(RW_BUCKET_FLOWS);
    if buckets > MAX_BUCKETS { MAX_BUCKETS } else { buckets.next_power_of_two() }
}

/// Buckets of the forward index for `flows` flows: half full at most, a power of two.
pub const fn index_buckets(flows: u32) -> u32 {
    let buckets = flows.div_ceil(RW_INDEX_ENTRIES / 2);
    if buckets > MAX_BUCKETS { MAX_BUCKETS } else { buckets.next_power_of_two() }
}

/// A flow number is bucket << 2 | place + 1 and must fit 32 bits (abi.h); the kernel limits an
/// array of 128-byte values further, to 4 GiB.
const MAX_BUCKETS: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_as_abi_h_says() {
        let key = FlowKey {
            backend: 0x0007_0123,
            nat_port: 10_001,
            nat_addr: 3,
            state: FlowState::Established,
        };
        assert_eq!(key.pack(), 0x0403_2711_0007_0123);
        assert_eq!(FlowKey::unpack(key.pack()), Ok(key));
        assert_eq!(key.backend_index(), 0x1_0123);
    }

    #[test]
    fn refuses_an_unknown_state() {
        assert_eq!(FlowKey::unpack(0xff << 56).unwrap_err().value, 0xff);
    }

    #[test]
    fn tables_hold_what_was_asked() {
        for flows in [1, 2, 3, 4, 1000, 1 << 20, 3 << 20] {
            assert!(flow_buckets(flows) * RW_BUCKET_FLOWS >= flows);
            assert!(index_buckets(flows) * RW_INDEX_ENTRIES >= 2 * flows);
            assert!(flow_buckets(flows).is_power_of_two());
        }
        assert_eq!(flow_buckets(1 << 20), 1 << 19);
        assert_eq!(index_buckets(1 << 20), 1 << 18);
        assert_eq!(flow_buckets(u32::MAX), MAX_BUCKETS);
    }
}
