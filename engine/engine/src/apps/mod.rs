//! Programs, one file each. What is malformed each of them counts and drops.

mod bid;
mod checker;
mod datagram;
mod generator;
mod host;
mod icmp;
mod l2fwd;
mod long;
mod ping;
mod sink;
mod source;
mod udp_echo;

pub use self::{
    bid::{ANSWER_BYTES, Answer, Bid, Offer, REQUEST_BYTES, Request},
    checker::Checker,
    generator::{Control, Generated, Generator, Made, Rate},
    host::{Host, is_host},
    icmp::Icmp,
    l2fwd::{L2fwd, Macs},
    ping::{Answered, Asked, Ping, Pinged, Times},
    sink::Sink,
    source::Source,
    udp_echo::UdpEcho,
};
