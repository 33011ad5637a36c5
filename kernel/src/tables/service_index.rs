//! The rows of `services` by a hash of their keys, which packets look up without a call
//! (bpf/gateway/service.bpf.h). There are several parts: one that is not in force is written, then
//! put in force by one word. What cannot be built or written leaves the former one in force.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering::Release, fence};
use std::thread::{Builder, JoinHandle};

use libbpf_rs::MapCore;
use ringway_abi::IntoBytes;
use ringway_abi::raw::{
    RW_MAX_SERVICE_ENTRIES, RW_SERVICE_PARTS, rw_service, rw_service_key, rw_service_part,
    rw_service_place,
};

use crate::maps::Maps;
use crate::maps::table_view::TableView;
use crate::sources::random::Purpose;
use crate::tables::rings;
use crate::{Error, Result};

/// Room for so many at least: four megabytes.
const LEAST_ROWS: u32 = 8192;
/// Of those in use.
const LEAST_PLACES: u32 = 256;
/// Two places for each key are enough up to this part of them.
const FULL: u32 = 2;
/// Tries with other hashes: one in a few fails at the most.
const TRIES: usize = 64;
/// Keys that move to their other places for one, at most.
const MOVES: usize = 256;

/// Places of all parts in a table with room for so many rows.
pub(crate) fn places(rows: u32) -> u32 {
    RW_SERVICE_PARTS * places_of(rows.clamp(LEAST_ROWS, RW_MAX_SERVICE_ENTRIES))
}

/// Places in use for so many rows.
fn places_of(rows: u32) -> u32 {
    (FULL * rows).next_power_of_two().max(LEAST_PLACES)
}

/// Rows that there are places for.
pub(crate) fn room(maps: &Maps) -> usize {
    let places = maps.service_places.max_entries() / RW_SERVICE_PARTS / FULL;
    places.min(maps.services.max_entries()) as usize
}

/// Refuses more rows than there are places for.
pub(crate) fn check(rows: usize, maps: &Maps) -> Result<()> {
    let most = room(maps);
    if rows <= most {
        return Ok(());
    }
    Err(Error::Tables(format!(
        "ports and addresses take {rows} rows, and the tables were made for {most}: restart the \
         daemon, which makes larger ones"
    )))
}

/// Who writes the index.
#[derive(Debug, Default)]
pub(crate) struct ServiceIndex {
    /// `services` has changed since it was written.
    pub(crate) stale: bool,
    /// For each part that was in force: waits until no packet is left in it.
    graces: [Option<JoinHandle<()>>; PARTS],
}

const PARTS: usize = RW_SERVICE_PARTS as usize;

impl ServiceIndex {
    /// Puts these services in force, all at once.
    pub(crate) fn put(
        &mut self,
        maps: &Maps,
        services: &BTreeMap<rw_service_key, rw_service>,
    ) -> Result<()> {
        let rows: Vec<_> = services.iter().collect();
        let mut index = maps.service_index.get(0)?;
        let former = index.in_force as usize % PARTS;
        let next = (former + 1) % PARTS;
        let most = maps.service_places.max_entries() / RW_SERVICE_PARTS;
        let (first, places) = (next as u32 * most, places_of(rows.len() as u32).min(most));
        let (keys, written) =
            build(&rows, places, maps.sources.randomness.words(Purpose::ServiceIndex))?;
        if let Some(grace) = self.graces[next].take() {
            // It does nothing that can panic.
            _ = grace.join();
        }
        TableView::write(&maps.service_places, first, &written, "map the index of services")?;
        fence(Release);
        let blocks = rows.iter().any(|(key, _)| key.block != 0).into();
        index.parts[next] = rw_service_part { keys, first, mask: places - 1, blocks, pad: 0 };
        maps.service_index.put(&0, &index)?;
        fence(Release);
        index.in_force = next as u32;
        maps.service_index.put(&0, &index)?;
        self.stale = false;
        self.graces[former] = wait_later();
        Ok(())
    }

    /// Notes that the index and `services` agree.
    pub(crate) fn confirm(&self, maps: &Maps) -> Result<()> {
        let mut index = maps.service_index.get(0)?;
        index.epoch = maps.settings.get(0)?.services_epoch;
        maps.service_index.put(&0, &index)
    }
}

/// Waits for the packets under way, on a thread of its own.
fn wait_later() -> Option<JoinHandle<()>> {
    let waits = Builder::new().name("services-grace".into()).spawn(rings::grace).ok();
    if waits.is_none() {
        // The kernel gives no thread now.
        rings::grace();
    }
    waits
}

type Keys = [u64; 3];
type Row<'a> = (&'a rw_service_key, &'a rw_service);

/// A part, and the keys of its hash.
fn build(
    rows: &[Row<'_>],
    places: u32,
    mut new_keys: impl FnMut() -> Result<Keys>,
) -> Result<(Keys, Vec<rw_service_place>)> {
    for _ in 0..TRIES {
        let keys = new_keys()?;
        if let Some(placed) = place(rows, places, &keys) {
            let written = placed.into_iter().map(|row| match row.map(|row| rows[row]) {
                Some((key, service)) => {
                    rw_service_place { key: *key, service: *service, ..Default::default() }
                }
                None => rw_service_place::default(),
            });
            return Ok((keys, written.collect()));
        }
    }
    Err(Error::Tables(format!("no hash was found that gives {} services a place", rows.len())))
}

/// Which row has which place. `None`: some row finds none.
fn place(rows: &[Row<'_>], places: u32, keys: &Keys) -> Option<Vec<Option<usize>>> {
    let of: Vec<[usize; 2]> = rows.iter().map(|(key, _)| both_places(key, places, keys)).collect();
    let mut placed = vec![None; places as usize];
    for row in 0..rows.len() {
        let (mut moving, mut at) = (row, of[row][0]);
        let mut moves = 0;
        // Whoever has the place goes to the other one of its own.
        while let Some(former) = placed[at].replace(moving) {
            moves += 1;
            if moves == MOVES {
                return None;
            }
            moving = former;
            at = if of[former][0] == at { of[former][1] } else { of[former][0] };
        }
    }
    Some(placed)
}

/// As service_entry() in bpf/gateway/service.bpf.h.
fn both_places(key: &rw_service_key, places: u32, keys: &Keys) -> [usize; 2] {
    let word = |n: usize| {
        let bytes = key.as_bytes()[4 * n..].first_chunk();
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let sum = pair(keys[0], word(0), word(1))
        .wrapping_add(pair(keys[1], word(2), word(3)))
        .wrapping_add(pair(keys[2], word(4), 0));
    let mixed = (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let hash = mixed ^ mixed >> 32;
    [hash as u32, (hash >> 32) as u32].map(|half| (half & (places - 1)) as usize)
}

/// nh_pair() in bpf/gateway/hash.bpf.h.
fn pair(key: u64, a: u32, b: u32) -> u64 {
    u64::from(a.wrapping_add(key as u32)) * u64::from(b.wrapping_add((key >> 32) as u32))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn row(n: u32) -> (rw_service_key, rw_service) {
        let addr = [0, 0, 0xffff, 0x0a00_0000 + n / 3].map(u32::to_be);
        let (port_be, proto) = (((n % 3) as u16 + 80).to_be(), 6);
        let key = rw_service_key { addr, port_be, proto, block: 0 };
        (key, rw_service { id: n, ..Default::default() })
    }

    fn pseudo_random(seed: u64) -> impl FnMut() -> Result<Keys> {
        let mut state = seed;
        move || {
            Ok([(); 3].map(|()| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state ^ state >> 29
            }))
        }
    }

    #[test]
    fn every_row_has_one_of_its_places() {
        for count in [0, 1, 100, 4_096, 100_000] {
            let rows: Vec<_> = (0..count).map(row).collect();
            let rows: Vec<_> = rows.iter().map(|(key, service)| (key, service)).collect();
            let places = places_of(count);
            let (keys, written) = build(&rows, places, pseudo_random(count.into())).unwrap();
            assert_eq!(written.len(), places as usize);
            for (key, service) in &rows {
                let found = both_places(key, places, &keys).map(|place| written[place]);
                let found = found.iter().find(|place| place.key == **key).unwrap();
                assert_eq!(found.service, **service);
            }
            let used = written.iter().filter(|place| place.key.proto != 0).count();
            assert_eq!(used, rows.len());
        }
    }

    #[test]
    fn two_rows_of_one_key_have_no_hash() {
        let (key, service) = row(1);
        let rows = [(&key, &service); 3];
        let mut tried = HashSet::new();
        let mut keys = pseudo_random(7);
        let failed = build(&rows, LEAST_PLACES, || keys().inspect(|keys| _ = tried.insert(*keys)));
        assert!(failed.unwrap_err().to_string().contains("3 services"));
        assert_eq!(tried.len(), TRIES);
    }
}
