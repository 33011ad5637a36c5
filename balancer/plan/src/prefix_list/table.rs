//! Disjoint prefixes as the packet path searches them: leaves of a cache line or two, and an
//! index by the upper bits of the address. bpf/abi/shield.h has the layout,
//! bpf/shield/lists.bpf.h the search.

use std::net::IpAddr;

use ringway_abi::raw::{
    RW_LIST_V4_PREFIXES, RW_LIST_V6_PREFIXES, rw_list_section, rw_list_slot, rw_list_v4, rw_list_v6,
};

use super::prefix::{aligned, mask};
use super::{Family, Listed, Prefix, PrefixSet};

/// The prefix lists of the packet path. Allow and block lists are sections of the same vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListTables {
    /// By section and slot.
    pub index: Vec<rw_list_slot>,
    /// IPv4 prefixes.
    pub v4: Vec<rw_list_v4>,
    /// IPv6 prefixes.
    pub v6: Vec<rw_list_v6>,
    /// IPv4 prefixes of allow lists.
    pub allow4: rw_list_section,
    /// IPv6 prefixes of allow lists.
    pub allow6: rw_list_section,
    /// IPv4 prefixes of block lists.
    pub block4: rw_list_section,
    /// IPv6 prefixes of block lists.
    pub block6: rw_list_section,
}

impl ListTables {
    /// The tables of all allow and all block lists.
    pub fn new(allow: &PrefixSet, block: &PrefixSet) -> ListTables {
        let (mut index, mut v4, mut v6) = (Vec::new(), Vec::new(), Vec::new());
        let allow4 = section(allow.of(Family::V4), &mut v4, &mut index);
        let allow6 = section(allow.of(Family::V6), &mut v6, &mut index);
        let block4 = section(block.of(Family::V4), &mut v4, &mut index);
        let block6 = section(block.of(Family::V6), &mut v6, &mut index);
        ListTables { index, v4, v6, allow4, allow6, block4, block6 }
    }

    /// The allow list's prefix with this address, if there is one.
    pub fn allowed(&self, addr: IpAddr) -> Option<Listed> {
        self.find(&self.allow4, &self.allow6, addr)
    }

    /// The block list's prefix with this address, if there is one.
    pub fn blocked(&self, addr: IpAddr) -> Option<Listed> {
        self.find(&self.block4, &self.block6, addr)
    }

    /// Memory that the tables take in the kernel, bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.index[..]) + size_of_val(&self.v4[..]) + size_of_val(&self.v6[..])
    }

    fn find(
        &self,
        section4: &rw_list_section,
        section6: &rw_list_section,
        addr: IpAddr,
    ) -> Option<Listed> {
        match addr {
            IpAddr::V4(_) => search(section4, &self.v4, &self.index, aligned(addr)),
            IpAddr::V6(_) => search(section6, &self.v6, &self.index, aligned(addr)),
        }
    }
}

/// A leaf of one family. Addresses are left-aligned.
trait Leaf: Default {
    const FAMILY: Family;
    const PREFIXES: usize;
    /// Leading bits of an address that the index knows.
    const INDEXED: u32;

    fn put(&mut self, place: usize, start: u128, length: u8, list: u8);
    fn start(&self, place: usize) -> u128;
    /// The length of a prefix, and its list.
    fn rest(&self, place: usize) -> (u8, u8);

    /// The bits of an address that the index knows.
    fn indexed(bits: u128) -> u64 {
        (bits >> (128 - Self::INDEXED)) as u64
    }
}

impl Leaf for rw_list_v4 {
    const FAMILY: Family = Family::V4;
    const PREFIXES: usize = RW_LIST_V4_PREFIXES as usize;
    const INDEXED: u32 = 32;

    fn put(&mut self, place: usize, start: u128, length: u8, list: u8) {
        self.start[place] = (start >> 96) as u32;
        self.length[place] = length;
        self.list[place] = list;
    }

    fn start(&self, place: usize) -> u128 {
        u128::from(self.start[place]) << 96
    }

    fn rest(&self, place: usize) -> (u8, u8) {
        (self.length[place], self.list[place])
    }
}

impl Leaf for rw_list_v6 {
    const FAMILY: Family = Family::V6;
    const PREFIXES: usize = RW_LIST_V6_PREFIXES as usize;
    const INDEXED: u32 = 64;

    fn put(&mut self, place: usize, start: u128, length: u8, list: u8) {
        self.start[place] = [(start >> 64) as u64, start as u64];
        self.length[place] = length;
        self.list[place] = list;
    }

    fn start(&self, place: usize) -> u128 {
        let [high, low] = self.start[place];
        u128::from(high) << 64 | u128::from(low)
    }

    fn rest(&self, place: usize) -> (u8, u8) {
        (self.length[place], self.list[place])
    }
}

/// Adds a section's leaves and its part of the index to the vectors.
fn section<L: Leaf>(
    listed: &[Listed],
    leaves: &mut Vec<L>,
    index: &mut Vec<rw_list_slot>,
) -> rw_list_section {
    let (Some(first), Some(last)) = (listed.first(), listed.last()) else {
        return rw_list_section::default();
    };
    let leaf = leaves.len();
    leaves.extend(listed.chunks(L::PREFIXES).map(leaf_of));
    let own = &leaves[leaf..];

    // About two slots a leaf, but no more than there are different distances.
    let base = L::indexed(first.prefix.bits());
    let longest = L::indexed(last.prefix.bits() | !mask(last.prefix.length())) - base;
    let distance_bits = u64::BITS - longest.leading_zeros();
    let slot_bits = distance_bits.min((2 * own.len()).next_power_of_two().trailing_zeros());
    let shift = distance_bits - slot_bits;
    let section = rw_list_section {
        base,
        index: index.len() as u32,
        slots: 1 << slot_bits,
        leaf: leaf as u32,
        leaves: own.len() as u32,
        shift,
        pad: 0,
    };

    let mut last = leaves_until(own, 0, u128::from(base));
    for slot in 1..=section.slots {
        let first = last;
        last = leaves_until(own, first, u128::from(base) + (u128::from(slot) << shift));
        index.push(rw_list_slot { first, last });
    }
    section
}

/// From a leaf on, the last one that begins at the first address with these indexed bits or before
/// it.
fn leaves_until<L: Leaf>(leaves: &[L], leaf: u32, indexed: u128) -> u32 {
    // Behind the last address of all, all leaves begin before it.
    let all = indexed >> L::INDEXED != 0;
    let bits = if all { u128::MAX } else { indexed << (128 - L::INDEXED) };
    let more = leaves[leaf as usize + 1..].iter().take_while(|leaf| leaf.start(0) <= bits);
    leaf + more.count() as u32
}

/// A leaf with these prefixes. Unused places repeat the last one: every address behind its start
/// then finds it, also the last address of all.
fn leaf_of<L: Leaf>(listed: &[Listed]) -> L {
    let mut leaf = L::default();
    for place in 0..L::PREFIXES {
        let Listed { prefix, list } = listed[place.min(listed.len() - 1)];
        leaf.put(place, prefix.bits(), prefix.length(), list);
    }
    leaf
}

/// What the packet path finds in a section, step by step as bpf/shield/lists.bpf.h does.
fn search<L: Leaf>(
    section: &rw_list_section,
    leaves: &[L],
    index: &[rw_list_slot],
    bits: u128,
) -> Option<Listed> {
    let leaf = |number: u32| leaves.get(section.leaf as usize + number as usize);
    let slot = L::indexed(bits).checked_sub(section.base)? >> section.shift;
    if slot >= u64::from(section.slots) {
        return None;
    }
    let place = section.index as usize + slot as usize;
    let rw_list_slot { first: mut low, last: mut high } = *index.get(place)?;
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if leaf(middle)?.start(0) <= bits {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let leaf = leaf(low)?;
    let place = (0..L::PREFIXES).rev().find(|place| leaf.start(*place) <= bits)?;
    let (length, list) = leaf.rest(place);
    let start = leaf.start(place);
    let found = length <= L::FAMILY.bits() && (start ^ bits) & mask(length) == 0;
    found.then(|| Listed { prefix: Prefix::of_bits(L::FAMILY, start, length), list })
}
