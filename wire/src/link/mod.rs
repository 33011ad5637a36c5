//! The link layer.

pub(crate) mod arp;
pub(crate) mod ethernet;
pub(crate) mod frame;
pub(crate) mod mac;
pub(crate) mod vlan;
