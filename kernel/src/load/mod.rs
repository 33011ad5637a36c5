//! Loads the programs, into new maps or into those that are already pinned.

pub(crate) mod log;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::ptr::null_mut;
use std::thread;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, Object, OpenMapMut, OpenObject, ProgramMut};
use ringway_abi::Slot;
use ringway_abi::raw::{rw_root, rw_trace};
use ringway_filter::Instruction;

use crate::maps::shape::Shape;
use crate::maps::{self, Map, Maps, map_error};
use crate::objects::gateway::{GatewaySkelBuilder, OpenGatewaySkel, types};
use crate::objects::root::RootSkelBuilder;
use crate::pins::Pins;
use crate::sources::Sources;
use crate::{Error, Result};

const GATEWAY: &str = "ringway_balance";
const ICMP: &str = "ringway_icmp";
const ROOT: &str = "ringway_root";

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
    /// Of all parts of the index.
    pub(crate) service_places: u32,
}

/// Loads the balancer, upon the maps that are pinned; the others are made. Its two programs are
/// verified at the same time: that is nearly all that a start costs.
pub(crate) fn load_gateway(
    sizes: FlowSizes,
    sources: &Sources,
    pins: Option<&Pins>,
) -> Result<(Programs, Maps)> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_gateway(sizes, &mut storage)?;
    set_clock!(open, sources.clock);
    pins.map_or(Ok(()), |pins| Maps::share_pinned(pins, &mut open.maps))?;
    open.progs.ringway_balance.set_autoload(false);
    open.progs.ringway_icmp.set_autoload(false);
    let tables = load(GATEWAY, open)?;
    let made = tables.object();
    let (balance, icmp) = thread::scope(|scope| {
        let icmp = scope.spawn(|| load_alone(ICMP, made));
        (load_alone(GATEWAY, made), icmp.join())
    });
    let icmp = icmp.unwrap_or_else(|panic| resume_unwind(panic))?;
    Ok((Programs { balance: balance?, icmp }, Maps::of(&tables.maps, sources)?))
}

/// Loads one of the gateway's programs, upon the maps of this object.
fn load_alone(name: &'static str, made: &Object) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open::<GatewaySkelBuilder>(name, &mut storage)?;
    for mut program in open.open_object_mut().progs_mut() {
        let wanted = program.name() == name;
        program.set_autoload(wanted);
    }
    for mut map in open.open_object_mut().maps_mut() {
        if let Some(there) = made.maps().find(|there| there.name() == map.name()) {
            let shared = map.reuse_fd(there.as_fd());
            shared.map_err(|error| map_error("reuse", &map.name().to_string_lossy())(error))?;
        }
    }
    let loaded = load(name, open)?;
    let found = loaded.object().progs_mut().find(|program| program.name() == name);
    program(&found.ok_or_else(|| Error::Content {
        map: name.to_owned(),
        detail: "the object does not have this program".to_owned(),
    })?)
}

/// Loads the balancer once more, upon the same maps, to find and decide as the first one does and
/// to write nothing (bpf/gateway/dry.bpf.h). It does not share its own way from program to program,
/// and counters that nothing depends on. The last map is where it says what it found.
pub(crate) fn load_dry(live: &Maps) -> Result<(OwnedFd, Maps, Map<u32, rw_trace>)> {
    live.require_all()?;
    let mut storage = MaybeUninit::uninit();
    let mut open = open_dry(live, &mut storage)?;
    open.progs.ringway_icmp.set_autoload(false);
    let own: [&MapHandle; 5] =
        [&live.slots, &live.scratch, &live.ledger, &live.tracking, &live.untracked];
    live.share(&mut open.maps, &own)?;
    let loaded = load(GATEWAY, open)?;
    let balance = program(&loaded.progs.ringway_balance)?;
    let trace = Map::of(&loaded.maps.data_trace, |_: &types::data_trace| {
        (null_mut(), null_mut::<rw_trace>())
    });
    Ok((balance, Maps::of(&loaded.maps, &live.sources)?, trace?))
}

/// Loads the program for ICMP beside a dry balancer, whose maps these are.
pub(crate) fn load_dry_icmp(live: &Maps, (dry, trace): (&Maps, &MapHandle)) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open_dry(live, &mut storage)?;
    open.progs.ringway_balance.set_autoload(false);
    dry.share(&mut open.maps, &[])?;
    maps::reuse(&mut open.maps.data_trace, trace)?;
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
        service_places: live.service_places.max_entries(),
    };
    let mut open = open_gateway(sizes, storage)?;
    constants(&mut open.maps.rodata_dry_data)?.dry = true;
    set_clock!(open, live.sources.clock);
    share_budget(&mut open.maps.answer_due, live)?;
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
        (&mut maps.service_places, sizes.service_places),
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
    let shared = &mut open.maps;
    maps::reuse(&mut shared.settings, &maps.settings)?;
    maps::reuse(&mut shared.scratch, &maps.scratch)?;
    maps::reuse(&mut shared.ledger, &maps.ledger)?;
    maps::reuse(&mut shared.slots, &maps.slots)?;
    maps::reuse(&mut shared.ifaces, &maps.ifaces)?;
    maps::reuse(&mut shared.roots, &maps.roots)?;
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

/// Gives an object that is open the clock that its programs go by.
macro_rules! set_clock {
    ($open:expr, $clock:expr) => {
        match $clock.map() {
            Some(map) => $crate::maps::reuse(&mut $open.maps.rodata_clock, map)?,
            None => {
                let constants = $crate::load::constants(&mut $open.maps.rodata_clock_data)?;
                constants.ticks = $clock.ticks()?;
            }
        }
    };
}
pub(crate) use set_clock;

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

/// An instruction as bpf(2) takes it.
pub(crate) fn as_kernel(i: &Instruction) -> ringway_bpf_sys::Instruction {
    (i.code, i.registers, i.offset, i.immediate)
}

/// Has an object note its answers where the live programs do. Where that cannot be found, it has a
/// limit of its own: a dry one never reaches it.
pub(crate) fn share_budget(budget: &mut OpenMapMut<'_>, live: &Maps) -> Result<()> {
    let icmp = live.slots.find(&(Slot::Icmp as u32)).ok().flatten();
    let map = icmp.and_then(|id| Map::<u32, u64>::of_program(id, "answer_due").ok().flatten());
    map.map_or(Ok(()), |map| maps::reuse(budget, &map))
}

/// Every table that [`load_gateway`] would make, by name.
pub(crate) fn shapes(sizes: FlowSizes) -> Result<BTreeMap<String, Shape>> {
    let mut storage = MaybeUninit::uninit();
    Ok(Maps::wanted(&open_gateway(sizes, &mut storage)?.maps))
}

/// CPUs that there may ever be.
pub(crate) fn possible_cpus() -> Result<u32> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|error| Error::System {
        action: "count CPUs",
        source: std::io::Error::other(error),
    })?;
    Ok(cpus as u32)
}
