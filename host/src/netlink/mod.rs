//! Just enough rtnetlink: requests out, attributes in. Hand-written rather than a crate of typed messages, because
//! those reject whole messages when a newer kernel lengthens one attribute; here what is unknown is skipped.

mod socket;
mod wire;

pub(crate) use socket::Netlink;
pub(crate) use wire::{
    Attribute, Message, Request, address, attributes, messages, string, u16_of, u32_of, u64_of,
};
