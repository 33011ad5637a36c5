//! The rings of a socket, in memory of the kernel's that is mapped here.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ringway_ring::Place;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::queue::{Descriptor, Rings};
use crate::socket::SocketConfig;
use crate::sys;

/// Tells the kernel how many slots each ring has.
pub(crate) fn make(fd: BorrowedFd<'_>, config: &SocketConfig) -> io::Result<()> {
    let set = |option, slots: &u32| sys::set(fd, libc::SOL_XDP, option, slots);
    set(libc::XDP_UMEM_FILL_RING, &config.fill)?;
    set(libc::XDP_UMEM_COMPLETION_RING, &config.completion)?;
    set(libc::XDP_RX_RING, &config.rx)?;
    set(libc::XDP_TX_RING, &config.tx)
}

/// Maps them. The socket stays open as long as one of them is in use: a mapping holds it in any
/// case.
///
/// # Safety
/// They are of these sizes, and nobody else maps them to use them.
pub(crate) unsafe fn rings(
    fd: &Arc<OwnedFd>,
    config: &SocketConfig,
) -> io::Result<(Rings, Places)> {
    let offsets: libc::xdp_mmap_offsets = sys::get(fd.as_fd(), libc::XDP_MMAP_OFFSETS)?;
    let fill = Ring::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr, config.fill, 8)?;
    let completion =
        Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, config.completion, 8)?;
    let rx = Ring::map(fd, libc::XDP_PGOFF_RX_RING as u64, offsets.rx, config.rx, 16)?;
    let tx = Ring::map(fd, libc::XDP_PGOFF_TX_RING as u64, offsets.tx, config.tx, 16)?;
    let places = [("FILL", &fill), ("COMPLETION", &completion), ("RX", &rx), ("TX", &tx)]
        .map(|(name, ring)| (name, ring.mapping.range()));
    // SAFETY: each mapping is that of its place, laid out as the kernel says, of integers; nobody
    // else uses it, as the caller says, and the kernel keeps to its side of the protocol.
    let rings = unsafe {
        Rings {
            fill: fill.place::<u64>().producer(fill.keep()),
            completion: completion.place::<u64>().consumer(completion.keep()),
            rx: rx.place::<Descriptor>().consumer(rx.keep()),
            tx: tx.place::<Descriptor>().producer(tx.keep()),
        }
    };
    Ok((rings, places))
}

/// The address range of each ring.
pub(crate) type Places = [(&'static str, Range<usize>); 4];

struct Ring {
    mapping: Arc<Mapping>,
    offsets: libc::xdp_ring_offset,
    size: u32,
}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    _socket: Arc<OwnedFd>,
}

// SAFETY: an address range; what lies there is reached through a ring's sides.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn range(&self) -> Range<usize> {
        let begin = self.base.as_ptr() as usize;
        begin..begin + self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and rings that point into it kept this alive. It fails only
        // for ranges that are none.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Ring {
    fn map(
        fd: &Arc<OwnedFd>,
        at: u64,
        offsets: libc::xdp_ring_offset,
        size: u32,
        slot: usize,
    ) -> io::Result<Self> {
        let len = offsets.desc as usize + size as usize * slot;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of
        // anybody's.
        let base = unsafe { mmap(ptr::null_mut(), len, access, flags, fd, at) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping { base, len, _socket: fd.clone() });
        Ok(Self { mapping, offsets, size })
    }

    fn place<T>(&self) -> Place<T> {
        // SAFETY: the kernel's offsets are within the ring that it made.
        let at = |offset: u64| unsafe { self.mapping.base.add(offset as usize) };
        Place {
            producer: at(self.offsets.producer).cast(),
            consumer: at(self.offsets.consumer).cast(),
            flags: at(self.offsets.flags).cast(),
            slots: at(self.offsets.desc).cast(),
            size: self.size,
        }
    }

    fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.mapping.clone()
    }
}
