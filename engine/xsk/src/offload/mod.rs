//! What a NIC tells about a packet, or is asked to do with one.

pub(crate) mod btf;
pub(crate) mod rx_hints;
pub(crate) mod tx_metadata;
