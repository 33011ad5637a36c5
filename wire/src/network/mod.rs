//! The network layer.

pub(crate) mod extension;
pub(crate) mod header_options;
pub(crate) mod icmp;
pub(crate) mod icmpv6;
pub(crate) mod ip;
pub(crate) mod ipv4;
pub(crate) mod ipv6;
pub mod nd;
pub mod protocol;
