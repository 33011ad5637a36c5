//! Packets of ARP and neighbour discovery that the daemon sends by itself.

pub(crate) mod announce;
pub mod multicast;
pub(crate) mod who_has;
