//! The kinds of ports, one file each.

pub mod af_packet;
pub mod af_xdp;
pub mod memory;
mod null;
mod pcap;

pub use self::{af_packet::AfPacket, af_xdp::AfXdp, memory::Memory, null::Null, pcap::Pcap};
