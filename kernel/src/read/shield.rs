//! What the shield has counted.

use std::collections::BTreeMap;
use std::ops::Range;

use libbpf_rs::MapCore;
use ringway_abi::raw::{
    RW_SHIELD_COUNT_LISTS, RW_SHIELD_COUNT_RUNTIME_ALLOW, RW_SHIELD_COUNT_RUNTIME_BLOCK,
    rw_shield_count, rw_shield_observed,
};
use ringway_abi::{Reason, ShieldMode, Slot};

use super::View;
use super::tracked::now_seconds;
use crate::Result;
use crate::tables::rows::label_text;

/// Counts of the shield.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShieldCounts {
    /// By name: packets that the rule matched.
    pub rules: BTreeMap<String, rw_shield_count>,
    /// By name: packets from sources in the list.
    pub lists: BTreeMap<String, rw_shield_count>,
    /// Packets from sources that were allowed at run time.
    pub runtime_allow: rw_shield_count,
    pub runtime_block: rw_shield_count,
    /// Packets that would have been dropped; only what occurred.
    pub observed: BTreeMap<Reason, u64>,
}

impl View {
    /// Whether packets meet a shield.
    pub fn is_shielded(&self) -> Result<bool> {
        Ok(self.maps.slots.find(&(Slot::Shield as u32))?.is_some())
    }

    /// The mode that stands in place of the configuration's now, and for how many seconds more.
    pub fn shield_override(&self) -> Result<Option<(ShieldMode, u32)>> {
        if !self.has_shield_maps() {
            return Ok(None);
        }
        let control = self.maps.shield_control.get(0)?;
        let left = control.until.saturating_sub(now_seconds());
        let mode = ShieldMode::try_from(control.mode).ok();
        Ok(mode.filter(|_| left > 0).map(|mode| (mode, left)))
    }

    /// Counts up to now. All zero where an earlier version made the tables.
    pub fn shield_counts(&self) -> Result<ShieldCounts> {
        if !self.has_shield_maps() {
            return Ok(ShieldCounts::default());
        }
        Ok(ShieldCounts {
            rules: self.named_counts(0..RW_SHIELD_COUNT_LISTS)?,
            lists: self.named_counts(RW_SHIELD_COUNT_LISTS..RW_SHIELD_COUNT_RUNTIME_ALLOW)?,
            runtime_allow: self.shield_count(RW_SHIELD_COUNT_RUNTIME_ALLOW)?,
            runtime_block: self.shield_count(RW_SHIELD_COUNT_RUNTIME_BLOCK)?,
            observed: self.shield_observed()?,
        })
    }

    /// Packets that would have been dropped, by reason; only what occurred.
    pub fn shield_observed(&self) -> Result<BTreeMap<Reason, u64>> {
        if !self.has_shield_maps() {
            return Ok(BTreeMap::new());
        }
        let observed = self.maps.shield_observed.sum(&0, rw_shield_observed::add)?;
        let observed = Reason::all().map(|reason| (reason, observed.packets[reason as usize]));
        Ok(observed.filter(|(_, packets)| *packets > 0).collect())
    }

    fn has_shield_maps(&self) -> bool {
        self.maps.shield_observed.value_size() as usize == size_of::<rw_shield_observed>()
    }

    fn named_counts(&self, places: Range<u32>) -> Result<BTreeMap<String, rw_shield_count>> {
        let mut named = BTreeMap::new();
        for place in places {
            let name = label_text(&self.maps.shield_labels.get(place)?);
            if !name.is_empty() {
                named.insert(name, self.shield_count(place)?);
            }
        }
        Ok(named)
    }

    fn shield_count(&self, place: u32) -> Result<rw_shield_count> {
        self.maps.shield_counts.sum(&place, rw_shield_count::add)
    }
}
