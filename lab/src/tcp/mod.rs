//! What TCP costs this machine: memory, connections by the million, the time to make one.

pub mod memory;

mod limits;
mod slab;
mod socket;
