//! A table of the packet path in this process's memory: with ten million entries copies would cost
//! more than looking, and the packet path never waits for who looks.

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::MapCore;
use ringway_abi::IntoBytes;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::Immutable;

use super::Map;
use crate::{Error, Result};

/// Reads of one entry before giving it up: it changes faster than it can be read.
const READS: usize = 8;

/// An array whose map has BPF_F_MMAPABLE, as 64-bit words.
pub(crate) struct TableView {
    base: NonNull<AtomicU64>,
    words: usize,
    writable: bool,
}

// SAFETY: the mapping is of the process, and every access to it is an atomic one.
unsafe impl Send for TableView {}

impl fmt::Debug for TableView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableView").field("words", &self.words).finish_non_exhaustive()
    }
}

impl TableView {
    /// Maps all of an array, whose elements are a multiple of 8 bytes.
    pub(crate) fn of<V>(map: &Map<u32, V>, what: &'static str) -> Result<Self> {
        let bytes = map.max_entries() as usize * size_of::<V>();
        Self::with(map, ProtFlags::READ, 0..bytes, what)
    }

    fn with<V>(
        map: &Map<u32, V>,
        access: ProtFlags,
        bytes: Range<usize>,
        what: &'static str,
    ) -> Result<Self> {
        let (len, offset) = (bytes.len(), bytes.start as u64);
        // SAFETY: a new mapping, where the kernel finds room for it.
        let base = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, map.as_fd(), offset) };
        let failed = |source: std::io::Error| Error::System { action: what, source };
        let base = base.map_err(|errno| failed(errno.into()))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| failed(std::io::Error::other("the kernel mapped them at address 0")))?;
        Ok(Self {
            base,
            words: len / size_of::<u64>(),
            writable: access.contains(ProtFlags::WRITE),
        })
    }

    /// How many words there are.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// One word as it is now; 0 beyond the end.
    pub(crate) fn word(&self, at: usize) -> u64 {
        if at >= self.words {
            return 0;
        }
        // SAFETY: within the mapping, which lives as long as `self`, begins on a page, and whose
        // words the packet path writes whole.
        unsafe { self.base.add(at).as_ref() }.load(Ordering::Relaxed)
    }

    /// The same, to be written to as well.
    pub(crate) fn writable<V>(map: &Map<u32, V>, what: &'static str) -> Result<Self> {
        let bytes = map.max_entries() as usize * size_of::<V>();
        Self::with(map, ProtFlags::READ | ProtFlags::WRITE, 0..bytes, what)
    }

    /// Writes one word, after all that was written before. Nothing beyond the end, or where the map
    /// is mapped for reading: that would be a fault.
    pub(crate) fn store(&self, at: usize, word: u64) {
        if at < self.words && self.writable {
            // SAFETY: within the mapping, which lives as long as `self`, begins on a page, and may be
            // written to; the packet path reads and writes parts of words, as numbers.
            unsafe { self.base.add(at).as_ref() }.store(word, Ordering::Release);
        }
    }

    /// Writes elements from number `first` on, which begins a page: 16 MB in 6 ms, for which bpf(2)
    /// in batches takes 47.
    pub(crate) fn write<V: IntoBytes + Immutable>(
        map: &Map<u32, V>,
        first: u32,
        elements: &[V],
        what: &'static str,
    ) -> Result<()> {
        let start = first as usize * size_of::<V>();
        let bytes = start..start + size_of_val(elements);
        let table = Self::with(map, ProtFlags::READ | ProtFlags::WRITE, bytes, what)?;
        let words = elements.as_bytes().as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        for (at, word) in (0..table.words).zip(words) {
            // SAFETY: within the mapping, which lives as long as `table` and begins on a page. Others
            // have it as numbers, whole words of them.
            unsafe { table.base.add(at).as_ref() }.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What `read` reads of an entry, all of it from one moment: the word at `guard` was the same
    /// before and after, as the packet path itself checks. `None`: it changed each time.
    pub(crate) fn consistent<T>(&self, guard: usize, read: impl Fn(u64) -> T) -> Option<T> {
        for _ in 0..READS {
            let before = self.word(guard);
            fence(Ordering::Acquire);
            let found = read(before);
            fence(Ordering::Acquire);
            if self.word(guard) == before {
                return Some(found);
            }
        }
        None
    }
}

impl Drop for TableView {
    fn drop(&mut self) {
        // SAFETY: the mapping of `TableView::of`, to which no reference is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}
