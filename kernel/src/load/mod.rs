//! Loads the programs, into new maps or into those that are already pinned.

pub(crate) mod log;
pub(crate) mod shape;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject};
use ringway_abi::raw::rw_root;
use zerocopy::{Immutable, IntoBytes};

use crate::maps::{Maps, map_error};
use crate::{Error, Result};

use shape::{Shape, shape_of, wanted_shape};

/// An object file as the build made it, aligned as its 64-bit fields want it.
#[repr(C, align(8))]
struct Embedded<T: ?Sized> {
    bytes: T,
}

static GATEWAY_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/gateway.bpf.o")) };
static ROOT_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/root.bpf.o")) };
static CAPTURE_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o")) };
static REDIRECT_ERRORS_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/redirect_errors.bpf.o")) };
static PROBE_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o")) };
static DECAP_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/decap.bpf.o")) };
static RINGS_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/rings.bpf.o")) };

static DROP_REASONS_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/drop_reasons.bpf.o")) };
static STEER_OBJECT: &Embedded<[u8]> =
    &Embedded { bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o")) };

/// Every object file of the packet path, by the name of its source in bpf: for checks
/// that load them all, say on another kernel.
pub fn objects() -> [(&'static str, &'static [u8]); 9] {
    [
        ("root", &ROOT_OBJECT.bytes),
        ("gateway", &GATEWAY_OBJECT.bytes),
        ("capture", &CAPTURE_OBJECT.bytes),
        ("redirect_errors", &REDIRECT_ERRORS_OBJECT.bytes),
        ("decap", &DECAP_OBJECT.bytes),
        ("probe", &PROBE_OBJECT.bytes),
        ("rings", &RINGS_OBJECT.bytes),
        ("steer", &STEER_OBJECT.bytes),
        ("drop_reasons", &DROP_REASONS_OBJECT.bytes),
    ]
}

const GATEWAY: &str = "ringway_balance";
const ICMP: &str = "ringway_icmp";
const CAPTURE: &str = "ringway_capture";
const CAPTURE_ENTER: &str = "ringway_capture_enter";
const RODATA: &str = ".rodata";
const DRY: &str = ".rodata.dry";
const TRACE: &str = ".data.trace";
const BUDGET: &str = "answer_budget";
const ROOT: &str = "ringway_root";
const REDIRECT_ERRORS: &str = "ringway_lost_*";
const DROP_REASONS: &str = "ringway_seen_*";
const COPY_RING: &str = "ringway_copy_ring";

/// The gateway's programs, each for the slot of its name.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) balance: OwnedFd,
    pub(crate) icmp: OwnedFd,
}

/// Entries of the tables that the configuration sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowSizes {
    pub(crate) flow_buckets: u32,
    pub(crate) index_buckets: u32,
    pub(crate) track_buckets: u32,
    pub(crate) backends: u32,
}

/// Loads the balancer. `reuse` gives the maps that exist already, by name; the others are made.
pub(crate) fn load_gateway(
    sizes: FlowSizes,
    mut reuse: impl FnMut(&str) -> Result<Option<MapHandle>>,
) -> Result<(Programs, Maps)> {
    let mut open = open_gateway(sizes)?;
    share(&mut open, &mut reuse)?;
    let object = load(GATEWAY, open)?;
    let maps = gateway_maps(&object)?;
    let programs = Programs { balance: program(&object, GATEWAY)?, icmp: program(&object, ICMP)? };
    Ok((programs, maps))
}

/// Maps that a dry gateway does not share: its own way from program to program, and counters that
/// nothing depends on.
const OF_DRY: [&str; 5] = ["slots", "scratch", "ledger", "tracking", "untracked"];

/// Loads the balancer once more, upon the same maps, to find and decide as the first one does and
/// to write nothing (bpf/gateway/dry.bpf.h). `budget` is where the live one keeps what it may answer. The
/// last map is where it says what it found.
pub(crate) fn load_dry(
    live: &Maps,
    mut budget: Option<MapHandle>,
) -> Result<(OwnedFd, Maps, MapHandle)> {
    let mut open = open_dry(live, GATEWAY)?;
    share(&mut open, &mut |name| match name {
        BUDGET => Ok(budget.take()),
        own if OF_DRY.contains(&own) => Ok(None),
        shared => clone_of(live, shared),
    })?;
    let object = load(GATEWAY, open)?;
    let [trace] = maps_of(&object, [TRACE])?;
    Ok((program(&object, GATEWAY)?, gateway_maps(&object)?, trace))
}

/// Loads the program for ICMP beside a dry balancer, whose maps these are. `budget` is where the live one keeps
/// what it may answer.
pub(crate) fn load_dry_icmp(
    live: &Maps,
    (dry, trace): (&Maps, &MapHandle),
    mut budget: Option<MapHandle>,
) -> Result<OwnedFd> {
    let mut open = open_dry(live, ICMP)?;
    share(&mut open, &mut |name| match name {
        BUDGET => Ok(budget.take()),
        own if OF_DRY.contains(&own) => clone_of(dry, own),
        shared => clone_of(live, shared),
    })?;
    let mut own = open.maps_mut().find(|map| map.name() == TRACE).ok_or_else(|| missing(TRACE))?;
    own.reuse_fd(trace.as_fd()).map_err(map_error("reuse", TRACE))?;
    program(&load(ICMP, open)?, ICMP)
}

/// One program of the gateway, to be run dry.
fn open_dry(live: &Maps, program: &'static str) -> Result<OpenObject> {
    let mut open = open_gateway(FlowSizes {
        flow_buckets: live.flows.max_entries(),
        index_buckets: live.flow_index.max_entries(),
        track_buckets: live.tracked.max_entries(),
        backends: live.backends.max_entries(),
    })?;
    set_constant(&mut open, DRY, &true, load_error(program))?;
    for mut other in open.progs_mut().filter(|other| other.name() != program) {
        other.set_autoload(false);
    }
    Ok(open)
}

/// The gateway that stands in while somebody captures, and what is around it
/// (bpf/capture/capture.bpf.c).
#[derive(Debug)]
pub(crate) struct CapturePrograms {
    /// In front of the filters.
    pub(crate) enter: OwnedFd,
    /// Behind them.
    pub(crate) last: OwnedFd,
    pub(crate) gateway: Programs,
}

/// Loads it upon the live maps, with these maps of its own. `cpus`: how many there may be.
pub(crate) fn load_capture<const N: usize>(
    live: &Maps,
    mut budget: Option<MapHandle>,
    cpus: u32,
    own: [&str; N],
) -> Result<(CapturePrograms, [MapHandle; N])> {
    let open = ObjectBuilder::default().open_memory(&CAPTURE_OBJECT.bytes);
    let mut open = open.map_err(load_error(CAPTURE))?;
    set_entries(&mut open, "capture_packet", cpus)?;
    share(&mut open, &mut |name| match name {
        BUDGET => Ok(budget.take()),
        name => clone_of(live, name),
    })?;
    let object = load(CAPTURE, open)?;
    let programs = CapturePrograms {
        enter: program(&object, CAPTURE_ENTER)?,
        last: program(&object, CAPTURE)?,
        gateway: Programs { balance: program(&object, GATEWAY)?, icmp: program(&object, ICMP)? },
    };
    Ok((programs, maps_of(&object, own)?))
}

fn gateway_maps(object: &Object) -> Result<Maps> {
    Maps::from_each(|name| {
        let map = object.maps().find(|map| map.name() == name).ok_or_else(|| missing(name))?;
        MapHandle::try_from(&map).map_err(map_error("open", name))
    })
}

fn open_gateway(sizes: FlowSizes) -> Result<OpenObject> {
    let open = ObjectBuilder::default().open_memory(&GATEWAY_OBJECT.bytes);
    let mut open = open.map_err(load_error(GATEWAY))?;
    set_entries(&mut open, "flows", sizes.flow_buckets)?;
    set_entries(&mut open, "flow_index", sizes.index_buckets)?;
    set_entries(&mut open, "tracked", sizes.track_buckets)?;
    set_entries(&mut open, "backends", sizes.backends)?;
    set_entries(&mut open, "traffic", sizes.backends)?;
    set_entries(&mut open, "port_hands", sizes.backends)?;
    Ok(open)
}

/// Loads the root program for one interface slot, on the gateway's maps.
pub(crate) fn load_root(slot: u32, layer3: bool, maps: &Maps) -> Result<OwnedFd> {
    let failed = load_error(ROOT);
    let mut open = ObjectBuilder::default().open_memory(&ROOT_OBJECT.bytes).map_err(&failed)?;
    set_constant(&mut open, RODATA, &rw_root { slot, layer3: layer3.into() }, &failed)?;
    share(&mut open, &mut |name| clone_of(maps, name))?;
    program(&load(ROOT, open)?, ROOT)
}

/// Loads the programs that count what the kernel drops, on the gateway's maps.
pub(crate) fn load_redirect_errors(maps: &Maps) -> Result<Object> {
    let failed = load_error(REDIRECT_ERRORS);
    let mut open =
        ObjectBuilder::default().open_memory(&REDIRECT_ERRORS_OBJECT.bytes).map_err(&failed)?;
    share(&mut open, &mut |name| clone_of(maps, name))?;
    load(REDIRECT_ERRORS, open)
}

/// Loads the program that reads rings, on the gateway's maps, with these of its own.
pub(crate) fn load_rings<const N: usize>(
    maps: &Maps,
    own: [&str; N],
) -> Result<(OwnedFd, [MapHandle; N])> {
    let failed = load_error(COPY_RING);
    let mut open = ObjectBuilder::default().open_memory(&RINGS_OBJECT.bytes).map_err(&failed)?;
    share(&mut open, &mut |name| clone_of(maps, name))?;
    let object = load(COPY_RING, open)?;
    Ok((program(&object, COPY_RING)?, maps_of(&object, own)?))
}

/// Loads the program that opens tunnel packets, with these of its maps; a ledger that exists already
/// is used instead of a new one.
pub(crate) fn load_decap<const N: usize>(
    name: &'static str,
    gue_port: u16,
    maps: [&str; N],
    ledger: Option<MapHandle>,
) -> Result<(OwnedFd, [MapHandle; N])> {
    let failed = load_error(name);
    let mut open = ObjectBuilder::default().open_memory(&DECAP_OBJECT.bytes).map_err(&failed)?;
    set_constant(&mut open, RODATA, &gue_port.to_be_bytes(), &failed)?;
    let mut ledger = ledger;
    share(&mut open, &mut |name| Ok(if name == "ledger" { ledger.take() } else { None }))?;
    let object = load(name, open)?;
    Ok((program(&object, name)?, maps_of(&object, maps)?))
}

/// Loads the program that sends health checks, with these of its maps.
pub(crate) fn load_probe<const N: usize>(
    name: &'static str,
    maps: [&str; N],
) -> Result<(OwnedFd, [MapHandle; N])> {
    let open =
        ObjectBuilder::default().open_memory(&PROBE_OBJECT.bytes).map_err(load_error(name))?;
    let object = load(name, open)?;
    Ok((program(&object, name)?, maps_of(&object, maps)?))
}

/// Loads the programs that tell what becomes of packets in a network namespace, by its inode; with these of their maps.
pub(crate) fn load_drop_reasons<const N: usize>(
    netns: u32,
    maps: [&str; N],
) -> Result<(Object, [MapHandle; N])> {
    let failed = load_error(DROP_REASONS);
    let mut open =
        ObjectBuilder::default().open_memory(&DROP_REASONS_OBJECT.bytes).map_err(&failed)?;
    set_constant(&mut open, RODATA, &netns, &failed)?;
    let object = load(DROP_REASONS, open)?;
    let maps = maps_of(&object, maps)?;
    Ok((object, maps))
}

/// Loads the program that brings packets into sockets, with these of its maps. `frags`: for packets of several buffers,
/// too.
pub(crate) fn load_steer<const N: usize>(
    name: &'static str,
    maps: [&str; N],
    frags: bool,
) -> Result<(OwnedFd, [MapHandle; N])> {
    let open = ObjectBuilder::default().open_memory(&STEER_OBJECT.bytes);
    let mut open = open.map_err(load_error(name))?;
    if !frags {
        open.progs_mut().for_each(|mut program| program.set_flags(0));
    }
    let object = load(name, open)?;
    Ok((program(&object, name)?, maps_of(&object, maps)?))
}

fn clone_of(maps: &Maps, name: &str) -> Result<Option<MapHandle>> {
    maps.get(name).map(MapHandle::try_from).transpose().map_err(map_error("open", name))
}

fn load(program: &'static str, open: OpenObject) -> Result<Object> {
    let (result, log) = log::capture(|| open.load());
    result.map_err(|source| Error::Load { program, source, log })
}

fn load_error(program: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |source| Error::Load { program, source, log: String::new() }
}

/// A descriptor of its own: the program outlives the object.
fn program(object: &Object, name: &str) -> Result<OwnedFd> {
    let program = object.progs().find(|program| program.name() == name);
    let program = program.ok_or_else(|| missing(name))?;
    let fd = program.as_fd().try_clone_to_owned();
    fd.map_err(|source| Error::System { action: "duplicate a program's descriptor", source })
}

fn set_entries(open: &mut OpenObject, name: &str, entries: u32) -> Result<()> {
    let mut map = open.maps_mut().find(|map| map.name() == name).ok_or_else(|| missing(name))?;
    map.set_max_entries(entries).map_err(map_error("size", name))
}

/// These maps of a loaded object.
fn maps_of<const N: usize>(object: &Object, names: [&str; N]) -> Result<[MapHandle; N]> {
    let mut found = Vec::with_capacity(N);
    for name in names {
        let map = object.maps().find(|map| map.name() == name).ok_or_else(|| missing(name))?;
        found.push(MapHandle::try_from(&map).map_err(map_error("open", name))?);
    }
    found.try_into().map_err(|_| missing("one of its maps"))
}

/// The one constant of a section (`const volatile` in bpf), which must be as long as that is.
fn set_constant(
    open: &mut OpenObject,
    section: &str,
    value: &(impl IntoBytes + Immutable),
    failed: impl Fn(libbpf_rs::Error) -> Error,
) -> Result<()> {
    let is_it = |name: &OsStr| name.as_encoded_bytes().ends_with(section.as_bytes());
    let found = open.maps_mut().find(|map| is_it(map.name()));
    let mut section = found.ok_or_else(|| missing(section))?;
    section.set_initial_value(value.as_bytes()).map_err(failed)
}

/// Puts existing maps in the place of those the object would create.
fn share(
    object: &mut OpenObject,
    reuse: &mut impl FnMut(&str) -> Result<Option<MapHandle>>,
) -> Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        // .rodata and other sections are each object's own.
        if name.contains('.') {
            continue;
        }
        let Some(existing) = reuse(&name)? else { continue };
        check_same(&name, &map, &existing)?;
        map.reuse_fd(existing.as_fd()).map_err(map_error("reuse", &name))?;
    }
    Ok(())
}

/// The number of entries may differ: a pinned table keeps its size.
fn check_same(name: &str, wanted: &OpenMapMut<'_>, found: &MapHandle) -> Result<()> {
    match shape_of(found).unfit(&wanted_shape(wanted)) {
        None => Ok(()),
        Some(detail) => Err(Error::PinnedMap { map: name.to_owned(), detail }),
    }
}

/// Every table that [`load_gateway`] would make, by name.
pub(crate) fn shapes(sizes: FlowSizes) -> Result<BTreeMap<String, Shape>> {
    let mut open = open_gateway(sizes)?;
    let named =
        open.maps_mut().map(|map| (map.name().to_string_lossy().into_owned(), wanted_shape(&map)));
    Ok(named.filter(|(name, _)| Maps::NAMES.contains(&name.as_str())).collect())
}

fn missing(name: &str) -> Error {
    let detail = "the program does not have it".to_owned();
    Error::Content { map: name.to_owned(), detail }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_object_is_listed() {
        let programs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf");
        let mut sources: Vec<String> = std::fs::read_dir(programs)
            .unwrap()
            .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".bpf.c").map(str::to_owned))
            .collect();
        let mut listed: Vec<String> =
            super::objects().iter().map(|(name, _)| (*name).to_owned()).collect();
        sources.sort();
        listed.sort();
        assert_eq!(listed, sources);
    }
}
