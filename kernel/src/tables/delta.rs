//! How the tables differ from those that should be, and how much of that was written.

use std::collections::BTreeMap;

/// What [`crate::Gateway::apply`] changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Service and address entries written.
    pub services: usize,
    /// Backends written.
    pub backends: usize,
    /// Rings swapped.
    pub rings: usize,
    /// Entries, backends and rings removed.
    pub removed: usize,
    /// nat pool, addresses or timeouts changed.
    pub settings: bool,
}

impl Applied {
    /// Nothing had to be changed.
    pub fn is_unchanged(&self) -> bool {
        *self == Self::default()
    }
}

/// Entries to write: new or different.
pub(crate) fn changed<'a, K: Ord, V: PartialEq>(
    have: &'a BTreeMap<K, V>,
    want: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    want.iter().filter(|(key, value)| have.get(key) != Some(value))
}

/// Keys that are not wanted any more.
pub(crate) fn gone<'a, K: Ord, V>(
    have: &'a BTreeMap<K, V>,
    want: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    have.keys().filter(|key| !want.contains_key(key))
}
