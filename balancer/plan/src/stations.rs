//! The stations of a bridge, as the packet path keeps them (abi/forward.h).

use std::collections::HashMap;

use ringway_abi::raw::{RW_BUCKET_STATIONS, RW_MAX_STATIONS};

const BUCKET: usize = RW_BUCKET_STATIONS as usize;
/// Stations without a place that are remembered.
const MOST_LEFT_OUT: usize = RW_MAX_STATIONS as usize;

/// What is known of a station (a MAC address in a VLAN): its port, an interface slot, and its place
/// in the packet path's table. A station never changes its place, so that whoever reads the table
/// meanwhile finds it.
#[derive(Debug)]
pub struct StationTable {
    keys: [u64; 2],
    mask: u32,
    /// As they are written.
    buckets: Vec<[Entry; BUCKET]>,
    len: usize,
    /// Both buckets of these were full.
    left_out: HashMap<u64, u32>,
    /// More than are remembered.
    beyond: usize,
    /// A place has become free since [`StationTable::settle`] looked.
    freed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// 0: free.
    key: u64,
    port: u32,
}

/// What has to be written for a station.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This entry.
    Write {
        /// Number of the bucket.
        bucket: u32,
        /// Place in the bucket, below `RW_BUCKET_STATIONS`.
        place: u8,
        /// The station's, see [`station_key`]; 0: the place is free.
        key: u64,
        /// Interface slot.
        port: u32,
    },
    /// The table is right as it is.
    Nothing,
    /// There is no room: the kernel goes on forwarding to and from this station.
    LeftOut,
}

/// A station in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Station {
    /// Its address.
    pub mac: [u8; 6],
    /// 0: the bridge does not filter VLANs.
    pub vlan: u16,
    /// Interface slot of its port.
    pub port: u32,
    /// Number of its bucket.
    pub bucket: u32,
    /// Place in the bucket.
    pub place: u8,
}

/// A MAC address as a number, its first byte lowest, and the VLAN above it.
pub fn station_key(mac: [u8; 6], vlan: u16) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(vlan) << 48
}

/// The two buckets of a key, which may be the same. `keys` are random, the second is odd; `mask` is
/// the number of buckets less one.
pub fn buckets(key: u64, keys: [u64; 2], mask: u32) -> [u32; 2] {
    let hash = (key ^ keys[0]).wrapping_mul(keys[1]);
    let hash = (hash ^ hash >> 29).wrapping_mul(keys[1]);
    [(hash >> 40) as u32 & mask, (hash >> 16) as u32 & mask]
}

impl StationTable {
    /// An empty table of so many buckets: a power of two, at most 2^24, else the next such.
    pub fn new(buckets: u32, keys: [u64; 2]) -> Self {
        let buckets = buckets.clamp(1, 1 << 24).next_power_of_two();
        Self {
            keys: [keys[0], keys[1] | 1],
            mask: buckets - 1,
            buckets: vec![[Entry::default(); BUCKET]; buckets as usize],
            len: 0,
            left_out: HashMap::new(),
            beyond: 0,
            freed: false,
        }
    }

    /// A station is behind this port, whether or not it was known behind another. The address of
    /// zeros is no station's and leaves the table as it is.
    pub fn insert(&mut self, mac: [u8; 6], vlan: u16, slot: u32) -> Change {
        match station_key(mac, vlan) {
            0 => Change::Nothing,
            key => self.put(key, slot),
        }
    }

    /// A station is gone.
    pub fn remove(&mut self, mac: [u8; 6], vlan: u16) -> Change {
        let key = station_key(mac, vlan);
        self.left_out.remove(&key);
        let Some((bucket, place)) = self.find(key) else { return Change::Nothing };
        self.freed = true;
        self.len -= 1;
        self.write(bucket, place, Entry::default())
    }

    /// Gives places to stations that were left out, as far as there is room by now: what has to be
    /// written for them.
    pub fn settle(&mut self) -> Vec<Change> {
        if !std::mem::take(&mut self.freed) {
            return Vec::new();
        }
        let waiting: Vec<(u64, u32)> = self.left_out.iter().map(|(k, port)| (*k, *port)).collect();
        let written = waiting.into_iter().map(|(key, port)| self.put(key, port));
        written.filter(|change| *change != Change::LeftOut).collect()
    }

    /// Forgets all stations. The caller clears the packet path's table.
    pub fn clear(&mut self) {
        self.buckets.fill([Entry::default(); BUCKET]);
        self.left_out.clear();
        (self.len, self.beyond, self.freed) = (0, 0, false);
    }

    /// The stations in the table, bucket by bucket.
    pub fn iter(&self) -> impl Iterator<Item = Station> + '_ {
        self.buckets.iter().zip(0..).flat_map(|(entries, bucket)| {
            let used = entries.iter().zip(0..).filter(|(entry, _)| entry.key != 0);
            used.map(move |(entry, place)| {
                let [a, b, c, d, e, f, vlan @ ..] = entry.key.to_le_bytes();
                let (mac, vlan) = ([a, b, c, d, e, f], u16::from_le_bytes(vlan));
                Station { mac, vlan, port: entry.port, bucket, place }
            })
        })
    }

    /// Stations in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table holds no station.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stations without a place. Beyond `RW_MAX_STATIONS` they are not told apart: each attempt
    /// counts until [`StationTable::clear`], and none settles.
    pub fn left_out(&self) -> usize {
        self.left_out.len() + self.beyond
    }

    fn put(&mut self, key: u64, port: u32) -> Change {
        if let Some((bucket, place)) = self.find(key) {
            let entry = Entry { key, port };
            let same = self.buckets[bucket as usize][place] == entry;
            return if same { Change::Nothing } else { self.write(bucket, place, entry) };
        }
        let room = |bucket: u32| {
            let entries = &self.buckets[bucket as usize];
            let free = entries.iter().filter(|entry| entry.key == 0).count();
            Some((free, bucket, entries.iter().position(|entry| entry.key == 0)?))
        };
        let [first, second] = buckets(key, self.keys, self.mask).map(room);
        // The one with more room, the first of equal ones.
        let roomier = match (first, second) {
            (Some(first), Some(second)) if second.0 > first.0 => Some(second),
            (first, second) => first.or(second),
        };
        let Some((_, bucket, place)) = roomier else {
            self.leave_out(key, port);
            return Change::LeftOut;
        };
        self.left_out.remove(&key);
        self.len += 1;
        self.write(bucket, place, Entry { key, port })
    }

    fn leave_out(&mut self, key: u64, port: u32) {
        if self.left_out.len() < MOST_LEFT_OUT || self.left_out.contains_key(&key) {
            self.left_out.insert(key, port);
        } else {
            self.beyond += 1;
        }
    }

    fn find(&self, key: u64) -> Option<(u32, usize)> {
        buckets(key, self.keys, self.mask).into_iter().find_map(|bucket| {
            let entries = &self.buckets[bucket as usize];
            Some((bucket, entries.iter().position(|entry| entry.key == key && key != 0)?))
        })
    }

    fn write(&mut self, bucket: u32, place: usize, entry: Entry) -> Change {
        self.buckets[bucket as usize][place] = entry;
        let Entry { key, port } = entry;
        Change::Write { bucket, place: place as u8, key, port }
    }
}
