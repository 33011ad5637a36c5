//! Puts generations in force, and what is set without another one.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use ringway_abi::raw::{rw_shield_control, rw_shield_prefix, rw_shield_runtime};
use ringway_abi::{ShieldMode, Slot};

use ringway_plan::prefix_list::Prefix;

use super::challenge_key;
use super::generation::{Generation, make};
use super::runtime::{RuntimePrefix, runtime_key, runtime_row, runtime_rows};
use crate::gateway::Gateway;
use crate::maps::Map;
use crate::programs::capture;
use crate::read::shield::Arrivals;
use crate::tables::rings::grace;
use crate::{Error, Result};

impl Gateway {
    /// Puts another generation in force, or takes the shield away. After a failure the former one
    /// is in force.
    ///
    /// # Errors
    /// No memory, or the kernel refuses a program.
    pub fn set_shield(&mut self, generation: Option<&Generation<'_>>) -> Result<()> {
        let maps = self.shared_maps().clone();
        let slot = Slot::Shield as u32;
        match generation {
            Some(generation) => {
                let (program, made) = make(&maps, generation)?;
                if generation.answers {
                    challenge_key::set(&maps.syn_secrets, generation.challenge_key, &maps.sources)?;
                }
                maps.slots.put_fd(slot, program.as_fd())?;
                self.shield.made = Some(made);
            }
            None if maps.slots.find(&slot)?.is_none() => return Ok(()),
            None => {
                maps.slots.remove(&slot)?;
                self.shield.made = None;
            }
        }
        // No packet is left in the former one when its place for rules is used again.
        grace();
        self.captures_are_stale();
        Ok(())
    }

    /// A program that captures have their own of is another one now.
    pub(crate) fn captures_are_stale(&mut self) {
        self.shield.captures_stale = true;
        self.renew_captures();
    }

    /// Gives captures that are under way the programs in force. Where one just begins, or that
    /// cannot be, the next heartbeat tries again: a capture is no reason to have no shield.
    pub(crate) fn renew_captures(&mut self) {
        let (true, Some(pins)) = (self.shield.captures_stale, self.pins()) else { return };
        let own = (self.shield.made.as_ref(), self.forwarding.instance.as_ref());
        let renewed = capture::renew(pins, self.maps(), own);
        match renewed {
            Ok(renewed) => self.shield.captures_stale = !renewed,
            Err(error) => tracing::debug!("captures have former programs: {error}"),
        }
    }

    /// Makes these the prefixes that are allowed and blocked at run time.
    ///
    /// # Errors
    /// More than `RW_SHIELD_RUNTIME` of a kind.
    pub fn set_runtime_prefixes(&mut self, prefixes: &[RuntimePrefix]) -> Result<()> {
        let maps = self.maps();
        let (allows, blocks): (Vec<_>, Vec<_>) = prefixes.iter().partition(|prefix| prefix.allow);
        // A packet looks where the count is not 0.
        let allows = put_runtime(&maps.runtime_allow, &runtime_rows(&allows))?;
        let blocks = put_runtime(&maps.runtime_block, &runtime_rows(&blocks))?;
        let control = maps.shield_control.get(0)?;
        maps.shield_control.put(&0, &rw_shield_control { allows, blocks, ..control })
    }

    /// Changes some of them: these are allowed or blocked, and those that are gone are neither.
    /// `allows` and `blocks`: how many there are then. As [`Gateway::set_runtime_prefixes`] does it,
    /// a prefix within others of its kind has to last as long as any of them.
    pub fn change_runtime_prefixes(
        &mut self,
        changed: &[RuntimePrefix],
        gone: &[Prefix],
        (allows, blocks): (u32, u32),
    ) -> Result<()> {
        let maps = self.maps();
        let of = |allow| if allow { &maps.runtime_allow } else { &maps.runtime_block };
        // First, so that there is room in a full map. Until the next rows are there, for microseconds, a
        // packet from what is gone meets the prefix around it, if any: as it does for good afterwards.
        // A prefix that only changes its kind has a row all along.
        for prefix in gone {
            of(true).remove(&runtime_key(*prefix))?;
            of(false).remove(&runtime_key(*prefix))?;
        }
        for entry in changed {
            of(entry.allow).put(&runtime_key(entry.prefix), &runtime_row(entry))?;
        }
        let control = maps.shield_control.get(0)?;
        maps.shield_control.put(&0, &rw_shield_control { allows, blocks, ..control })?;
        for entry in changed {
            of(!entry.allow).remove(&runtime_key(entry.prefix))?;
        }
        Ok(())
    }

    /// Puts a mode in place of every other, until a second of CLOCK_MONOTONIC; `None`: no more.
    pub fn set_shield_override(&mut self, mode: Option<(ShieldMode, u32)>) -> Result<()> {
        let (mode, until) = mode.map_or((0, 0), |(mode, until)| (mode as u32, until));
        let control = self.maps().shield_control.get(0)?;
        self.maps().shield_control.put(&0, &rw_shield_control { mode, until, ..control })
    }

    /// What services with limits have met, by their ids.
    ///
    /// # Errors
    /// A change of the tables failed on the way, and no later one has succeeded.
    pub fn arrivals(&self) -> Result<Vec<(u16, Arrivals)>> {
        let ids = self.rows.as_ref().ok_or(Error::TablesUnknown)?.policies.keys();
        ids.map(|id| Ok((*id as u16, Arrivals::read(self.maps(), *id)?))).collect()
    }

    /// Puts the armed limits of a service in force, until a second of CLOCK_MONOTONIC; 0: no more.
    pub fn arm(&mut self, service: u16, until: u32) -> Result<()> {
        self.maps().shield_armed.put(&service.into(), &until)
    }
}

/// Writes what differs. Returns how many there are.
fn put_runtime(
    map: &Map<rw_shield_prefix, rw_shield_runtime>,
    rows: &BTreeMap<rw_shield_prefix, rw_shield_runtime>,
) -> Result<u32> {
    let there: BTreeMap<_, _> = map.entries()?.into_iter().collect();
    for key in there.keys().filter(|key| !rows.contains_key(key)) {
        map.remove(key)?;
    }
    for (key, row) in rows.iter().filter(|(key, row)| there.get(key) != Some(row)) {
        map.put(key, row)?;
    }
    Ok(rows.len() as u32)
}
