//! A look from outside: the memory of another process, mapped so that nothing can be written.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use crate::ledger::{Record, Watch};
use crate::umem::{KERNEL_HEADROOM, Umem, UmemError};

/// The memory of another process, which goes on meanwhile: nothing is locked, and nobody notices.
#[derive(Debug)]
pub struct Inspector {
    umem: Umem,
}

impl Inspector {
    /// Of the other's [`Umem::file`]: handed over, or found under /proc/PID/fd, where it is called `memfd:ringway-umem`. It need
    /// not be open for writing.
    ///
    /// # Errors
    /// [`UmemError::Foreign`], [`UmemError::Memory`].
    pub fn of_file(file: OwnedFd) -> Result<Self, UmemError> {
        Umem::read_only(file).map(|umem| Self { umem })
    }

    /// The books.
    pub fn watch(&self) -> Watch {
        self.umem.watch()
    }

    /// Bytes of the frames, and of the books behind them.
    pub fn sizes(&self) -> (usize, usize) {
        let (_, frames, books) = self.umem.place();
        (frames, books)
    }

    /// A frame's bytes from where received packets begin, to its end; empty where there is no such frame. How long the packet in it is
    /// only its owner knows. What is written meanwhile may be read in part.
    pub fn packet(&self, frame: u32) -> Vec<u8> {
        let layout = self.umem.layout();
        if frame >= layout.frames {
            return Vec::new();
        }
        let begin = (KERNEL_HEADROOM + layout.headroom) as usize;
        let frame_begin = (frame as usize) << layout.chunk.shift();
        let byte = |n: usize| {
            // SAFETY: within the mapping, as the frame is. Others write there, in another process: read as it happens to be, once.
            unsafe { self.umem.base().add(frame_begin + n).read_volatile() }
        };
        (begin..layout.chunk.bytes() as usize).map(byte).collect()
    }

    /// Every frame with what is written down about it.
    pub fn records(&self) -> impl Iterator<Item = (u32, Record)> {
        let known = |(n, word): (u32, &std::sync::atomic::AtomicU64)| {
            Some((n, Record::unpack(word.load(Relaxed))?))
        };
        (0..).zip(self.umem.records()).filter_map(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, UmemConfig};

    #[test]
    fn from_outside() {
        let config = UmemConfig { frames: 8, headroom: 32, ..UmemConfig::default() };
        let umem = Umem::new(&config).unwrap();
        let pool = umem.pool().unwrap();
        pool.name_stage(3, "app: third");
        pool.set_now(7);
        let mut packet = pool.allocate().unwrap();
        packet.append(b"hello").unwrap();
        packet.set_stage(3);
        // SAFETY: nothing is written there.
        let file = unsafe { umem.file() }.try_clone_to_owned().unwrap();
        let inspector = Inspector::of_file(file).unwrap();
        let (watch, frame) = (inspector.watch(), packet.frame());
        assert!(inspector.packet(frame).starts_with(b"hello\0"));
        assert_eq!(inspector.packet(frame).len(), 2048 - 256 - 32);
        assert!(inspector.packet(8).is_empty());
        let held: Vec<_> =
            inspector.records().filter(|(_, record)| record.place == Place::Held).collect();
        assert_eq!(held, [(frame, Record { place: Place::Held, pool: 0, stage: 3, since: 7 })]);
        assert_eq!((watch.now(0), &*watch.stage_name(0, 3)), (7, "app: third"));
        assert_eq!(watch.stage_name(0, 200), "");
    }
}
