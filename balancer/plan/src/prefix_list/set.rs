//! The lists of one kind as disjoint prefixes.

use super::{Entry, Family, Prefix, TooMany};

/// A prefix, and the list that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The prefix.
    pub prefix: Prefix,
    /// The number of the list: 0 to 254.
    pub list: u8,
}

/// Sorted, disjoint prefixes of all lists of one kind, allow or block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixSet {
    /// IPv4 before IPv6.
    prefixes: Vec<Listed>,
}

impl PrefixSet {
    /// Joins lists by their numbers. Of a prefix within another one the outer one stays; of equal
    /// ones the one of the list with the lowest number. Fails when more than
    /// [`MAX_ENTRIES`](super::MAX_ENTRIES) of one family are left.
    pub fn new<'l>(
        lists: impl IntoIterator<Item = (u8, &'l [Entry])>,
    ) -> Result<PrefixSet, TooMany> {
        let mut prefixes: Vec<Listed> = Vec::new();
        for (list, entries) in lists {
            prefixes.extend(entries.iter().map(|entry| Listed { prefix: entry.prefix, list }));
        }
        prefixes.sort_unstable();
        prefixes.dedup_by(|inner, outer| outer.prefix.covers(&inner.prefix));
        let set = PrefixSet { prefixes };
        for family in [Family::V4, Family::V6] {
            TooMany::check(family, set.of(family).len())?;
        }
        Ok(set)
    }

    /// Its prefixes of one family, sorted.
    pub fn of(&self, family: Family) -> &[Listed] {
        let v4 = self.prefixes.partition_point(|listed| listed.prefix.family() == Family::V4);
        match family {
            Family::V4 => &self.prefixes[..v4],
            Family::V6 => &self.prefixes[v4..],
        }
    }
}
