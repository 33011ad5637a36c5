//! Prefixes that were blocked and allowed at run time. Copies share what they have in common, so one
//! costs nothing, and a change takes as many steps as the number of prefixes has digits.

use std::time::Instant;

use ringway_config::ListAction;
use ringway_plan::prefix_list::Prefix;
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ShieldEntry;

/// No two of one prefix; in their order.
#[derive(Clone, Debug)]
pub struct Entries {
    by_prefix: RedBlackTreeMapSync<Prefix, ShieldEntry>,
    /// Those that end, the next one first.
    ends: RedBlackTreeSetSync<(Instant, Prefix)>,
    allowed: usize,
}

impl Default for Entries {
    fn default() -> Entries {
        let (by_prefix, ends) = (RedBlackTreeMapSync::new_sync(), RedBlackTreeSetSync::new_sync());
        Entries { by_prefix, ends, allowed: 0 }
    }
}

impl Entries {
    pub fn len(&self) -> usize {
        self.by_prefix.size()
    }

    pub fn is_empty(&self) -> bool {
        self.by_prefix.is_empty()
    }

    /// How many prefixes have this action.
    pub fn count(&self, action: ListAction) -> usize {
        match action {
            ListAction::Allow => self.allowed,
            ListAction::Block => self.len() - self.allowed,
        }
    }

    pub fn get(&self, prefix: &Prefix) -> Option<&ShieldEntry> {
        self.by_prefix.get(prefix)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ShieldEntry> {
        self.by_prefix.values()
    }

    pub fn to_vec(&self) -> Vec<ShieldEntry> {
        self.iter().cloned().collect()
    }

    /// Those within a prefix, and itself.
    pub fn within(&self, prefix: Prefix) -> impl Iterator<Item = &ShieldEntry> {
        let from = self.by_prefix.range(prefix..).map(|(_, entry)| entry);
        from.take_while(move |entry| prefix.covers(&entry.prefix))
    }

    /// Those around a prefix, and itself.
    pub fn around(&self, prefix: Prefix) -> impl Iterator<Item = &ShieldEntry> {
        prefix.around().filter_map(|around| self.get(&around))
    }

    /// In place of the one of its prefix.
    pub fn insert(&mut self, entry: ShieldEntry) {
        self.remove(&entry.prefix);
        self.allowed += usize::from(entry.action == ListAction::Allow);
        if let Some(ends) = entry.ends {
            self.ends.insert_mut((ends, entry.prefix));
        }
        self.by_prefix.insert_mut(entry.prefix, entry);
    }

    pub fn remove(&mut self, prefix: &Prefix) -> bool {
        let Some(entry) = self.by_prefix.get(prefix) else { return false };
        self.allowed -= usize::from(entry.action == ListAction::Allow);
        if let Some(ends) = entry.ends {
            self.ends.remove_mut(&(ends, *prefix));
        }
        self.by_prefix.remove_mut(prefix)
    }

    /// Removes those that have ended.
    pub fn remove_ended(&mut self, now: Instant) -> Vec<Prefix> {
        let mut ended = Vec::new();
        while let Some((_, prefix)) = self.ends.first().copied().filter(|(ends, _)| *ends <= now) {
            self.remove(&prefix);
            ended.push(prefix);
        }
        ended
    }
}

impl FromIterator<ShieldEntry> for Entries {
    fn from_iter<I: IntoIterator<Item = ShieldEntry>>(all: I) -> Entries {
        let mut entries = Entries::default();
        all.into_iter().for_each(|entry| entries.insert(entry));
        entries
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Entries) -> bool {
        self.by_prefix == other.by_prefix
    }
}

impl Eq for Entries {}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entries, D::Error> {
        Ok(Vec::<ShieldEntry>::deserialize(from)?.into_iter().collect())
    }
}
