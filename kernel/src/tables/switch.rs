//! Leads services over to their new rings and members, a batch of rings at a time: a ring is 131 kB
//! of the kernel's memory, and a thousand of them are not to be there twice.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ringway_abi::raw::{rw_service, rw_service_key, rw_settings};
use ringway_plan::tables::{RingRow, Tables};

use crate::Result;
use crate::maps::Maps;
use crate::tables::delta::{Applied, changed, gone};
use crate::tables::rings::{self, Retiring};
use crate::tables::rows::Rows;
use crate::tables::service_index::{ServiceIndex, room};

/// Rings put in place, and left, at once.
const BATCH: usize = 128;

/// Puts new rings in place, then the services that lead to them, which packets meet first: that
/// switches a service's ring and members at once. Rings nobody leads to any more are retired.
pub(crate) fn switch(
    maps: &Arc<Maps>,
    tables: &Tables,
    (have, want): (&Rows, &Rows),
    (index, retiring): (&mut ServiceIndex, &mut Retiring),
    done: &mut Applied,
) -> Result<()> {
    let differs = |ring: &&RingRow| have.rings.get(&ring.id) != want.rings.get(&ring.id);
    let rings: Vec<&RingRow> = tables.rings.iter().filter(differs).collect();
    let mut services = Services {
        maps,
        have,
        index,
        now: have.services.clone(),
        missing: rings.iter().map(|ring| ring.id).collect(),
        waiting: changed(&have.services, &want.services).collect(),
        leaving: gone(&have.services, &want.services).collect(),
        stale: gone(&have.rings, &want.rings).copied().collect(),
    };
    done.rings = rings.len();
    done.services = services.waiting.len();
    done.removed = services.leaving.len() + services.stale.len();
    if want.services.len() + services.leaving.len() > room(maps) {
        // Where there is no room for both, ports are without a service for a moment.
        services.remove()?;
    }
    for batch in rings.chunks(BATCH) {
        rings::put(maps, batch)?;
        batch.iter().for_each(|ring| _ = services.missing.remove(&ring.id));
        services.lead_over()?;
        retiring.retire(maps, services.left())?;
    }
    services.lead_over()?;
    services.remove()?;
    retiring.retire(maps, services.left())
}

/// Services on their way from one ring to another.
struct Services<'r> {
    maps: &'r Maps,
    have: &'r Rows,
    index: &'r mut ServiceIndex,
    /// What the table holds.
    now: BTreeMap<rw_service_key, rw_service>,
    /// Rings that are not in place yet.
    missing: HashSet<u32>,
    /// Entries to write.
    waiting: Vec<(&'r rw_service_key, &'r rw_service)>,
    /// Entries to remove.
    leaving: Vec<&'r rw_service_key>,
    /// Rings that are not wanted any more.
    stale: Vec<u32>,
}

impl Services<'_> {
    /// Writes those whose rings are in place.
    fn lead_over(&mut self) -> Result<()> {
        let missing = &self.missing;
        let ready =
            |(_, service): &(&rw_service_key, &rw_service)| !missing.contains(&service.ring);
        let (ready, waiting) = self.waiting.drain(..).partition::<Vec<_>, _>(ready);
        self.waiting = waiting;
        if ready.is_empty() {
            return Ok(());
        }
        let (keys, values): (Vec<rw_service_key>, Vec<rw_service>) =
            ready.into_iter().map(|(key, value)| (*key, *value)).unzip();
        self.index.stale = true;
        let written = self.maps.services.put_all(&keys, &values);
        forget_services(self.maps)?;
        self.now.extend(keys.into_iter().zip(values));
        written?;
        self.index.put(self.maps, &self.now)?;
        self.index.confirm(self.maps)
    }

    fn remove(&mut self) -> Result<()> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        self.leaving.iter().for_each(|key| _ = self.now.remove(key));
        self.index.stale = true;
        // Packets meet them in the index.
        self.index.put(self.maps, &self.now)?;
        self.index.stale = true;
        let removed = self.leaving.drain(..).try_for_each(|key| self.maps.services.remove(key));
        forget_services(self.maps)?;
        removed?;
        self.index.stale = false;
        self.index.confirm(self.maps)
    }

    /// Stale rings that no entry leads to any more, each once: id, and whether it has pairs.
    fn left(&mut self) -> Vec<(u32, bool)> {
        let keys = self.waiting.iter().map(|(key, _)| *key).chain(self.leaving.iter().copied());
        let named: HashSet<u32> = keys
            .filter_map(|key| self.have.services.get(key))
            .map(|service| service.ring)
            .collect();
        let (left, stale) = self.stale.drain(..).partition::<Vec<_>, _>(|id| !named.contains(id));
        self.stale = stale;
        let has_pairs =
            |id: &u32| self.have.rings[id].as_ref().is_some_and(|r| !r.pairs.is_empty());
        left.into_iter().map(|id| (id, has_pairs(&id))).collect()
    }
}

/// Captures of earlier releases look their services up anew.
fn forget_services(maps: &Maps) -> Result<()> {
    let have = maps.settings.get(0)?;
    let services_epoch = have.services_epoch.wrapping_add(1);
    maps.settings.put(&0, &rw_settings { services_epoch, ..have })
}
