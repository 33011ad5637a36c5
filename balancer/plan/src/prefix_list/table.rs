//! Disjoint prefixes as the packet path searches them: leaves of a cache line or two, and an
//! index by the distance from the first address. bpf/abi/shield.h has the layout,
//! bpf/shield/lists.bpf.h the search.

use std::net::IpAddr;
use std::ops::Range;

use ringway_abi::raw::{
    RW_LIST_V4_PREFIXES, RW_LIST_V6_PREFIXES, RW_SLOT_LAST, RW_SLOT_NESTED, RW_SLOT_NUMBER,
    RW_SLOT_PARTS, rw_list_section, rw_list_span, rw_list_v4, rw_list_v6,
};

use super::prefix::{aligned, mask};
use super::{Family, Listed, Prefix, PrefixSet};

/// The prefix lists of the packet path. Allow and block lists are sections of the same vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListTables {
    /// By span and slot.
    pub index: Vec<u64>,
    /// Of slots that have an index of their own.
    pub spans: Vec<rw_list_span>,
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
        let (mut index, mut v4, mut v6) = (Index::default(), Vec::new(), Vec::new());
        let allow4 = section(allow.of(Family::V4), &mut v4, &mut index);
        let allow6 = section(allow.of(Family::V6), &mut v6, &mut index);
        let block4 = section(block.of(Family::V4), &mut v4, &mut index);
        let block6 = section(block.of(Family::V6), &mut v6, &mut index);
        let Index { slots: index, spans } = index;
        ListTables { index, spans, v4, v6, allow4, allow6, block4, block6 }
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
        let index = size_of_val(&self.index[..]) + size_of_val(&self.spans[..]);
        index + size_of_val(&self.v4[..]) + size_of_val(&self.v6[..])
    }

    fn find(
        &self,
        section4: &rw_list_section,
        section6: &rw_list_section,
        addr: IpAddr,
    ) -> Option<Listed> {
        let index = (&self.index[..], &self.spans[..]);
        match addr {
            IpAddr::V4(_) => search(section4, &self.v4, index, aligned(addr)),
            IpAddr::V6(_) => search(section6, &self.v6, index, aligned(addr)),
        }
    }
}

/// A leaf of one family. Addresses are left-aligned.
trait Leaf: Default {
    const FAMILY: Family;
    const PREFIXES: usize;

    fn put(&mut self, place: usize, start: u128, length: u8, list: u8);
    fn start(&self, place: usize) -> u128;
    /// The length of a prefix, and its list.
    fn rest(&self, place: usize) -> (u8, u8);

    /// An address as the index counts it.
    fn number(bits: u128) -> u128 {
        bits >> (128 - u32::from(Self::FAMILY.bits()))
    }
}

impl Leaf for rw_list_v4 {
    const FAMILY: Family = Family::V4;
    const PREFIXES: usize = RW_LIST_V4_PREFIXES as usize;

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

/// Adds a section's leaves and its part of the index to the tables.
fn section<L: Leaf>(listed: &[Listed], leaves: &mut Vec<L>, index: &mut Index) -> rw_list_section {
    if listed.is_empty() {
        return rw_list_section::default();
    }
    let leaf = leaves.len();
    leaves.extend(listed.chunks(L::PREFIXES).map(leaf_of));
    let span = index.span::<L>(listed, 0..listed.len(), (0, u128::MAX), true);
    rw_list_section { span, leaf: leaf as u32, leaves: (leaves.len() - leaf) as u32 }
}

/// First and last address of a prefix, as the index counts them.
fn ends<L: Leaf>(prefix: Prefix) -> (u128, u128) {
    let first = prefix.bits();
    (L::number(first), L::number(first | !mask(prefix.length())))
}

/// A slot has sixteen parts.
const PART_BITS: u32 = 4;
/// A slot with more leaves has an index of its own.
const MOST_LEAVES: usize = 4;

/// The index under way.
#[derive(Default)]
struct Index {
    slots: Vec<u64>,
    spans: Vec<rw_list_span>,
}

impl Index {
    /// Adds the slots for these of the prefixes, as far as they are between two addresses.
    fn span<L: Leaf>(
        &mut self,
        listed: &[Listed],
        range: Range<usize>,
        (from, to): (u128, u128),
        nests: bool,
    ) -> rw_list_span {
        let base = ends::<L>(listed[range.start].prefix).0.max(from);
        let end = ends::<L>(listed[range.end - 1].prefix).1.min(to);
        // About two slots a leaf, but no more than there are distances.
        let leaves = 1 + leaf_number::<L>(range.end - 1) - leaf_number::<L>(range.start);
        let distance_bits = u128::BITS - (end - base).leading_zeros();
        let most_bits = (2 * leaves).next_power_of_two().ilog2();
        let slot_bits = distance_bits.saturating_sub(PART_BITS).min(most_bits);
        let shift = distance_bits.saturating_sub(slot_bits + PART_BITS);
        let (slots, index) = (1usize << slot_bits, self.slots.len());
        self.slots.resize(index + slots, 0);

        let mut within = range.start..range.start;
        for slot in 0..slots {
            // Behind the last address of all there is none.
            let Some(from) = base.checked_add((slot as u128) << (shift + PART_BITS)) else { break };
            let to = from.saturating_add((1 << (shift + PART_BITS)) - 1);
            let reaches = |n: &usize| ends::<L>(listed[*n].prefix).1 >= from;
            let behind = |n: &usize| ends::<L>(listed[*n].prefix).0 > to;
            within.start = (within.start..range.end).find(reaches).unwrap_or(range.end);
            within.end =
                (within.start.max(within.end)..range.end).find(behind).unwrap_or(range.end);
            if within.is_empty() {
                continue;
            }
            let parts = listed[within.clone()].iter().fold(0, |parts, listed| {
                let (first, last) = ends::<L>(listed.prefix);
                let part = |addr: u128| ((addr.clamp(from, to) - from) >> shift) as u32;
                parts | ((2 << part(last)) - (1 << part(first)))
            });
            let leaves = leaf_number::<L>(within.start)..=leaf_number::<L>(within.end - 1);
            let leads = if nests && leaves.clone().count() > MOST_LEAVES {
                let span = self.span::<L>(listed, within.clone(), (from, to), false);
                self.spans.push(span);
                u64::from(RW_SLOT_NESTED) | (self.spans.len() - 1) as u64
            } else {
                *leaves.end() << RW_SLOT_LAST | *leaves.start()
            };
            self.slots[index + slot] = parts << RW_SLOT_PARTS | leads;
        }
        let base = [(base >> 64) as u64, base as u64];
        rw_list_span { base, index: index as u32, slots: slots as u32, shift, pad: 0 }
    }
}

/// The leaf that a prefix is in, both counted from the section's first one.
fn leaf_number<L: Leaf>(prefix: usize) -> u64 {
    (prefix / L::PREFIXES) as u64
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
    (index, spans): (&[u64], &[rw_list_span]),
    bits: u128,
) -> Option<Listed> {
    let slot = |span: &rw_list_span| {
        let [high, low] = span.base.map(u128::from);
        let part = L::number(bits).checked_sub(high << 64 | low)? >> span.shift;
        let slot =
            usize::try_from(part >> PART_BITS).ok().filter(|it| *it < span.slots as usize)?;
        let word = *index.get(span.index as usize + slot)?;
        (word >> RW_SLOT_PARTS >> (part % 16) & 1 != 0).then_some(word)
    };
    let number = |word: u64| (word & u64::from(RW_SLOT_NUMBER)) as usize;
    let mut word = slot(&section.span)?;
    if word & u64::from(RW_SLOT_NESTED) != 0 {
        word = slot(spans.get(number(word))?)?;
    }
    let leaf = |number: usize| leaves.get(section.leaf as usize + number);
    let (mut low, mut high) = (number(word), number(word >> RW_SLOT_LAST));
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
