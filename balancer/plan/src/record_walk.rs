//! One walk through the records of tracked flows.

use std::collections::HashMap;

use crate::records::Records;
use crate::rings::Rings;
use crate::tables::RingRow;

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
