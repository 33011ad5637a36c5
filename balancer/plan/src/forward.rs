//! The mirror of a bridge's forwarding table, as the packet path looks it up (bpf/abi/forward.h).
//!
//! A station has a place in one of its two buckets. One whose buckets are both full has none: its
//! frames are the kernel's. Nothing is moved to make room, so a change is one write.

use std::collections::HashMap;

use ringway_abi::raw::{RW_BUCKET_STATIONS, RW_MAX_STATIONS};

const BUCKET: usize = RW_BUCKET_STATIONS as usize;

/// What has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// It found no place.
    LeftOut,
    /// A place.
    Write {
        /// Number of the bucket.
        bucket: u32,
        /// Place in it, below `RW_BUCKET_STATIONS`.
        place: u8,
        /// MAC address and VLAN; 0: the place is free.
        key: u64,
        /// Interface slot.
        port: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Station {
    bucket: u32,
    place: u8,
    port: u32,
}

/// Stations by MAC address and VLAN, each with its place.
#[derive(Clone, Debug)]
pub struct StationTable {
    keys: [u64; 2],
    mask: u32,
    buckets: Vec<[u64; BUCKET]>,
    stations: HashMap<u64, Station>,
    /// With their ports.
    left_out: HashMap<u64, u32>,
    /// A place has become free since [`StationTable::settle`] looked.
    freed: bool,
}

/// The number of a station in the tables: `vlan` is 0 where VLANs are not told apart.
pub fn key(mac: [u8; 6], vlan: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(vlan) << 48
}

/// The two buckets of a key; `mask`: their number - 1, a power of two's.
pub fn buckets(key: u64, keys: [u64; 2], mask: u32) -> [u32; 2] {
    let hash = (key ^ keys[0]).wrapping_mul(keys[1]);
    let hash = (hash ^ hash >> 29).wrapping_mul(keys[1]);
    [(hash >> 40) as u32 & mask, (hash >> 16) as u32 & mask]
}

impl StationTable {
    /// Empty. `keys`: random, the second odd; `buckets`: a power of two, at most 2^24.
    pub fn new(keys: [u64; 2], buckets: u32) -> Self {
        let buckets = buckets.next_power_of_two();
        Self {
            keys,
            mask: buckets - 1,
            buckets: vec![[0; BUCKET]; buckets as usize],
            stations: HashMap::new(),
            left_out: HashMap::new(),
            freed: false,
        }
    }

    /// A station is behind this interface slot now.
    pub fn insert(&mut self, mac: [u8; 6], vlan: u16, port: u32) -> Change {
        self.put(key(mac, vlan), port)
    }

    /// Finds places for stations that were left out, after others have gone: what has to be
    /// written.
    pub fn settle(&mut self) -> Vec<Change> {
        if !std::mem::take(&mut self.freed) {
            return Vec::new();
        }
        let waiting: Vec<(u64, u32)> =
            self.left_out.iter().map(|(key, port)| (*key, *port)).collect();
        let changes = waiting.into_iter().map(|(key, port)| self.put(key, port));
        changes.filter(|change| *change != Change::LeftOut).collect()
    }

    fn put(&mut self, key: u64, port: u32) -> Change {
        if let Some(station) = self.stations.get_mut(&key) {
            if station.port == port {
                return Change::Nothing;
            }
            station.port = port;
            return Change::Write { bucket: station.bucket, place: station.place, key, port };
        }
        // 0 is what a free place has, and no station's address.
        let Some((bucket, place)) = self.free_place(key).filter(|_| key != 0) else {
            self.left_out.insert(key, port);
            return Change::LeftOut;
        };
        self.left_out.remove(&key);
        self.buckets[bucket as usize][usize::from(place)] = key;
        self.stations.insert(key, Station { bucket, place, port });
        Change::Write { bucket, place, key, port }
    }

    /// It is not known any more.
    pub fn remove(&mut self, mac: [u8; 6], vlan: u16) -> Change {
        let key = key(mac, vlan);
        self.left_out.remove(&key);
        let Some(Station { bucket, place, .. }) = self.stations.remove(&key) else {
            return Change::Nothing;
        };
        self.buckets[bucket as usize][usize::from(place)] = 0;
        self.freed = true;
        Change::Write { bucket, place, key: 0, port: 0 }
    }

    /// Bucket and place of a station.
    pub fn place(&self, mac: [u8; 6], vlan: u16) -> Option<(u32, u8)> {
        self.stations.get(&key(mac, vlan)).map(|station| (station.bucket, station.place))
    }

    /// Stations that have a place.
    pub fn len(&self) -> usize {
        self.stations.len()
    }

    /// Nobody has one.
    pub fn is_empty(&self) -> bool {
        self.stations.is_empty()
    }

    /// Stations that have none.
    pub fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// In the emptier one of its buckets.
    fn free_place(&self, key: u64) -> Option<(u32, u8)> {
        if self.stations.len() >= RW_MAX_STATIONS as usize {
            return None;
        }
        let free =
            |bucket: u32| self.buckets[bucket as usize].iter().filter(|key| **key == 0).count();
        let [one, other] = buckets(key, self.keys, self.mask);
        let bucket = if free(other) > free(one) { other } else { one };
        let place = self.buckets[bucket as usize].iter().position(|key| *key == 0)?;
        Some((bucket, place as u8))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3211];

    /// The tables as the packet path has them.
    #[derive(Default)]
    struct Written(HashMap<(u32, u8), (u64, u32)>);

    impl Written {
        fn write(&mut self, change: Change) {
            if let Change::Write { bucket, place, key, port } = change {
                self.0.insert((bucket, place), (key, port));
            }
        }

        /// As bpf/forward/bridge.bpf.h finds it.
        fn port(&self, key: u64, mask: u32) -> Option<u32> {
            let places = |bucket| (0..BUCKET as u8).map(move |place| (bucket, place));
            let mut all = buckets(key, KEYS, mask).into_iter().flat_map(places);
            all.find_map(|at| self.0.get(&at).filter(|(found, _)| *found == key))
                .map(|(_, port)| *port)
        }
    }

    fn mac(number: u16) -> [u8; 6] {
        let [high, low] = number.to_be_bytes();
        [2, 0, 0, 0, high, low]
    }

    proptest! {
        /// Whatever comes and goes, whoever has a place is found by its last port, and nobody else.
        #[test]
        fn the_packet_path_finds_what_is_known(
            steps in vec((0u16..40, 0u16..2, prop::option::of(0u32..4)), 0..200),
        ) {
            let mut table = StationTable::new(KEYS, 8);
            let mut written = Written::default();
            let mut known: HashMap<u64, u32> = HashMap::new();
            for (number, vlan, port) in steps {
                let key = key(mac(number), vlan);
                let change = match port {
                    Some(port) => table.insert(mac(number), vlan, port),
                    None => table.remove(mac(number), vlan),
                };
                match (port, change) {
                    (_, Change::LeftOut) | (None, _) => drop(known.remove(&key)),
                    (Some(port), _) => drop(known.insert(key, port)),
                }
                written.write(change);
                for change in table.settle() {
                    if let Change::Write { key, port, .. } = change {
                        prop_assert_eq!(known.insert(key, port), None);
                    }
                    written.write(change);
                }
                prop_assert_eq!(table.len(), known.len());
                for number in 0..40 {
                    for vlan in 0..2 {
                        let key = super::key(mac(number), vlan);
                        prop_assert_eq!(written.port(key, 7), known.get(&key).copied());
                    }
                }
            }
        }
    }

    #[test]
    fn who_found_no_place_is_counted_until_it_goes_or_finds_one() {
        let mut table = StationTable::new(KEYS, 1);
        let stations: Vec<Change> = (0..5).map(|n| table.insert(mac(n), 0, 1)).collect();
        assert_eq!(stations[4], Change::LeftOut);
        assert_eq!((table.len(), table.left_out()), (4, 1));
        assert_eq!(table.insert(mac(4), 0, 1), Change::LeftOut);
        table.remove(mac(0), 0);
        assert!(matches!(table.settle().as_slice(), [Change::Write { port: 1, .. }]));
        assert_eq!(table.settle(), []);
        assert_eq!((table.len(), table.left_out()), (4, 0));
        assert_eq!(table.insert([0; 6], 0, 1), Change::LeftOut, "0 is free");
    }

    /// The same as station_of() in bpf/forward/bridge.bpf.h.
    #[test]
    fn buckets_of_a_key() {
        let key = key([2, 0x72, 0, 0, 0, 1], 5);
        assert_eq!(key, 0x0005_0100_0000_7202);
        assert_eq!(buckets(key, [KEYS[0], 0x9e37_79b9_7f4a_7c15], 0x7fff), [1334, 20639]);
    }

    /// Half of the places are used then.
    #[test]
    fn a_full_table_leaves_out_next_to_nobody() {
        let mut table = StationTable::new(KEYS, ringway_abi::raw::RW_STATION_BUCKETS);
        for number in 0..RW_MAX_STATIONS {
            let [a, b, c, d] = number.to_be_bytes();
            table.insert([2, 9, a, b, c, d], 0, 1);
        }
        assert_eq!(table.len() + table.left_out(), RW_MAX_STATIONS as usize);
        assert!(table.left_out() < 8, "{}", table.left_out());
    }
}
