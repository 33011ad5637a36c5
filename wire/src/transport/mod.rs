//! The transport layer.

pub(crate) mod tcp;
pub(crate) mod tcp_options;
pub(crate) mod udp;
