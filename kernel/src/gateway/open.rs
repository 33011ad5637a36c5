//! How a node's maps come to be: made and pinned, or taken over as a former daemon left them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use libbpf_rs::MapCore;
use ringway_abi::raw::{RW_HASH_NH, RW_LAYOUT, RW_MAX_BACKENDS, rw_daemon, rw_settings};
use ringway_abi::{Slot, flow_buckets, index_buckets, track_buckets};
use ringway_bpf_sys::LinkInfo;
use ringway_host::netlink::links;

use crate::gateway::layout::check_layout;
use crate::link::{OnInterface, info_of, open_link};
use crate::load::{FlowSizes, Programs, load_gateway, possible_cpus};
use crate::maps::{self, Map, MapName, Maps};
use crate::pins::{DEFAULT_BPFFS, Pins};
use crate::shield::challenge_key;
use crate::sources::Sources;
use crate::sources::random::Purpose;
use crate::tables::service_index;
use crate::{Error, Result};

/// A table of this size costs a megabyte, and its counters as much per CPU.
const LEAST_BACKENDS: u32 = 16_384;

/// How to open a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Name of the node: the directory its pins live in.
    pub node: String,
    /// Where bpffs is, or is to be mounted.
    pub bpffs: PathBuf,
    /// Flows to make room for. Rounded up; ignored when pinned tables are taken over.
    pub flows: u32,
    /// Tracked flows of dsr services to make room for. The same.
    pub tracked: u32,
    /// Backends to make room for, all services together, at most `RW_MAX_BACKENDS`. The same.
    pub backends: u32,
    /// Rows of services to make room for: ports, blocks of ports, and addresses. Rounded up; pinned
    /// tables that are too small are replaced.
    pub services: u32,
    /// Pin everything, so that traffic outlives this process. Without, all of it ends with the
    /// [`crate::Gateway`] and nothing is taken over (tests).
    pub pin: bool,
    /// Its time and its random numbers.
    pub sources: Sources,
}

impl GatewayOptions {
    pub(crate) fn sizes(&self) -> FlowSizes {
        FlowSizes {
            flow_buckets: flow_buckets(self.flows),
            index_buckets: index_buckets(self.flows),
            track_buckets: track_buckets(self.tracked.max(1)),
            service_places: service_index::places(self.services),
            backends: self.backends.next_power_of_two().clamp(LEAST_BACKENDS, RW_MAX_BACKENDS),
        }
    }
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            node: String::new(),
            bpffs: DEFAULT_BPFFS.into(),
            flows: 1 << 20,
            tracked: 1 << 20,
            backends: 0,
            services: 0,
            pin: true,
            sources: Sources::default(),
        }
    }
}

/// What [`crate::Gateway::open`] found.
#[derive(Debug, Default)]
pub struct Opened {
    /// Set when pinned state was taken over; else everything is new.
    pub taken_over: Option<TakenOver>,
    /// Pins that belonged to nothing any more, now removed: worth saying aloud.
    pub orphans: Vec<Orphan>,
    /// Why what the kernel drops after our verdict is not counted; `None`: it is.
    pub losses_uncounted: Option<Error>,
    /// A start that was cut short had left pins without settings; they were removed.
    pub unfinished_removed: bool,
}

/// Pinned state that was taken over.
#[derive(Debug)]
pub struct TakenOver {
    /// Interfaces whose attachment is pinned and alive. Those that are not attached again should
    /// be given up with [`crate::Gateway::release_others`].
    pub interfaces: Vec<String>,
    /// Flow buckets that stay and those asked for, when they differ: the pinned tables keep
    /// their size until `ringway detach`.
    pub flow_buckets: Option<(u32, u32)>,
}

/// Pins that belonged to nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Name the interface had.
    pub iface: String,
    pub cause: OrphanCause,
}

/// What became of an interface whose pins were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanCause {
    /// The device is gone, or the program was taken off it.
    Vanished,
    /// Another device has the name now, or the device has another name; it was detached.
    Renamed,
    /// There was a directory but no attachment in it.
    NeverAttached,
}

/// Takes the node. `status` looks by trying the same lock, so a first refusal may be fleeting.
pub(crate) fn hold(pins: &Pins) -> Result<OwnedFd> {
    for _ in 0..10 {
        if let Some(lock) = pins.lock()? {
            return Ok(lock);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::Busy { node: pins.node().to_owned(), pid: daemon_pid(pins) })
}

/// The process that wrote the last heartbeat, 0 when unknown.
pub(crate) fn daemon_pid(pins: &Pins) -> u64 {
    let daemon = maps::open_pinned(&pins.map(MapName::daemon.name())).ok().flatten();
    let read = |map| Map::<u32, rw_daemon>::from(map).get(0).ok();
    daemon.and_then(read).map_or(0, |daemon| daemon.pid)
}

/// New maps that nothing is pinned for.
pub(crate) fn unpinned(sizes: FlowSizes, sources: &Sources) -> Result<(Programs, Maps)> {
    let (programs, maps) = load_gateway(sizes, sources, None)?;
    write_settings(&maps, new_settings(&maps)?)?;
    challenge_key::settle(&maps)?;
    Ok((programs, maps))
}

/// New maps, pinned. The settings are pinned last: their pin says that the others are complete.
pub(crate) fn create(
    pins: &Pins,
    (sizes, sources): (FlowSizes, &Sources),
    opened: &mut Opened,
) -> Result<(Programs, Maps)> {
    opened.unfinished_removed = pins.clear()?;
    let (programs, maps) = unpinned(sizes, sources)?;
    let mut settings_last: Vec<_> = maps.all().collect();
    settings_last.sort_by_key(|(name, _)| *name == MapName::settings);
    settings_last.into_iter().try_for_each(|(name, map)| maps::pin(map, &pins.map(name.name())))?;
    Ok((programs, maps))
}

/// What is pinned and can be taken over.
pub(crate) struct Found {
    settings: rw_settings,
    interfaces: Vec<String>,
}

/// Looks at the pins, and removes what belongs to nothing any more. Fails where they cannot be
/// taken over.
pub(crate) fn find(pins: &Pins, opened: &mut Opened) -> Result<Found> {
    let settings = read_settings(pins)?;
    let mut interfaces = Vec::new();
    for iface in pins.iface_names()? {
        match find_orphan(pins, &iface)? {
            Some(cause) => {
                pins.remove_iface(&iface)?;
                opened.orphans.push(Orphan { iface, cause });
            }
            None => interfaces.push(iface),
        }
    }
    Ok(Found { settings, interfaces })
}

/// The pinned maps with a new program. A map that an earlier version did not have is added.
pub(crate) fn take_over(
    pins: &Pins,
    (sizes, sources): (FlowSizes, &Sources),
    Found { settings, interfaces }: Found,
    opened: &mut Opened,
) -> Result<(Programs, Maps)> {
    let (programs, maps) = load_gateway(sizes, sources, Some(pins))?;
    for (name, map) in maps.all() {
        let path = pins.map(name.name());
        if !path.exists() {
            maps::pin(map, &path)?;
        }
    }
    let have = maps.flows.max_entries();
    let flow_buckets = (have != sizes.flow_buckets).then_some((have, sizes.flow_buckets));
    write_settings(&maps, with_sizes(settings, &maps)?)?;
    challenge_key::settle(&maps)?;
    opened.taken_over = Some(TakenOver { interfaces, flow_buckets });
    Ok((programs, maps))
}

fn read_settings(pins: &Pins) -> Result<rw_settings> {
    let map =
        maps::open_pinned(&pins.map(MapName::settings.name()))?.ok_or_else(|| pins.not_loaded())?;
    check_layout(pins.node(), &map)?;
    Map::from(map).get(0)
}

/// Why an interface's pins are of no use, if so.
pub(crate) fn find_orphan(pins: &Pins, iface: &str) -> Result<Option<OrphanCause>> {
    let path = pins.link(iface);
    if !path.exists() {
        return Ok(Some(OrphanCause::NeverAttached));
    }
    let LinkInfo { ifindex, program, .. } = info_of(&open_link(&path)?, &path)?;
    if ifindex == 0 {
        return Ok(Some(OrphanCause::Vanished));
    }
    // Another namespace may have a device of the same index: only the program proves it ours.
    if !OnInterface::query(ifindex).is_ok_and(|on| on.has(program)) {
        let (node, iface) = (pins.node().to_owned(), iface.to_owned());
        return Err(Error::OtherNamespace { node, iface });
    }
    let named = links::by_name(iface).is_ok_and(|link| link.ifindex == ifindex);
    Ok((!named).then_some(OrphanCause::Renamed))
}

/// ICMP errors of our own, per CPU and kind: a thousand a second, of which fifty to one prefix, and
/// as many at once; ten times as many resets, and echo replies (limit.bpf.h). A path MTU is told
/// once per flow's start; a flood must not be answered in kind.
const ICMP_GAP_US: u32 = 1_000;
const ICMP_PREFIX_GAP_US: u32 = 20_000;
const ICMP_BURST: u32 = 50;

fn new_settings(maps: &Maps) -> Result<rw_settings> {
    let keys = maps.sources.randomness.words(Purpose::Settings)()?;
    with_sizes(rw_settings { hash: RW_HASH_NH, keys, ..Default::default() }, maps)
}

fn with_sizes(settings: rw_settings, maps: &Maps) -> Result<rw_settings> {
    let cpus = possible_cpus()?;
    Ok(rw_settings {
        layout: RW_LAYOUT,
        flow_mask: maps.flows.max_entries() - 1,
        index_mask: maps.flow_index.max_entries() - 1,
        track_buckets: maps.tracked.max_entries(),
        cpus,
        stages: settings.stages | 1 << Slot::Balance as u32,
        icmp_gap_us: ICMP_GAP_US,
        icmp_prefix_gap_us: ICMP_PREFIX_GAP_US,
        icmp_burst: ICMP_BURST,
        ..settings
    })
}

fn write_settings(maps: &Maps, settings: rw_settings) -> Result<()> {
    maps.settings.put(&0, &settings)
}
