//! What leads packets to backends and clients to us: next hops, multicast groups.

pub mod interface_slots;
pub mod next_hop;
pub(crate) mod solicitations;
