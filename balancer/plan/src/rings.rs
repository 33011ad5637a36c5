//! The rings of a plan: which there are, who shares them, and what they remember of the last one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, Builder};

use ringway_abi::raw::RW_MAX_RINGS;

use crate::history::{self, Before, Moment};
use crate::maglev::Member;
use crate::observed::Records;
use crate::tables::{Pair, RingRow, ServiceKey, ServiceRow, Slots};

/// The ring that one service wants.
pub(crate) struct Wish {
    pub(crate) key: ServiceKey,
    pub(crate) service: u16,
    /// In the order of identity; weight 0 for those that get no new flows.
    pub(crate) members: Vec<Member>,
    /// References of the same members, in the same order.
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
    references: Vec<u32>,
    live: Vec<bool>,
    /// Before history had its say; `None`: not known.
    wanted: Option<Slots>,
    /// `None`: not known.
    ring: Option<RingRow>,
}

/// Rings, from one plan to the next.
#[derive(Debug)]
pub(crate) struct Rings {
    last: HashMap<ServiceKey, Last>,
    /// Stable ones, so that services with equal members share.
    stable: HashMap<Arc<[Member]>, Slots>,
    used: HashSet<u32>,
    /// Given back last comes last: packets under way may still use it.
    free: VecDeque<u32>,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings::new(&[], &[])
    }
}

/// Where slots are the same, so are their pairs.
#[derive(Clone)]
struct Content {
    slots: Slots,
    pairs: Arc<[Pair]>,
    /// The ring that has it, if already known.
    ring: Option<u32>,
}

impl Rings {
    /// As the kernel has them. Of services whose ring is not among `rings` nothing is remembered.
    pub(crate) fn new(services: &[ServiceRow], rings: &[RingRow]) -> Rings {
        let by_id: HashMap<u32, &RingRow> = rings.iter().map(|ring| (ring.id, ring)).collect();
        let last = |row: &ServiceRow| Last {
            service: row.id,
            references: row.members.clone(),
            live: Vec::new(),
            wanted: None,
            ring: by_id.get(&row.ring).map(|ring| (*ring).clone()),
        };
        let used: HashSet<u32> = services.iter().map(|row| row.ring).collect();
        Rings {
            last: services.iter().map(|row| (row.key, last(row))).collect(),
            stable: HashMap::new(),
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
        let wanted = self.wanted(&wishes);
        let contents = self.remember(&wishes, &wanted, now, records);
        let mut known: HashMap<usize, u32> = HashMap::new();
        for ring in self.last.values().filter_map(|last| last.ring.as_ref()) {
            known.insert(ring.slots.address(), ring.id);
        }
        let mut rows: HashMap<u32, RingRow> = HashMap::new();
        let mut ids = Vec::with_capacity(wishes.len());
        for Content { slots, pairs, ring } in contents {
            let fresh = || self.free.pop_front().unwrap_or(RW_MAX_RINGS);
            let known = known.entry(slots.address());
            let id = *known.or_insert_with(|| ring.unwrap_or_else(fresh));
            rows.entry(id).or_insert(RingRow { id, slots, pairs });
            ids.push(id);
        }
        let used: HashSet<u32> = rows.keys().copied().collect();
        self.free.extend(self.used.difference(&used));
        self.used = used;
        let last = wishes.into_iter().zip(wanted).zip(&ids).map(|((wish, wanted), id)| {
            let Wish { key, service, references, live, .. } = wish;
            let ring = rows.get(id).cloned();
            (key, Last { service, references, live, wanted: Some(wanted), ring })
        });
        self.last = last.collect();
        self.stable.retain(|_, slots| slots.is_shared());
        let mut rows: Vec<RingRow> = rows.into_values().collect();
        rows.sort_by_key(|ring| ring.id);
        (ids, rows)
    }

    /// The owner of each slot: as in the last plan, or as another service has it, or new.
    fn wanted(&mut self, wishes: &[Wish]) -> Vec<Slots> {
        let mut one = |wish: &Wish| {
            let members = wish.members.as_slice();
            let last = self.last.get(&wish.key).and_then(|last| last.wanted.as_ref());
            if let Some(same) = last.filter(|slots| slots.members() == Some(members)) {
                return same.clone();
            }
            if let Some(known) = self.stable.get(members) {
                return known.clone();
            }
            let members: Arc<[Member]> = members.into();
            let slots = Slots::stable(members.clone());
            self.stable.insert(members, slots.clone());
            slots
        };
        wishes.iter().map(&mut one).collect()
    }

    /// The new state of each ring. Services that had one ring and want one go on sharing it.
    fn remember(
        &self,
        wishes: &[Wish],
        wanted: &[Slots],
        now: u32,
        records: &Records,
    ) -> Vec<Content> {
        let nothing: Arc<[Pair]> = Arc::from([]);
        let mut contents = Vec::with_capacity(wishes.len());
        let mut groups: HashMap<Group, Vec<usize>> = HashMap::new();
        for (place, (wish, wanted)) in wishes.iter().zip(wanted).enumerate() {
            let (slots, pairs) = (wanted.clone(), nothing.clone());
            contents.push(Content { slots, pairs, ring: None });
            let last = self.last.get(&wish.key);
            let (Some(timeout), Some(last)) = (wish.remember, last) else { continue };
            let Some(ring) = &last.ring else { continue };
            let moment = records.moment([wish.service].iter(), now, timeout);
            if last.is_same(wish, wanted) && !history::is_due(&ring.pairs, &moment) {
                contents[place] = Content::of(ring);
                continue;
            }
            let wanted = wanted.address();
            let group = Group { ring: ring.id, wanted, now: last.numbers(wish), timeout };
            groups.entry(group).or_default().push(place);
        }
        let groups: Vec<(Group, Vec<usize>)> = groups.into_iter().collect();
        let following = on_all_cpus(&groups, |(group, places)| {
            let services = || places.iter().map(|place| &wishes[*place].service);
            let moment = records.moment(services(), now, group.timeout);
            let last = self.last.get(&wishes[places[0]].key).and_then(|last| last.ring.as_ref())?;
            let elsewhere = records.elsewhere(services());
            Some(follow(last, &wanted[places[0]], &group.now, &moment, &elsewhere))
        });
        for ((_, places), content) in groups.iter().zip(following) {
            let Some(content) = content else { continue };
            for place in places {
                contents[*place] = content.clone();
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

impl Content {
    fn of(ring: &RingRow) -> Content {
        Content { slots: ring.slots.clone(), pairs: ring.pairs.clone(), ring: Some(ring.id) }
    }
}

/// Follows one ring into the plan.
fn follow(
    ring: &RingRow,
    wanted: &Slots,
    now: &[Option<u16>],
    moment: &Moment,
    elsewhere: &HashSet<u32>,
) -> Content {
    let was = ring.written();
    let before = Before { ring: &was, now };
    let is = history::follow(&before, wanted.written(), moment, elsewhere);
    let same = is.slots == was.slots && is.pairs == was.pairs;
    let slots = match (same, is.pairs.is_empty()) {
        // Not as it was found: that takes more room.
        (true, _) if ring.slots.members().is_some() => ring.slots.clone(),
        // Without a pair it is the very ring that was wanted, and can be shared with others.
        (_, true) => wanted.clone(),
        (_, false) => Slots::changing(wanted, &is.slots),
    };
    Content { slots, pairs: is.pairs, ring: same.then_some(ring.id) }
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
    fn is_same(&self, wish: &Wish, wanted: &Slots) -> bool {
        self.wanted.as_ref().is_some_and(|last| last.address() == wanted.address())
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

/// One result for each, made on all CPUs.
fn on_all_cpus<T: Sync, R: Send>(all: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    if all.len() < 2 || cpus < 2 {
        return all.iter().map(make).collect();
    }
    let make = &make;
    let some = |some: &[T]| some.iter().map(make).collect::<Vec<R>>();
    thread::scope(|scope| {
        let begin = |share| (share, Builder::new().spawn_scoped(scope, move || some(share)));
        let threads: Vec<_> = all.chunks(all.len().div_ceil(cpus)).map(begin).collect();
        let made = threads.into_iter().map(|(share, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The kernel gives no thread now.
            Err(_) => some(share),
        });
        made.flatten().collect()
    })
}

/// A walk through the records: told of each one, it keeps what the next plan must know.
#[derive(Debug)]
pub struct RecordWalk<'p> {
    /// By the backend's reference.
    settling: HashMap<u32, Settling<'p>>,
    records: Records,
}

#[derive(Clone, Copy, Debug)]
struct Settling<'p> {
    service: u16,
    ring: &'p RingRow,
    members: &'p [u32],
}

impl<'p> RecordWalk<'p> {
    pub(crate) fn new(rings: &'p Rings, now: u32, failed: HashMap<u16, u32>) -> RecordWalk<'p> {
        let mut settling = HashMap::new();
        for (service, ring, members, live) in rings.settling() {
            let living = members.iter().zip(live).filter(|(_, live)| **live);
            settling.extend(living.map(|(m, _)| (*m, Settling { service, ring, members })));
        }
        RecordWalk { settling, records: Records { looked: now, failed, ..Records::default() } }
    }

    /// Whether the records need to be looked through at all.
    pub fn is_needed(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Takes note of a living record: ring slot and backend reference.
    pub fn record(&mut self, slot: u32, backend: u32) {
        let Some(Settling { service, ring, members }) = self.settling.get(&backend).copied() else {
            return;
        };
        let Some(pair) = ring.pair(slot as usize) else { return };
        let current = members.get(usize::from(pair.current));
        if current != Some(&backend) {
            self.records.elsewhere.entry(service).or_default().insert(slot);
        }
    }

    /// The records that were read.
    pub fn end(self) -> Records {
        self.records
    }
}
