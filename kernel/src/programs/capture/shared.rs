//! What the captures of a node share: the gateway that stands in for the live one, the maps around
//! it, and the way through the filters. All of it pinned; nobody keeps a descriptor, so that
//! nothing of it outlives the pins.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::{MapCore, MapHandle};
use ringway_abi::raw::{
    RW_CAPTURES, RW_CHAIN_FIRST, RW_CHAIN_LAST, rw_capture, rw_capture_counts, rw_capture_state,
};
use ringway_abi::{FromBytes, Slot, Verdict};
use ringway_bpf_sys::{self as bpf, LoadError, Program};
use ringway_filter::{Instruction, Surroundings};

use super::place::Place;
use crate::forward::{self, Instance};
use crate::load::set_clock;
use crate::load::{self, as_kernel};
use crate::maps::{self, Map, MapName, Maps, map, map_error};
use crate::objects::capture::{self, CaptureMaps, CaptureProgs, CaptureSkelBuilder};
use crate::pins::{Pins, pin_error};
use crate::shield::generation::{self, Made};
use crate::tables::rings::grace;
use crate::{Error, Result};

/// The programs' pins. `enter` is pinned last.
const ENTER: &str = "enter";
const LAST: &str = "last";

const CAPTURE: &str = "ringway_capture";
const FILTER: &str = "ringway_filter";

/// Names of all that is pinned.
pub(super) fn pins() -> Vec<&'static str> {
    Shared::PINS.iter().copied().chain([ENTER, LAST]).collect()
}

/// One field per map: its pin, its field in the object, and what it holds.
macro_rules! shared {
    ($($name:ident: $pin:literal, $field:ident $([$maps:ident])?, $value:ty;)*) => {
        /// The shared part of a node's captures.
        #[derive(Debug)]
        pub(super) struct Shared {
            $(pub(super) $name: Map<u32, $value>,)*
            live_slots: Map<u32, u32>,
        }

        impl Shared {
            const PINS: &[&str] = &[$($pin),*];

            /// Pins the maps of what was loaded.
            fn pin(made: &CaptureMaps<'_>, pins: &Pins, place: &Place) -> Result<Self> {
                let live_slots = live_slots(pins)?;
                let shared = Self { $($name: map!(capture, made, $field $([$maps])?)?,)* live_slots };
                $(maps::pin(&shared.$name, &place.pin($pin))?;)*
                Ok(shared)
            }

            fn open_pinned(pins: &Pins, place: &Place) -> Result<Self> {
                let open = |pin: &str| {
                    maps::open_pinned(&place.pin(pin))?.ok_or_else(|| pins.not_loaded())
                };
                Ok(Self { $($name: open($pin)?.into(),)* live_slots: live_slots(pins)? })
            }
        }
    };
}
shared! {
    captures: "captures", captures, rw_capture;
    counts: "counts", capture_counts, rw_capture_counts;
    linked: "linked", capture_linked, u32;
    rings: "rings", capture_rings [maps], u32;
    state: "state", capture_state, rw_capture_state;
    chain: "chain", capture_chain, u32;
    own_slots: "slots", capture_slots, u32;
}

fn live_slots(pins: &Pins) -> Result<Map<u32, u32>> {
    let slots = maps::open_pinned(&pins.map(MapName::slots.name()))?;
    slots.map(Map::from).ok_or_else(|| pins.not_loaded())
}

/// A start may have made another index since these maps were opened.
fn require_pinned(live: &Maps, pins: &Pins) -> Result<()> {
    let id = |map: &MapHandle| map.info().ok().map(|info| info.info.id);
    let pinned = maps::open_pinned(&pins.map(MapName::service_index.name()))?;
    match pinned.as_ref().and_then(id) == id(&live.service_index) {
        true => Ok(()),
        false => Err(Error::CaptureGone { node: pins.node().to_owned() }),
    }
}

impl Shared {
    /// Loads and pins it, upon the live maps. No packet meets it yet.
    pub(super) fn load(live: &Maps, pins: &Pins, place: &Place) -> Result<Self> {
        live.require_all()?;
        require_pinned(live, pins)?;
        place_cleared(place)?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(map_error("size", "capture_packet"))?;
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<CaptureSkelBuilder>(CAPTURE, &mut storage)?;
        set_clock!(open, live.sources.clock);
        load::set_entries(&mut open.maps.capture_packet, cpus.try_into().unwrap_or(1))?;
        live.share_with_capture(&mut open.maps)?;
        load::share_budget(&mut open.maps.answer_due, live)?;
        let loaded = load::load(CAPTURE, open)?;
        let shared = Self::pin(&loaded.maps, pins, place)?;
        shared.put_shield(live, None)?;
        shared.put_forwarding(live, None)?;
        shared.fill(place, &loaded.progs)?;
        Ok(shared)
    }

    /// The programs in their places, pinned, `enter` last.
    fn fill(&self, place: &Place, programs: &CaptureProgs<'_>) -> Result<()> {
        let (enter, last) = (&programs.ringway_capture_enter, &programs.ringway_capture);
        self.own_slots.put_fd(Slot::Icmp as u32, programs.ringway_icmp.as_fd())?;
        self.own_slots.put_fd(Slot::Balance as u32, programs.ringway_balance.as_fd())?;
        for place in [RW_CHAIN_LAST, RW_CHAIN_FIRST] {
            self.chain.put_fd(place, last.as_fd())?;
        }
        for (program, name) in [(last, LAST), (enter, ENTER)] {
            let path = place.pin(name);
            bpf::pin(program.as_fd(), &path).map_err(pin_error("pin", &path))?;
        }
        Ok(())
    }

    /// The shield in force, to be captured: `made`, or whatever is in its slot.
    pub(super) fn put_shield(&self, live: &Maps, made: Option<&Made>) -> Result<()> {
        let slot = Slot::Shield as u32;
        let Some(id) = live.slots.find(&slot)? else { return self.own_slots.remove(&slot) };
        let found = if made.is_none() { Made::of(id)? } else { None };
        let shield = match made.or(found.as_ref()) {
            Some(made) => {
                let own = (&*self.state, &*self.chain, &*self.own_slots);
                generation::load_for_capture(live, made, own)?
            }
            None => bpf::by_id(id).map_err(|source| Error::System {
                action: "open the program in the shield's slot",
                source,
            })?,
        };
        self.own_slots.put_fd(slot, shield.as_fd())
    }

    /// What forwards, to be captured: `known`, or whatever is in its slot.
    pub(super) fn put_forwarding(&self, live: &Maps, known: Option<&Instance>) -> Result<()> {
        let slot = Slot::Forward as u32;
        let Some(id) = live.slots.find(&slot)? else { return self.own_slots.remove(&slot) };
        let found = if known.is_none() { Instance::of(id)? } else { None };
        // A program of another's is met where it is, in the live slots.
        let Some(instance) = known.or(found.as_ref()) else { return self.own_slots.remove(&slot) };
        let own = (&*self.state, &*self.chain, &*self.own_slots);
        let program = forward::load_for_capture(live, instance, own)?;
        self.own_slots.put_fd(slot, program.as_fd())
    }

    /// As it is pinned; `None` where it is not all there.
    pub(super) fn open(pins: &Pins, place: &Place) -> Result<Option<Self>> {
        if !place.pin(ENTER).exists() {
            return Ok(None);
        }
        let shared = Self::open_pinned(pins, place)?;
        let fits = shared.captures.value_size() as usize == size_of::<rw_capture>()
            && shared.captures.max_entries() == RW_CAPTURES
            && shared.counts.value_size() as usize == size_of::<rw_capture_counts>()
            && shared.state.value_size() as usize == size_of::<rw_capture_state>();
        match fits {
            true => Ok(Some(shared)),
            false => Err(Error::CaptureVersion { node: pins.node().to_owned() }),
        }
    }

    /// Loads and pins the filter of a capture.
    pub(super) fn put_filter(
        &self,
        place: &Place,
        number: u32,
        translate: &dyn Fn(&Surroundings<'_>) -> Vec<Instruction>,
    ) -> Result<()> {
        let onward = [
            (self.chain.as_fd(), number),
            (self.own_slots.as_fd(), Slot::Balance as u32),
            (self.live_slots.as_fd(), Slot::Balance as u32),
        ];
        let instructions = translate(&Surroundings {
            state: self.state.as_fd(),
            mask_offset: std::mem::offset_of!(rw_capture_state, mask) as u16,
            index: number,
            onward: &onward,
            last_resort: Verdict::Pass as u32,
        });
        let instructions: Vec<_> = instructions.iter().map(as_kernel).collect();
        let filter = Program { name: FILTER, instructions: &instructions, frags: true }.load();
        let filter =
            filter.map_err(|LoadError { source, log }| Error::CaptureFilter { source, log })?;
        let path = place.filter(number);
        bpf::pin(filter.as_fd(), &path).map_err(pin_error("pin", &path))
    }

    /// Leads packets through the filters of these captures, which are in order. From the end on,
    /// so that there is a way at any time: each leads to one behind it, or past all.
    pub(super) fn link(&self, place: &Place, numbers: &[u32]) -> Result<()> {
        // One too many has packets meet the filters once more than they need to; one too few, not
        // at all.
        let bits = numbers.iter().fold(0u32, |bits, number| bits | 1 << number);
        let before = self.linked.get(0)?;
        self.linked.put(&0, &(before | bits))?;
        let last = open(place, LAST)?;
        self.chain.put_fd(RW_CHAIN_LAST, last.as_fd())?;
        let mut next = last;
        for number in numbers.iter().rev() {
            self.chain.put_fd(*number, next.as_fd())?;
            let path = place.filter(*number);
            next = bpf::open_pinned(&path).map_err(pin_error("open", &path))?;
        }
        self.chain.put_fd(RW_CHAIN_FIRST, next.as_fd())?;
        self.linked.put(&0, &bits)
    }

    /// Lets packets in.
    pub(super) fn install(&self, place: &Place) -> Result<()> {
        self.live_slots.put_fd(Slot::Capture as u32, open(place, ENTER)?.as_fd())
    }

    /// No packet meets it any more; those under way have left when this returns.
    pub(super) fn uninstall(&self) -> Result<()> {
        self.live_slots.remove(&(Slot::Capture as u32))?;
        grace();
        Ok(())
    }

    /// Forgets captures that no packet meets the filters of any more.
    pub(super) fn forget(&self, numbers: &[u32]) -> Result<()> {
        for number in numbers {
            self.captures.put(number, &rw_capture::default())?;
            self.rings.remove(number)?;
            self.chain.remove(number)?;
        }
        Ok(())
    }

    /// Begins to count a capture anew.
    pub(super) fn clear_counts(&self, number: u32) -> Result<()> {
        self.counts.put_percpu(&number, &rw_capture_counts::default())
    }

    /// Processes whose captures these are.
    pub(super) fn holders(&self, numbers: &[u32]) -> Result<Vec<u32>> {
        numbers.iter().map(|number| Ok(self.captures.get(*number)?.pid)).collect()
    }
}

/// Where the program is that all filters lead to.
pub(super) fn last(pins: &Pins) -> PathBuf {
    pins.capture().join(LAST)
}

/// What a first capture left unfinished is taken away.
fn place_cleared(place: &Place) -> Result<()> {
    for name in pins() {
        let path = place.pin(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(pin_error("remove", &path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn open(place: &Place, name: &str) -> Result<OwnedFd> {
    let path = place.pin(name);
    bpf::open_pinned(&path).map_err(pin_error("open", &path))
}

/// What a ring holds of a packet, apart: its record, the bytes before and those after.
pub(super) fn parts(bytes: &[u8]) -> Option<(ringway_abi::raw::rw_capture_record, &[u8], &[u8])> {
    let (record, rest) = ringway_abi::raw::rw_capture_record::read_from_prefix(bytes).ok()?;
    let (before, rest) = rest.split_at_checked(record.before_bytes as usize)?;
    Some((record, before, rest.get(..record.after_bytes as usize)?))
}
