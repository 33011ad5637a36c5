//! The shield: what is put in force of it, what was typed, and what arrives for services with limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_api::error::Error;
use ringway_api::shield::{Entries, RuntimeShield, ShieldEntry};
use ringway_config::ListAction;
use ringway_kernel::Arrivals;
use ringway_kernel::shield::RuntimePrefix;
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::ServiceKey;

use super::{Worker, kernel};
use crate::daemon::shield_plan::ShieldPlan;
use crate::monitor::attack_watch::Arrived;

impl Worker {
    /// Puts a shield in force, or takes it away.
    pub(super) fn raise(&mut self, plan: Option<Arc<ShieldPlan>>) -> Result<(), Error> {
        let generation = plan.as_ref().map(|plan| plan.generation());
        self.by_all_means(|worker| worker.gateway.set_shield(generation.as_ref()).map_err(kernel))?;
        self.shield = plan;
        Ok(())
    }

    /// With what a daemon before this one has armed, the first time.
    pub(super) fn arrivals(&mut self) -> Result<(Instant, Vec<Arrived>), Error> {
        let armed = match self.has_read_arrivals {
            true => Ok(BTreeMap::new()),
            false => self.gateway.view().armed(),
        };
        let (now, armed) = (Instant::now(), armed.map_err(kernel)?);
        let arrived = |(id, counts): (u16, Arrivals)| {
            let (service, name, mode) = self.limited.get(&id)?.clone();
            let armed = armed.get(&id).map(|left| now + Duration::from_secs((*left).into()));
            let (packets, new_flows, refused) =
                (counts.packets, counts.new_flows, counts.refused());
            let answered = counts.syns_answered;
            Some(Arrived { service, name, mode, packets, new_flows, refused, answered, armed })
        };
        let counts = self.gateway.arrivals().map_err(kernel)?;
        self.has_read_arrivals = true;
        Ok((now, counts.into_iter().filter_map(arrived).collect()))
    }

    /// One that is gone is armed no more.
    pub(super) fn arm(&mut self, service: ServiceKey, until: Option<Instant>) -> Result<(), Error> {
        let mut all = self.limited.iter();
        let Some((id, _)) = all.find(|(_, (key, ..))| *key == service) else { return Ok(()) };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let until = left.map_or(0, |left| {
            // Both are cut to whole seconds, and the daemon ends it.
            let left = u32::try_from(left.as_secs() + 2).unwrap_or(u32::MAX);
            ringway_kernel::now_seconds().saturating_add(left)
        });
        self.gateway.arm(*id, until).map_err(kernel)
    }

    /// `changed`: the packet path has all but these already.
    pub(super) fn shield(
        &mut self,
        runtime: &RuntimeShield,
        changed: Option<&[Prefix]>,
    ) -> Result<(), Error> {
        let (now, seconds) = (Instant::now(), ringway_kernel::now_seconds());
        // Now and what is left are both cut to whole seconds, and nothing ends before its time: the
        // loop ends it, and where none runs the packet path, within two seconds. What is over does
        // not begin anew.
        let until_s = |ends: Instant| {
            let left = ends.checked_duration_since(now).filter(|left| !left.is_zero())?;
            let left = u32::try_from(left.as_secs() + 2).unwrap_or(u32::MAX);
            Some(seconds.saturating_add(left))
        };
        let prefix = |entry: &ShieldEntry| {
            let until = entry.ends.map_or(Some(u32::MAX), until_s)?;
            let allow = entry.action == ListAction::Allow;
            Some(RuntimePrefix { prefix: entry.prefix, allow, until })
        };
        match changed {
            None => {
                let all: Vec<_> = runtime.entries.iter().filter_map(prefix).collect();
                self.gateway.set_runtime_prefixes(&all).map_err(kernel)?;
            }
            Some(changed) => {
                let (rows, gone) = runtime_rows(&runtime.entries, changed);
                let rows: Vec<_> = rows.iter().filter_map(prefix).collect();
                let count = |action| runtime.count(action) as u32;
                let counts = (count(ListAction::Allow), count(ListAction::Block));
                self.gateway.change_runtime_prefixes(&rows, &gone, counts).map_err(kernel)?;
            }
        }
        let mode = runtime.mode.and_then(|mode| Some((mode.mode, until_s(mode.ends?)?)));
        self.gateway.set_shield_override(mode).map_err(kernel)
    }
}

/// What the packet path is to be told where these prefixes have changed: entries, each with the end
/// of what lies around it, and prefixes that have none any more. An entry within a changed one may
/// end at another time than before.
fn runtime_rows(entries: &Entries, changed: &[Prefix]) -> (Vec<ShieldEntry>, Vec<Prefix>) {
    let last = |entry: &ShieldEntry| {
        let kind = entries.around(entry.prefix).filter(|around| around.action == entry.action);
        let ends = kind.map(|around| around.ends);
        let ends = ends.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)));
        ShieldEntry { ends: ends.flatten(), ..entry.clone() }
    };
    let rows = changed.iter().flat_map(|prefix| entries.within(*prefix)).map(last).collect();
    let gone = changed.iter().filter(|prefix| entries.get(prefix).is_none()).copied().collect();
    (rows, gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(prefix: Prefix, action: ListAction, ends: Option<Instant>) -> ShieldEntry {
        ShieldEntry { ends, ..crate::testing::entry(prefix, action) }
    }

    #[test]
    fn a_change_among_many_prefixes_is_few_rows() {
        let soon = Instant::now();
        let late = soon + Duration::from_secs(60);
        let nth = |n: u32| Prefix::new(std::net::Ipv4Addr::from(0x0a00_0000 + n).into(), 32);
        let nth = |n: u32| nth(n).expect("a prefix");
        let many = (0..65_535).map(|n| entry(nth(n), ListAction::Block, Some(soon)));
        let mut entries: Entries = many.collect();
        assert_eq!(runtime_rows(&entries, &[nth(7)]).0.len(), 1);
        let outer: Prefix = "10.0.0.0/28".parse().expect("a prefix");
        entries.insert(entry(outer, ListAction::Block, Some(late)));
        entries.insert(entry(nth(3), ListAction::Allow, Some(soon)));
        let (rows, gone) = runtime_rows(&entries, &[outer]);
        assert_eq!((rows.len(), gone.len()), (17, 0), "those within last as long as it");
        for row in &rows {
            let ends = if row.action == ListAction::Block { late } else { soon };
            assert_eq!(row.ends, Some(ends), "{}", row.prefix);
        }
        entries.insert(entry(outer, ListAction::Block, None));
        assert_eq!(runtime_rows(&entries, &[nth(7)]).0[0].ends, None, "it has no end");
        entries.remove(&outer);
        let (rows, gone) = runtime_rows(&entries, &[outer]);
        assert_eq!((rows.len(), gone), (16, vec![outer]));
        assert!(rows.iter().all(|row| row.ends == Some(soon)));
    }
}
