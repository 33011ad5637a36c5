//! Loads the programs, into new maps or into those that are already pinned.

pub(crate) mod log;
pub(crate) mod shape;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, MapMut, OpenMapMut, OpenObject, ProgramMut};
use ringway_abi::raw::rw_root;

use crate::maps::{Maps, map_error};
use crate::objects::gateway::{GatewaySkelBuilder, OpenGatewaySkel};
use crate::objects::root::RootSkelBuilder;
use crate::{Error, Result};

use shape::{Shape, shape_of, wanted_shape};

const GATEWAY: &str = "ringway_balance";
const ICMP: &str = "ringway_icmp";
const ROOT: &str = "ringway_root";
const BUDGET: &str = "answer_budget";

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
    reuse: impl FnMut(&str) -> Result<Option<MapHandle>>,
) -> Result<(Programs, Maps)> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_gateway(sizes, &mut storage)?;
    share(&mut open, reuse)?;
    let loaded = load(GATEWAY, open)?;
    let balance = program(&loaded.progs.ringway_balance)?;
    let icmp = program(&loaded.progs.ringway_icmp)?;
    Ok((Programs { balance, icmp }, Maps::of(&loaded.maps)?))
}

/// Maps that a dry gateway does not share: its own way from program to program, and counters that
/// nothing depends on.
const OF_DRY: [&str; 5] = ["slots", "scratch", "ledger", "tracking", "untracked"];

/// Loads the balancer once more, upon the same maps, to find and decide as the first one does and
/// to write nothing (bpf/gateway/dry.bpf.h). `budget` is where the live one keeps what it may
/// answer. The last map is where it says what it found.
pub(crate) fn load_dry(
    live: &Maps,
    budget: Option<MapHandle>,
) -> Result<(OwnedFd, Maps, MapHandle)> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_dry(live, &mut storage)?;
    open.progs.ringway_icmp.set_autoload(false);
    share(
        &mut open,
        with(budget, |name| match OF_DRY.contains(&name) {
            true => Ok(None),
            false => clone_of(live, name),
        }),
    )?;
    let loaded = load(GATEWAY, open)?;
    let balance = program(&loaded.progs.ringway_balance)?;
    Ok((balance, Maps::of(&loaded.maps)?, map(&loaded.maps.data_trace)?))
}

/// Loads the program for ICMP beside a dry balancer, whose maps these are. `budget` is where the
/// live one keeps what it may answer.
pub(crate) fn load_dry_icmp(
    live: &Maps,
    (dry, trace): (&Maps, &MapHandle),
    budget: Option<MapHandle>,
) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_dry(live, &mut storage)?;
    open.progs.ringway_balance.set_autoload(false);
    share(
        &mut open,
        with(budget, |name| clone_of(if OF_DRY.contains(&name) { dry } else { live }, name)),
    )?;
    reuse_map(&mut open.maps.data_trace, trace)?;
    program(&load(ICMP, open)?.progs.ringway_icmp)
}

/// The gateway, to be run dry.
fn open_dry<'obj>(
    live: &Maps,
    storage: &'obj mut MaybeUninit<OpenObject>,
) -> Result<OpenGatewaySkel<'obj>> {
    let sizes = FlowSizes {
        flow_buckets: live.flows.max_entries(),
        index_buckets: live.flow_index.max_entries(),
        track_buckets: live.tracked.max_entries(),
        backends: live.backends.max_entries(),
    };
    let mut open = open_gateway(sizes, storage)?;
    constants(&mut open.maps.rodata_dry_data)?.dry = true;
    Ok(open)
}

fn open_gateway(
    sizes: FlowSizes,
    storage: &mut MaybeUninit<OpenObject>,
) -> Result<OpenGatewaySkel<'_>> {
    let mut open = open::<GatewaySkelBuilder>(GATEWAY, storage)?;
    let maps = &mut open.maps;
    for (map, entries) in [
        (&mut maps.flows, sizes.flow_buckets),
        (&mut maps.flow_index, sizes.index_buckets),
        (&mut maps.tracked, sizes.track_buckets),
        (&mut maps.backends, sizes.backends),
        (&mut maps.traffic, sizes.backends),
        (&mut maps.port_hands, sizes.backends),
    ] {
        set_entries(map, entries)?;
    }
    Ok(open)
}

/// Loads the root program for one interface slot, on the gateway's maps.
pub(crate) fn load_root(slot: u32, layer3: bool, maps: &Maps) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open::<RootSkelBuilder>(ROOT, &mut storage)?;
    constants(&mut open.maps.rodata_data)?.iface = rw_root { slot, layer3: layer3.into() };
    share_live(&mut open, maps, None)?;
    program(&load(ROOT, open)?.progs.ringway_root)
}

/// Opens an object. `program` names it where that fails.
pub(crate) fn open<'obj, B: SkelBuilder<'obj> + Default>(
    program: &'static str,
    storage: &'obj mut MaybeUninit<OpenObject>,
) -> Result<B::Output> {
    let opened = B::default().open(storage);
    opened.map_err(|source| Error::Load { program, source, log: String::new() })
}

/// Loads what was opened.
pub(crate) fn load<'obj, S: OpenSkel<'obj>>(program: &'static str, open: S) -> Result<S::Output> {
    let (result, log) = log::capture(|| open.load());
    result.map_err(|source| Error::Load { program, source, log })
}

/// The constants of a section (`const volatile` in bpf), until the object is loaded.
pub(crate) fn constants<'a, T>(section: &'a mut Option<&mut T>) -> Result<&'a mut T> {
    section.as_deref_mut().ok_or_else(|| Error::Content {
        map: ".rodata".to_owned(),
        detail: "the program does not have it".to_owned(),
    })
}

pub(crate) fn set_entries(map: &mut OpenMapMut<'_>, entries: u32) -> Result<()> {
    let set = map.set_max_entries(entries);
    set.map_err(|error| map_error("size", &map.name().to_string_lossy())(error))
}

/// A descriptor of its own: the program outlives the object.
pub(crate) fn program(program: &ProgramMut<'_>) -> Result<OwnedFd> {
    let fd = program.as_fd().try_clone_to_owned();
    fd.map_err(|source| Error::System { action: "duplicate a program's descriptor", source })
}

/// A handle of its own: the map outlives the object.
pub(crate) fn map(map: &MapMut<'_>) -> Result<MapHandle> {
    MapHandle::try_from(map)
        .map_err(|error| map_error("open", &map.name().to_string_lossy())(error))
}

/// The budget of answers, and all other maps as `others` has them.
fn with(
    mut budget: Option<MapHandle>,
    others: impl Fn(&str) -> Result<Option<MapHandle>>,
) -> impl FnMut(&str) -> Result<Option<MapHandle>> {
    move |name| if name == BUDGET { Ok(budget.take()) } else { others(name) }
}

fn clone_of(maps: &Maps, name: &str) -> Result<Option<MapHandle>> {
    maps.get(name).map(MapHandle::try_from).transpose().map_err(map_error("open", name))
}

/// Puts the gateway's maps in the place of those that an object would create.
pub(crate) fn share_live<'obj>(
    open: &mut impl OpenSkel<'obj>,
    live: &Maps,
    budget: Option<MapHandle>,
) -> Result<()> {
    share(open, with(budget, |name| clone_of(live, name)))
}

/// Puts existing maps in the place of those that an object would create.
fn share<'obj>(
    open: &mut impl OpenSkel<'obj>,
    mut existing: impl FnMut(&str) -> Result<Option<MapHandle>>,
) -> Result<()> {
    for mut map in open.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        // .rodata and other sections are each object's own.
        if name.contains('.') {
            continue;
        }
        if let Some(existing) = existing(&name)? {
            reuse_map(&mut map, &existing)?;
        }
    }
    Ok(())
}

/// Puts a map in the place of one that an object would create. The number of entries may differ: a
/// pinned table keeps its size.
pub(crate) fn reuse_map(map: &mut OpenMapMut<'_>, existing: &MapHandle) -> Result<()> {
    let name = map.name().to_string_lossy().into_owned();
    if let Some(detail) = shape_of(existing).unfit(&wanted_shape(map)) {
        return Err(Error::PinnedMap { map: name, detail });
    }
    map.reuse_fd(existing.as_fd()).map_err(map_error("reuse", &name))
}

/// Every table that [`load_gateway`] would make, by name.
pub(crate) fn shapes(sizes: FlowSizes) -> Result<BTreeMap<String, Shape>> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_gateway(sizes, &mut storage)?;
    let maps = open.open_object_mut().maps_mut();
    let named = maps.map(|map| (map.name().to_string_lossy().into_owned(), wanted_shape(&map)));
    Ok(named.filter(|(name, _)| Maps::NAMES.contains(&name.as_str())).collect())
}
