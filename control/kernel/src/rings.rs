//! Rings, each replaced as a whole.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use ringway_abi::FromZeros;
use ringway_abi::raw::rw_ring;
use ringway_plan::tables::RingRow;
use zerocopy::IntoBytes;

use crate::map::{self, Maps, map_error};
use crate::{Error, Result};

/// Rings replaced by one call.
const BATCH: usize = 256;
/// Calls that may still wait for their grace period while others go on.
const MOST_WAITING: usize = 16;
/// Between two looks whether the new rings are in force.
const GLANCE: Duration = Duration::from_micros(200);

/// Puts new inner maps in the place of the old. Returns how many there were, as soon as packets meet them; with
/// `until_unused` when no packet uses the old ones any more.
///
/// The kernel does not return from such a call before every program that may still use the old map has ended
/// (kernel/bpf/syscall.c, maybe_wait_bpf_programs): an RCU grace period, some 10 ms, and seconds on a machine
/// without an idle CPU. The new maps are in force before that, and another backend's death must not wait for it:
/// the call is made on a thread of its own. In batches, since it waits once per call.
pub(crate) fn swap<'a>(
    maps: &Arc<Maps>,
    rows: impl Iterator<Item = &'a RingRow>,
    until_unused: bool,
) -> Result<usize> {
    let rows: Vec<&RingRow> = rows.collect();
    for rows in rows.chunks(BATCH) {
        let inner = rows.iter().map(|row| new_ring(row)).collect::<Result<Vec<_>>>()?;
        let ids: Vec<u32> = rows.iter().map(|row| row.id).collect();
        swap_batch(maps, ids, inner, until_unused)?;
    }
    Ok(rows.len())
}

fn swap_batch(
    maps: &Arc<Maps>,
    ids: Vec<u32>,
    inner: Vec<MapHandle>,
    until_unused: bool,
) -> Result<()> {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    // They are put in place in order, so the last one tells; and up to 6.7 a look at one takes a grace period.
    let (Some(&ring), Some(map)) = (ids.last(), inner.last()) else { return Ok(()) };
    let last = (ring, map_id(map)?);
    let others = WAITING.fetch_add(1, Ordering::Relaxed);
    let call = thread::Builder::new().name("ring-swap".into()).spawn({
        let maps = Arc::clone(maps);
        move || {
            let outcome = update(&maps.rings, &ids, &inner);
            WAITING.fetch_sub(1, Ordering::Relaxed);
            outcome
        }
    });
    let call = call.map_err(|error| {
        WAITING.fetch_sub(1, Ordering::Relaxed);
        Error::Tables(format!("no thread to write rings with: {error}"))
    })?;
    let to_the_end = until_unused || others >= MOST_WAITING;
    while to_the_end || !in_force(maps, last)? {
        if call.is_finished() {
            let panicked = |_| Error::Tables("the thread that writes rings panicked".to_owned());
            return call.join().map_err(panicked)?;
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}

fn update(rings: &MapHandle, ids: &[u32], inner: &[MapHandle]) -> Result<()> {
    let fds: Vec<i32> = inner.iter().map(|map| map.as_fd().as_raw_fd()).collect();
    let (ids, count) = (ids.as_bytes(), ids.len() as u32);
    rings
        .update_batch(ids, fds.as_bytes(), count, MapFlags::ANY, MapFlags::ANY)
        .map_err(map_error("write", "rings"))
}

/// Whether this ring is the inner map of this id.
fn in_force(maps: &Maps, (ring, id): (u32, u32)) -> Result<bool> {
    Ok(map::find::<u32, u32>(&maps.rings, &ring)? == Some(id))
}

fn map_id(map: &MapHandle) -> Result<u32> {
    Ok(map.info().map_err(map_error("read", "rw_ring"))?.info.id)
}

/// A new inner map that holds the ring.
fn new_ring(row: &RingRow) -> Result<MapHandle> {
    let mut ring =
        rw_ring::new_box_zeroed().map_err(|_| Error::Tables("no memory for a ring".to_owned()))?;
    ring.backends[..row.backends.len()].copy_from_slice(&row.backends);
    ring.slots.copy_from_slice(&row.slots);

    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let size = size_of::<rw_ring>() as u32;
    let map = MapHandle::create(MapType::Array, Some("rw_ring"), 4, size, 1, &options)
        .map_err(map_error("create", "rw_ring"))?;
    map::put(&map, &0u32, &*ring)?;
    Ok(map)
}
