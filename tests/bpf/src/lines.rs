//! The cache lines of maps that a packet changes.

use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapHandle, MapType};
use ringway_abi::Slot;

use crate::World;
use crate::cast::FRONT;
use crate::map_batch::dump;

/// 64 bytes of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub map: String,
    /// Whose they are; `None`: every CPU's.
    pub cpu: Option<usize>,
    pub element: usize,
    /// Of the element's lines.
    pub number: usize,
}

const BYTES: usize = 64;

/// The lines that are not as they were after this, of every array that the node's programs use.
pub fn changed(world: &World, packet: impl FnOnce()) -> Vec<Line> {
    let maps = arrays(world);
    let read = || maps.iter().map(|map| dump(map.as_fd())).collect::<Vec<_>>();
    let before = read();
    packet();
    let after = read();
    let each = maps.iter().zip(before.iter().zip(&after));
    each.flat_map(|(map, (before, after))| differing(map, before, after)).collect()
}

fn arrays(world: &World) -> Vec<MapHandle> {
    let programs = [world.root(FRONT).another(), world.stage(Slot::Balance)];
    let mut ids: Vec<u32> = programs.iter().flat_map(|program| program.map_ids()).collect();
    ids.sort_unstable();
    ids.dedup();
    let maps = ids.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
    maps.filter(|map| matches!(map.map_type(), MapType::Array | MapType::PercpuArray)).collect()
}

/// `before` and `after`: the keys, then the values.
fn differing(map: &MapHandle, before: &[u8], after: &[u8]) -> Vec<Line> {
    let entries = map.max_entries() as usize;
    let keys = entries * map.key_size() as usize;
    let cpus = match map.map_type() {
        MapType::PercpuArray => libbpf_rs::num_possible_cpus().unwrap(),
        _ => 1,
    };
    let value = (before.len() - keys) / entries / cpus;
    let both = before[keys..].chunks(value).zip(after[keys..].chunks(value));
    let mut lines = Vec::new();
    for (at, (before, after)) in both.enumerate().filter(|(_, (before, after))| before != after) {
        let numbers = before.chunks(BYTES).zip(after.chunks(BYTES)).enumerate();
        lines.extend(numbers.filter(|(_, (before, after))| before != after).map(|(number, _)| {
            Line {
                map: map.name().to_string_lossy().into_owned(),
                cpu: (map.map_type() == MapType::PercpuArray).then_some(at % cpus),
                element: at / cpus,
                number,
            }
        }));
    }
    lines
}
