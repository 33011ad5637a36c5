//! ICMP messages by RFC 792 and RFC 4443: what goes into [`Frame`]'s payload. The frame computes
//! the checksum.

use std::net::{IpAddr, SocketAddr};

use crate::cast::Family;
use crate::frame::Frame;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Host unreachable, or address unreachable.
    Unreachable,
    /// Port unreachable: from the very host.
    NoPort,
    /// Fragmentation needed, or packet too big, and what would fit.
    TooBig(u16),
    TimeExceeded,
    BadParameter,
}

pub const ALL: [Says; 5] =
    [Says::Unreachable, Says::NoPort, Says::TooBig(1280), Says::TimeExceeded, Says::BadParameter];

/// An error that quotes these bytes of layer 3.
pub fn error(family: Family, says: Says, quote: &[u8]) -> Vec<u8> {
    let (kind, code) = match (family, says) {
        (Family::V4, Says::Unreachable) => (3, 1),
        (Family::V4, Says::NoPort) => (3, 3),
        (Family::V4, Says::TooBig(_)) => (3, 4),
        (Family::V4, Says::TimeExceeded) => (11, 0),
        (Family::V4, Says::BadParameter) => (12, 0),
        (Family::V6, Says::Unreachable) => (1, 3),
        (Family::V6, Says::NoPort) => (1, 4),
        (Family::V6, Says::TooBig(_)) => (2, 0),
        (Family::V6, Says::TimeExceeded) => (3, 0),
        (Family::V6, Says::BadParameter) => (4, 0),
    };
    let rest = match says {
        // RFC 1191: the lower half; RFC 4443: all of it.
        Says::TooBig(mtu) => u32::from(mtu),
        Says::BadParameter => 6 << 24,
        _ => 0,
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quote);
    message
}

/// An echo request, or with `reply` its answer.
pub fn echo(family: Family, reply: bool, data: &[u8]) -> Vec<u8> {
    let kind = match (family, reply) {
        (Family::V4, false) => 8,
        (Family::V4, true) => 0,
        (Family::V6, false) => 128,
        (Family::V6, true) => 129,
    };
    [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], data].concat()
}

/// An ICMP packet from one address to another, otherwise as the client's frames are.
pub fn frame(src: IpAddr, dst: IpAddr, message: Vec<u8>) -> Frame {
    let src = SocketAddr::new(src, 0);
    Frame::new(Family::of(dst).icmp(), src, SocketAddr::new(dst, 0)).payload(&message)
}

/// A router's quote of a frame: layer 3 as it came there, at most `len` bytes of it.
pub fn quote(frame: &Frame, len: usize) -> Vec<u8> {
    let mut bytes = frame.l3();
    bytes.truncate(len);
    bytes
}

/// The error that Ringway itself sends about a frame it got: from `src`, as much of it quoted as
/// the RFCs allow.
pub fn complaint(about: &Frame, src: IpAddr, says: Says) -> Frame {
    let family = about.family();
    let most = if family == Family::V4 { 576 - 28 } else { 1280 - 48 };
    frame(src, about.src.ip(), error(family, says, &quote(about, most))).with(|f| {
        f.dst_mac = about.src_mac;
        f.src_mac = about.dst_mac;
        (f.ttl, f.tos, f.id) = (64, 0xc0, 0);
    })
}
