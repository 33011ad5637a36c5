//! Members of services: a run of backend references each, in one table. A run is never changed;
//! a service whose members change gets another one, and is switched over with its row.

use std::collections::BTreeMap;

use ringway_abi::raw::{RW_MAX_MEMBER_PLACES, rw_service};
use ringway_plan::tables::ServiceRow;

use crate::maps::Maps;
use crate::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    first: u32,
    pub(crate) references: Vec<u32>,
}

impl Members {
    /// First place, number of places.
    pub(crate) fn range(&self) -> (u32, u32) {
        (self.first, self.references.len() as u32)
    }

    fn end(&self) -> u32 {
        self.first + self.references.len() as u32
    }

    pub(crate) fn read(maps: &Maps, service: &rw_service) -> Result<Self> {
        let end = service.members.saturating_add(service.member_count).min(RW_MAX_MEMBER_PLACES);
        let places = service.members..end;
        let references = places.map(|place| maps.members.get(place)).collect::<Result<_>>()?;
        Ok(Self { first: service.members, references })
    }

    /// Writes runs that no service uses yet.
    pub(crate) fn write<'m>(maps: &Maps, all: impl Iterator<Item = &'m Self>) -> Result<()> {
        let (mut places, mut references) = (Vec::new(), Vec::new());
        for members in all {
            places.extend(members.first..members.end());
            references.extend_from_slice(&members.references);
        }
        maps.members.put_all(&places, &references)
    }
}

/// Runs for these services: where they are, or where nothing is now.
pub(crate) fn place(
    services: &[ServiceRow],
    have: &BTreeMap<u16, Members>,
) -> Result<BTreeMap<u16, Members>> {
    let mut room = Room::around(have);
    let place = |service: &ServiceRow| {
        let kept = have.get(&service.id).filter(|kept| kept.references == service.members);
        let members = match kept {
            Some(kept) => kept.clone(),
            None => Members {
                first: room.take(service.members.len() as u32)?,
                references: service.members.clone(),
            },
        };
        Ok((service.id, members))
    };
    services.iter().map(place).collect()
}

/// Places that no run covers. Behind all runs first, so that a place is used again late.
struct Room {
    end: u32,
    gaps: Vec<(u32, u32)>,
}

impl Room {
    fn around(runs: &BTreeMap<u16, Members>) -> Self {
        let mut runs: Vec<&Members> = runs.values().collect();
        runs.sort_by_key(|run| run.first);
        let mut room = Self { end: 0, gaps: Vec::new() };
        for run in runs {
            if run.first > room.end {
                room.gaps.push((room.end, run.first));
            }
            room.end = room.end.max(run.end());
        }
        room
    }

    fn take(&mut self, count: u32) -> Result<u32> {
        if count <= RW_MAX_MEMBER_PLACES.saturating_sub(self.end) {
            self.end += count;
            return Ok(self.end - count);
        }
        let gap = self.gaps.iter_mut().find(|(first, end)| end - first >= count);
        let Some((first, _)) = gap else {
            let full = "no room for a service's members: fewer services or backends".to_owned();
            return Err(Error::Tables(full));
        };
        *first += count;
        Ok(*first - count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, count: u32) -> Members {
        Members { first, references: (0..count).collect() }
    }

    #[test]
    fn room_is_behind_the_last_run_or_between_two() {
        let near = RW_MAX_MEMBER_PLACES - 5;
        let mut room = Room::around(&[(1, run(10, 5)), (2, run(18, 2)), (3, run(near, 2))].into());
        assert_eq!([3, 8, 2, 3].map(|count| room.take(count).unwrap()), [near + 2, 0, 8, 15]);
        assert_eq!(room.take(100).unwrap(), 20);
        assert!(room.take(RW_MAX_MEMBER_PLACES).is_err());
    }
}
