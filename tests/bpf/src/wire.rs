//! Is a frame in order? What the next host's kernel would check, by [`crate::inspect`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::{TCP, UDP};
use crate::inspect::{self, Layout};

/// A frame in order, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Ethernet destination and source.
    pub macs: ([u8; 6], [u8; 6]),
    /// Source; port 0 where there is none.
    pub src: SocketAddr,
    /// Destination; port 0 where there is none.
    pub dst: SocketAddr,
    /// The layer-4 header and what follows it, without padding.
    pub l4: &'a [u8],
}

impl<'a> Packet<'a> {
    fn new(frame: &'a [u8], at: &Layout) -> Self {
        let l4 = &frame[at.l4..at.end];
        let has_ports = matches!(at.proto, TCP | UDP) && !at.fragment;
        let end_at = |place: usize, port: usize| {
            let port = if has_ports { u16::from_be_bytes([l4[port], l4[port + 1]]) } else { 0 };
            SocketAddr::new(address(&frame[place..], at.v6), port)
        };
        let (src, dst) = if at.v6 { (8, 24) } else { (12, 16) };
        Self {
            macs: (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap()),
            src: end_at(at.l3 + src, 0),
            dst: end_at(at.l3 + dst, 2),
            l4,
        }
    }

    pub fn tcp_flags(&self) -> u8 {
        self.l4[13]
    }

    /// TCP sequence and acknowledgement numbers.
    pub fn tcp_numbers(&self) -> (u32, u32) {
        let word = |at: usize| u32::from_be_bytes(self.l4[at..at + 4].try_into().unwrap());
        (word(4), word(8))
    }
}

fn address(bytes: &[u8], v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).unwrap()).into()
    } else {
        Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..4]).unwrap()).into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<'a> {
    /// An IP packet in order.
    Good(Packet<'a>),
    NotIp,
    /// Something in it is wrong.
    Bad(&'static str),
}

impl<'a> Checked<'a> {
    /// The packet, or a panic that says what is wrong with it.
    #[track_caller]
    pub fn good(self) -> Packet<'a> {
        match self {
            Self::Good(packet) => packet,
            other => panic!("not a frame in order: {other:?}"),
        }
    }

    /// It is an IP packet in order.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Good(_))
    }
}

pub fn check(frame: &[u8]) -> Checked<'_> {
    match inspect::check(frame) {
        Ok(Some(layout)) => Checked::Good(Packet::new(frame, &layout)),
        Ok(None) => Checked::NotIp,
        Err(why) => Checked::Bad(why),
    }
}
