//! The rings of a packet socket, in memory that the kernel shares
//! (Documentation/networking/packet_mmap.rst): blocks of packets on the way in, frames on the way
//! out. Who owns a block or a frame, its status says. No Rust reference is made to what the kernel
//! writes, but for packets of a block that is ours until it is given back.

use std::mem::{offset_of, size_of};
use std::os::fd::AsFd as _;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::{io, slice};

use libc::{tpacket_block_desc, tpacket_hdr_v1, tpacket_req3, tpacket3_hdr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::socket::Socket;

const BLOCK: usize = 128 << 10;
/// A TX frame, and how many there are.
const FRAME: usize = 2048;
const FRAMES: usize = 512;
/// A packet lies so far into its TX frame (tpacket_fill_skb, net/packet/af_packet.c).
const DATA: usize = size_of::<tpacket3_hdr>().next_multiple_of(16);
/// The longest packet that fits into a TX frame.
pub(super) const LONGEST: usize = FRAME - DATA;
/// Milliseconds after which the kernel hands over a block that is not full.
const RETIRE_MS: u32 = 1;

// linux/if_packet.h: of blocks, of received packets, of TX frames.
const KERNEL: u32 = 0;
const USER: u32 = 1;
const CHECKSUM_NOT_READY: u32 = 1 << 3;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const AVAILABLE: u32 = 0;
const SEND_REQUEST: u32 = 1;

pub(super) struct Map {
    base: NonNull<u8>,
    len: usize,
    blocks: usize,
    /// The block that is being read or comes next.
    block: usize,
    /// Packets that are left in it.
    packets: u32,
    /// Where its next packet's header is, from its begin.
    at: usize,
    /// The next TX frame.
    frame: usize,
    /// TX frames before it that may not have been sent yet.
    queued: usize,
}

/// A packet in the RX ring.
pub(super) struct Arrived<'a> {
    pub bytes: &'a [u8],
    /// Of the VLAN tag that the kernel took out.
    pub tag: Option<[u8; 4]>,
    /// Its checksum is left to a NIC that it never came to.
    pub unfinished: bool,
}

impl Arrived<'_> {
    /// Bytes of the packet, with its tag.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.tag.map_or(0, |tag| tag.len())
    }
}

impl Map {
    pub(super) fn new(socket: &Socket, blocks: u32) -> io::Result<Self> {
        let per_block = (BLOCK / FRAME) as u32;
        let ring = |blocks: u32, timeout| tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: blocks * per_block,
            tp_retire_blk_tov: timeout,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        let tx_blocks = FRAMES as u32 / per_block;
        socket.rings(&ring(blocks, RETIRE_MS), &ring(tx_blocks, 0))?;
        let len = (blocks + tx_blocks) as usize * BLOCK;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: new memory, at a place that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, socket.as_fd(), 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let blocks = blocks as usize;
        Ok(Self { base, len, blocks, block: 0, packets: 0, at: 0, frame: 0, queued: 0 })
    }

    /// Hands the next packet that has arrived to `take`; none where there is none.
    pub(super) fn receive<T>(&mut self, take: impl FnOnce(&Arrived<'_>) -> T) -> Option<T> {
        if self.packets == 0 && !self.next_block() {
            return None;
        }
        let header = self.header::<tpacket3_hdr>(self.block * BLOCK + self.at);
        let end = BLOCK - self.at;
        let (mac, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        // The kernel's word, looked at all the same: it costs nothing beside the copy.
        let len = if mac + len <= end { len } else { 0 };
        let place = self.place(self.block * BLOCK + self.at + mac.min(end));
        // SAFETY: within the block, which is ours until it is given back; nobody writes there
        // meanwhile.
        let bytes = unsafe { slice::from_raw_parts(place.as_ptr(), len) };
        let unfinished = header.tp_status & CHECKSUM_NOT_READY != 0;
        let taken = take(&Arrived { bytes, tag: tag(&header), unfinished });
        self.packets -= 1;
        self.at += (header.tp_next_offset as usize).min(end - size_of::<tpacket3_hdr>());
        if self.packets == 0 {
            self.status(self.block_status()).store(KERNEL, Release);
            self.block = (self.block + 1) % self.blocks;
        }
        Some(taken)
    }

    /// Begins with the next block, if it is ours.
    fn next_block(&mut self) -> bool {
        if self.status(self.block_status()).load(Acquire) & USER == 0 {
            return false;
        }
        let hdr = offset_of!(tpacket_block_desc, hdr);
        let header = self.header::<tpacket_hdr_v1>(self.block * BLOCK + hdr);
        let first = header.offset_to_first_pkt as usize;
        if header.num_pkts == 0 || first + size_of::<tpacket3_hdr>() > BLOCK {
            // Handed over for its time, with nothing in it.
            self.status(self.block_status()).store(KERNEL, Release);
            self.block = (self.block + 1) % self.blocks;
            return false;
        }
        (self.packets, self.at) = (header.num_pkts, first);
        true
    }

    /// Puts a packet into the TX ring; false where that is full. It is no longer than [`LONGEST`].
    pub(super) fn send<'a>(&mut self, segments: impl Iterator<Item = &'a [u8]>) -> bool {
        let frame = self.tx_frame(self.frame);
        let status = frame + offset_of!(tpacket3_hdr, tp_status);
        if self.status(status).load(Acquire) != AVAILABLE {
            return false;
        }
        let mut len = 0;
        for bytes in segments {
            let bytes = &bytes[..bytes.len().min(LONGEST - len)];
            let to = self.place(frame + DATA + len);
            // SAFETY: within the frame, which is ours until its status says otherwise.
            unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            len += bytes.len();
        }
        self.write(frame + offset_of!(tpacket3_hdr, tp_next_offset), 0);
        self.write(frame + offset_of!(tpacket3_hdr, tp_snaplen), len as u32);
        self.write(frame + offset_of!(tpacket3_hdr, tp_len), len as u32);
        self.status(status).store(SEND_REQUEST, Release);
        self.frame = (self.frame + 1) % FRAMES;
        self.queued = (self.queued + 1).min(FRAMES);
        true
    }

    /// The TX frame that the kernel sends next.
    pub(super) fn head(&mut self) -> Option<usize> {
        while self.queued > 0 {
            let frame = (self.frame + FRAMES - self.queued) % FRAMES;
            let status = self.tx_frame(frame) + offset_of!(tpacket3_hdr, tp_status);
            if self.status(status).load(Acquire) == SEND_REQUEST {
                return Some(frame);
            }
            self.queued -= 1;
        }
        None
    }

    /// Has the kernel skip a frame that waits to be sent, when it is called next: a negative length
    /// is of no packet (tpacket_parse_header, net/packet/af_packet.c), and with PACKET_LOSS it goes
    /// on behind it.
    pub(super) fn give_up(&self, frame: usize) {
        self.write(self.tx_frame(frame) + offset_of!(tpacket3_hdr, tp_len), u32::MAX);
    }

    fn tx_frame(&self, frame: usize) -> usize {
        self.blocks * BLOCK + frame * FRAME
    }

    fn block_status(&self) -> usize {
        let status = offset_of!(tpacket_block_desc, hdr) + offset_of!(tpacket_hdr_v1, block_status);
        self.block * BLOCK + status
    }

    fn place(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.len, "{at} of {}", self.len);
        // SAFETY: within the mapping.
        unsafe { self.base.add(at) }
    }

    /// A copy of a header. `T` is of integers only.
    fn header<T: Copy>(&self, at: usize) -> T {
        assert!(at + size_of::<T>() <= self.len, "{at} of {}", self.len);
        // SAFETY: within the mapping, and of integers, so that any bytes are one; the block is
        // ours.
        unsafe { self.place(at).cast::<T>().read_unaligned() }
    }

    fn write(&self, at: usize, value: u32) {
        assert!(at + size_of::<u32>() <= self.len, "{at} of {}", self.len);
        // SAFETY: within the mapping, in a frame that is ours.
        unsafe { self.place(at).cast::<u32>().write_unaligned(value) };
    }

    fn status(&self, at: usize) -> &AtomicU32 {
        assert!(at + size_of::<u32>() <= self.len && at.is_multiple_of(4), "{at} of {}", self.len);
        // SAFETY: within the mapping, aligned, and written by atomics or by the kernel only.
        unsafe { self.place(at).cast::<AtomicU32>().as_ref() }
    }
}

/// The tag that the kernel keeps beside the packet.
fn tag(header: &tpacket3_hdr) -> Option<[u8; 4]> {
    let valid = header.tp_status & VLAN_VALID != 0;
    let tpid = match header.tp_status & VLAN_TPID_VALID != 0 {
        true => header.hv1.tp_vlan_tpid,
        false => ringway_wire::ethertype::VLAN,
    };
    // 16 bits of it are in use.
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), (header.hv1.tp_vlan_tci as u16).to_be_bytes());
    valid.then_some([a, b, c, d])
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
