//! Makes the packet path's tables hold what the plan says, writing only what changed and in an
//! order in which no packet finds a service without its ring or a ring without its backends.

pub(crate) mod delta;
pub(crate) mod members;
pub(crate) mod policies;
pub(crate) mod rings;
pub(crate) mod rows;
pub(crate) mod service_index;
mod shifts;
pub(crate) mod switch;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::MapCore;
use ringway_abi::FlowState;
use ringway_abi::raw::{
    RW_FLOW_TIMEOUTS, RW_LABEL_LEN, RW_MAX_IFACES, RW_MAX_MEMBERS, RW_MAX_NAT_ADDRS, RW_MAX_RINGS,
    RW_MAX_SERVICES, RW_NO_MEMBER, RW_RING_SLOTS, rw_address, rw_backend, rw_label,
    rw_service_info, rw_settings, rw_shield_policy, rw_traffic,
};
use ringway_plan::tables::{Tables, Timeouts};
use zerocopy::{Immutable, IntoBytes};

use crate::gateway::Gateway;
use crate::maps::{Map, Maps};
use crate::{Error, Result};

use delta::{Applied, changed, gone};
use members::Members;
use rows::{Rows, is_vacant, vacated};

/// As many as a slot can name.
const MAX_PAIRS: usize = (RW_NO_MEMBER - RW_MAX_MEMBERS) as usize;

impl Gateway {
    /// Makes the tables hold this. Idempotent; writes only what differs from the last time, or
    /// from what a former daemon left. Tables that the packet path has no room for are refused
    /// before anything is written; after another error the next call compares with the kernel
    /// again.
    pub fn apply(&mut self, tables: &Tables) -> Result<Applied> {
        check(tables, self.maps().backends.max_entries())?;
        let have = match self.rows.take() {
            Some(rows) => rows,
            None => self.read_rows()?,
        };
        let room = |want: &Rows| service_index::check(want.services.len(), self.maps());
        let want = Rows::wanted(tables, &have, &self.maps().sources.clock);
        let mut want = match want.and_then(|it| room(&it).map(|()| it)) {
            Ok(want) => want,
            Err(error) => {
                self.rows = Some(have);
                return Err(error);
            }
        };
        if self.index.stale {
            // The last change failed on the way.
            let maps = Arc::clone(self.shared_maps());
            self.index.put(&maps, &have.services)?;
            self.index.confirm(&maps)?;
        }
        let hops = tables.backends.iter().filter_map(|backend| backend.next_hop);
        self.note_ways_out(hops.map(|hop| hop.iface))?;
        let maps = Arc::clone(self.shared_maps());
        let mut applied = write(&maps, tables, &have, &want)?;
        let writers = (&mut self.index, &mut self.retiring);
        switch::switch(&maps, tables, (&have, &want), writers, &mut applied)?;
        applied.removed += remove_stale(&maps, &have, &want)?;
        // Remember what was vacated: its generation still stands in the table.
        let gone = both(&have.backends, &want.backends).filter(|(_, _, new)| new.is_none());
        let gone: Vec<(u32, rw_backend)> =
            gone.filter_map(|(index, old, _)| Some((index, vacated(old?)))).collect();
        if !gone.is_empty() {
            want.backends.extend(gone);
            want.backends.sort_by_key(|(index, _)| *index);
        }
        self.rows = Some(want);
        Ok(applied)
    }
}

/// What services point to.
fn write(maps: &Arc<Maps>, tables: &Tables, have: &Rows, want: &Rows) -> Result<Applied> {
    let mut done = Applied { settings: write_settings(maps, tables)?, ..Default::default() };

    for (index, address) in want.nat.iter().enumerate() {
        if have.nat.get(index) != Some(address) {
            maps.nat_addrs.put(&(index as u32), address)?;
            done.settings = true;
        }
    }
    done.backends = write_backends(maps, have, want)?;
    write_changed(&maps.service_info, &have.info, &want.info)?;
    write_changed(&maps.labels, &have.labels, &want.labels)?;
    if tables.services.iter().any(rows::is_proxied) {
        shifts::make(maps)?;
    }
    write_changed(&maps.shield_policies, &have.policies, &want.policies)?;
    let runs = want.members.iter().filter(|(id, run)| have.members.get(id) != Some(run));
    Members::write(maps, runs.map(|(_, run)| run))?;
    Ok(done)
}

/// What nothing points to any more.
fn remove_stale(maps: &Maps, have: &Rows, want: &Rows) -> Result<usize> {
    let mut removed = 0;
    let leaving: Vec<(u32, &rw_backend)> = both(&have.backends, &want.backends)
        .filter(|(_, _, new)| new.is_none())
        .filter_map(|(index, old, _)| Some((index, old.filter(|row| !is_vacant(row))?)))
        .collect();
    if !leaving.is_empty() {
        // Packets under way may have chosen them.
        rings::grace();
    }
    let vacant = take_down(maps, &leaving)?;
    for (index, row) in &leaving {
        vacant.give_address(maps, *index, &vacated(row))?;
        maps.backends.put(index, &vacated(row))?;
        removed += 1;
    }
    for id in gone(&have.info, &want.info) {
        maps.service_info.put(id, &rw_service_info::default())?;
        maps.labels.put(id, &rw_label::default())?;
    }
    for id in gone(&have.policies, &want.policies) {
        maps.shield_policies.put(id, &rw_shield_policy::default())?;
        maps.shield_armed.put(id, &0)?;
    }
    for index in want.nat.len()..have.nat.len() {
        maps.nat_addrs.put(&(index as u32), &rw_address::default())?;
    }
    Ok(removed)
}

/// What each index has and should have. Both ascend by index.
fn both<'a>(
    have: &'a [(u32, rw_backend)],
    want: &'a [(u32, rw_backend)],
) -> impl Iterator<Item = (u32, Option<&'a rw_backend>, Option<&'a rw_backend>)> {
    let (mut have, mut want) = (have.iter().peekable(), want.iter().peekable());
    std::iter::from_fn(move || {
        let indexes = [have.peek(), want.peek()].into_iter().flatten();
        let index = indexes.map(|(index, _)| *index).min()?;
        let old = have.next_if(|(i, _)| *i == index).map(|(_, row)| row);
        let new = want.next_if(|(i, _)| *i == index).map(|(_, row)| row);
        Some((index, old, new))
    })
}

fn write_changed<V>(
    map: &Map<u32, V>,
    have: &BTreeMap<u32, V>,
    want: &BTreeMap<u32, V>,
) -> Result<()>
where
    V: PartialEq + IntoBytes + Immutable,
{
    changed(have, want).try_for_each(|(key, value)| map.put(key, value))
}

fn write_backends(maps: &Maps, have: &Rows, want: &Rows) -> Result<usize> {
    let key = maps.settings.get(0)?.keys[0];
    let (mut indexes, mut rows) = (Vec::new(), Vec::new());
    let leaving: Vec<(u32, &rw_backend)> = both(&have.backends, &want.backends)
        .filter_map(|(index, old, new)| Some((index, old?, new?)))
        .filter(|(_, old, new)| other_owner(old, new))
        .map(|(index, old, _)| (index, old))
        .collect();
    let vacant = take_down(maps, &leaving)?;
    for (index, old, new) in both(&have.backends, &want.backends) {
        let Some(row) = new.filter(|new| old != Some(*new)) else { continue };
        vacant.give_address(maps, index, row)?;
        if old.is_none() {
            scatter_ports(maps, index, key)?;
        }
        indexes.push(index);
        rows.push(*row);
    }
    let written = indexes.last().map_or(0, |index| index + 1);
    maps.written_backends.fetch_max(written, Relaxed);
    maps.backends.put_all(&indexes, &rows)?;
    Ok(rows.len())
}

/// Where the search for nat ports towards an index begins, before its first owner gets packets. Did
/// all begin at the pool's first port, a backend that comes back under another index, or a node
/// loaded anew, would open connections from the very ports that the backend still holds in
/// TIME_WAIT (RFC 9293 3.6.1).
fn scatter_ports(maps: &Maps, index: u32, key: u64) -> Result<()> {
    maps.traffic.put_percpu(&index, &rw_traffic::default())?;
    maps.port_hands.put(&index, &first_place(index, key))
}

/// Some place for index 0; the others follow at equal distances, so that no two that are near each
/// other begin at one port by chance.
fn first_place(index: u32, key: u64) -> u32 {
    let zero = (key >> 33) as u32 & !(PLACES_TOGETHER - 1);
    zero.wrapping_add(index.wrapping_mul(PLACES_APART))
}

/// As claim.bpf.h has it: the ring's places are taken in so many at once.
const PLACES_TOGETHER: u32 = 32;
/// An odd number of them: a pool of any size has indexes begin all over it.
const PLACES_APART: u32 = 4_093 * PLACES_TOGETHER;

/// Indexes without an owner, which no packet under way has chosen: only `take_down` makes it, and
/// has waited for these packets.
struct Vacant(BTreeSet<u32>);

impl Vacant {
    /// The owner's address, without the flags that let packets go to it.
    fn give_address(&self, maps: &Maps, index: u32, new: &rw_backend) -> Result<()> {
        if self.0.contains(&index) {
            maps.backends.put(&index, &without_flags(new))?;
        }
        Ok(())
    }
}

/// An element is not written at once, but word by word. An index that changes its owner is
/// therefore taken down first, and gets its flags last: no packet goes to a mixture. Between the
/// two leave the packets that have chosen the former owner already.
fn take_down(maps: &Maps, leaving: &[(u32, &rw_backend)]) -> Result<Vacant> {
    let known = || leaving.iter().filter(|(_, row)| row.flags != 0);
    for (index, row) in known() {
        maps.backends.put(index, &without_flags(row))?;
    }
    if known().next().is_some() {
        rings::grace();
    }
    Ok(Vacant(known().map(|(index, _)| *index).collect()))
}

fn without_flags(row: &rw_backend) -> rw_backend {
    rw_backend { flags: 0, ..*row }
}

fn other_owner(a: &rw_backend, b: &rw_backend) -> bool {
    let owner = |row: &rw_backend| (row.addr, row.port_be, row.proto, row.service, row.generation);
    owner(a) != owner(b)
}

fn write_settings(maps: &Maps, tables: &Tables) -> Result<bool> {
    let have = maps.settings.get(0)?;
    let pool = (u32::from(tables.nat_ports.0), u32::from(tables.nat_ports.1));
    let replies = span((have.reply_first, have.reply_count), pool);
    let source_client = tables.services.iter().any(|service| service.source_client);
    let want = rw_settings {
        port_first: pool.0,
        port_count: pool.1,
        reply_first: replies.0,
        reply_count: replies.1,
        timeout: timeouts(&tables.timeouts),
        track_quota: tables.track_quota,
        // Flows outlive the configuration that they began under.
        source_client: have.source_client | u32::from(source_client),
        port_blocks: u32::from(tables.services.iter().any(|s| s.key.port != s.key.last_port)),
        ..have
    };
    if have != want {
        maps.settings.put(&0, &want)?;
    }
    Ok(have != want)
}

/// The least range (first, count) that holds both; an empty one holds nothing.
fn span(a: (u32, u32), b: (u32, u32)) -> (u32, u32) {
    match (a.1, b.1) {
        (0, _) => b,
        (_, 0) => a,
        _ => {
            let first = a.0.min(b.0);
            (first, (a.0 + a.1).max(b.0 + b.1) - first)
        }
    }
}

/// Idle timeout of each state, seconds.
fn timeouts(of: &Timeouts) -> [u32; RW_FLOW_TIMEOUTS as usize] {
    let seconds = |state| match state {
        FlowState::Free | FlowState::Claimed | FlowState::Resting => 0,
        FlowState::Syn | FlowState::SynAck => of.syn,
        FlowState::Established => of.established,
        FlowState::FinClient | FlowState::FinBackend => of.closing,
        FlowState::Closed | FlowState::Reset => of.closed,
        FlowState::UdpNew => of.udp_new,
        FlowState::Udp => of.udp,
    };
    let mut timeouts = [0; RW_FLOW_TIMEOUTS as usize];
    for (timeout, state) in timeouts.iter_mut().zip(FlowState::all()) {
        *timeout = seconds(state);
    }
    timeouts
}

/// Refuses what the packet path has no room for or could not make sense of.
fn check(tables: &Tables, max_backends: u32) -> Result<()> {
    let refuse = |text: String| Err(Error::Tables(text));
    let rings: HashSet<u32> = tables.rings.iter().map(|ring| ring.id).collect();
    for service in &tables.services {
        if u32::from(service.id) >= RW_MAX_SERVICES || service.ring >= RW_MAX_RINGS {
            return refuse(format!(
                "service {}: id {} or ring {} too large",
                service.name, service.id, service.ring
            ));
        }
        if service.name.len() >= RW_LABEL_LEN as usize {
            return refuse(format!(
                "service name {:?} is longer than {} bytes",
                service.name,
                RW_LABEL_LEN - 1
            ));
        }
        if service.members.len() > RW_MAX_MEMBERS as usize {
            return refuse(format!(
                "service {}: {} backends (at most {RW_MAX_MEMBERS})",
                service.name,
                service.members.len()
            ));
        }
        if !rings.contains(&service.ring) {
            return refuse(format!("service {} has no ring {}", service.name, service.ring));
        }
    }
    for backend in &tables.backends {
        let nat_end = backend.nat.0.saturating_add(backend.nat.1) as usize;
        let slot = backend.next_hop.map_or(0, |hop| hop.iface);
        if backend.index >= max_backends {
            return refuse(format!(
                "backend {}:{} has index {}, and the tables were made for {max_backends}: `ringway detach`, then \
                 start again",
                backend.address, backend.port, backend.index
            ));
        }
        if nat_end > tables.nat_addresses.len() || slot >= RW_MAX_IFACES {
            return refuse(format!(
                "backend {}:{}: index {}, nat addresses to {nat_end} or interface slot {slot} out of range",
                backend.address, backend.port, backend.index
            ));
        }
    }
    for ring in &tables.rings {
        let fits = ring.slots.count() == RW_RING_SLOTS as usize && ring.pairs.len() <= MAX_PAIRS;
        if ring.id >= RW_MAX_RINGS || !fits {
            return refuse(format!(
                "ring {}: {} slots (exactly {RW_RING_SLOTS}) and {} pairs (at most {MAX_PAIRS})",
                ring.id,
                ring.slots.count(),
                ring.pairs.len()
            ));
        }
    }
    if tables.nat_addresses.len() > RW_MAX_NAT_ADDRS as usize {
        return refuse(format!(
            "{} nat addresses, at most {RW_MAX_NAT_ADDRS}",
            tables.nat_addresses.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_that_are_near_begin_at_other_ports() {
        for (key, ports) in [(0, 60_000), (u64::MAX, 64_512), (0x1234_5678_9abc_def0, 28_232)] {
            let mut places: Vec<_> = (0..200).map(|n| first_place(n, key) % ports).collect();
            places.sort_unstable();
            let apart = places.windows(2).all(|two| two[1] - two[0] >= PLACES_TOGETHER);
            assert!(apart, "{key:#x} {ports}: {places:?}");
        }
    }

    #[test]
    fn replies_to_every_pool_there_was_are_looked_up() {
        for (have, pool, want) in [
            ((0, 0), (10_000, 20_000), (10_000, 20_000)),
            ((10_000, 20_000), (10_000, 20_000), (10_000, 20_000)),
            ((10_000, 10_000), (20_000, 10_000), (10_000, 20_000)),
            ((20_000, 45_536), (1_024, 1_024), (1_024, 64_512)),
            ((1_024, 64_512), (5_000, 1_024), (1_024, 64_512)),
        ] {
            assert_eq!(span(have, pool), want, "{have:?} {pool:?}");
        }
    }
}
