//! A worker's mempool, and the ledger of its packets.

use std::cell::OnceCell;
use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use ringway_engine::BufferPool;
use ringway_xsk::{Audit, Batch, Counts, Fault, Found, Place, Rings};
use tracing::warn;

use crate::error::Error;
use crate::mbuf::Mbuf;
use crate::sys;
use crate::tally::{TALLY, Tally, count};

/// Mbufs that a worker takes from the mempool's ring at once, and keeps for itself.
const CACHE: u32 = 256;
/// Bytes of a buffer: headroom, and a packet of an MTU of 1 500 (`RTE_MBUF_DEFAULT_BUF_SIZE`).
const ROOM: u16 = 2048 + 128;

/// The mempool of a worker. It stays on its thread, as packets do: the counts of what goes in and
/// out are the thread's.
#[derive(Clone)]
pub struct MbufPool {
    mempool: Arc<Mempool>,
    /// Of one thread.
    _counts: PhantomData<*const Tally>,
}

thread_local! {
    static KEPT: OnceCell<Arc<Mempool>> = const { OnceCell::new() };
}

/// A mempool; its workers and devices hold it.
pub struct Mempool {
    pub mempool: NonNull<sys::Mempool>,
    size: u32,
}

// SAFETY: a mempool may be used by any thread; what is counted by thread is in `MbufPool`.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Of so many mbufs; `dense`: they may cross pages, because no device reads them by itself.
    pub fn new(name: &str, size: u32, node: i32, dense: bool) -> Result<Self, Error> {
        let text = CString::new(name).unwrap_or_default();
        let cache = CACHE.min(size / 2);
        // SAFETY: a name that ends with a zero; all else are numbers.
        let made =
            unsafe { sys::rw_dpdk_pool(text.as_ptr(), size, cache, ROOM, node, dense.into()) };
        let mempool = NonNull::new(made).ok_or_else(|| Error::memory(size))?;
        Ok(Self { mempool, size })
    }

    /// For the worker of the calling thread; none if the thread has had a pool before, whose
    /// packets may be among those that it counts.
    pub fn of_thread(self: &Arc<Self>) -> Option<MbufPool> {
        // Kept until the thread ends: packets of the pool are on it.
        let first = KEPT.with(|kept| kept.set(self.clone()).is_ok());
        first.then(|| MbufPool { mempool: self.clone(), _counts: PhantomData })
    }

    /// Mbufs in its ring and in threads' caches.
    fn free(&self) -> u32 {
        // SAFETY: it lives as long as this does.
        unsafe { sys::rte_mempool_avail_count(self.mempool.as_ptr()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        let away = self.size.saturating_sub(self.free());
        if away > 0 {
            // Whoever has them may still free them: the memory stays.
            warn!("{away} frames did not come back to their pool: a driver, or an app, lost them");
            return;
        }
        // SAFETY: all are back, and devices hold a pool for as long as they are open.
        unsafe { sys::rte_mempool_free(self.mempool.as_ptr()) };
    }
}

impl BufferPool for MbufPool {
    type Packet = Mbuf;

    fn allocate(&self) -> Option<Mbuf> {
        let mut one = MaybeUninit::<Mbuf>::uninit();
        // SAFETY: a place for one.
        let refused = unsafe {
            sys::rw_dpdk_allocate(self.mempool.mempool.as_ptr(), one.as_mut_ptr().cast(), 1)
        };
        if refused != 0 {
            return None;
        }
        count(|tally| &tally.allocated, 1);
        // SAFETY: it has been written, and has no other owner.
        Some(unsafe { one.assume_init() })
    }

    fn allocate_burst(&self, into: &mut Batch<Mbuf>, count: usize) -> usize {
        let pool = self.mempool.mempool.as_ptr();
        let all = count.min(into.room());
        // SAFETY: DPDK writes as many mbufs as it was asked for, or none, and they have no other
        // owner.
        let taken = unsafe {
            into.fill(|room| {
                let place = room.as_mut_ptr().cast();
                // A pool has fewer than u32::MAX.
                let take = |wanted: usize| {
                    (sys::rw_dpdk_allocate(pool, place, wanted as u32) == 0).then_some(wanted)
                };
                // It costs a look at every thread's cache.
                let rest = || take(all.min(self.free() as usize));
                take(all).or_else(rest).unwrap_or(0)
            })
        };
        self::count(|tally| &tally.allocated, taken);
        taken
    }

    fn free(&self) -> u32 {
        self.mempool.free()
    }

    /// Those that are not free and in no packet, the device has: to fill, or not sent yet.
    fn counts(&self) -> Counts {
        TALLY.with(|tally| {
            let (allocated, received) = (tally.allocated.get(), tally.received.get());
            let (sent, freed) = (tally.sent.get(), tally.freed.get());
            let held = (allocated + received).saturating_sub(sent + freed);
            let device = u64::from(self.mempool.size).saturating_sub(u64::from(self.free()) + held);
            let mut counts = Counts::default();
            (counts.given, counts.filled) = (u64::from(self.mempool.size), received + device);
            (counts.allocated, counts.received) = (allocated, received);
            (counts.sent, counts.completed, counts.freed) = (sent, sent, freed);
            counts
        })
    }

    fn audit(&self, _rings: &[&Rings]) -> Audit {
        let counts = self.counts();
        let [free, fill, held] =
            [Place::Free, Place::Fill, Place::Held].map(|p| counts.in_place(p));
        let found = Found { free: self.free().into(), kernel_rx: fill, held, ..Found::default() };
        let wrong = found.free != free;
        let fault = Fault::Count { place: Place::Free, counted: free, found: found.free };
        Audit { counts, found, faults: Vec::from_iter(wrong.then_some(fault)) }
    }
}
