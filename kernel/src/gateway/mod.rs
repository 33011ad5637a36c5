//! The packet path of one node, held by the process that looks after it.

mod attach;
pub(crate) mod detach;
pub(crate) mod layout;
pub(crate) mod open;
mod service_room;
pub(crate) mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use libbpf_rs::{ErrorKind, MapCore};
use ringway_abi::raw::{
    RW_CONFIRMED, RW_IFACE_FORWARDS, RW_IFACE_GENERIC, RW_IFACE_LAYER3, RW_IFACE_LOCAL,
    RW_IFACE_RAW, RW_IFACE_REDIRECT, RW_IFACE_WAY_OUT, RW_MAX_IFACES, rw_daemon, rw_iface,
    rw_vlan_key,
};
use ringway_abi::{Faces, FlowKey, FlowState, Slot};
use ringway_bpf_sys::XdpLink;

use crate::forward::instance::Forwarding;
use crate::load::{Programs, load_root, log};
use crate::maps::Maps;
use crate::pins::Pins;
use crate::programs::redirect_errors;
use crate::shield::challenge_key;
use crate::shield::generation::ShieldState;
use crate::tables::rings::{self, Retiring};
use crate::tables::rows::{Existing, Rows};
use crate::tables::service_index::ServiceIndex;
use crate::testrun::{self, Frame, TestRun};
use crate::{Error, Result, View, requirements};

use open::{GatewayOptions, Opened};

/// An interface to balance on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface slot: position in `[node] interfaces`; below `RW_MAX_IFACES`.
    pub slot: u32,
    pub name: String,
    pub ifindex: u32,
    /// Its MAC address: frames to others are passed on untouched.
    pub mac: [u8; 6],
    /// A second MAC address that is also ours: the bridge's or bond's that the device is part of.
    pub alt_mac: Option<[u8; 6]>,
    /// MTU, bytes of layer 3.
    pub mtu: u16,
    /// Send back by redirect instead of XDP_TX (`RW_IFACE_REDIRECT`): set for veth.
    pub redirect: bool,
    /// Its packets have no Ethernet header (`RW_IFACE_LAYER3`). `mac` is then the first bytes of
    /// its link-layer address, zeros behind.
    pub layer3: bool,
    /// In native mode, too, its packets may come from a stack of this machine with unfinished
    /// checksums (`RW_IFACE_LOCAL`): set for veth and tap.
    pub local: bool,
    /// It sends checksums as they are, finished or not (`RW_IFACE_RAW`).
    pub raw: bool,
    /// Set for a VLAN device whose frames are met, tagged, on the device below it. Nothing is
    /// attached to it then.
    pub vlan: Option<Vlan>,
    pub faces: Faces,
}

/// Where a VLAN device's frames come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Slot of the device below.
    pub device: u32,
    /// One or two tags, outer first: ethertype (0x8100 or 0x88a8) and VLAN id (1..=4094).
    pub tags: Vec<(u16, u16)>,
}

impl Vlan {
    fn tags(&self) -> [u32; 2] {
        let tag =
            |n: usize| self.tags.get(n).map_or(0, |(t, id)| u32::from(*t) << 16 | u32::from(*id));
        [tag(0), tag(1)]
    }

    fn key(&self) -> rw_vlan_key {
        rw_vlan_key { device: self.device, tags: self.tags() }
    }
}

/// One interface slot as this process knows it.
#[derive(Debug)]
pub(crate) struct SlotState {
    pub(crate) iface: Interface,
    /// In the generic path, as far as is known.
    pub(crate) generic: bool,
    pub(crate) root: Option<OwnedFd>,
    pub(crate) link: Option<Arc<XdpLink>>,
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
    pub(crate) index: ServiceIndex,
    pub(crate) retiring: Retiring,
    pub(crate) shield: ShieldState,
    pub(crate) forwarding: Forwarding,
    started: SystemTime,
    /// The program array holds them too; this keeps them alive without pins.
    _programs: Programs,
    /// Tells others that the node is looked after.
    _lock: Option<OwnedFd>,
}

impl Gateway {
    /// Loads the packet path of a node, into its pinned maps when there are any: flows survive,
    /// and the new program takes the place of the old between two packets.
    ///
    /// Nothing is attached and no table filled yet. Fails when another process holds the node or
    /// when the pinned tables have another layout.
    pub fn open(options: &GatewayOptions) -> Result<(Self, Opened)> {
        log::install();
        requirements::probe()?.require()?;
        let sizes = options.sizes();
        if !options.pin {
            let (programs, maps) = open::unpinned(sizes, &options.sources)?;
            return Ok((Self::new(None, None, programs, maps)?, Opened::default()));
        }
        requirements::ensure_bpffs(&options.bpffs)?;
        let pins = Pins::new(&options.bpffs, &options.node)?;
        pins.create()?;
        let lock = open::hold(&pins)?;
        let mut opened = Opened::default();
        let (programs, maps) = if pins.exist()? {
            let found = open::find(&pins, &mut opened)?;
            let (sizes, _no_captures) = service_room::make(&pins, sizes)?;
            open::take_over(&pins, (sizes, &options.sources), found, &mut opened)?
        } else {
            open::create(&pins, (sizes, &options.sources), &mut opened)?
        };
        // Packets are served without, so this is no reason not to start.
        opened.losses_uncounted = redirect_errors::count(&maps, &pins).err();
        Ok((Self::new(Some(pins), Some(lock), programs, maps)?, opened))
    }

    fn new(
        pins: Option<Pins>,
        lock: Option<OwnedFd>,
        programs: Programs,
        maps: Maps,
    ) -> Result<Self> {
        let mut index = ServiceIndex::default();
        if pins.is_some() {
            // Packets under way may be in a part that a former daemon has just replaced.
            rings::grace();
        }
        let services: BTreeMap<_, _> = maps.services.entries()?.into_iter().collect();
        index.put(&maps, &services)?;
        index.confirm(&maps)?;
        // Its parts before the balancer, which expects them.
        maps.slots.put_fd(Slot::Icmp as u32, programs.icmp.as_fd())?;
        maps.slots.put_fd(Slot::Balance as u32, programs.balance.as_fd())?;
        Ok(Self {
            pins,
            maps: Arc::new(maps),
            slots: BTreeMap::new(),
            rows: None,
            index,
            retiring: Retiring::default(),
            shield: ShieldState::default(),
            forwarding: Forwarding::default(),
            started: SystemTime::now(),
            _programs: programs,
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
    pub fn existing(&mut self) -> Result<Existing> {
        let mut rows = self.read_rows()?;
        rows.read_rings(&self.maps)?;
        let existing = rows.existing(&self.maps)?;
        self.rows.get_or_insert(rows);
        Ok(existing)
    }

    /// From now on this process reads as many rows of backends as it finds here or writes itself.
    pub(crate) fn read_rows(&self) -> Result<Rows> {
        let rows = Rows::read(&self.maps)?;
        let written = rows.backends.last().map_or(0, |(index, _)| index + 1);
        self.maps.written_backends.store(written, Relaxed);
        Ok(rows)
    }

    /// Describes the interface of a slot to the packet path. Attaches nothing.
    pub fn set_iface(&mut self, iface: &Interface) -> Result<()> {
        let slot = iface.slot;
        if slot >= RW_MAX_IFACES {
            return Err(Error::NoSlot { slot });
        }
        match self.slots.get_mut(&slot) {
            Some(state) => {
                if state.iface.layer3 != iface.layer3 {
                    state.root = None; // was made for the other kind
                }
                state.iface = iface.clone();
            }
            None => {
                let iface = iface.clone();
                let state = SlotState { iface, generic: false, root: None, link: None };
                self.slots.insert(slot, state);
            }
        }
        self.write_iface(slot)?;
        match &iface.vlan {
            Some(vlan) => self.maps.vlans.put(&vlan.key(), &slot),
            None => self.put_device(slot, iface),
        }
    }

    /// The kernel takes only what is there now (kernel/bpf/devmap.c, __dev_map_alloc_node).
    fn put_device(&self, slot: u32, iface: &Interface) -> Result<()> {
        match self.maps.devices.put(&slot, &iface.ifindex) {
            Err(Error::Map { source, .. }) if source.kind() == ErrorKind::InvalidInput => {
                Err(Error::NoInterface { name: iface.name.clone(), ifindex: iface.ifindex })
            }
            other => other,
        }
    }

    /// Says whether the interface of a slot is, or will be, in the kernel's generic path: what
    /// native XDP has received cannot be redirected into it, and is passed to the kernel instead.
    /// [`Self::attach`] says so itself.
    pub fn set_generic(&mut self, slot: u32, generic: bool) -> Result<()> {
        self.slot_mut(slot)?.generic = generic;
        let is_on = |state: &SlotState| state.iface.vlan.as_ref().is_some_and(|v| v.device == slot);
        let on_it = self.slots.iter().filter(|(at, state)| **at == slot || is_on(state));
        on_it.map(|(at, _)| *at).try_for_each(|at| self.write_iface(at))
    }

    /// A VLAN is received, and sent, as its device is.
    fn device_of<'s>(&'s self, state: &'s SlotState) -> &'s SlotState {
        let device = state.iface.vlan.as_ref().and_then(|vlan| self.slots.get(&vlan.device));
        device.unwrap_or(state)
    }

    /// Makes every flow of nat look as if its handshake were finished: for measurements, whose
    /// clients and backends are packets alone. No packets may be under way.
    pub fn finish_handshakes(&mut self) -> Result<()> {
        let flows = &self.maps.flows;
        for number in 0..flows.max_entries() {
            let mut bucket = flows.get(number)?;
            let mut found = false;
            for flow in bucket.flows.iter_mut().filter(|flow| flow.key != 0) {
                let Ok(key) = FlowKey::unpack(flow.key) else { continue };
                flow.key = FlowKey { state: FlowState::Established, ..key }.pack();
                flow.confirmed = RW_CONFIRMED as u8;
                found = true;
            }
            if found {
                flows.put(&number, &bucket)?;
            }
        }
        Ok(())
    }

    pub(crate) fn write_iface(&self, slot: u32) -> Result<()> {
        let state = self.slot(slot)?;
        let (iface, device) = (&state.iface, self.device_of(state));
        let flag = |set: bool, flag: u32| if set { flag as u16 } else { 0 };
        let have = self.maps.ifaces.get(slot)?;
        let same = have.ifindex == iface.ifindex;
        let value = rw_iface {
            ifindex: iface.ifindex,
            mac: iface.mac,
            alt_mac: iface.alt_mac.unwrap_or(iface.mac),
            mtu: iface.mtu,
            flags: flag(iface.redirect, RW_IFACE_REDIRECT)
                | flag(iface.layer3, RW_IFACE_LAYER3)
                | flag(device.generic, RW_IFACE_GENERIC)
                | flag(device.generic || device.iface.local, RW_IFACE_LOCAL)
                | flag(device.iface.raw, RW_IFACE_RAW)
                | flag(self.forwarding.devices.contains(&slot), RW_IFACE_FORWARDS)
                | iface.faces.flag() as u16
                | if same { have.flags & RW_IFACE_WAY_OUT as u16 } else { 0 },
            device: iface.vlan.as_ref().map_or(slot, |vlan| vlan.device),
            tags: iface.vlan.as_ref().map_or([0; 2], Vlan::tags),
        };
        self.maps.ifaces.put(&slot, &value)
    }

    /// Notes by which interfaces backends are reached. That stays while a slot keeps its device: a
    /// backend whose next hop is not known for a while must not open its link to flows of others.
    pub(crate) fn note_ways_out(&self, slots: impl Iterator<Item = u32>) -> Result<()> {
        for slot in slots.collect::<BTreeSet<u32>>() {
            let mut iface = self.maps.ifaces.get(slot)?;
            if iface.flags & RW_IFACE_WAY_OUT as u16 == 0 {
                iface.flags |= RW_IFACE_WAY_OUT as u16;
                self.maps.ifaces.put(&slot, &iface)?;
            }
        }
        Ok(())
    }

    /// Gives up what is pinned for interfaces that this process has not attached, and empties
    /// their slots. Returns their names.
    pub fn release_others(&mut self) -> Result<Vec<String>> {
        for slot in (0..RW_MAX_IFACES).filter(|slot| !self.slots.contains_key(slot)) {
            self.maps.ifaces.put(&slot, &rw_iface::default())?;
            self.maps.devices.remove(&slot)?;
        }
        self.forget_vlans()?;
        redirect_errors::forget(&self.maps, |_, slot| !self.slots.contains_key(&slot))?;
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

    /// Takes away tags that belong to no interface of ours any more.
    fn forget_vlans(&self) -> Result<()> {
        let ours = |key: &rw_vlan_key| {
            self.slots
                .values()
                .any(|state| state.iface.vlan.as_ref().is_some_and(|v| v.key() == *key))
        };
        for (key, _) in self.maps.vlans.entries()? {
            if !ours(&key) {
                self.maps.vlans.remove(&key)?;
            }
        }
        Ok(())
    }

    /// The root program of an interface slot, for those who run it themselves (many frames from
    /// several threads) or put it into a program array of their own.
    pub fn root_program(&mut self, slot: u32) -> Result<BorrowedFd<'_>> {
        self.load_root(slot)?;
        self.slot(slot)?.root()
    }

    /// Runs the root program of an interface slot on a frame. The slot needs an interface
    /// ([`Gateway::set_iface`]) but no attachment.
    pub fn test_run(&mut self, slot: u32, frame: Frame<'_>) -> Result<TestRun> {
        testrun::run(self.root_program(slot)?, frame)
    }

    /// A map by its name in bpf, for tests that look inside or age what is in it.
    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.all().find(|(known, _)| known.name() == name).map(|(_, map)| map.as_fd())
    }

    /// Says that the daemon is alive: `status` tells how long ago this was. Once a second.
    pub fn heartbeat(&mut self, now: SystemTime) -> Result<()> {
        self.renew_captures();
        challenge_key::follow_clock(&self.maps.syn_secrets, now, &self.maps.sources.clock)?;
        let value = rw_daemon {
            pid: std::process::id().into(),
            started_unix_ns: unix_ns(self.started),
            alive_unix_ns: unix_ns(now),
        };
        self.maps.daemon.put(&0, &value)
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    pub(crate) fn shared_maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = &SlotState> {
        self.slots.values()
    }

    pub(crate) fn slot(&self, slot: u32) -> Result<&SlotState> {
        self.slots.get(&slot).ok_or(Error::NoSlot { slot })
    }

    pub(crate) fn slot_mut(&mut self, slot: u32) -> Result<&mut SlotState> {
        self.slots.get_mut(&slot).ok_or(Error::NoSlot { slot })
    }

    /// Loads the root program of a slot, once.
    pub(crate) fn load_root(&mut self, slot: u32) -> Result<()> {
        let state = self.slot(slot)?;
        if state.root.is_none() {
            let root = load_root(slot, state.iface.layer3, &self.maps)?;
            self.slot_mut(slot)?.root = Some(root);
        }
        Ok(())
    }
}

pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
