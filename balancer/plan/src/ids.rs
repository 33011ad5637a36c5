//! Numbers that flows in the kernel hold, and that therefore must not change hands: ids of
//! services, indexes of backends, positions of nat addresses.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use ringway_abi::BackendRef;
use ringway_abi::raw::{RW_MAX_BACKENDS, RW_MAX_SERVICES};

use crate::sources::Places;
use crate::tables::{BackendRow, ServiceKey, ServiceRow};

/// A backend's identity: the same machine behind two services is two backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendKey {
    /// Service entry it belongs to.
    pub service: ServiceKey,
    /// Its own address and port.
    pub endpoint: SocketAddr,
}

/// Numbers, and their owners.
#[derive(Clone, Debug)]
pub struct Ids {
    pub(crate) services: Pool<ServiceKey, u16>,
    pub(crate) backends: Pool<BackendKey, u32>,
    /// By backend index: generation of its last holder, 0 when it never had one.
    generations: Vec<u16>,
    /// Indexes of backends are below.
    pub(crate) limit: u32,
    pub(crate) places: Places,
}

impl Default for Ids {
    /// The ids of a node without tables.
    fn default() -> Ids {
        Ids::from_rows(&[], &[], &[], &[])
    }
}

impl Ids {
    /// Of a node whose tables are in the kernel already. `backends` are the rows in use;
    /// `retired` has (index, generation) of every other row whose generation is not 0, so the
    /// kernel's table must keep the generation of a backend that is removed. `nat_addresses`
    /// is the kernel's table, with the unspecified address where it is empty.
    ///
    /// Rows that contradict one another lose: a row whose number is taken, or whose service is
    /// not there, counts as retired.
    pub fn from_rows(
        services: &[ServiceRow],
        backends: &[BackendRow],
        retired: &[(u32, u16)],
        nat_addresses: &[IpAddr],
    ) -> Ids {
        let held = services.iter().map(|row| (row.key, row.id));
        let service_pool = Pool::new(RW_MAX_SERVICES as u16, held, &[]);
        let mut generations = vec![0; RW_MAX_BACKENDS as usize];
        let rows = backends.iter().map(|row| (row.index, row.generation));
        for (index, generation) in retired.iter().copied().chain(rows) {
            if let Some(known) = generations.get_mut(index as usize) {
                *known = generation.max(*known);
            }
        }
        let key_of: BTreeMap<u16, ServiceKey> =
            service_pool.held.iter().map(|(key, id)| (*id, *key)).collect();
        let held = backends.iter().filter_map(|row| {
            let service = *key_of.get(&row.service)?;
            Some((BackendKey { service, endpoint: row.endpoint() }, row.index))
        });
        let used: Vec<u32> =
            (0..RW_MAX_BACKENDS).filter(|index| generations[*index as usize] != 0).collect();
        Ids {
            services: service_pool,
            backends: Pool::new(RW_MAX_BACKENDS, held, &used),
            generations,
            limit: RW_MAX_BACKENDS,
            places: Places::new(nat_addresses),
        }
    }

    /// With indexes of backends below `limit` only: the size of the kernel's table.
    pub fn within(mut self, limit: u32) -> Ids {
        self.limit = limit;
        self.backends.free.retain(|index| *index < limit);
        self
    }

    /// Index and generation of a backend, new ones if it has none. `None`: none are left.
    pub(crate) fn backend(&mut self, key: BackendKey) -> Option<(u32, u16)> {
        let (index, new) = self.backends.number(key)?;
        let generation = &mut self.generations[index as usize];
        if new {
            *generation = *generation % BackendRef::GENERATIONS + 1;
        }
        Some((index, *generation))
    }
}

/// Numbers below a limit and who holds them. A number that was given back is given out again
/// as late as possible.
#[derive(Clone, Debug)]
pub(crate) struct Pool<K, N> {
    held: BTreeMap<K, N>,
    /// Never used ones first, then as they were given back.
    free: VecDeque<N>,
}

impl<K: Ord + Copy, N: Ord + Copy + Hash> Pool<K, N>
where
    Range<N>: Iterator<Item = N>,
    N: Default,
{
    /// With `held` given out, first come first served; of the rest, `used` go last.
    fn new(limit: N, held: impl Iterator<Item = (K, N)>, used: &[N]) -> Pool<K, N> {
        let mut pool = Pool { held: BTreeMap::new(), free: VecDeque::new() };
        let mut taken = HashSet::new();
        for (key, number) in held {
            if number < limit && !pool.held.contains_key(&key) && taken.insert(number) {
                pool.held.insert(key, number);
            }
        }
        let used: BTreeSet<N> = used.iter().copied().collect();
        let free = |number: &N| !taken.contains(number);
        let all = N::default()..limit;
        pool.free.extend(all.filter(free).filter(|number| !used.contains(number)));
        pool.free.extend(used.iter().copied().filter(free));
        pool
    }

    /// Takes back the numbers of all but those wanted.
    pub(crate) fn keep(&mut self, wanted: &BTreeSet<K>) {
        let mut freed = BTreeSet::new();
        self.held.retain(|key, number| wanted.contains(key) || !freed.insert(*number));
        self.free.extend(freed);
    }

    /// The number of `key`, and whether it is new. `None`: none are left.
    pub(crate) fn number(&mut self, key: K) -> Option<(N, bool)> {
        if let Some(number) = self.held.get(&key) {
            return Some((*number, false));
        }
        let number = self.free.pop_front()?;
        self.held.insert(key, number);
        Some((number, true))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;
    use crate::tables::Protocol;

    fn key(number: u8) -> BackendKey {
        let address = IpAddr::from([203, 0, 113, 10]);
        let service = ServiceKey::new(address, 80, Protocol::Tcp);
        BackendKey { service, endpoint: SocketAddr::new(IpAddr::from([10, 0, 0, number]), 80) }
    }

    proptest! {
        /// Whatever comes and goes, restarts included: a backend keeps its reference while it
        /// stays, and no reference ever means two backends.
        #[test]
        fn references_never_change_hands(
            steps in prop::collection::vec((btree_set(0..9u8, 0..5), any::<bool>()), 1..40),
        ) {
            let mut ids = small(&[]);
            let mut known: HashSet<(u32, u16)> = HashSet::new();
            let mut present: HashMap<u8, (u32, u16)> = HashMap::new();
            for (wanted, restart) in steps {
                if restart {
                    ids = restarted(&ids);
                }
                ids.backends.keep(&wanted.iter().copied().map(key).collect());
                let now: HashMap<u8, (u32, u16)> =
                    wanted.iter().map(|n| (*n, ids.backend(key(*n)).expect("room"))).collect();
                let distinct: HashSet<u32> = now.values().map(|(index, _)| *index).collect();
                prop_assert_eq!(distinct.len(), now.len());
                for (number, reference) in &now {
                    match present.get(number) {
                        Some(before) => prop_assert_eq!(before, reference),
                        None => prop_assert!(
                            known.insert(*reference),
                            "{reference:?} used before"
                        ),
                    }
                }
                present = now;
            }
        }
    }

    /// With room for six backends, so that indexes are soon used again.
    fn small(held: &[(BackendKey, u32)]) -> Ids {
        let backends = Pool::new(6, held.iter().copied(), &[]);
        Ids { backends, ..Ids::default() }
    }

    /// The numbers as a new process reads them from the kernel's tables.
    fn restarted(ids: &Ids) -> Ids {
        let held: Vec<(BackendKey, u32)> =
            ids.backends.held.iter().map(|(k, n)| (*k, *n)).collect();
        Ids { generations: ids.generations.clone(), ..small(&held) }
    }

    #[test]
    fn generations_go_round_without_zero() {
        let mut ids = Ids::from_rows(&[], &[], &[(0, BackendRef::GENERATIONS)], &[]);
        ids.backends = Pool::new(1, [].into_iter(), &[0]);
        assert_eq!(ids.backend(key(1)), Some((0, 1)));
        assert_eq!(ids.backend(key(2)), None, "full");
    }
}
