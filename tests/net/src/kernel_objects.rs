//! What a node has of eBPF in the kernel.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Result;
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::Gateway;

/// Ids, which the kernel does not give twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelObjects {
    pub programs: BTreeSet<u32>,
    pub maps: BTreeSet<u32>,
    pub links: BTreeSet<u32>,
}

impl KernelObjects {
    /// The node's pinned maps, and all that is reached from them: programs with one of these maps
    /// or in one of them, the maps of these programs, and their links.
    pub fn of(gateway: &Gateway) -> Result<KernelObjects> {
        let mut own = KernelObjects::default();
        for entry in fs::read_dir(gateway.pins().join("maps"))? {
            own.maps.insert(MapHandle::from_pinned_path(entry?.path())?.info()?.info.id);
        }
        loop {
            let before = own.clone();
            for map in &before.maps {
                own.programs.extend(programs_in(*map)?);
            }
            let options = ProgInfoQueryOptions::default().include_map_ids(true);
            for program in ProgInfoIter::with_query_opts(options) {
                let shares = program.map_ids.iter().any(|map| own.maps.contains(map));
                if shares || own.programs.contains(&program.id) {
                    own.programs.insert(program.id);
                    own.maps.extend(program.map_ids);
                }
            }
            if own == before {
                break;
            }
        }
        let links = LinkInfoIter::default();
        own.links = links.filter(|l| own.programs.contains(&l.prog_id)).map(|l| l.id).collect();
        Ok(own)
    }

    /// Those of them that are still there.
    pub fn left(&self) -> KernelObjects {
        let of = |own: &BTreeSet<u32>, all: &mut dyn Iterator<Item = u32>| {
            all.filter(|id| own.contains(id)).collect()
        };
        KernelObjects {
            programs: of(&self.programs, &mut ProgInfoIter::default().map(|found| found.id)),
            maps: of(&self.maps, &mut MapInfoIter::default().map(|found| found.id)),
            links: of(&self.links, &mut LinkInfoIter::default().map(|found| found.id)),
        }
    }
}

/// Those that a map leads to.
fn programs_in(map: u32) -> Result<Vec<u32>> {
    let map = MapHandle::from_map_id(map)?;
    if map.map_type() != MapType::ProgArray {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for key in map.keys() {
        let id = map.lookup(&key, MapFlags::ANY)?;
        found.extend(id.and_then(|id| Some(u32::from_ne_bytes(id.try_into().ok()?))));
    }
    Ok(found)
}
