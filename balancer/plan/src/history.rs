//! Who owned a slot before: what lets flows without a record keep their backend while a ring
//! changes. Pure.
//!
//! A slot is stable while one member has all its flows: then the ring alone decides, and nothing
//! is kept per flow. When its owner changes and the former one lives, the slot is *changing*: it
//! names both. A SYN goes to the current owner and is tracked; a packet without a record is older
//! than the change and goes to the former. So all flows of other owners but the former have
//! records, and two owners are enough for any number of changes.
//!
//! Once the idle timeout has passed since the first change, flows of the former owner have records
//! too, or are over: the slot is *settling* and names its current owner twice. It is stable again
//! when no record of it leads elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ringway_abi::raw::RW_NO_MEMBER;

use crate::fast_map::FastMap;
use crate::slots::{FIRST_PAIR, names_pair};
use crate::tables::{Pair, RingRow, ServiceKey, ServiceRow, Tables};

const NO_MEMBER: u16 = RW_NO_MEMBER as u16;
/// A slot whose pair finds no room forgets its former owner: more pairs than this need nearly as
/// many owners as there are slots.
const MAX_PAIRS: usize = (NO_MEMBER - FIRST_PAIR) as usize;

/// Owners of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owners {
    Stable(u16),
    Changing(Pair),
}

/// A ring written out.
#[derive(Clone, Debug)]
pub struct Written {
    /// The content of each slot, see [`crate::tables::Slots`].
    pub slots: Vec<u16>,
    /// Owners of slots that have changed.
    pub pairs: Arc<[Pair]>,
}

impl RingRow {
    /// Every slot of it.
    pub fn written(&self) -> Written {
        Written { slots: self.slots.written(), pairs: self.pairs.clone() }
    }

    /// The owners of a slot that has changed.
    pub(crate) fn pair(&self, slot: usize) -> Option<Pair> {
        let number = self.slots.pair(slot)?;
        self.pairs.get(usize::from(number - FIRST_PAIR)).copied()
    }
}

impl Tables {
    /// Services that were in `old` as well, by key, each with how many slots of its ring give new
    /// flows to another backend than before; services of which none does are left out.
    pub fn slots_moved(&self, old: &Tables) -> Vec<(&ServiceRow, usize)> {
        let before: HashMap<ServiceKey, &ServiceRow> =
            old.services.iter().map(|service| (service.key, service)).collect();
        let moved = |service| {
            let moved = moved((self, service), (old, *before.get(&service.key)?));
            (moved > 0).then_some((service, moved))
        };
        let mut services: Vec<_> = self.services.iter().filter_map(moved).collect();
        services.sort_by_key(|(service, _)| service.key);
        services
    }

    fn ring(&self, service: &ServiceRow) -> Option<&RingRow> {
        self.rings.iter().find(|ring| ring.id == service.ring)
    }
}

fn moved((new, is): (&Tables, &ServiceRow), (old, was): (&Tables, &ServiceRow)) -> usize {
    let (Some(new), Some(old)) = (new.ring(is), old.ring(was)) else { return 0 };
    if is.members == was.members && new.slots == old.slots && new.pairs == old.pairs {
        return 0;
    }
    let backend = |ring: &Written, service: &ServiceRow, slot| {
        ring.current(slot).and_then(|member| service.members.get(usize::from(member)).copied())
    };
    let slots = 0..new.slots.count().min(old.slots.count());
    let (new, old) = (new.written(), old.written());
    slots.filter(|slot| backend(&new, is, *slot) != backend(&old, was, *slot)).count()
}

impl Written {
    /// The owners of a slot.
    fn owners(&self, slot: usize) -> Owners {
        let number = self.slots[slot];
        if !names_pair(number) {
            return Owners::Stable(number);
        }
        // A number that leads nowhere can only come from a damaged table.
        let pair = self.pairs.get(usize::from(number - FIRST_PAIR)).copied();
        pair.map_or(Owners::Stable(NO_MEMBER), Owners::Changing)
    }

    /// The member that new flows of a slot go to; `None`: there is none.
    pub fn current(&self, slot: usize) -> Option<u16> {
        let current = match self.owners(slot) {
            Owners::Stable(member) => member,
            Owners::Changing(pair) => pair.current,
        };
        (current != NO_MEMBER).then_some(current)
    }

    /// The member that flows without a record belong to; `None`: there is none.
    pub fn former(&self, slot: usize) -> Option<u16> {
        let former = match self.owners(slot) {
            Owners::Stable(member) => member,
            Owners::Changing(pair) => pair.former,
        };
        (former != NO_MEMBER).then_some(former)
    }

    /// Whether flows of a slot must be looked up.
    pub fn is_changed(&self, slot: usize) -> bool {
        matches!(self.owners(slot), Owners::Changing(_))
    }
}

/// Facts besides the rings. Times in seconds of CLOCK_MONOTONIC, as records have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: u32,
    /// A flow that is idle for longer is over.
    pub(crate) timeout: u32,
    /// When a flow of these slots could not be tracked last; 0: never.
    pub(crate) failed: u32,
    /// When the records were looked through last; 0: never.
    pub(crate) looked: u32,
}

impl Moment {
    /// Is every flow of the former owner in a record, or over? Says the last look, which also told
    /// of flows that could not be tracked.
    fn former_is_over(&self, pair: Pair) -> bool {
        self.looked.saturating_sub(pair.since.max(self.failed)) > self.timeout
    }

    /// Was a look taken after these owners came into force?
    fn looked_since(&self, pair: Pair) -> bool {
        // The next second: the pair may be in force only at the end of its own.
        self.looked > pair.since.saturating_add(1)
    }

    /// Will time alone change something about this pair?
    fn is_due(&self, pair: Pair) -> bool {
        match pair.current == pair.former {
            true => self.looked_since(pair),
            false => self.former_is_over(pair),
        }
    }
}

/// Whether the owners of any slot change by time alone.
pub(crate) fn is_due(pairs: &[Pair], moment: &Moment) -> bool {
    pairs.iter().any(|pair| moment.is_due(*pair))
}

/// A ring in force, seen from the one that follows it.
pub(crate) struct Before<'r> {
    pub(crate) ring: &'r Written,
    /// For each of its members the number it has now; `None`: it is gone, or its flows are dead.
    pub(crate) now: &'r [Option<u16>],
}

impl Before<'_> {
    fn number(&self, member: u16) -> Option<u16> {
        self.now.get(usize::from(member)).copied().flatten()
    }
}

/// The ring that follows. `wanted`: who should own each slot. `elsewhere`: slots with a record of a
/// flow that is not the current owner's.
pub(crate) fn follow(
    before: &Before,
    wanted: Vec<u16>,
    moment: &Moment,
    elsewhere: &HashSet<u32>,
) -> Written {
    let mut pairs = Pairs::default();
    let mut slots = wanted;
    for (number, slot) in slots.iter_mut().enumerate() {
        let busy = || elsewhere.contains(&(number as u32));
        let next = next(before, before.ring.owners(number), *slot, moment, busy);
        let Owners::Changing(pair) = next else { continue };
        if let Some(number) = pairs.number(pair) {
            *slot = number;
        }
    }
    Written { slots, pairs: pairs.all.into() }
}

fn next(
    before: &Before,
    owners: Owners,
    current: u16,
    moment: &Moment,
    busy: impl Fn() -> bool,
) -> Owners {
    let pair = |former, since| Owners::Changing(Pair { current, former, since });
    let was = match owners {
        Owners::Changing(was) => was,
        Owners::Stable(was) => {
            return match before.number(was) {
                Some(was) if was != current => pair(was, moment.now),
                _ => Owners::Stable(current),
            };
        }
    };
    let former = before.number(was.former);
    if was.current != was.former {
        return match former {
            Some(former) if former != current && !moment.former_is_over(was) => {
                pair(former, was.since)
            }
            _ => pair(current, moment.now),
        };
    }
    let same = former == Some(current) || was.current == NO_MEMBER && current == NO_MEMBER;
    match former {
        _ if same && moment.looked_since(was) && !busy() => Owners::Stable(current),
        _ if same => pair(current, was.since),
        // Its flows without a record are older than this change.
        Some(former) => pair(former, moment.now),
        None => pair(current, moment.now),
    }
}

/// Pairs and their numbers in slots.
#[derive(Default)]
struct Pairs {
    all: Vec<Pair>,
    numbers: FastMap<Pair, u16>,
}

impl Pairs {
    fn number(&mut self, pair: Pair) -> Option<u16> {
        if let Some(number) = self.numbers.get(&pair) {
            return Some(*number);
        }
        if self.all.len() >= MAX_PAIRS {
            return None;
        }
        let number = FIRST_PAIR + self.all.len() as u16;
        self.all.push(pair);
        self.numbers.insert(pair, number);
        Some(number)
    }
}
