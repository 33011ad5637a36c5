//! Ethernet, IP and what they carry: headers read, written and built where the packet lies.
//!
//! - A header is a plain structure laid out as on the wire ([`Ipv4`], [`Tcp`], ...). Its fields are
//!   public, and network byte order is in their types ([`U16`], [`U32`]: `get` and `set`).
//! - [`Header::parse`] makes a [`View`] of a header, its options and its payload out of bytes: a
//!   reference, not a copy. Of `&[u8]` it can be read, of `&mut [u8]` written too.
//! - Lengths are checked there, and once. A view that exists has its header, and options and
//!   payload of the lengths that the header says. Options are checked while they are iterated over.
//! - [`Builder`] makes packets from the inside out, in a buffer with headroom, such as a frame of
//!   an AF_XDP ring.
//! - [`Sum`] is the Internet checksum, whole and by difference.
//!
//! Nothing here allocates, copies a payload, panics, or is unsafe; the standard library is not
//! needed.
//!
//! # Read and write
//!
//! A datagram is sent back where it came from, within its own frame:
//!
//! ```
//! use core::mem::swap;
//! use ringway_wire::{Frame, Header, Ipv4, Malformed, Udp, ethertype, protocol};
//!
//! /// Whether it was a datagram to port 7.
//! fn echo(frame: &mut [u8]) -> Result<bool, Malformed> {
//!     let mut frame = Frame::parse(frame)?;
//!     if frame.ethertype != ethertype::IPV4 {
//!         return Ok(false);
//!     }
//!     let mut ip = Ipv4::parse(frame.payload)?;
//!     if ip.header.protocol != protocol::UDP || ip.header.fragment().is_some() {
//!         return Ok(false);
//!     }
//!     let mut udp = Udp::parse(ip.payload)?;
//!     if udp.header.destination.get() != 7 {
//!         return Ok(false);
//!     }
//!     // The checksums stay right: what they cover changed places only.
//!     frame.ethernet.swap();
//!     let ip = &mut *ip.header;
//!     swap(&mut ip.source, &mut ip.destination);
//!     let udp = &mut *udp.header;
//!     swap(&mut udp.source, &mut udp.destination);
//!     Ok(true)
//! }
//! # use ringway_wire::{Builder, Ethernet, Mac};
//! # let (here, there) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
//! # let mut buffer = [0; 128];
//! # let mut packet = Builder::new(&mut buffer, 64).unwrap();
//! # let ip = Ipv4::new(protocol::UDP, here, there);
//! # packet.append(b"hello").unwrap().udp(Udp::new(4711, 7), Some(ip.pseudo())).unwrap();
//! # let ethernet = Ethernet::new(Mac([2; 6]), Mac([4; 6]), ethertype::IPV4);
//! # packet.ipv4(ip, &[]).unwrap().ethernet(ethernet).unwrap();
//! # let range = packet.range();
//! # assert_eq!(echo(&mut buffer[range.clone()]), Ok(true));
//! # assert_eq!(echo(&mut buffer[range.clone()]), Ok(false), "it is not to port 7 now");
//! # let ip = Ipv4::parse(&buffer[range.start + 14..]).unwrap();
//! # assert!(ip.checksum_is_right() && ip.header.destination == [192, 0, 2, 1]);
//! # assert_eq!(Udp::parse(ip.payload).unwrap().verify(ip.header.pseudo()), ringway_wire::UdpChecksum::Right);
//! ```
//!
//! # Build
//!
//! The payload first, then each header in front of it:
//!
//! ```
//! use ringway_wire::{Builder, Ethernet, Ipv6, Mac, Udp, ethertype, protocol};
//!
//! let mut buffer = [0; 2048];
//! let here = "2001:db8::1".parse()?;
//! let there = "2001:db8::2".parse()?;
//! let ip = Ipv6::new(protocol::UDP, here, there);
//!
//! let mut packet = Builder::new(&mut buffer, 256)?;
//! packet
//!     .append(b"hello")?
//!     .udp(Udp::new(4711, 7), Some(ip.pseudo()))?
//!     .ipv6(ip)?
//!     .ethernet(Ethernet::new(Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]), ethertype::IPV6))?;
//!
//! assert_eq!(packet.range(), 194..261);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/answer.rs` answers ARP, neighbour solicitations and pings, `examples/lines.rs` prints
//! a capture file.
//!
//! # Why structures
//!
//! The usual alternative is a wrapper around a slice with a getter and a setter per field, each of
//! which indexes the slice. Here the bytes become a reference to a structure by one comparison of
//! lengths (the `zerocopy` crate, whose derives prove the layout at compile time), after which a
//! field is a load at a fixed place: less to write, less to check at run time, and a header is also
//! a value, to be compared, printed, kept and put in front of a packet.

#![warn(missing_docs)]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod builder;
pub mod checksum;
mod header;
mod line;
mod link {
    pub mod arp;
    pub mod ethernet;
    pub mod frame;
    pub mod mac;
    pub mod vlan;
}
mod malformed;
mod network {
    pub mod extension;
    pub mod header_options;
    pub mod icmp;
    pub mod icmpv6;
    pub mod ip;
    pub mod ipv4;
    pub mod ipv6;
    pub mod nd;
    pub mod protocol;
}
mod transport {
    pub mod tcp;
    pub mod tcp_options;
    pub mod udp;
}
mod tunnel {
    pub mod gre;
    pub mod gue;
    pub mod vxlan;
}

pub use builder::{BuildError, Builder};
pub use checksum::{Pseudo, Sum};
pub use header::{Header, View};
pub use line::Line;
pub use link::arp::Arp;
pub use link::ethernet::{Ethernet, MIN_FRAME, ethertype};
pub use link::frame::Frame;
pub use link::mac::{Mac, ParseMacError};
pub use link::vlan::Vlan;
pub use malformed::{Fault, Layer, Malformed};
pub use network::extension::{Extension, Extensions, FragmentHeader, is_extension};
pub use network::header_options::{HeaderOptions, RawOption};
pub use network::icmp::Icmp;
pub use network::icmpv6::Icmpv6;
pub use network::ip::{Ip, IpHeader};
pub use network::ipv4::Ipv4;
pub use network::ipv6::{Fragment, Ipv6};
pub use network::{nd, protocol};
pub use transport::tcp::Tcp;
pub use transport::tcp_options::{TcpOption, TcpOptions};
pub use transport::udp::{Udp, UdpChecksum};
pub use tunnel::gre::Gre;
pub use tunnel::gue;
pub use tunnel::gue::Gue;
pub use tunnel::vxlan::Vxlan;
/// Of zerocopy: integers in network byte order, a checked reference, and what `B` of a [`View`] may
/// be.
pub use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, Ref, SplitByteSlice,
    network_endian::{U16, U32},
};
