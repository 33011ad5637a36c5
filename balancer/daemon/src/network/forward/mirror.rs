//! The bridge's forwarding table as the packet path has it.

use std::collections::HashMap;

use ringway_host::Mac;
use ringway_host::netlink::bridge::{FdbEntry, FdbKind};
use ringway_kernel::forward::{ForwardTables, StationPlace};
use ringway_plan::forward::{Change, StationTable};

/// What of one bridge's table is mirrored: entries behind interfaces of `[forward]`.
pub struct Mirror {
    bridge: u32,
    /// Slots of ports, by interface index.
    slots: HashMap<u32, u32>,
    table: StationTable,
    /// What is mirrored, or would be if there was room.
    entries: HashMap<(Mac, u16), FdbEntry>,
}

impl Mirror {
    /// Empty, as the tables are.
    pub fn new(bridge: u32, slots: HashMap<u32, u32>, tables: &ForwardTables) -> Self {
        let table = StationTable::new(tables.keys(), ForwardTables::BUCKETS);
        Self { bridge, slots, table, entries: HashMap::new() }
    }

    /// An entry appeared, or changed.
    pub fn put(&mut self, entry: FdbEntry, tables: &ForwardTables) {
        if entry.bridge != self.bridge {
            return;
        }
        let key = (entry.mac, entry.vlan);
        let follows = matches!(entry.kind, FdbKind::Learnt | FdbKind::Static);
        let slot = self.slots.get(&entry.port).copied().filter(|_| follows);
        match slot {
            Some(_) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        };
        let change = match slot {
            Some(slot) => self.table.insert(entry.mac.0, entry.vlan, slot),
            None => self.table.remove(entry.mac.0, entry.vlan),
        };
        write(&change, tables);
    }

    /// An entry has gone.
    pub fn remove(&mut self, entry: &FdbEntry, tables: &ForwardTables) {
        if entry.bridge != self.bridge {
            return;
        }
        self.entries.remove(&(entry.mac, entry.vlan));
        write(&self.table.remove(entry.mac.0, entry.vlan), tables);
    }

    /// Gives places that have become free to who was left out.
    pub fn settle(&mut self, tables: &ForwardTables) {
        self.table.settle().iter().for_each(|change| write(change, tables));
    }

    /// Takes over what the bridge says that it knows: changes are announced in another order than
    /// they happen where several CPUs change one entry.
    pub fn reconcile(&mut self, all: Vec<FdbEntry>, tables: &ForwardTables) {
        let mut gone = self.entries.clone();
        for entry in all {
            gone.remove(&(entry.mac, entry.vlan));
            self.put(entry, tables);
        }
        gone.values().for_each(|entry| self.remove(entry, tables));
    }

    /// Entries that age and that have sent since `second`: the bridge has not seen that.
    pub fn used_since(&self, second: u32, tables: &ForwardTables) -> Vec<FdbEntry> {
        let is_used = |entry: &FdbEntry| {
            let place = self.table.place(entry.mac.0, entry.vlan);
            place.is_some_and(|(bucket, place)| {
                let seen = tables.seen(StationPlace { bucket, place });
                seen != 0 && seen.wrapping_sub(second).cast_signed() >= 0
            })
        };
        let ageing = self.entries.values().filter(|entry| entry.kind == FdbKind::Learnt);
        ageing.filter(|entry| is_used(entry)).copied().collect()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Entries without a place: frames from and to them are the kernel's.
    pub fn left_out(&self) -> usize {
        self.table.left_out()
    }
}

fn write(change: &Change, tables: &ForwardTables) {
    if let Change::Write { bucket, place, key, port } = *change {
        tables.put_station(StationPlace { bucket, place }, key, port);
    }
}
