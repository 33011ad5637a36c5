//! What the records of tracked flows say about slots that have changed.

use std::collections::{HashMap, HashSet};

use crate::history::Moment;
use crate::rings::Rings;
use crate::tables::RingRow;

/// What was found when all records were looked through. Empty until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// When they were looked through, seconds of CLOCK_MONOTONIC; 0: never.
    pub looked: u32,
    /// By service id: when a flow could not be given a record last, in the same seconds.
    pub failed: HashMap<u16, u32>,
    /// By service id: slots with a record that does not lead to the current owner.
    pub(crate) elsewhere: HashMap<u16, HashSet<u32>>,
}

impl Records {
    /// What is known of slots of these services.
    pub(crate) fn moment<'s>(
        &self,
        services: impl Iterator<Item = &'s u16>,
        now: u32,
        timeout: u32,
    ) -> Moment {
        let failed = services.filter_map(|id| self.failed.get(id)).copied().max();
        Moment { now, timeout, failed: failed.unwrap_or(0), looked: self.looked }
    }

    /// Slots in which any of these services has a flow of another owner.
    pub(crate) fn elsewhere<'s>(&self, services: impl Iterator<Item = &'s u16>) -> HashSet<u32> {
        services.filter_map(|id| self.elsewhere.get(id)).flatten().copied().collect()
    }
}

/// A walk through the records: told of each one, it keeps what the next plan must know.
#[derive(Debug)]
pub struct RecordWalk<'p> {
    /// By the backend's reference.
    settling: HashMap<u32, Settling<'p>>,
    records: Records,
}

#[derive(Clone, Copy, Debug)]
struct Settling<'p> {
    service: u16,
    ring: &'p RingRow,
    members: &'p [u32],
}

impl<'p> RecordWalk<'p> {
    pub(crate) fn new(rings: &'p Rings, now: u32, failed: HashMap<u16, u32>) -> RecordWalk<'p> {
        let mut settling = HashMap::new();
        for (service, ring, members, live) in rings.settling() {
            let living = members.iter().zip(live).filter(|(_, live)| **live);
            settling.extend(living.map(|(m, _)| (*m, Settling { service, ring, members })));
        }
        RecordWalk { settling, records: Records { looked: now, failed, ..Records::default() } }
    }

    /// Whether the records need to be looked through at all.
    pub fn is_needed(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Takes note of a living record: ring slot and backend reference.
    pub fn record(&mut self, slot: u32, backend: u32) {
        let Some(Settling { service, ring, members }) = self.settling.get(&backend).copied() else {
            return;
        };
        let Some(pair) = ring.pair(slot as usize) else { return };
        let current = members.get(usize::from(pair.current));
        if current != Some(&backend) {
            self.records.elsewhere.entry(service).or_default().insert(slot);
        }
    }

    /// What was found.
    pub fn end(self) -> Records {
        self.records
    }
}
