//! The program with tables of its own, and others upon the same tables: for captures, and dry.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use libbpf_rs::MapHandle;
use ringway_abi::raw::{
    rw_forwarder, rw_forwarding, rw_port, rw_port_vlans, rw_station_bucket, rw_way,
};
use ringway_abi::{ForwardMode, Slot};

use crate::load;
use crate::load::set_clock;
use crate::maps::{self, Map, Maps, map};
use crate::objects::capture_forward::CaptureForwardSkelBuilder;
use crate::objects::forward::{self, ForwardSkelBuilder};
use crate::sources::random::Purpose;
use crate::{Result, View};

const FORWARD: &str = "ringway_forward";

/// Forwarding as the process knows it that looks after the node.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    /// What it has put in force.
    pub(crate) instance: Option<Instance>,
    /// Slots of devices whose frames are forwarded.
    pub(crate) devices: BTreeSet<u32>,
}

/// The maps and constants of the program in force.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(super) constants: rw_forwarder,
    pub(super) stations: Map<u32, rw_station_bucket>,
    pub(super) ports: Map<u32, rw_port>,
    pub(super) port_vlans: Map<u32, rw_port_vlans>,
    pub(super) ways: Map<u32, rw_way>,
    pub(super) forwarding: Map<u32, rw_forwarding>,
}

impl Instance {
    /// Those of a program, which takes CAP_SYS_ADMIN; `None`: it is none of ours.
    pub(crate) fn of(program: u32) -> Result<Option<Self>> {
        let constants = Map::<u32, rw_forwarder>::of_program(program, ".rodata.forward")?;
        let (Some(constants), Some(stations), Some(ports)) =
            (constants, Map::of_program(program, "stations")?, Map::of_program(program, "ports")?)
        else {
            return Ok(None);
        };
        let (Some(port_vlans), Some(ways), Some(forwarding)) = (
            Map::of_program(program, "port_vlans")?,
            Map::of_program(program, "ways")?,
            Map::of_program(program, "forwarding")?,
        ) else {
            return Ok(None);
        };
        let constants = constants.get(0)?;
        Ok(Some(Self { constants, stations, ports, port_vlans, ways, forwarding }))
    }
}

/// What forwards between interfaces, as its tables say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardState {
    pub mode: ForwardMode,
    /// The tables count now: somebody keeps them, or has until some seconds ago.
    pub in_force: bool,
}

impl View {
    /// What forwards between interfaces, if anything does. It takes CAP_SYS_ADMIN to know.
    pub fn forward_state(&self) -> Result<Option<ForwardState>> {
        let program = self.maps().slots.find(&(Slot::Forward as u32))?;
        let Some(instance) = program.map(Instance::of).transpose()?.flatten() else {
            return Ok(None);
        };
        let left = instance.forwarding.get(0)?.until.wrapping_sub(self.now_seconds());
        let routes = instance.constants.mode == ForwardMode::Route as u32;
        let mode = if routes { ForwardMode::Route } else { ForwardMode::Bridge };
        Ok(Some(ForwardState { mode, in_force: left.cast_signed() >= 0 }))
    }
}

/// A program that no packet meets yet, with tables of its own.
pub(super) fn make(live: &Maps, mode: ForwardMode) -> Result<(OwnedFd, Instance)> {
    let keys: [u64; 2] = live.sources.randomness.words(Purpose::Forwarding)()?;
    let constants = rw_forwarder { keys: [keys[0], keys[1] | 1], mode: mode as u32, dry: 0 };
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<ForwardSkelBuilder>(FORWARD, &mut storage)?;
    set_clock!(open, live.sources.clock);
    load::constants(&mut open.maps.rodata_forward_data)?.forwarder = constants;
    live.share_with_forward(&mut open.maps)?;
    let loaded = load::load(FORWARD, open)?;
    let loaded_maps = &loaded.maps;
    let instance = Instance {
        constants,
        stations: map!(forward, loaded_maps, stations)?,
        ports: map!(forward, loaded_maps, ports)?,
        port_vlans: map!(forward, loaded_maps, port_vlans)?,
        ways: map!(forward, loaded_maps, ways)?,
        forwarding: map!(forward, loaded_maps, forwarding)?,
    };
    Ok((load::program(&loaded.progs.ringway_forward)?, instance))
}

/// Puts the tables and constants of an instance into another one of the program.
macro_rules! share_instance {
    ($open:ident, $instance:expr, $maps:expr, $dry:literal) => {{
        let instance: &Instance = $instance;
        set_clock!($open, $maps.sources.clock);
        let constants = rw_forwarder { dry: $dry, ..instance.constants };
        load::constants(&mut $open.maps.rodata_forward_data)?.forwarder = constants;
        maps::reuse(&mut $open.maps.stations, &instance.stations)?;
        maps::reuse(&mut $open.maps.ports, &instance.ports)?;
        maps::reuse(&mut $open.maps.port_vlans, &instance.port_vlans)?;
        maps::reuse(&mut $open.maps.ways, &instance.ways)?;
        maps::reuse(&mut $open.maps.forwarding, &instance.forwarding)?;
    }};
}

/// The program once more, for captures, upon these maps of theirs: state, chain and slots.
pub(crate) fn load_for_capture(
    live: &Maps,
    instance: &Instance,
    (state, chain, slots): (&MapHandle, &MapHandle, &MapHandle),
) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<CaptureForwardSkelBuilder>(FORWARD, &mut storage)?;
    share_instance!(open, instance, live, 0);
    live.share_with_capture_forward(&mut open.maps)?;
    maps::reuse(&mut open.maps.capture_state, state)?;
    maps::reuse(&mut open.maps.capture_chain, chain)?;
    maps::reuse(&mut open.maps.capture_slots, slots)?;
    load::program(&load::load(FORWARD, open)?.progs.ringway_forward)
}

/// The program in force once more, upon the maps of a dry balancer, to decide as the live one does
/// and to write nothing. `None`: the program in its slot is none of ours.
pub(crate) fn load_dry(program: u32, dry: &Maps) -> Result<Option<OwnedFd>> {
    let Some(instance) = Instance::of(program)? else { return Ok(None) };
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<ForwardSkelBuilder>(FORWARD, &mut storage)?;
    share_instance!(open, &instance, dry, 1);
    dry.share_with_forward(&mut open.maps)?;
    load::program(&load::load(FORWARD, open)?.progs.ringway_forward).map(Some)
}
