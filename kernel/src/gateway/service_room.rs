//! Room for the index of services in pins that are taken over: it is made from `services`, so
//! another one can take its place.

use libbpf_rs::MapCore;

use crate::Result;
use crate::load::FlowSizes;
use crate::maps::{self, MapName};
use crate::pins::{Pins, pin_error};
use crate::programs::capture;
use crate::tables::service_index;

/// Sizes with room for what `services` holds, which is put in force first whatever the
/// configuration says. An index with less, or what is left of one, loses its pins: the programs
/// that use it go on, and the next ones make another.
pub(super) fn make(pins: &Pins, sizes: FlowSizes) -> Result<FlowSizes> {
    let services = maps::open_pinned(&pins.map(MapName::services.name()))?;
    let rows = services.map_or(0, |services| services.keys().count() as u32);
    let service_places = service_index::places(rows).max(sizes.service_places);
    let both = [MapName::service_index, MapName::service_places].map(|name| pins.map(name.name()));
    let pinned = maps::open_pinned(&both[1])?;
    if !both[0].exists() || pinned.is_none_or(|map| map.max_entries() < service_places) {
        // They look into the table that goes.
        capture::end_all(pins)?;
        for pin in both.iter().filter(|pin| pin.exists()) {
            std::fs::remove_file(pin).map_err(pin_error("remove", pin))?;
        }
    }
    Ok(FlowSizes { service_places, ..sizes })
}
