//! Ways to backends and from clients: next hops, multicast groups.

pub(crate) mod forward;
pub mod interface_slots;
pub mod next_hop;
pub(crate) mod solicitations;
