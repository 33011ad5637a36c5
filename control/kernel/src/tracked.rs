//! The records of tracked flows, read where they lie: with ten million of them copies would cost
//! more than looking.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapCore;
use ringway_abi::raw::{FlowState, rw_settings, rw_track, rw_track_bucket, rw_tracking};
use ringway_abi::{TrackedFlow, track_capacity};
use ringway_plan::{Planner, Records};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

use crate::map::{self, Maps};
use crate::{Error, Result, View};

/// Tracked flows, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackedCounts {
    /// Flows there is room for.
    pub capacity: u64,
    /// Live records of flows that no new flow can evict.
    pub promoted: u64,
    /// Live records of flows on probation.
    pub on_probation: u64,
}

/// Seconds of CLOCK_MONOTONIC, as records and rings have them.
pub fn now_seconds() -> u32 {
    clock_gettime(ClockId::Monotonic).tv_sec as u32
}

impl View {
    /// Visits every live record.
    pub fn tracked(&self, mut visit: impl FnMut(&TrackedFlow)) -> Result<()> {
        let (settings, now) = (self.settings()?, now_seconds());
        let table = Table::of(self.maps())?;
        for track in table.tracks() {
            let Some(flow) = TrackedFlow::unpack(&track) else { continue };
            if flow.age(now) <= timeout(&settings, &flow).cast_signed() {
                visit(&flow);
            }
        }
        Ok(())
    }

    /// Counts tracked flows.
    pub fn tracked_counts(&self) -> Result<TrackedCounts> {
        let capacity = track_capacity(self.maps().tracked.max_entries());
        let mut counts = TrackedCounts { capacity, ..Default::default() };
        self.tracked(|flow| match flow.promoted {
            true => counts.promoted += 1,
            false => counts.on_probation += 1,
        })?;
        Ok(counts)
    }

    /// What became of tracked flows, all CPUs added up.
    pub fn tracking(&self) -> Result<rw_tracking> {
        let mut sum = rw_tracking::default();
        for one in map::get_percpu::<rw_tracking>(&self.maps().tracking, 0)? {
            sum.add(&one);
        }
        Ok(sum)
    }

    /// Looks through the records for a planner. `None`: it need not know.
    pub fn look(&self, planner: &Planner) -> Result<Option<Records>> {
        let mut failed = HashMap::new();
        map::for_each(&self.maps().untracked, |service, second: u32| {
            if second != 0 {
                failed.insert(service as u16, second);
            }
        })?;
        let mut look = planner.look(now_seconds(), failed);
        if look.is_needed() {
            self.tracked(|flow| look.record(flow.slot, flow.backend))?;
        }
        Ok(planner.is_changing().then(|| look.end()))
    }
}

/// As track.bpf.h has it.
fn timeout(settings: &rw_settings, flow: &TrackedFlow) -> u32 {
    let state = match flow {
        TrackedFlow { udp: true, .. } => FlowState::Udp,
        TrackedFlow { closing: true, .. } => FlowState::FinClient,
        TrackedFlow { syn: true, .. } => FlowState::Syn,
        _ => FlowState::Established,
    };
    settings.timeout[state as usize]
}

/// The table in this process's memory, read-only.
struct Table {
    base: NonNull<AtomicU64>,
    bytes: usize,
}

impl Table {
    fn of(maps: &Maps) -> Result<Self> {
        let bytes = maps.tracked.max_entries() as usize * size_of::<rw_track_bucket>();
        // SAFETY: a new mapping, where the kernel finds room for it.
        let base = unsafe {
            let fd = maps.tracked.as_fd();
            mmap(null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, fd, 0)
        };
        let failed = |source: std::io::Error| Error::System { action: "map tracked flows", source };
        let base = base.map_err(|errno| failed(errno.into()))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| failed(std::io::Error::other("the kernel mapped them at address 0")))?;
        Ok(Self { base, bytes })
    }

    /// Every record as it is at some moment; the packet path writes them meanwhile.
    fn tracks(&self) -> impl Iterator<Item = rw_track> {
        (0..self.bytes / size_of::<rw_track>()).map(|number| {
            let word = |at: usize| {
                // SAFETY: within the mapping, which lives as long as `self`, is aligned to a page,
                // and holds 64-bit words that are written whole.
                unsafe { self.base.add(2 * number + at).as_ref() }.load(Ordering::Acquire)
            };
            loop {
                let track = rw_track { who: word(0), what: word(1) };
                if word(0) == track.who {
                    return track;
                }
            }
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the mapping of `Table::of`, to which no reference is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
