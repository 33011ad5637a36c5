//! The stations of a bridge and what is written for them.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use ringway_plan::stations::{Change, Station, StationTable, buckets, station_key};

const KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0x9e37_79b9_7f4a_7c15];

fn mac(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 0x72, a, b, c, d]
}

/// The packet path's table, which gets what is written, and looks as bpf/forward does.
struct Written {
    entries: Vec<[(u64, u32); 4]>,
}

impl Written {
    fn new(buckets: usize) -> Self {
        Self { entries: vec![[(0, 0); 4]; buckets] }
    }

    fn write(&mut self, change: Change) {
        if let Change::Write { bucket, place, key, port } = change {
            self.entries[bucket as usize][usize::from(place)] = (key, port);
        }
    }

    /// The ports of all entries with this key, in its buckets.
    fn ports(&self, key: u64) -> Vec<u32> {
        let [first, second] = buckets(key, KEYS, self.entries.len() as u32 - 1);
        let mut places = vec![first, second];
        places.dedup();
        let entries = places.iter().flat_map(|bucket| &self.entries[*bucket as usize]);
        entries.filter(|(found, _)| *found == key).map(|(_, port)| *port).collect()
    }

    fn used(&self) -> usize {
        self.entries.iter().flatten().filter(|(key, _)| *key != 0).count()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u32, u16, u32),
    Remove(u32, u16),
    Settle,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert =
        (0..48u32, 0..2u16, 0..4u32).prop_map(|(n, vlan, port)| Step::Insert(n, vlan, port));
    let remove = (0..48u32, 0..2u16).prop_map(|(n, vlan)| Step::Remove(n, vlan));
    let step = prop_oneof![
        30 => insert,
        15 => remove,
        5 => Just(Step::Settle),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Of few buckets, so that some stations are left out.
    #[test]
    fn every_station_is_where_it_is_looked_for(steps in steps(), bits in 0..5u32) {
        let size = 1 << bits;
        let mut table = StationTable::new(size, KEYS);
        let mut written = Written::new(size as usize);
        let mut known: HashMap<(u32, u16), u32> = HashMap::new();
        for step in steps {
            match step {
                Step::Insert(n, vlan, port) => {
                    known.insert((n, vlan), port);
                    let change = table.insert(mac(n), vlan, port);
                    written.write(change);
                    let there = written.ports(station_key(mac(n), vlan));
                    let expected = if change == Change::LeftOut { vec![] } else { vec![port] };
                    prop_assert_eq!(there, expected);
                }
                Step::Remove(n, vlan) => {
                    known.remove(&(n, vlan));
                    written.write(table.remove(mac(n), vlan));
                    prop_assert!(written.ports(station_key(mac(n), vlan)).is_empty());
                }
                Step::Settle => table.settle().into_iter().for_each(|change| written.write(change)),
                Step::Clear => {
                    known.clear();
                    table.clear();
                    written = Written::new(size as usize);
                }
            }
            check(&table, &written, &known)?;
        }
        // Who is left out has full buckets once the others have settled.
        table.settle().into_iter().for_each(|change| written.write(change));
        check(&table, &written, &known)?;
        for (n, vlan) in known.keys() {
            let key = station_key(mac(*n), *vlan);
            if written.ports(key).is_empty() {
                let full = buckets(key, KEYS, size - 1).iter().all(|bucket| {
                    written.entries[*bucket as usize].iter().all(|(key, _)| *key != 0)
                });
                prop_assert!(full);
            }
        }
    }
}

/// Each station that is known is written once, with its port, or counted as left out.
fn check(
    table: &StationTable,
    written: &Written,
    known: &HashMap<(u32, u16), u32>,
) -> Result<(), TestCaseError> {
    let mut missing = 0;
    let mut expected = BTreeMap::new();
    for ((n, vlan), port) in known {
        match written.ports(station_key(mac(*n), *vlan)).as_slice() {
            [] => missing += 1,
            found => {
                prop_assert_eq!(found, &[*port]);
                expected.insert((mac(*n), *vlan), *port);
            }
        }
    }
    prop_assert_eq!(table.left_out(), missing);
    prop_assert_eq!(written.used(), expected.len());
    prop_assert_eq!((table.len(), table.is_empty()), (expected.len(), expected.is_empty()));
    let listed: BTreeMap<_, _> = table.iter().map(|s| ((s.mac, s.vlan), s.port)).collect();
    prop_assert_eq!(listed, expected);
    for Station { mac, vlan, bucket, place, .. } in table.iter() {
        let (key, _) = written.entries[bucket as usize][usize::from(place)];
        prop_assert_eq!(key, station_key(mac, vlan));
    }
    Ok(())
}

#[test]
fn a_table_that_is_three_fifths_full_leaves_few_out() {
    let size = 4096;
    let mut table = StationTable::new(size, KEYS);
    let stations = size * 4 * 6 / 10;
    // Neighbouring addresses, as a maker of NICs gives them.
    let changes: Vec<Change> = (0..stations).map(|n| table.insert(mac(n), 0, 1)).collect();
    let left_out = changes.iter().filter(|change| **change == Change::LeftOut).count();
    assert_eq!((table.left_out(), table.len()), (left_out, stations as usize - left_out));
    assert!(left_out * 100 < stations as usize, "{left_out} of {stations}");
}

#[test]
fn a_move_is_written_in_place_and_a_repetition_not_at_all() {
    let mut table = StationTable::new(16, KEYS);
    let Change::Write { bucket, place, key, port } = table.insert(mac(1), 5, 3) else {
        panic!("no room")
    };
    assert_eq!((key, port), (0x0005_0100_0000_7202, 3));
    assert_eq!(table.insert(mac(1), 5, 3), Change::Nothing);
    assert_eq!(table.insert(mac(1), 5, 4), Change::Write { bucket, place, key, port: 4 });
    assert_eq!(table.remove(mac(1), 6), Change::Nothing);
    assert_eq!(table.remove(mac(1), 5), Change::Write { bucket, place, key: 0, port: 0 });
    assert_eq!(table.insert([0; 6], 0, 1), Change::Nothing);
    assert!(table.is_empty());
}

/// Somebody may send from as many addresses as the bridge takes.
#[test]
fn so_many_that_are_left_out_are_remembered() {
    let mut table = StationTable::new(1, KEYS);
    let most = 65536;
    for n in 0..most + 4 {
        let _ = table.insert(mac(n), 0, 1);
    }
    assert_eq!((table.len(), table.left_out()), (4, most as usize));
    assert_eq!(table.insert(mac(most + 4), 0, 1), Change::LeftOut);
    assert_eq!(table.left_out(), most as usize + 1);
    // Of those that are remembered, one gets the place.
    assert_ne!(table.remove(mac(0), 0), Change::Nothing);
    assert_eq!((table.settle().len(), table.left_out()), (1, most as usize));
    table.clear();
    assert_eq!((table.left_out(), table.settle()), (0, vec![]));
}

/// The hash is a contract with bpf/forward/bridge.bpf.h.
#[test]
fn buckets_of_a_key() {
    assert_eq!(buckets(0x0005_0100_0000_7202, KEYS, 0x7fff), [1334, 20639]);
}
