//! The packet path of one node, held by the process that looks after it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libbpf_rs::{MapCore, MapHandle};
use ringway_abi::raw::{RW_LAYOUT, RW_MAX_IFACES, rw_daemon, rw_iface, rw_settings};
use ringway_abi::{Slot, flow_buckets, index_buckets};

use crate::link::{OnInterface, XdpLink};
use crate::load::{FlowSizes, load_gateway, load_root};
use crate::map::{self, Maps, map_error};
use crate::pins::{DEFAULT_BPFFS, Pins};
use crate::rows::{Existing, Rows};
use crate::{Error, Result, View, log, probe};

/// How to open a gateway.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the node: the directory its pins live in.
    pub node: String,
    /// Where bpffs is, or is to be mounted.
    pub bpffs: PathBuf,
    /// Flows to make room for. Rounded up; ignored when pinned tables are taken over.
    pub flows: u32,
    /// Pin everything, so that traffic outlives this process. Without, all of it ends with the
    /// [`Gateway`] and nothing is taken over (tests).
    pub pin: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { node: String::new(), bpffs: DEFAULT_BPFFS.into(), flows: 1 << 20, pin: true }
    }
}

/// What [`Gateway::open`] found.
#[derive(Debug, Default)]
pub struct Opened {
    /// Set when pinned state was taken over; else everything is new.
    pub taken_over: Option<TakenOver>,
    /// Pins that belonged to nothing any more, now removed: worth saying aloud.
    pub orphans: Vec<Orphan>,
    /// A start that was cut short had left pins without settings; they were removed.
    pub unfinished_removed: bool,
}

/// Pinned state that was taken over.
#[derive(Debug)]
pub struct TakenOver {
    /// Interfaces whose attachment is pinned and alive. Those that are not attached again should
    /// be given up with [`Gateway::release_others`].
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
    /// What became of it.
    pub cause: OrphanCause,
}

/// What became of an interface whose pins were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanCause {
    /// The device is gone.
    Vanished,
    /// Another device has the name now, or the device has another name; it was detached.
    Renamed,
    /// There was a directory but no attachment in it.
    NeverAttached,
}

/// An interface to balance on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface slot: position in `[node] interfaces`; below `RW_MAX_IFACES`.
    pub slot: u32,
    /// Name of the device.
    pub name: String,
    /// Index of the device.
    pub ifindex: u32,
    /// Its MAC address: frames to others are passed on untouched.
    pub mac: [u8; 6],
    /// A second MAC address that is also ours: the bridge's or bond's that the device is part of.
    pub alt_mac: Option<[u8; 6]>,
    /// MTU, bytes of layer 3.
    pub mtu: u16,
}

/// One interface slot as this process knows it.
#[derive(Debug)]
pub(crate) struct SlotState {
    pub(crate) iface: Interface,
    pub(crate) root: Option<OwnedFd>,
    pub(crate) link: Option<XdpLink>,
}

impl SlotState {
    pub(crate) fn root(&self) -> Result<BorrowedFd<'_>> {
        self.root.as_ref().map(AsFd::as_fd).ok_or(Error::NoSlot { slot: self.iface.slot })
    }
}

/// The packet path of one node. Dropping it leaves pinned state in place: traffic keeps flowing.
#[derive(Debug)]
pub struct Gateway {
    pins: Option<Pins>,
    maps: Arc<Maps>,
    slots: BTreeMap<u32, SlotState>,
    pub(crate) rows: Option<Rows>,
    started: SystemTime,
    /// The program array holds the balancer too; this keeps it alive without pins.
    _balance: OwnedFd,
    /// Tells others that the node is looked after.
    _lock: Option<OwnedFd>,
}

impl Gateway {
    /// Loads the packet path of a node, into its pinned maps when there are any: flows survive,
    /// and the new program takes the place of the old between two packets.
    ///
    /// Nothing is attached and no table filled yet. Fails when another process holds the node or
    /// when the pinned tables have another layout.
    pub fn open(options: &Options) -> Result<(Self, Opened)> {
        log::install();
        probe::probe(&options.bpffs)?.require()?;
        let sizes = FlowSizes {
            flow_buckets: flow_buckets(options.flows),
            index_buckets: index_buckets(options.flows),
        };
        if !options.pin {
            let (balance, maps) = load_gateway(sizes, |_| Ok(None))?;
            write_settings(&maps, new_settings(&maps)?)?;
            return Ok((Self::new(None, None, balance, maps)?, Opened::default()));
        }
        probe::ensure_bpffs(&options.bpffs)?;
        let pins = Pins::new(&options.bpffs, &options.node)?;
        pins.create()?;
        let lock = hold(&pins)?;
        let mut opened = Opened::default();
        let (balance, maps) = if pins.exist()? {
            take_over(&pins, sizes, &mut opened)?
        } else {
            create(&pins, sizes, &mut opened)?
        };
        Ok((Self::new(Some(pins), Some(lock), balance, maps)?, opened))
    }

    fn new(
        pins: Option<Pins>,
        lock: Option<OwnedFd>,
        balance: OwnedFd,
        maps: Maps,
    ) -> Result<Self> {
        map::put_fd(&maps.slots, Slot::Balance as u32, balance.as_fd())?;
        Ok(Self {
            pins,
            maps: Arc::new(maps),
            slots: BTreeMap::new(),
            rows: None,
            started: SystemTime::now(),
            _balance: balance,
            _lock: lock,
        })
    }

    /// Paths of the pins; `None` when nothing is pinned.
    pub fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    /// Counters, flows and tables, readable from any thread.
    pub fn view(&self) -> View {
        View::on(Arc::clone(&self.maps), self.pins.clone())
    }

    /// What the tables hold now: lets a new daemon give services and backends the numbers they
    /// had, so that flows survive.
    pub fn existing(&self) -> Result<Existing> {
        Rows::read(&self.maps)?.existing(&self.maps)
    }

    /// Describes the interface of a slot to the packet path. Attaches nothing.
    pub fn set_iface(&mut self, iface: &Interface) -> Result<()> {
        let slot = iface.slot;
        if slot >= RW_MAX_IFACES {
            return Err(Error::NoSlot { slot });
        }
        let value = rw_iface {
            ifindex: iface.ifindex,
            mac: iface.mac,
            alt_mac: iface.alt_mac.unwrap_or(iface.mac),
            mtu: iface.mtu,
            pad: 0,
        };
        map::put(&self.maps.ifaces, &slot, &value)?;
        map::put(&self.maps.devices, &slot, &iface.ifindex)?;
        match self.slots.get_mut(&slot) {
            Some(state) => state.iface = iface.clone(),
            None => {
                let state = SlotState { iface: iface.clone(), root: None, link: None };
                self.slots.insert(slot, state);
            }
        }
        Ok(())
    }

    /// Gives up what is pinned for interfaces that this process has not attached, and empties
    /// their slots. Returns their names.
    pub fn release_others(&mut self) -> Result<Vec<String>> {
        for slot in (0..RW_MAX_IFACES).filter(|slot| !self.slots.contains_key(slot)) {
            map::put(&self.maps.ifaces, &slot, &rw_iface::default())?;
            map::remove(&self.maps.devices, &slot)?;
        }
        let Some(pins) = &self.pins else { return Ok(Vec::new()) };
        let attached = |name: &String| {
            self.slots.values().any(|state| state.iface.name == *name && state.link.is_some())
        };
        let mut others = pins.iface_names()?;
        others.retain(|name| !attached(name));
        for name in &others {
            pins.remove_iface(name)?;
        }
        Ok(others)
    }

    /// Says that the daemon is alive: `status` tells how long ago this was. Once a second.
    pub fn heartbeat(&self, now: SystemTime) -> Result<()> {
        let value = rw_daemon {
            pid: std::process::id().into(),
            started_unix_ns: unix_ns(self.started),
            alive_unix_ns: unix_ns(now),
        };
        map::put(&self.maps.daemon, &0u32, &value)
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    pub(crate) fn slot(&self, slot: u32) -> Result<&SlotState> {
        self.slots.get(&slot).ok_or(Error::NoSlot { slot })
    }

    pub(crate) fn slot_mut(&mut self, slot: u32) -> Result<&mut SlotState> {
        self.slots.get_mut(&slot).ok_or(Error::NoSlot { slot })
    }

    /// Loads the root program of a slot, once.
    pub(crate) fn load_root(&mut self, slot: u32) -> Result<()> {
        if self.slot(slot)?.root.is_none() {
            let root = load_root(slot, &self.maps)?;
            self.slot_mut(slot)?.root = Some(root);
        }
        Ok(())
    }
}

/// Takes the node. `status` looks by trying the same lock, so a first refusal may be fleeting.
fn hold(pins: &Pins) -> Result<OwnedFd> {
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
    let daemon = map::open_pinned(&pins.map("daemon"), "daemon");
    let read = |map: MapHandle| map::get::<rw_daemon>(&map, 0).ok();
    daemon.ok().flatten().and_then(read).map_or(0, |daemon| daemon.pid)
}

/// New maps. The settings are pinned last: their pin says that the others are complete.
fn create(pins: &Pins, sizes: FlowSizes, opened: &mut Opened) -> Result<(OwnedFd, Maps)> {
    opened.unfinished_removed = pins.clear()?;
    let (balance, mut maps) = load_gateway(sizes, |_| Ok(None))?;
    write_settings(&maps, new_settings(&maps)?)?;
    let mut settings_last: Vec<_> = maps.iter_mut().collect();
    settings_last.sort_by_key(|(name, _)| *name == "settings");
    for (name, map) in settings_last {
        map.pin(pins.map(name)).map_err(map_error("pin", name))?;
    }
    Ok((balance, maps))
}

/// The pinned maps with a new program. A map that an earlier version did not have is added.
fn take_over(pins: &Pins, sizes: FlowSizes, opened: &mut Opened) -> Result<(OwnedFd, Maps)> {
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
    let (balance, mut maps) = load_gateway(sizes, |name| map::open_pinned(&pins.map(name), name))?;
    for (name, map) in maps.iter_mut() {
        if !pins.map(name).exists() {
            map.pin(pins.map(name)).map_err(map_error("pin", name))?;
        }
    }
    let have = maps.flows.max_entries();
    let flow_buckets = (have != sizes.flow_buckets).then_some((have, sizes.flow_buckets));
    write_settings(&maps, with_sizes(settings, &maps)?)?;
    opened.taken_over = Some(TakenOver { interfaces, flow_buckets });
    Ok((balance, maps))
}

fn read_settings(pins: &Pins) -> Result<rw_settings> {
    let map = map::open_pinned(&pins.map("settings"), "settings")?;
    let not_loaded = || Error::NotLoaded {
        node: pins.node().to_owned(),
        path: pins.dir(),
        known: pins.known_nodes(),
    };
    let map = map.ok_or_else(not_loaded)?;
    check_layout(pins.node(), &map)?;
    map::get(&map, 0)
}

/// The layout is the first word of the settings, whatever else a version keeps there.
pub(crate) fn check_layout(node: &str, settings: &MapHandle) -> Result<()> {
    let bytes = settings
        .lookup(&0u32.to_ne_bytes(), libbpf_rs::MapFlags::ANY)
        .map_err(map_error("read", "settings"))?
        .unwrap_or_default();
    let found = bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    if found == RW_LAYOUT {
        return Ok(());
    }
    Err(Error::Layout { node: node.to_owned(), found, expected: RW_LAYOUT })
}

/// Why an interface's pins are of no use, if so.
fn find_orphan(pins: &Pins, iface: &str) -> Result<Option<OrphanCause>> {
    let path = pins.link(iface);
    if !path.exists() {
        return Ok(Some(OrphanCause::NeverAttached));
    }
    let link = XdpLink::open(&path).map_err(crate::pins::pin_error("open", &path))?;
    let (ifindex, program) =
        link.info().map_err(|e| crate::pins::pin_error("read", &path)(std::io::Error::other(e)))?;
    if ifindex == 0 {
        return Ok(Some(OrphanCause::Vanished));
    }
    // Another namespace may have a device of the same index: only the program proves it ours.
    if !OnInterface::query(ifindex).is_ok_and(|on| on.has(program)) {
        let (node, iface) = (pins.node().to_owned(), iface.to_owned());
        return Err(Error::OtherNamespace { node, iface });
    }
    Ok((index_of(iface) != Some(ifindex)).then_some(OrphanCause::Renamed))
}

fn index_of(iface: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()?;
    rustix::net::netdevice::name_to_index(socket, iface).ok()
}

fn new_settings(maps: &Maps) -> Result<rw_settings> {
    let mut seed = [0u8; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::System { action: "get random bytes", source: errno.into() })?;
    with_sizes(rw_settings { seed: u64::from_ne_bytes(seed), ..Default::default() }, maps)
}

fn with_sizes(settings: rw_settings, maps: &Maps) -> Result<rw_settings> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|error| Error::System {
        action: "count CPUs",
        source: std::io::Error::other(error),
    })?;
    Ok(rw_settings {
        layout: RW_LAYOUT,
        flow_mask: maps.flows.max_entries() - 1,
        index_mask: maps.flow_index.max_entries() - 1,
        cpus: u32::try_from(cpus).unwrap_or(1),
        stages: settings.stages | 1 << Slot::Balance as u32,
        ..settings
    })
}

fn write_settings(maps: &Maps, settings: rw_settings) -> Result<()> {
    map::put(&maps.settings, &0u32, &settings)
}

pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
