//! Kernel memory of a node's packet path: every map of its programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle, MapType};
use ringway_abi::raw::{RW_CAPTURES, RW_INDEX_ENTRIES};
use ringway_abi::{Slot, track_capacity};

use crate::link::{info_of, open_link};
use crate::maps::{Map, MapName, PRIVATE, WhenFull};
use crate::tables::rows::Rows;
use crate::{Result, View};

/// Rings that are looked at for their pairs: on old kernels each look takes some milliseconds.
const RINGS_LOOKED_AT: usize = 256;

/// One map, and those inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapMemory {
    pub name: String,
    pub purpose: &'static str,
    /// Behaviour when it is full.
    pub when_full: WhenFull,
    /// Pinned, and so shared with the next daemon; else a program's own.
    pub pinned: bool,
    /// Entries there is room for.
    pub max_entries: u64,
    /// Entries in use, where that can be known.
    pub used_entries: Option<u64>,
    /// Bytes that the kernel accounts for it; `None`: it does not tell.
    pub bytes: Option<u64>,
}

/// One program of the packet path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Id, as bpftool shows it.
    pub id: u32,
    /// Its name, as the kernel has it: the first 15 bytes.
    pub name: String,
    /// Instructions that the verifier went through.
    pub verified_instructions: u32,
    /// Ids of the maps that it uses.
    pub maps: Vec<u32>,
}

impl View {
    /// Every map of the node: the pinned ones, then those that its programs have for themselves.
    /// Reads the flow tables. Needs CAP_SYS_ADMIN for the latter; without it they are left out.
    pub fn memory(&self) -> Result<Vec<MapMemory>> {
        let rows = Rows::read(self.maps())?;
        let rings = rows.rings.keys().copied().collect();
        let mut all = Vec::new();
        for (name, map) in self.maps().all() {
            let (purpose, when_full) = name.text();
            let inner = match name {
                MapName::rings => self.rings_inside(&rings)?,
                MapName::pairs => self.pairs_inside(&rings)?,
                MapName::shifts => self.shifts_inside(),
                _ => Inside::default(),
            };
            all.push(MapMemory {
                name: name.name().to_owned(),
                purpose,
                when_full,
                pinned: true,
                max_entries: self.room(name, map)?,
                used_entries: self.used(name, map, &rows)?.or(inner.maps),
                bytes: memlock(map).map(|bytes| bytes + inner.bytes),
            });
        }
        all.extend(self.private_maps()?);
        Ok(all)
    }

    /// The node's programs: attached to interfaces and tracepoints, and those that they call. Needs
    /// CAP_SYS_ADMIN; without it there are none.
    pub fn programs(&self) -> Result<Vec<ProgramInfo>> {
        let ids = self.program_ids()?;
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let ours = ProgInfoIter::with_query_opts(options).filter(|info| ids.contains(&info.id));
        let shown = ours.map(|info| ProgramInfo {
            id: info.id,
            name: info.name.to_string_lossy().into_owned(),
            verified_instructions: info.verified_insns,
            maps: info.map_ids,
        });
        Ok(shown.collect())
    }

    fn program_ids(&self) -> Result<BTreeSet<u32>> {
        let mut ids = BTreeSet::new();
        for slot in Slot::all().filter(|slot| *slot != Slot::OnPass) {
            ids.extend(self.maps().slots.find(&(slot as u32)).ok().flatten());
        }
        let Some(pins) = self.pins() else { return Ok(ids) };
        ids.extend(crate::programs::capture::program_id(pins));
        let links = pins.iface_names()?.into_iter().map(|name| pins.link(&name));
        let losses = pins.loss_names()?.into_iter().map(|name| pins.loss(&name));
        for path in links.chain(losses).filter(|path| path.exists()) {
            ids.insert(info_of(&open_link(&path)?, &path)?.program);
        }
        Ok(ids)
    }

    fn private_maps(&self) -> Result<Vec<MapMemory>> {
        let id = |(_, map): (MapName, &MapHandle)| map.info().ok().map(|info| info.info.id);
        let pinned: BTreeSet<u32> = self.maps().all().filter_map(id).collect();
        let ids = self.programs()?.into_iter().flat_map(|program| program.maps);
        let ids: BTreeSet<u32> = ids.filter(|id| !pinned.contains(id)).collect();
        let maps = ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
        let shown = maps.map(|map| {
            let name = map.name().to_string_lossy().into_owned();
            let (purpose, when_full) = private_text(&name).unwrap_or(("", WhenFull::Then("")));
            MapMemory {
                purpose,
                when_full,
                pinned: false,
                max_entries: map.max_entries().into(),
                used_entries: None,
                bytes: memlock(&map).map(|bytes| bytes + capture_rings_inside(&name, map)),
                name: section_name(&name),
            }
        });
        Ok(shown.collect())
    }

    /// How much there is room for. An entry of the flow tables' maps is a bucket of several flows,
    /// and it is flows that are counted.
    fn room(&self, name: MapName, map: &MapHandle) -> Result<u64> {
        let entries = u64::from(map.max_entries());
        Ok(match name {
            MapName::flows => self.nat_flows()?.capacity(),
            MapName::flow_index => entries * u64::from(RW_INDEX_ENTRIES),
            MapName::tracked => track_capacity(map.max_entries()),
            _ => entries,
        })
    }

    /// How many entries are in use, where that costs little to know.
    fn used(&self, name: MapName, map: &MapHandle, rows: &Rows) -> Result<Option<u64>> {
        let count = |number: usize| Some(number as u64);
        Ok(match name {
            MapName::settings | MapName::daemon => Some(1),
            MapName::ifaces | MapName::devices | MapName::ledger => {
                let mut used = 0;
                self.maps().ifaces.for_each(|_, iface| {
                    used += u64::from(iface.ifindex != 0);
                })?;
                Some(used)
            }
            MapName::service_info | MapName::labels => count(rows.info.len()),
            MapName::backends | MapName::traffic => {
                let live = |row: &&(u32, _)| !crate::tables::rows::is_vacant(&row.1);
                count(rows.backends.iter().filter(live).count())
            }
            MapName::nat_addrs => count(rows.nat.len()),
            // Each takes 8 bytes of a cache line in the index as well.
            MapName::flows | MapName::flow_index => Some(self.flows()?.total()),
            MapName::tracked => {
                let counts = self.tracked_counts()?;
                Some(counts.promoted + counts.on_probation)
            }
            _ if matches!(map.map_type(), MapType::Hash) => count(map.keys().count()),
            _ => None,
        })
    }

    /// All rings have one size.
    fn rings_inside(&self, rings: &BTreeSet<u32>) -> Result<Inside> {
        let one = rings.iter().find_map(|ring| inner(&self.maps().rings, *ring));
        let each = one.as_ref().and_then(memlock).unwrap_or_default();
        Ok(Inside { maps: Some(rings.len() as u64), bytes: each * rings.len() as u64 })
    }

    fn shifts_inside(&self) -> Inside {
        let table = inner(&self.maps().shifts, 0);
        Inside {
            maps: Some(table.is_some().into()),
            bytes: table.as_ref().and_then(memlock).unwrap_or_default(),
        }
    }

    fn pairs_inside(&self, rings: &BTreeSet<u32>) -> Result<Inside> {
        if rings.len() > RINGS_LOOKED_AT {
            return Ok(Inside::default());
        }
        let found = rings.iter().filter_map(|ring| inner(&self.maps().pairs, *ring));
        Ok(found.fold(Inside { maps: Some(0), bytes: 0 }, |sum, map| Inside {
            maps: sum.maps.map(|maps| maps + 1),
            bytes: sum.bytes + memlock(&map).unwrap_or_default(),
        }))
    }
}

#[derive(Default)]
struct Inside {
    maps: Option<u64>,
    bytes: u64,
}

fn inner(outer: &Map<u32, u32>, key: u32) -> Option<MapHandle> {
    MapHandle::from_map_id(outer.find(&key).ok()??).ok()
}

fn private_text(name: &str) -> Option<(&'static str, WhenFull)> {
    // The kernel keeps 15 bytes of a name.
    let known = |part: &str| match part.strip_prefix('.') {
        // gateway.rodata, gatewa.rodata.dry
        Some(_) => name.contains(part) || part.starts_with(name.rsplit('.').next().unwrap_or("?")),
        None => name == part,
    };
    PRIVATE.iter().find(|(part, ..)| known(part)).map(|(_, purpose, full)| (*purpose, *full))
}

/// The rings of captures, of which each has its own size.
fn capture_rings_inside(name: &str, map: MapHandle) -> u64 {
    let map = Map::from(map);
    let rings = (0..RW_CAPTURES).filter(|_| name == "capture_rings");
    rings.filter_map(|number| memlock(&inner(&map, number)?)).sum()
}

/// libbpf puts a part of the object's name, or its address, before that of a section.
fn section_name(name: &str) -> String {
    match name.split_once('.') {
        Some((_, section)) => format!(".{section}"),
        None => name.to_owned(),
    }
}

/// Bytes that the kernel accounts for a map (kernel/bpf/syscall.c, bpf_map_show_fdinfo).
fn memlock(map: &MapHandle) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::ObjectBuilder;

    /// Of what a node loads; probe, decap and rings hold maps of other processes.
    #[test]
    fn every_map_has_its_words() {
        let loaded = ["root", "gateway", "redirect_errors", "capture"];
        for (object, bytes) in crate::objects().filter(|(name, _)| loaded.contains(name)) {
            let open = ObjectBuilder::default().open_memory(bytes).expect("the object opens");
            for map in open.maps() {
                let name = map.name().to_string_lossy().into_owned();
                let template = name.ends_with("_template");
                let pinned = MapName::ALL.iter().any(|known| known.name() == name);
                assert!(pinned || template || private_text(&name).is_some(), "{object}: {name}");
            }
        }
        let pinned = MapName::ALL.iter().map(|map| map.text());
        for (purpose, full) in
            pinned.chain(PRIVATE.iter().map(|(_, purpose, full)| (*purpose, *full)))
        {
            assert!(!purpose.is_empty() && !full.text().is_empty(), "{purpose}");
        }
        assert_eq!(private_text("sockets"), None);
        assert_eq!(
            (section_name("292b68_2.rodata"), section_name("icmp_rooms")),
            (".rodata".into(), "icmp_rooms".into())
        );
    }
}
