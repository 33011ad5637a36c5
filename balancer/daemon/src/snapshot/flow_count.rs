//! How many flows there are: counting a large flow table takes a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringway_api::documents::status::{FlowTable, Tracked};
use ringway_api::node::tables::{flow_table, tracked};
use ringway_kernel::View;

/// A count of flows is shown for so many times what it took, so that those who keep asking cost a
/// twentieth of one processor ...
const COUNT_SHARE: u32 = 20;
/// ... and for this long at most.
const COUNT_FRESH: Duration = Duration::from_secs(10);

/// The last count, and since when it may be wrong.
#[derive(Debug, Default)]
pub(super) struct FlowCount {
    last: Mutex<Option<Count>>,
    /// When it was last decided anew who gets new flows.
    settled: Mutex<Option<Instant>>,
}

impl FlowCount {
    /// Flows that were counted before are counted anew.
    pub(super) fn settle(&self) {
        *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Counted anew when the last count has become old.
    pub(super) fn read(&self, view: &View) -> ringway_kernel::Result<(FlowTable, Tracked)> {
        let mut known = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = *self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = known.take().filter(|count| count.is_fresh(settled, Instant::now()));
        let Count { begun, mut flows, tracked, .. } =
            known.insert(fresh.map_or_else(|| Count::now(view), Ok)?).clone();
        flows.age_ms = begun.elapsed().as_millis() as u64;
        Ok((flows, tracked))
    }
}

#[derive(Clone, Debug)]
struct Count {
    begun: Instant,
    took: Duration,
    flows: FlowTable,
    tracked: Tracked,
}

impl Count {
    fn now(view: &View) -> ringway_kernel::Result<Count> {
        let begun = Instant::now();
        let (flows, tracked) = (flow_table(view)?, tracked(view)?);
        Ok(Count { begun, took: begun.elapsed(), flows, tracked })
    }

    /// Whether it can be shown now. One from before a change says nothing of what follows it: who
    /// waits for the last flow of a drained backend must not be told of a time when the backend had
    /// not got its flows yet.
    fn is_fresh(&self, settled: Option<Instant>, now: Instant) -> bool {
        let lasts = (self.took * COUNT_SHARE).min(COUNT_FRESH);
        now.duration_since(self.begun) < lasts && settled.is_none_or(|at| self.begun > at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_from_before_a_change_is_not_shown_after_it() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let count = |took| Count {
            begun,
            took: ms(took),
            flows: FlowTable::default(),
            tracked: Tracked::default(),
        };
        assert!(count(10).is_fresh(None, begun + ms(199)));
        assert!(!count(10).is_fresh(None, begun + ms(200)), "counting again costs little");
        assert!(count(5000).is_fresh(None, begun + ms(9_999)));
        assert!(!count(5000).is_fresh(None, begun + ms(10_000)));
        assert!(count(5000).is_fresh(Some(begun - ms(1)), begun + ms(2)));
        assert!(!count(5000).is_fresh(Some(begun + ms(1)), begun + ms(2)), "a drain since");
    }
}
