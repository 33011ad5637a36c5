//! Just enough rtnetlink: requests out, attributes in. Hand-written rather than a crate of typed
//! messages, because those reject whole messages when a newer kernel lengthens one attribute; here
//! what is unknown is skipped.

pub mod addresses;
pub mod bridge;
pub mod counters;
pub mod links;
pub mod listeners;
pub(crate) mod monitor;
pub mod neighbours;
pub(crate) mod netdev;
pub mod netfilter;
pub mod qdiscs;
pub mod queues;
pub mod routes;
pub mod rules;
mod socket;
pub mod sockets;
mod wire;
pub mod xdp_features;
pub mod xdp_sockets;

pub(crate) use socket::Netlink;
pub(crate) use wire::{
    Attribute, Message, Request, address, attributes, messages, string, u16_of, u32_of, u64_of,
};
