//! Programs, one file each. What is malformed each of them counts and drops.

mod bid;
mod datagram;
mod host;
mod icmp;
mod l2fwd;
mod sink;
mod source;
mod udp_echo;

pub use self::{
    bid::{ANSWER_BYTES, Answer, Bid, Offer, REQUEST_BYTES, Request},
    host::Host,
    icmp::Icmp,
    l2fwd::{L2fwd, Macs},
    sink::Sink,
    source::Source,
    udp_echo::UdpEcho,
};
