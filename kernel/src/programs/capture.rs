//! Sees the packets of a node: before and after rewriting, with verdict, reason, service and
//! backend (bpf/capture/capture.bpf.c).
//!
//! While nobody captures, nothing of this is there. A capture is a [`Session`]; up to [`MOST`]
//! share what the first one has loaded, and the last one takes it away. A session that was killed
//! is cleaned up after by the daemon, the next session, or `ringway detach`; traffic never notices.
//!
//! Not seen: packets that the root program ends itself (no stage, no room for a header), and what
//! the kernel drops after the verdict.

mod place;
mod shared;

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};
use ringway_abi::raw::{
    RW_ANY, RW_CAPTURE_BYTES, RW_CAPTURES, RW_NO_SERVICE, rw_capture, rw_capture_counts,
};
use ringway_abi::{BackendRef, Reason, Verdict};
use ringway_filter::{Instruction, Surroundings};
use rustix::time::{ClockId, clock_gettime};

use crate::forward::Instance;
use crate::load::log;
use crate::maps::{self, Map, Maps, map_error};
use crate::pins::{Pins, remove_tree};
use crate::shield::generation::Made;
use crate::{Error, Result, View};

use place::{Held, Place};
use shared::Shared;

/// Captures of one node at a time.
pub const MOST: usize = RW_CAPTURES as usize;

/// Bytes of a packet that can be kept, before and after rewriting each.
pub const MOST_BYTES: u32 = RW_CAPTURE_BYTES;

/// Which packets a capture wants. A packet has to fit all of it.
pub struct CaptureRequest<'a> {
    /// The filter's program, given where it will stand: [`ringway_filter::Filter::translate`]. It
    /// is asked about the packet as it came and, where that was rewritten, as it leaves: one of
    /// both has to match.
    pub filter: &'a dyn Fn(&Surroundings<'_>) -> Vec<Instruction>,
    /// Slot of the interface it came in by.
    pub iface: Option<u32>,
    /// Verdicts; none for any.
    pub verdicts: &'a [Verdict],
    /// Reasons; none for any.
    pub reasons: &'a [Reason],
    pub service: Option<u16>,
    pub backend: Option<u32>,
    /// One in so many that the filter matches, on each CPU; 0 and 1: all.
    pub sample: u32,
    /// Bytes to keep of a packet, 1 to [`MOST_BYTES`].
    pub snaplen: u32,
    /// Room for records that are not read yet: bytes, rounded up to a power of
    /// two, 64 KiB to 1 GiB.
    pub buffer_bytes: u32,
}

/// A packet as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When: nanoseconds since 1970.
    pub unix_ns: u64,
    /// Slot of the interface it came in by: of the VLAN device, where it has tags of one.
    pub iface: u32,
    /// Slot of the interface it leaves by, where that is noted: else its new addresses tell.
    pub out: Option<u32>,
    pub verdict: Verdict,
    pub reason: Reason,
    pub service: Option<u16>,
    pub backend: Option<BackendRef>,
    /// The frame as it came, from the Ethernet header on, tags included; not more of it than
    /// `snaplen`, and of one that the filter matches only as rewritten 128 bytes. A packet of a
    /// device without Ethernet header has the one it has within Ringway.
    pub before: &'a [u8],
    pub before_len: u32,
    /// The frame as it leaves and how long it is; `None`: as it came, or dropped.
    pub after: Option<(&'a [u8], u32)>,
}

/// Counters of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that matched the filter.
    pub matched: u64,
    /// Matched packets without room for their record, because the reader was too slow.
    pub lost: u64,
}

/// A capture under way. Dropping it ends it.
#[derive(Debug)]
pub struct Session {
    pins: Pins,
    held: Held,
    left: bool,
    ring: RingBuffer<'static>,
    batch: Batch,
    counts: Map<u32, rw_capture_counts>,
    /// Bytes of a packet that it keeps; records may hold more, for others.
    snaplen: u32,
    /// Of what was counted when it left.
    last: Option<Counts>,
}

/// Records as the ring had them, one behind the other: where each ends, and all of them.
type Batch = Arc<Mutex<(Vec<usize>, Vec<u8>)>>;

/// Bytes of a ring: whole pages, and these are as large as 64 KiB somewhere.
const LEAST_RING: u32 = 64 << 10;
const MOST_RING: u32 = 1 << 30;
/// Bytes of records that are taken from the ring at once.
const BATCH_BYTES: usize = 1 << 20;
/// Between two looks: nobody is woken by a record.
const GLANCE: Duration = Duration::from_millis(10);
/// What makes libbpf stop in the middle of a ring; any error would.
const ENOUGH: i32 = -105;

impl Session {
    /// Begins to capture on a node. Loads what captures share when this is the first: some hundred
    /// milliseconds. Fails when [`MOST`] captures are under way.
    pub fn start(view: &View, wanted: &CaptureRequest<'_>) -> Result<Self> {
        log::install();
        let pins = view.pins().cloned().ok_or_else(not_pinned)?;
        let place = Place::make(&pins)?;
        place.require_own(&shared::pins())?;
        let started = Self::join(view, wanted, pins.clone(), &place);
        if started.is_err() && place.numbers().is_empty() {
            // The first reason is the one worth telling.
            let _ = end(&pins, &place, &[]);
        }
        started
    }

    fn join(view: &View, wanted: &CaptureRequest<'_>, pins: Pins, place: &Place) -> Result<Self> {
        drop_orphans(&pins, place)?;
        let shared = match Shared::open(&pins, place)? {
            Some(shared) => shared,
            None => Shared::load(view.maps(), &pins, place)?,
        };
        let Some(held) = place.take()? else {
            let pids = shared.holders(&place.numbers())?;
            return Err(Error::CapturesFull { node: pins.node().to_owned(), pids });
        };
        let joined = Self::begin(view, wanted, &shared, place, held.number)
            .and_then(|begun| place.hand_over().map(|()| begun));
        match joined {
            Ok((ring, batch)) => {
                let (counts, snaplen) = (shared.counts, snaplen(wanted));
                Ok(Self { pins, held, left: false, ring, batch, counts, snaplen, last: None })
            }
            Err(error) => {
                // The first reason is the one worth telling.
                let _ = end(&pins, place, &[held.number]);
                Err(error)
            }
        }
    }

    fn begin(
        view: &View,
        wanted: &CaptureRequest<'_>,
        shared: &Shared,
        place: &Place,
        number: u32,
    ) -> Result<(RingBuffer<'static>, Batch)> {
        let map = new_ring(wanted.buffer_bytes)?;
        let batch = Batch::default();
        let ring = read_into(&map, &batch)?;
        shared.clear_counts(number)?;
        shared.rings.put_fd(number, map.as_fd())?;
        shared.captures.put(&number, &row(view, wanted)?)?;
        shared.put_filter(place, number, wanted.filter)?;
        shared.link(place, &place.numbers())?;
        shared.install(place)?;
        Ok((ring, batch))
    }

    /// Visits the records there are, in their order; where there are none, waits for some, up to
    /// `timeout`. Returns how many there were. Fails when the node was detached.
    pub fn poll(&mut self, timeout: Duration, mut visit: impl FnMut(Record<'_>)) -> Result<usize> {
        let deadline = Instant::now() + timeout;
        loop {
            let visited = self.take(&mut visit)?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if visited > 0 || rest.is_zero() || self.left {
                return Ok(visited);
            }
            if !self.held.is_there() {
                return Err(place::gone(&self.pins));
            }
            std::thread::sleep(rest.min(GLANCE));
        }
    }

    fn take(&mut self, visit: &mut impl FnMut(Record<'_>)) -> Result<usize> {
        let taken = self.ring.consume_raw();
        if taken < 0 && taken != ENOUGH {
            let source = std::io::Error::from_raw_os_error(-taken);
            return Err(Error::System { action: "read a capture's records", source });
        }
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let (ends, bytes) = &mut *batch;
        let boot = boot_unix_ns();
        let mut from = 0;
        for end in ends.iter() {
            visit(record(&bytes[from..*end], self.snaplen, boot)?);
            from = *end;
        }
        let visited = ends.len();
        ends.clear();
        bytes.clear();
        Ok(visited)
    }

    /// Ends the capture; [`Self::poll`] still gives what is there, without waiting. Doing it twice
    /// is fine, and so is a node that was detached.
    pub fn leave(&mut self) -> Result<()> {
        if self.left {
            return Ok(());
        }
        self.left = true;
        let place = Place::find(&self.pins)?;
        if let Some(place) = place.filter(|_| self.held.is_there()) {
            let ended = end(&self.pins, &place, &[self.held.number]);
            self.last = Some(self.read_counts()?);
            return ended;
        }
        Ok(())
    }

    /// Its counters up to now.
    pub fn counts(&self) -> Result<Counts> {
        match self.last {
            Some(last) => Ok(last),
            None => self.read_counts(),
        }
    }

    fn read_counts(&self) -> Result<Counts> {
        read_counts(&self.counts, self.held.number)
    }
}

fn read_counts(counts: &Map<u32, rw_capture_counts>, number: u32) -> Result<Counts> {
    let all: Vec<rw_capture_counts> = counts.percpu(&number)?;
    Ok(Counts {
        matched: all.iter().map(|counts| counts.matched).sum(),
        lost: all.iter().map(|counts| counts.lost).sum(),
    })
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            // The daemon's watch does it then.
            tracing::debug!("leaving a capture: {error}");
        }
    }
}

fn not_pinned() -> Error {
    let source = std::io::ErrorKind::Unsupported.into();
    Error::System { action: "capture on a gateway that is not pinned", source }
}

/// A capture of some process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: u32,
    pub since: SystemTime,
    pub counts: Counts,
}

/// The captures of a node that are under way. While one just begins or ends, none is told.
pub fn running(pins: &Pins) -> Result<Vec<Running>> {
    let Some(place) = Place::find_idle(pins)? else { return Ok(Vec::new()) };
    let Some(shared) = Shared::open(pins, &place)? else { return Ok(Vec::new()) };
    let each = |number: u32| {
        Ok(Running {
            pid: shared.captures.get(number)?.pid,
            since: place.since(number)?,
            counts: read_counts(&shared.counts, number)?,
        })
    };
    place.numbers().into_iter().map(each).collect()
}

/// Id of the program that knows all maps of a node's captures, while there are any.
pub(crate) fn program_id(pins: &Pins) -> Option<u32> {
    let program = ringway_bpf_sys::open_pinned(&shared::last(pins)).ok()?;
    ringway_bpf_sys::info(program.as_fd()).ok().map(|info| info.id)
}

/// Keeps captures from beginning or ending while a node is taken away: one that just loads would
/// hold what is to be gone. The place is made for it, so that none can take it meanwhile.
pub(crate) fn hold(pins: &Pins) -> Result<impl Sized + use<>> {
    match Place::make(pins) {
        // Whatever has its name goes with the node.
        Err(Error::CaptureForeign { .. }) => {
            remove_tree(&pins.capture())?;
            Place::make(pins)
        }
        made => made,
    }
}

/// Ends the captures of processes that have ended without it: what the daemon does once a second.
/// Returns how many there were. Does not wait for one that is just beginning.
pub fn sweep(pins: &Pins) -> Result<usize> {
    let Some(place) = Place::find_idle(pins)? else { return Ok(0) };
    let orphans = drop_orphans(pins, &place)?;
    if place.numbers().is_empty() {
        end(pins, &place, &[])?;
    }
    Ok(orphans)
}

/// Gives the captures of a node the shield and what forwards, as they are in force. False: one just
/// begins or ends.
pub(crate) fn renew(
    pins: &Pins,
    live: &Maps,
    (shield, forwarding): (Option<&Made>, Option<&Instance>),
) -> Result<bool> {
    if !pins.capture().exists() {
        return Ok(true);
    }
    let Some(place) = Place::find_idle(pins)? else { return Ok(false) };
    match Shared::open(pins, &place) {
        Ok(Some(shared)) => {
            shared.put_shield(live, shield)?;
            shared.put_forwarding(live, forwarding)?;
        }
        // Those of another version have a gateway of their own.
        Ok(None) | Err(Error::CaptureVersion { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// Keeps captures from beginning.
#[derive(Debug)]
pub(crate) struct NoCaptures {
    _place: Place,
}

/// Ends every capture of a node.
pub(crate) fn end_all(pins: &Pins) -> Result<NoCaptures> {
    let place = Place::make(pins)?;
    unlink(pins, &place, &place.numbers())?;
    place.clear()?;
    Ok(NoCaptures { _place: place })
}

fn drop_orphans(pins: &Pins, place: &Place) -> Result<usize> {
    let orphans = place.orphans()?;
    if !orphans.is_empty() {
        unlink(pins, place, &orphans)?;
    }
    Ok(orphans.len())
}

/// Ends these captures; after the last one nothing is left.
fn end(pins: &Pins, place: &Place, numbers: &[u32]) -> Result<()> {
    unlink(pins, place, numbers)?;
    match place.numbers().is_empty() {
        true => place.remove(),
        false => Ok(()),
    }
}

fn unlink(pins: &Pins, place: &Place, numbers: &[u32]) -> Result<()> {
    let mut others = place.numbers();
    others.retain(|number| !numbers.contains(number));
    let shared = match Shared::open(pins, place) {
        // Packets no longer meet it: its slot is the shield's now.
        Err(Error::CaptureVersion { .. }) => None,
        shared => shared?,
    };
    if let Some(shared) = shared {
        shared.link(place, &others)?;
        match others.is_empty() {
            true => shared.uninstall()?,
            false => crate::tables::rings::grace(),
        }
        shared.forget(numbers)?;
    }
    numbers.iter().try_for_each(|number| place.give_back(*number))
}

fn snaplen(wanted: &CaptureRequest<'_>) -> u32 {
    wanted.snaplen.clamp(1, MOST_BYTES)
}

/// A capture as the programs know it.
fn row(view: &View, wanted: &CaptureRequest<'_>) -> Result<rw_capture> {
    let device = match wanted.iface {
        Some(slot) => view.maps().ifaces.get(slot)?.device,
        None => RW_ANY,
    };
    let bits =
        |numbers: &mut dyn Iterator<Item = u32>| match numbers.fold(0, |all, n| all | 1u128 << n) {
            0 => u128::MAX,
            some => some,
        };
    let reasons = bits(&mut wanted.reasons.iter().map(|reason| *reason as u32));
    Ok(rw_capture {
        reasons: [reasons as u64, (reasons >> 64) as u64],
        verdicts: bits(&mut wanted.verdicts.iter().map(|verdict| *verdict as u32)) as u32,
        snaplen: snaplen(wanted),
        sample: wanted.sample,
        device,
        iface: wanted.iface.unwrap_or(RW_ANY),
        service: wanted.service.map_or(RW_ANY, u32::from),
        backend: wanted.backend.unwrap_or(RW_ANY),
        pid: std::process::id(),
    })
}

fn new_ring(bytes: u32) -> Result<MapHandle> {
    let bytes = bytes.clamp(LEAST_RING, MOST_RING).next_power_of_two();
    maps::create(MapType::RingBuf, "rw_capture_ring", (0, 0), bytes, 0)
}

/// Reads a ring, as much at once as a batch has room for.
fn read_into(map: &MapHandle, batch: &Batch) -> Result<RingBuffer<'static>> {
    let batch = Arc::clone(batch);
    let mut builder = RingBufferBuilder::new();
    let keep = move |bytes: &[u8]| {
        let mut batch = batch.lock().unwrap_or_else(PoisonError::into_inner);
        let (ends, all) = &mut *batch;
        all.extend_from_slice(bytes);
        ends.push(all.len());
        if all.len() < BATCH_BYTES { 0 } else { ENOUGH }
    };
    builder.add(map, keep).map_err(map_error("read", "rw_capture_ring"))?;
    builder.build().map_err(map_error("read", "rw_capture_ring"))
}

fn record<'r>(bytes: &'r [u8], snaplen: u32, boot_unix_ns: u64) -> Result<Record<'r>> {
    let damaged = |detail: String| Error::Content { map: "rw_capture_ring".to_owned(), detail };
    let (record, before, after) =
        shared::parts(bytes).ok_or_else(|| damaged(format!("{} bytes", bytes.len())))?;
    let number = |unknown: ringway_abi::UnknownValue| damaged(unknown.to_string());
    let kept = |bytes: &'r [u8]| &bytes[..bytes.len().min(snaplen as usize)];
    Ok(Record {
        unix_ns: boot_unix_ns.saturating_add(record.time_ns),
        iface: record.iface,
        out: record.out.checked_sub(1),
        verdict: Verdict::try_from(u32::from(record.verdict)).map_err(number)?,
        reason: Reason::try_from(u32::from(record.reason)).map_err(number)?,
        service: (u32::from(record.service) != RW_NO_SERVICE).then_some(record.service),
        backend: (record.backend != 0).then(|| BackendRef::unpack(record.backend)),
        before: kept(before),
        before_len: record.before_len,
        after: (record.after_len != 0).then_some((kept(after), record.after_len)),
    })
}

/// When CLOCK_MONOTONIC began, as it looks now.
fn boot_unix_ns() -> u64 {
    let ns = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    ns(ClockId::Realtime).saturating_sub(ns(ClockId::Monotonic))
}
