//! The rings of a plan: which there are, who shares them, and what they remember of the last one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use ringway_abi::raw::RW_MAX_RINGS;

use crate::history::{self, Before};
use crate::maglev::{self, Member};
use crate::records::Records;
use crate::tables::{Pair, RingRow, ServiceKey, ServiceRow};

/// What one service wants of its ring.
pub(crate) struct Wish {
    pub(crate) key: ServiceKey,
    /// The service's id.
    pub(crate) service: u16,
    /// In the order of identity; weight 0 for those that get no new flows.
    pub(crate) members: Vec<Member>,
    /// Of the same members.
    pub(crate) references: Vec<u32>,
    /// Do their flows live?
    pub(crate) live: Vec<bool>,
    /// Flows without a record depend on the ring: it must remember former owners for so many
    /// seconds after their last packet.
    pub(crate) remember: Option<u32>,
}

/// A service in the last plan.
#[derive(Clone, Debug)]
struct Last {
    service: u16,
    members: Vec<Member>,
    references: Vec<u32>,
    live: Vec<bool>,
    /// Before history had its say; `None`: not known.
    wanted: Option<Arc<[u16]>>,
    /// `None`: not known.
    ring: Option<RingRow>,
}

/// Rings, from one plan to the next.
#[derive(Debug)]
pub(crate) struct Rings {
    last: HashMap<ServiceKey, Last>,
    /// Building one takes a millisecond.
    built: HashMap<Vec<Member>, Arc<[u16]>>,
    used: HashSet<u32>,
    /// Given back last comes last: packets under way may still use it.
    free: VecDeque<u32>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings::new(&[], &[])
    }
}

/// Slots and pairs of the same addresses are the same.
type Content = (Arc<[u16]>, Arc<[Pair]>);

fn address(content: &Content) -> (usize, usize) {
    (content.0.as_ptr() as usize, content.1.as_ptr() as usize)
}

impl Rings {
    /// As the kernel has them. Of services whose ring is not among `rings` nothing is remembered.
    pub(crate) fn new(services: &[ServiceRow], rings: &[RingRow]) -> Rings {
        let by_id: HashMap<u32, &RingRow> = rings.iter().map(|ring| (ring.id, ring)).collect();
        let last = |row: &ServiceRow| Last {
            service: row.id,
            members: Vec::new(),
            references: row.members.clone(),
            live: Vec::new(),
            wanted: None,
            ring: by_id.get(&row.ring).map(|ring| (*ring).clone()),
        };
        let used: HashSet<u32> = services.iter().map(|row| row.ring).collect();
        Rings {
            last: services.iter().map(|row| (row.key, last(row))).collect(),
            built: HashMap::new(),
            free: (0..RW_MAX_RINGS).filter(|id| !used.contains(id)).collect(),
            used,
        }
    }

    /// The ring of each wish, and all rings by ascending id.
    pub(crate) fn plan(
        &mut self,
        wishes: Vec<Wish>,
        now: u32,
        records: &Records,
    ) -> (Vec<u32>, Vec<RingRow>) {
        let wanted = self.build(&wishes);
        let contents = self.remember(&wishes, &wanted, now, records);
        let mut known: HashMap<(usize, usize), u32> = HashMap::new();
        for ring in self.last.values().filter_map(|last| last.ring.as_ref()) {
            known.insert((ring.slots.as_ptr() as usize, ring.pairs.as_ptr() as usize), ring.id);
        }
        let mut rows: HashMap<u32, RingRow> = HashMap::new();
        let mut ids = Vec::with_capacity(wishes.len());
        for (slots, pairs) in &contents {
            let content = (slots.clone(), pairs.clone());
            let fresh = || self.free.pop_front().unwrap_or(RW_MAX_RINGS);
            let id = *known.entry(address(&content)).or_insert_with(fresh);
            rows.entry(id).or_insert(RingRow { id, slots: content.0, pairs: content.1 });
            ids.push(id);
        }
        let used: HashSet<u32> = rows.keys().copied().collect();
        self.free.extend(self.used.difference(&used));
        self.used = used;
        let last = wishes.into_iter().zip(wanted).zip(&ids).map(|((wish, wanted), id)| {
            let Wish { key, service, members, references, live, .. } = wish;
            let ring = rows.get(id).cloned();
            (key, Last { service, members, references, live, wanted: Some(wanted), ring })
        });
        self.last = last.collect();
        // What no service wants any more is nobody's but the cache's.
        self.built.retain(|_, slots| Arc::strong_count(slots) > 1);
        let mut rows: Vec<RingRow> = rows.into_values().collect();
        rows.sort_by_key(|ring| ring.id);
        (ids, rows)
    }

    /// Who should own each slot: as in the last plan, or as another service has it, or new.
    fn build(&mut self, wishes: &[Wish]) -> Vec<Arc<[u16]>> {
        let as_before = |wish: &Wish| {
            let last = self.last.get(&wish.key).filter(|last| last.members == wish.members);
            last.and_then(|last| last.wanted.clone())
        };
        let mut wanted: Vec<Option<Arc<[u16]>>> = wishes.iter().map(as_before).collect();
        let mut missing: HashMap<&[Member], Vec<usize>> = HashMap::new();
        for (place, wish) in wishes.iter().enumerate().filter(|(n, _)| wanted[*n].is_none()) {
            missing.entry(&wish.members).or_default().push(place);
        }
        let known = |members: &[Member]| self.built.get(members).cloned();
        let (old, new): (Vec<_>, Vec<_>) =
            missing.keys().map(|members| (*members, known(members))).partition(|m| m.1.is_some());
        let new: Vec<&[Member]> = new.into_iter().map(|(members, _)| members).collect();
        let built = build_all(&new);
        for (members, slots) in &built {
            self.built.insert(members.to_vec(), slots.clone());
        }
        let old = old.into_iter().filter_map(|(members, slots)| Some((members, slots?)));
        for (members, slots) in old.chain(built) {
            for place in missing.get(members).into_iter().flatten() {
                wanted[*place] = Some(slots.clone());
            }
        }
        // None is left without.
        wanted.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// What each ring becomes. Services that had one ring and want one go on sharing it.
    fn remember(
        &self,
        wishes: &[Wish],
        wanted: &[Arc<[u16]>],
        now: u32,
        records: &Records,
    ) -> Vec<Content> {
        let nothing: Arc<[Pair]> = empty_pairs();
        let mut contents = Vec::with_capacity(wishes.len());
        let mut groups: HashMap<Group, Vec<usize>> = HashMap::new();
        for (place, (wish, wanted)) in wishes.iter().zip(wanted).enumerate() {
            contents.push((wanted.clone(), nothing.clone()));
            let last = self.last.get(&wish.key);
            let (Some(timeout), Some(last)) = (wish.remember, last) else { continue };
            let Some(ring) = &last.ring else { continue };
            let moment = records.moment([wish.service].iter(), now, timeout);
            if last.is_same(wish, wanted) && !history::is_due(&ring.pairs, &moment) {
                contents[place] = (ring.slots.clone(), ring.pairs.clone());
                continue;
            }
            let group = Group {
                ring: ring.id,
                wanted: wanted.as_ptr() as usize,
                now: last.numbers(wish),
                timeout,
            };
            groups.entry(group).or_default().push(place);
        }
        for (group, places) in groups {
            let services = || places.iter().map(|place| &wishes[*place].service);
            let (first, moment) = (places[0], records.moment(services(), now, group.timeout));
            let last = self.last.get(&wishes[first].key).and_then(|last| last.ring.as_ref());
            let Some(ring) = last else { continue };
            let before = Before { ring, now: &group.now };
            let elsewhere = records.elsewhere(services());
            let mut content = history::follow(&before, &wanted[first], &moment, &elsewhere);
            if content.0 == ring.slots && content.1 == ring.pairs {
                content = (ring.slots.clone(), ring.pairs.clone());
            } else if content.1.is_empty() {
                content.1 = nothing.clone();
            }
            for place in places {
                contents[place] = content.clone();
            }
        }
        contents
    }

    /// Services of the last plan with rings in which only records can tell whether a slot is
    /// stable: id, ring, references of the members, and whether their flows live.
    pub(crate) fn settling(&self) -> impl Iterator<Item = (u16, &RingRow, &[u32], &[bool])> {
        self.last.values().filter_map(|last| {
            let ring = last.ring.as_ref()?;
            let settling = ring.pairs.iter().any(|pair| pair.current == pair.former);
            settling.then_some((
                last.service,
                ring,
                last.references.as_slice(),
                last.live.as_slice(),
            ))
        })
    }

    /// Whether any slot has changed and is not stable yet.
    pub(crate) fn changing(&self) -> bool {
        self.last.values().any(|last| last.ring.as_ref().is_some_and(|r| !r.pairs.is_empty()))
    }
}

/// All empty lists are one, so that stable rings can be told by their addresses.
fn empty_pairs() -> Arc<[Pair]> {
    static EMPTY: std::sync::LazyLock<Arc<[Pair]>> = std::sync::LazyLock::new(|| Arc::from([]));
    EMPTY.clone()
}

/// Services whose rings follow from the last one in the same way.
#[derive(PartialEq, Eq, Hash)]
struct Group {
    ring: u32,
    wanted: usize,
    now: Vec<Option<u16>>,
    timeout: u32,
}

impl Last {
    /// Nothing but time has passed.
    fn is_same(&self, wish: &Wish, wanted: &Arc<[u16]>) -> bool {
        self.wanted.as_ref().is_some_and(|last| Arc::ptr_eq(last, wanted))
            && self.references == wish.references
            && self.live == wish.live
    }

    /// For each member then: its number now, if its flows live.
    fn numbers(&self, wish: &Wish) -> Vec<Option<u16>> {
        let living = wish.references.iter().zip(&wish.live).enumerate();
        let numbers: HashMap<u32, u16> = living
            .filter(|(_, (_, live))| **live)
            .map(|(number, (reference, _))| (*reference, number as u16))
            .collect();
        self.references.iter().map(|reference| numbers.get(reference).copied()).collect()
    }
}

/// Rings of these members, on all CPUs.
fn build_all<'m>(members: &[&'m [Member]]) -> Vec<(&'m [Member], Arc<[u16]>)> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let build = |some: &[&'m [Member]]| -> Vec<(&'m [Member], Arc<[u16]>)> {
        some.iter().map(|members| (*members, maglev::ring(members).into())).collect()
    };
    if members.len() < 2 || cpus < 2 {
        return build(members);
    }
    thread::scope(|scope| {
        let share = members.len().div_ceil(cpus);
        let threads: Vec<_> =
            members.chunks(share).map(|some| (some, scope.spawn(move || build(some)))).collect();
        // A thread that panicked would have done so here, too.
        let built = threads.into_iter().map(|(some, thread)| match thread.join() {
            Ok(built) => built,
            Err(_) => build(some),
        });
        built.flatten().collect()
    })
}
