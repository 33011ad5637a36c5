//! Room for the index of services in pins that are taken over: it is made from `services`, so
//! another one can take its place.

use libbpf_rs::{MapCore, MapHandle};
use ringway_abi::raw::{rw_service_index, rw_service_place};

use crate::Result;
use crate::load::FlowSizes;
use crate::maps::{self, MapName};
use crate::pins::{Pins, pin_error};
use crate::programs::capture::{self, NoCaptures};
use crate::tables::service_index;

/// Sizes with room for what `services` holds, which is put in force first whatever the
/// configuration says. An index that does not fit loses its pins: the programs that use it go on,
/// and the next ones make another. Until these are pinned no capture may begin.
pub(super) fn make(pins: &Pins, sizes: FlowSizes) -> Result<(FlowSizes, Option<NoCaptures>)> {
    let services = maps::open_pinned(&pins.map(MapName::services.name()))?;
    let rows = services.map_or(0, |services| services.keys().count() as u32);
    let service_places = service_index::places(rows).max(sizes.service_places);
    let sizes = FlowSizes { service_places, ..sizes };
    let both = [MapName::service_index, MapName::service_places].map(|name| pins.map(name.name()));
    let [index, places] = [maps::open_pinned(&both[0])?, maps::open_pinned(&both[1])?];
    let fits = |map: &MapHandle, value| map.value_size() as usize == value;
    let keeps = index.as_ref().is_some_and(|map| fits(map, size_of::<rw_service_index>()))
        && places.as_ref().is_some_and(|map| {
            fits(map, size_of::<rw_service_place>()) && map.max_entries() >= service_places
        });
    if keeps || (index.is_none() && places.is_none()) {
        return Ok((sizes, None));
    }
    // They look into the table that goes.
    let ended = capture::end_all(pins)?;
    for pin in both.iter().filter(|pin| pin.exists()) {
        std::fs::remove_file(pin).map_err(pin_error("remove", pin))?;
    }
    Ok((sizes, Some(ended)))
}
