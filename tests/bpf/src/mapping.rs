//! Tables that the packet path has in memory, where they lie: read, and written as another CPU
//! would.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::map_batch::info_of;

#[derive(Debug)]
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

// SAFETY: memory of the kernel's that stays where it is; whoever reads it sees some state of it.
unsafe impl Send for Mapping {}
// SAFETY: as above; what is written is written by atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Of an array that has BPF_F_MMAPABLE.
    pub fn new(map: BorrowedFd<'_>) -> Self {
        let info = info_of(map);
        let len = info.max_entries as usize * (info.value_size as usize).next_multiple_of(8);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, map, 0) };
        Self { at: at.unwrap().cast(), len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as this lives; no frame is under way while a test compares.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// The word so many bytes from the start.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "{offset}");
        // SAFETY: within the mapping and aligned, which begins on a page.
        unsafe { &*self.at.add(offset).cast() }
    }

    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "{offset}");
        // SAFETY: as above.
        unsafe { &*self.at.add(offset).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by new(), and nobody borrows it any more.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}
