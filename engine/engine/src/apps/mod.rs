//! Programs. Each counts and drops malformed packets.

mod bid;
mod datagram;
mod host;
mod l2fwd;
mod ping;
mod source;

pub use self::{
    bid::{ANSWER_BYTES, Answer, Bid, Offer, Request},
    datagram::{Datagram, UdpEcho},
    host::{Host, Icmp, is_host},
    l2fwd::{L2fwd, Macs},
    ping::{Ping, PingConfig, PingError, PingReply, PingResults, Times},
    source::{Sink, Source},
};
