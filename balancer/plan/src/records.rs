//! What the records of tracked flows say about slots that have changed.

use std::collections::{HashMap, HashSet};

use crate::history::Moment;

/// What was found when all records were looked through. Empty until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// When they were looked through, seconds of CLOCK_MONOTONIC; 0: never.
    pub looked: u32,
    /// By service id: when a flow could not be given a record last, in the same seconds.
    pub failed: HashMap<u16, u32>,
    /// By service id: slots with a record that does not lead to the current owner.
    pub(crate) elsewhere: HashMap<u16, HashSet<u32>>,
}

impl Records {
    /// What is known of slots of these services.
    pub(crate) fn moment<'s>(
        &self,
        services: impl Iterator<Item = &'s u16>,
        now: u32,
        timeout: u32,
    ) -> Moment {
        let failed = services.filter_map(|id| self.failed.get(id)).copied().max();
        Moment { now, timeout, failed: failed.unwrap_or(0), looked: self.looked }
    }

    /// Slots in which any of these services has a flow of another owner.
    pub(crate) fn elsewhere<'s>(&self, services: impl Iterator<Item = &'s u16>) -> HashSet<u32> {
        services.filter_map(|id| self.elsewhere.get(id)).flatten().copied().collect()
    }
}
