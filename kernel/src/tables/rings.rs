//! Rings: an inner map each, and another one for the pairs of a ring that is changing. What an id
//! stands for does not change while a service uses it.

use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use ringway_abi::raw::{RW_MAX_MEMBERS, RW_NO_MEMBER, rw_pair, rw_ring};
use ringway_abi::{FromBytes, FromZeros};
use ringway_plan::tables::{Pair, RingRow};
use rustix::thread::{MembarrierCommand, membarrier};

use crate::load;
use crate::maps::{self, Map, Maps, map, map_error};
use crate::objects::rings::{self, RingsSkelBuilder};
use crate::testrun::{self, Frame};
use crate::{Error, Result};

const COPY_RING: &str = "ringway_copy_ring";

/// Rings that may wait to be taken away: 131 kB each.
const MOST_WAITING: usize = 128;
/// Between two looks whether the new rings are in force.
const GLANCE: Duration = Duration::from_micros(200);
/// linux/bpf.h: inner maps may differ in their number of entries.
const INNER_MAP: u32 = libbpf_rs::libbpf_sys::BPF_F_INNER_MAP;

/// Puts rings in place. Returns as soon as packets can meet them.
///
/// The kernel does not return from such a call before every program that may still use a former
/// inner map has ended (kernel/bpf/syscall.c, maybe_wait_bpf_programs): an RCU grace period, some
/// 10 ms, and seconds on a machine without an idle CPU. The new maps are in force before that, and
/// a backend's death must not wait for it: the calls are made on threads of their own. All at
/// once, since it waits once per call.
pub(crate) fn put(maps: &Arc<Maps>, rows: &[&RingRow]) -> Result<()> {
    let rings: Vec<u32> = rows.iter().map(|row| row.id).collect();
    let slots = all_new_slots(rows)?;
    let paired = || rows.iter().filter(|row| !row.pairs.is_empty());
    let pairs = paired().map(|row| new_pairs(&row.pairs)).collect::<Result<Vec<_>>>()?;
    let both = [
        start(maps, |maps| &maps.rings, rings, slots)?,
        start(maps, |maps| &maps.pairs, paired().map(|row| row.id).collect(), pairs)?,
    ];
    both.into_iter().flatten().try_for_each(|update| update.wait(maps))
}

struct Update {
    outer: fn(&Maps) -> &Map<u32, u32>,
    /// They are put in place in order, so the last one tells; and up to 6.7 a look at one takes a
    /// grace period. Id and inner map.
    last: (u32, u32),
    call: JoinHandle<Result<()>>,
}

fn start(
    maps: &Arc<Maps>,
    outer: fn(&Maps) -> &Map<u32, u32>,
    ids: Vec<u32>,
    inner: Vec<MapHandle>,
) -> Result<Option<Update>> {
    let (Some(&ring), Some(map)) = (ids.last(), inner.last()) else { return Ok(None) };
    let last = (ring, map_id(map)?);
    let (maps, work) = (Arc::clone(maps), Arc::new((ids, inner)));
    let write = move || update(outer(&maps), &work.0, &work.1);
    let Ok(call) = Builder::new().name("ring-put".into()).spawn(write.clone()) else {
        // The kernel gives no thread now.
        return write().map(|()| None);
    };
    Ok(Some(Update { outer, last, call }))
}

impl Update {
    fn wait(self, maps: &Maps) -> Result<()> {
        while !in_force((self.outer)(maps), self.last)? {
            if self.call.is_finished() {
                return ended(self.call);
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }
}

fn ended(call: JoinHandle<Result<()>>) -> Result<()> {
    let panicked = |_| Error::Tables("the thread that writes rings panicked".to_owned());
    call.join().map_err(panicked)?
}

fn update(outer: &Map<u32, u32>, ids: &[u32], inner: &[MapHandle]) -> Result<()> {
    outer.put_all(ids, &inner.iter().map(descriptor).collect::<Vec<_>>())
}

/// The descriptor of an inner map, as the outer map takes it.
fn descriptor(map: &MapHandle) -> u32 {
    map.as_fd().as_raw_fd().cast_unsigned()
}

/// Rings that no service names any more, on their way out.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    /// Those whose turn is yet to come: id, and whether it has pairs.
    waiting: Vec<(u32, bool)>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Retiring {
    /// Takes rings away as soon as no packet can meet them. Nothing waits for that unless there
    /// are so many that their memory counts.
    pub(crate) fn retire(&mut self, maps: &Arc<Maps>, rings: Vec<(u32, bool)>) -> Result<()> {
        self.waiting.extend(rings);
        let busy = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        if self.waiting.is_empty() || busy && self.waiting.len() < MOST_WAITING {
            return Ok(());
        }
        if let Some(earlier) = self.thread.take() {
            ended(earlier)?;
        }
        let (maps, rings) = (Arc::clone(maps), std::mem::take(&mut self.waiting));
        let thread = thread::Builder::new()
            .name("ring-remove".into())
            .spawn(move || remove(&maps, &rings))
            .map_err(|error| Error::Tables(format!("no thread to remove rings with: {error}")))?;
        self.thread = Some(thread);
        Ok(())
    }
}

/// Array maps of maps delete one by one, a grace period each; so an empty ring takes the place of
/// them all.
fn remove(maps: &Maps, rings: &[(u32, bool)]) -> Result<()> {
    grace();
    let slots = new_map::<rw_ring>("rw_ring", 1, 0)?;
    maps.rings.put_all(&ids(rings, |_| true), &vec![descriptor(&slots); rings.len()])?;
    let paired = ids(rings, |pairs| pairs);
    if paired.is_empty() {
        return Ok(());
    }
    let none = new_map::<rw_pair>("rw_pairs", 1, INNER_MAP)?;
    maps.pairs.put_all(&paired, &vec![descriptor(&none); paired.len()])
}

fn ids(rings: &[(u32, bool)], which: impl Fn(bool) -> bool) -> Vec<u32> {
    rings.iter().filter(|(_, pairs)| which(*pairs)).map(|(id, _)| *id).collect()
}

/// Waits until every packet that is under way now has left: an RCU grace period.
pub(crate) fn grace() {
    // kernel/sched/membarrier.c: synchronize_rcu(). Refused only where CPUs run without ticks
    // (nohz_full): there a moment must do.
    if membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(Duration::from_millis(100));
    }
}

/// The rings of these ids, as the kernel has them; one that is not there is left out.
pub(crate) fn read(maps: &Maps, ids: &[u32]) -> Result<Vec<RingRow>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let reader = Reader::load(maps)?;
    ids.iter().filter_map(|id| reader.read(*id).transpose()).collect()
}

/// The program that looks into inner maps (bpf/gateway/rings.bpf.c).
struct Reader {
    program: OwnedFd,
    wanted: Map<u32, u32>,
    slots: Map<u32, rw_ring>,
    pairs: Map<u32, rw_pair>,
}

impl Reader {
    fn load(maps: &Maps) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<RingsSkelBuilder>(COPY_RING, &mut storage)?;
        maps::reuse(&mut open.maps.rings, &maps.rings)?;
        maps::reuse(&mut open.maps.pairs, &maps.pairs)?;
        let loaded = load::load(COPY_RING, open)?;
        Ok(Self {
            program: load::program(&loaded.progs.ringway_copy_ring)?,
            wanted: map!(rings, loaded.maps, wanted)?,
            slots: map!(rings, loaded.maps, ring_copy)?,
            pairs: map!(rings, loaded.maps, pairs_copy)?,
        })
    }

    fn read(&self, id: u32) -> Result<Option<RingRow>> {
        self.wanted.put(&0, &id)?;
        // The program looks at no packet. The kernel wants one nevertheless.
        let run = testrun::run_any(self.program.as_fd(), Frame::new(&[0; 14]))?;
        let Some(count) = run.0.checked_sub(1) else { return Ok(None) };
        let bytes = self.slots.lookup(&[0; 4], MapFlags::ANY);
        let bytes = bytes.map_err(map_error("read", "ring_copy"))?.unwrap_or_default();
        let damaged = |detail: String| Error::Content { map: "rw_ring".to_owned(), detail };
        // Not by value: that much does not belong on a stack.
        let ring = rw_ring::ref_from_bytes(&bytes)
            .map_err(|_| damaged(format!("{} bytes", bytes.len())))?;
        // What an earlier ring of this id had may still be there.
        let stable = ring.slots.iter().all(|slot| is_stable(*slot));
        let mut pairs = Vec::new();
        for number in 0..if stable { 0 } else { count } {
            let rw_pair { current, former, since } = self.pairs.get(number)?;
            pairs.push(Pair { current, former, since });
        }
        Ok(Some(RingRow { id, slots: ring.slots.to_vec().into(), pairs: pairs.into() }))
    }
}

fn is_stable(slot: u16) -> bool {
    u32::from(slot) < RW_MAX_MEMBERS || u32::from(slot) == RW_NO_MEMBER
}

/// Whether this ring is the inner map of this id.
fn in_force(outer: &Map<u32, u32>, (ring, id): (u32, u32)) -> Result<bool> {
    Ok(outer.find(&ring)? == Some(id))
}

fn map_id(map: &MapHandle) -> Result<u32> {
    Ok(map.info().map_err(map_error("read", "rw_ring"))?.info.id)
}

/// New inner maps, filled on all CPUs.
fn all_new_slots(rows: &[&RingRow]) -> Result<Vec<MapHandle>> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let share = rows.len().div_ceil(cpus).max(1);
    let some =
        |rows: &[&RingRow]| rows.iter().map(|row| new_slots(row)).collect::<Result<Vec<_>>>();
    if rows.len() <= share {
        return some(rows);
    }
    thread::scope(|scope| {
        let begin = |rows| (rows, Builder::new().spawn_scoped(scope, move || some(rows)));
        let threads: Vec<_> = rows.chunks(share).map(begin).collect();
        let panicked = |_| Error::Tables("a thread that fills rings panicked".to_owned());
        let mut made = Vec::with_capacity(rows.len());
        for (rows, thread) in threads {
            made.extend(match thread {
                Ok(thread) => thread.join().map_err(panicked)??,
                // The kernel gives no thread now.
                Err(_) => some(rows)?,
            });
        }
        Ok(made)
    })
}

/// A new inner map that holds the slots.
fn new_slots(row: &RingRow) -> Result<MapHandle> {
    let mut ring =
        rw_ring::new_box_zeroed().map_err(|_| Error::Tables("no memory for a ring".to_owned()))?;
    ring.slots.copy_from_slice(&row.slots.written());
    let map = new_map("rw_ring", 1, 0)?;
    map.put(&0, &*ring)?;
    Ok(map.into())
}

/// A new inner map that holds the pairs.
fn new_pairs(pairs: &[Pair]) -> Result<MapHandle> {
    let value =
        |pair: &Pair| rw_pair { current: pair.current, former: pair.former, since: pair.since };
    let map = new_map("rw_pairs", pairs.len() as u32, INNER_MAP)?;
    let numbers: Vec<u32> = (0..pairs.len() as u32).collect();
    map.put_all(&numbers, &pairs.iter().map(value).collect::<Vec<_>>())?;
    Ok(map.into())
}

fn new_map<V>(name: &str, entries: u32, map_flags: u32) -> Result<Map<u32, V>> {
    let sizes = (4, size_of::<V>() as u32);
    maps::create(MapType::Array, name, sizes, entries, map_flags).map(Map::from)
}
