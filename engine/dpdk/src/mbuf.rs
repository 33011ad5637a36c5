//! A packet in DPDK's buffers.

use std::ops::Range;
use std::ptr::NonNull;
use std::{iter, slice};

use ringway_xsk::{Buffer, NoRoom};

use crate::sys::{self, Header};
use crate::tally;

/// A packet in an mbuf, or several, of the thread's pool. It owns them, as
/// [`ringway_xsk::Packet`] does its frames, and stays on its thread.
#[repr(transparent)]
pub struct Mbuf(NonNull<Header>);

impl Mbuf {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: an mbuf that a driver or a pool handed over, and that nobody else has.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { self.0.as_mut() }
    }

    fn parts(&self) -> impl Iterator<Item = &Header> {
        // SAFETY: an mbuf's next one is null, or is part of the same packet.
        iter::successors(Some(self.header()), |header| unsafe { header.next.as_ref() })
    }
}

/// The bytes of one mbuf of a packet.
#[inline]
fn bytes(header: &Header) -> &[u8] {
    // SAFETY: a driver keeps a packet within its buffer; so does `set_range`.
    unsafe {
        slice::from_raw_parts(header.buf_addr.add(header.data_off.into()), header.data_len.into())
    }
}

impl Buffer for Mbuf {
    #[inline]
    fn data(&self) -> &[u8] {
        bytes(self.header())
    }

    #[inline]
    fn data_mut(&mut self) -> &mut [u8] {
        let header = self.header_mut();
        // SAFETY: as in `bytes`; no other mbuf points to this buffer, as none is ever cloned.
        unsafe {
            slice::from_raw_parts_mut(
                header.buf_addr.add(header.data_off.into()),
                header.data_len.into(),
            )
        }
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.parts().map(bytes)
    }

    /// One, though a long packet has several mbufs: nobody can take those behind the first from it,
    /// so the ledger counts packets.
    #[inline]
    fn frames(&self) -> usize {
        1
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut [u8] {
        let header = self.header_mut();
        // SAFETY: its whole buffer; as above.
        unsafe { slice::from_raw_parts_mut(header.buf_addr, header.buf_len.into()) }
    }

    #[inline]
    fn range(&self) -> Range<usize> {
        let header = self.header();
        let start = usize::from(header.data_off);
        start..start + usize::from(header.data_len)
    }

    #[inline]
    fn set_range(&mut self, range: Range<usize>) -> Result<(), NoRoom> {
        let header = self.header_mut();
        let room = usize::from(header.buf_len);
        if range.start > range.end || range.end > room {
            return Err(NoRoom { wanted: range.end.max(range.start), room });
        }
        let before = header.data_len;
        // Within the buffer, which has at most 65 535 bytes.
        (header.data_off, header.data_len) = (range.start as u16, range.len() as u16);
        header.pkt_len = header.pkt_len - u32::from(before) + u32::from(header.data_len);
        Ok(())
    }

    /// It takes no further buffers.
    fn append(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let range = self.range();
        let room = usize::from(self.header().buf_len) - range.end;
        if bytes.len() > room || self.header().nb_segs > 1 {
            return Err(NoRoom { wanted: bytes.len(), room });
        }
        self.set_range(range.start..range.end + bytes.len())?;
        self.data_mut()[range.len()..].copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn free_all(packets: &mut Vec<Self>) {
        let count = packets.len();
        tally::count(|tally| &tally.freed, count);
        // SAFETY: they are freed below, and are not dropped.
        unsafe { packets.set_len(0) };
        // SAFETY: so many mbufs that had one owner; they are bare pointers. A batch has fewer than
        // u32::MAX.
        unsafe { sys::rte_pktmbuf_free_bulk(packets.as_mut_ptr().cast(), count as u32) };
    }

    #[inline]
    fn len(&self) -> usize {
        // DPDK has no 32-bit machines here.
        self.header().pkt_len as usize
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        tally::count(|tally| &tally.freed, 1);
        let mut header = self.0.as_ptr();
        // SAFETY: one mbuf that had one owner.
        unsafe { sys::rte_pktmbuf_free_bulk(&raw mut header, 1) };
    }
}
