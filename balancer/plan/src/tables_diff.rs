//! What changes from one plan to the next, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use ringway_config::endpoint_text;

use crate::history::Written;
use crate::maglev::SLOTS;
use crate::tables::{BackendRow, Forward, RingRow, ServiceKey, ServiceRow, Tables};

/// One change of the tables. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A service entry that was not there.
    ServiceAdded(ServiceName),
    /// A service entry that is gone.
    ServiceRemoved(ServiceName),
    /// Forwarding, source, announcement, name or what happens when none is healthy.
    ServiceChanged(ServiceName),
    /// What happened to one backend.
    Backend(ServiceName, SocketAddr, BackendChange),
    /// Slots of a service's ring that lead to another backend now, of `RW_RING_SLOTS`.
    SlotsMoved(ServiceName, usize),
    /// Source addresses, ports or timeouts of nat.
    Nat,
}

/// What happened to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendChange {
    /// It was not there.
    Added,
    /// It is gone.
    Removed,
    /// It serves again.
    Up,
    /// Its flows end.
    Down,
    /// It has another weight.
    Weight(u16),
    /// It has another next hop, or one at last.
    NextHop,
    /// Its next hop, or the source address towards it, is not known any more.
    Unreachable,
    /// It is reached from other source addresses.
    Source,
}

/// A service entry, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// The service's name in the configuration.
    pub name: String,
    /// What clients address.
    pub key: ServiceKey,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.key.endpoint();
        write!(f, "service {:?} ({endpoint} {})", self.name, self.key.protocol)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::ServiceAdded(service) => write!(f, "{service} added"),
            Change::ServiceRemoved(service) => write!(f, "{service} removed"),
            Change::ServiceChanged(service) => write!(f, "{service} changed"),
            Change::Backend(service, endpoint, change) => {
                write!(f, "{service}: backend {} {change}", endpoint_text(*endpoint))
            }
            Change::SlotsMoved(service, slots) => {
                let percent = *slots as f64 * 100.0 / SLOTS as f64;
                write!(f, "{service}: {slots} of {SLOTS} ring slots moved ({percent:.1} %)")
            }
            Change::Nat => f.write_str("nat: source addresses, ports or timeouts changed"),
        }
    }
}

impl fmt::Display for BackendChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendChange::Added => f.write_str("added"),
            BackendChange::Removed => f.write_str("removed"),
            BackendChange::Up => f.write_str("up"),
            BackendChange::Down => f.write_str("down"),
            BackendChange::Weight(weight) => write!(f, "has weight {weight}"),
            BackendChange::NextHop => f.write_str("has a next hop, or another one"),
            BackendChange::Unreachable => f.write_str("cannot be reached: no next hop"),
            BackendChange::Source => f.write_str("is reached from other source addresses"),
        }
    }
}

impl Tables {
    /// What changes when these tables take the place of `old`.
    pub fn diff(&self, old: &Tables) -> Vec<Change> {
        let (before, after) = (Index::new(old), Index::new(self));
        let mut changes = Vec::new();
        for key in before.services.keys().chain(after.services.keys()).collect::<BTreeSet<_>>() {
            match (before.services.get(key), after.services.get(key)) {
                (Some(service), None) => changes.push(Change::ServiceRemoved(name(service))),
                (None, Some(service)) => changes.push(Change::ServiceAdded(name(service))),
                (Some(old), Some(new)) => {
                    if settings(old) != settings(new) {
                        changes.push(Change::ServiceChanged(name(new)));
                    }
                    backends(&before, &after, old, new, &mut changes);
                    let moved = slots_moved(
                        (before.rings.get(&old.ring), &old.members),
                        (after.rings.get(&new.ring), &new.members),
                    );
                    if moved > 0 {
                        changes.push(Change::SlotsMoved(name(new), moved));
                    }
                }
                (None, None) => {}
            }
        }
        let nat =
            |tables: &Tables| (tables.nat_addresses.clone(), tables.nat_ports, tables.timeouts);
        if nat(old) != nat(self) {
            changes.push(Change::Nat);
        }
        changes
    }
}

/// Tables by what they are about.
struct Index<'t> {
    services: BTreeMap<ServiceKey, &'t ServiceRow>,
    backends: BTreeMap<u16, BTreeMap<SocketAddr, &'t BackendRow>>,
    rings: BTreeMap<u32, &'t RingRow>,
}

impl<'t> Index<'t> {
    fn new(tables: &'t Tables) -> Index<'t> {
        let mut backends: BTreeMap<u16, BTreeMap<SocketAddr, &BackendRow>> = BTreeMap::new();
        for row in &tables.backends {
            backends.entry(row.service).or_default().insert(row.endpoint(), row);
        }
        Index {
            services: tables.services.iter().map(|row| (row.key, row)).collect(),
            backends,
            rings: tables.rings.iter().map(|row| (row.id, row)).collect(),
        }
    }

    fn of(&self, service: &ServiceRow) -> impl Iterator<Item = (SocketAddr, &'t BackendRow)> {
        let backends = self.backends.get(&service.id);
        backends.into_iter().flatten().map(|(endpoint, row)| (*endpoint, *row))
    }
}

fn name(row: &ServiceRow) -> ServiceName {
    ServiceName { name: row.name.clone(), key: row.key }
}

fn settings(row: &ServiceRow) -> (&str, Forward, bool, bool, bool, bool) {
    (
        &row.name,
        row.forward,
        row.affinity_source,
        row.source_client,
        row.announce,
        row.reset_when_none,
    )
}

fn backends(
    before: &Index,
    after: &Index,
    old: &ServiceRow,
    new: &ServiceRow,
    changes: &mut Vec<Change>,
) {
    let was: BTreeMap<SocketAddr, &BackendRow> = before.of(old).collect();
    let is: BTreeMap<SocketAddr, &BackendRow> = after.of(new).collect();
    for endpoint in was.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
        let mut push = |change| changes.push(Change::Backend(name(new), *endpoint, change));
        match (was.get(endpoint), is.get(endpoint)) {
            (Some(_), None) => push(BackendChange::Removed),
            (None, Some(_)) => push(BackendChange::Added),
            (Some(was), Some(is)) => backend(was, is, push),
            (None, None) => {}
        }
    }
}

fn backend(was: &BackendRow, is: &BackendRow, mut push: impl FnMut(BackendChange)) {
    if was.up != is.up {
        push(if is.up { BackendChange::Up } else { BackendChange::Down });
    }
    if was.weight != is.weight {
        push(BackendChange::Weight(is.weight));
    }
    if was.next_hop != is.next_hop {
        push(match is.next_hop {
            Some(_) => BackendChange::NextHop,
            None => BackendChange::Unreachable,
        });
    }
    if was.nat != is.nat || was.tunnel != is.tunnel {
        push(BackendChange::Source);
    }
}

/// Slots whose new flows go elsewhere.
fn slots_moved(old: (Option<&&RingRow>, &[u32]), new: (Option<&&RingRow>, &[u32])) -> usize {
    let ((Some(old), was), (Some(new), is)) = (old, new) else { return 0 };
    if was == is && old.slots == new.slots && old.pairs == new.pairs {
        return 0;
    }
    let owner = |ring: &Written, members: &[u32], slot: usize| {
        ring.current(slot).and_then(|member| members.get(usize::from(member)).copied())
    };
    let slots = 0..old.slots.count().min(new.slots.count());
    let (old, new) = (old.written(), new.written());
    slots.filter(|slot| owner(&old, was, *slot) != owner(&new, is, *slot)).count()
}
