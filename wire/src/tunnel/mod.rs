//! Tunnels.

pub(crate) mod gre;
pub mod gue;
pub(crate) mod vxlan;
