//! AF_XDP sockets of the calling thread's network namespace, by NETLINK_SOCK_DIAG
//! (linux/xdp_diag.h).

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::netlink::{Message, Netlink, Request, attributes, u32_of, u64_of};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const XDP_DIAG_INFO: u16 = 1;
const XDP_DIAG_RX_RING: u16 = 3;
const XDP_DIAG_UMEM_FILL_RING: u16 = 6;
const XDP_DIAG_STATS: u16 = 9;
/// XDP_SHOW_INFO, _RING_CFG, _UMEM and _STATS.
const SHOW: u32 = 1 | 2 | 4 | 16;
/// Length of struct xdp_diag_msg: family, type, padding, inode, cookie.
const HEADER: usize = 16;

/// An AF_XDP socket with what its kernel half counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpSocket {
    /// Inode, which tells it from others.
    pub inode: u32,
    /// Its interface; 0 while it is not bound.
    pub ifindex: u32,
    pub queue: u32,
    /// Entries of its RX ring; 0 if it has none.
    pub rx_ring: u32,
    /// Entries of its FILL ring.
    pub fill_ring: u32,
    /// Frames dropped for other reasons than a full ring.
    pub rx_dropped: u64,
    /// Frames dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Times that the FILL ring had no frame to receive into.
    pub fill_ring_empty: u64,
}

pub fn all() -> Result<Vec<XdpSocket>> {
    // struct xdp_diag_req: family, protocol, padding, inode, show, cookie.
    let mut header = [0; 20];
    header[0] = libc::AF_XDP as u8;
    header[8..12].copy_from_slice(&SHOW.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(SOCK_DIAG_BY_FAMILY, flags, &header);
    Netlink::of(NETLINK_SOCK_DIAG, &[])?.dump("listing AF_XDP sockets", request, read)
}

fn read(message: Message) -> Option<XdpSocket> {
    let header = message.body.get(..HEADER)?;
    let mut socket = XdpSocket { inode: u32_of(&header[4..])?, ..XdpSocket::default() };
    for attribute in attributes(&message.body[HEADER..]) {
        let data = attribute.data;
        let stat = |place: usize| u64_of(data.get(place * 8..)?);
        match attribute.kind {
            XDP_DIAG_INFO => {
                socket.ifindex = u32_of(data)?;
                socket.queue = u32_of(data.get(4..)?)?;
            }
            XDP_DIAG_RX_RING => socket.rx_ring = u32_of(data)?,
            XDP_DIAG_UMEM_FILL_RING => socket.fill_ring = u32_of(data)?,
            // struct xdp_diag_stats: rx_dropped, rx_invalid, rx_full, fill_ring_empty, ...
            XDP_DIAG_STATS => {
                socket.rx_dropped = stat(0)?;
                socket.rx_ring_full = stat(2)?;
                socket.fill_ring_empty = stat(3)?;
            }
            _ => {}
        }
    }
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    #[test]
    fn reads_its_counters() {
        let mut header = [0; HEADER];
        header[4] = 9;
        let words = |words: &[u32]| words.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
        let stats: Vec<u8> = [5u64, 0, 6, 7, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let bytes = Request::new(SOCK_DIAG_BY_FAMILY, 0, &header)
            .attribute(XDP_DIAG_INFO, &words(&[3, 1]))
            .attribute(XDP_DIAG_RX_RING, &words(&[2048]))
            .attribute(XDP_DIAG_UMEM_FILL_RING, &words(&[4096]))
            .attribute(XDP_DIAG_STATS, &stats)
            .finish(1);
        let read = read(messages(&bytes).next().unwrap()).unwrap();
        let wanted = XdpSocket {
            inode: 9,
            ifindex: 3,
            queue: 1,
            rx_ring: 2048,
            fill_ring: 4096,
            rx_dropped: 5,
            rx_ring_full: 6,
            fill_ring_empty: 7,
        };
        assert_eq!(read, wanted);
    }
}
