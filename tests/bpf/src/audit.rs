//! The flow tables, read behind the packet path's back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use ringway_abi::raw::{
    RW_BUCKET_FLOWS, RW_CONFIRMED, rw_flow, rw_flow_bucket, rw_index_bucket, rw_track,
    rw_track_bucket,
};
use ringway_abi::{FlowKey, FlowState, FromBytes, IntoBytes, TrackedFlow, addr_from_words};

use crate::World;
use crate::map_batch::info_of;
use crate::run::Program;

/// A flow record that is in use, dead or alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bucket << 2 | number + 1, as the index holds it.
    pub place: u32,
    pub key: FlowKey,
    pub client: SocketAddr,
    /// L2 source of the last request.
    pub client_mac: [u8; 6],
    /// Interface slot of the last request.
    pub iface: u8,
    pub service: u16,
    /// Seconds, CLOCK_MONOTONIC.
    pub seen: u32,
    /// Off probation.
    pub confirmed: bool,
}

/// Every record that is not free.
pub fn records(world: &World) -> Vec<Record> {
    let mut all = Vec::new();
    for (number, bucket) in elements::<rw_flow_bucket>(world.map("flows")) {
        for (i, flow) in bucket.flows.iter().enumerate() {
            let key = FlowKey::unpack(flow.key).unwrap();
            if key.state != FlowState::Free {
                all.push(record(number << 2 | (i as u32 + 1), key, flow));
            }
        }
    }
    all
}

fn record(place: u32, key: FlowKey, flow: &rw_flow) -> Record {
    let port = u16::from_be(flow.client_port_be);
    Record {
        place,
        key,
        client: SocketAddr::new(addr_from_words(flow.client), port),
        client_mac: flow.client_mac,
        iface: flow.iface,
        service: flow.service,
        seen: flow.seen,
        confirmed: u32::from(flow.confirmed) & RW_CONFIRMED != 0,
    }
}

/// Index entries that lead to each place.
pub fn index(world: &World) -> HashMap<u32, Vec<u64>> {
    let mut leads: HashMap<u32, Vec<u64>> = HashMap::new();
    for (_, bucket) in elements::<rw_index_bucket>(world.map("flow_index")) {
        for entry in bucket.entries.into_iter().filter(|entry| *entry != 0) {
            leads.entry(entry as u32).or_default().push(entry);
        }
    }
    leads
}

/// Every record of a tracked flow: its bucket, whose it is, and what it says.
pub fn tracked(world: &World) -> Vec<(u32, u64, TrackedFlow)> {
    let of = |(bucket, value): (u32, rw_track_bucket)| {
        let unpacked =
            move |track: &rw_track| Some((bucket, track.who, TrackedFlow::unpack(track)?));
        value.tracks.iter().filter_map(unpacked).collect::<Vec<_>>()
    };
    elements(world.map("tracked")).into_iter().flat_map(of).collect()
}

/// Ends the probation of every record.
pub fn keep_all(world: &World) {
    let map = world.map("flows");
    for (number, mut bucket) in elements::<rw_flow_bucket>(map) {
        if bucket.flows.iter().all(|flow| flow.key == 0 || flow.confirmed == 1) {
            continue;
        }
        bucket.flows.iter_mut().filter(|flow| flow.key != 0).for_each(|flow| flow.confirmed = 1);
        write(map, number, bucket.as_bytes());
    }
}

/// Records there is room for.
pub fn capacity(world: &World) -> u32 {
    handle(world.map("flows")).max_entries() * RW_BUCKET_FLOWS
}

fn elements<V: FromBytes>(map: BorrowedFd<'_>) -> Vec<(u32, V)> {
    let map = handle(map);
    let batch = map.max_entries().clamp(1, 4096);
    let found = map.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY).unwrap();
    let all: Vec<(u32, V)> = found
        .map(|(key, value)| {
            (u32::read_from_bytes(&key).unwrap(), V::read_from_bytes(&value).unwrap())
        })
        .collect();
    assert_eq!(all.len(), map.max_entries() as usize, "the batch ended early");
    all
}

/// For what else there is to do with a map.
pub fn handle(map: BorrowedFd<'_>) -> MapHandle {
    MapHandle::from_map_id(info_of(map).id).unwrap()
}

pub fn read(map: BorrowedFd<'_>, index: u32) -> Vec<u8> {
    find(map, index).unwrap()
}

/// The same; `None` where an array of programs has none.
pub(crate) fn find(map: BorrowedFd<'_>, index: u32) -> Option<Vec<u8>> {
    handle(map).lookup(index.as_bytes(), MapFlags::ANY).unwrap()
}

pub fn write(map: BorrowedFd<'_>, index: u32, value: &[u8]) {
    handle(map).update(index.as_bytes(), value, MapFlags::ANY).unwrap();
}

pub(crate) fn delete(map: BorrowedFd<'_>, index: u32) {
    handle(map).delete(index.as_bytes()).unwrap();
}

pub(crate) fn set_program(
    map: BorrowedFd<'_>,
    index: u32,
    program: Option<&Program>,
) -> Result<(), libbpf_rs::Error> {
    use std::os::fd::AsFd;
    match program {
        Some(program) => {
            let fd = program.as_fd().as_raw_fd();
            handle(map).update(index.as_bytes(), fd.as_bytes(), MapFlags::ANY)
        }
        None => match handle(map).delete(index.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        },
    }
}

/// The counts of a successful audit of the flow tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Audit {
    pub live: usize,
    /// Records whose time is over.
    pub dead: usize,
}

/// Checks the flow tables while nobody writes them: every live flow has its source to itself
/// towards its backend's address and port, has its client's tuple to itself within its service,
/// and an index entry that leads to it. Panics with the first that is not so.
pub fn audit(world: &World) -> Audit {
    let timeout = world.gateway.view().settings().unwrap().timeout;
    let now = world.now();
    let leads = index(world);
    let (mut sources, mut clients) = (HashMap::new(), HashMap::new());
    let mut found = Audit::default();
    for record in records(world) {
        let state = record.key.state;
        assert_ne!(state, FlowState::Claimed, "claimed for ever: {record:?}");
        let timeout = match state {
            FlowState::Reset => timeout[FlowState::Closed as usize],
            FlowState::Resting => 0,
            state => timeout[state as usize],
        };
        let alive =
            state != FlowState::Resting && now.wrapping_sub(record.seen) as i32 <= timeout as i32;
        let Some(backend) = world
            .tables
            .backends
            .iter()
            .find(|b| b.reference() == record.key.backend)
            .filter(|_| alive)
        else {
            found.dead += 1;
            continue;
        };
        found.live += 1;
        let source = match record.key.nat_addr {
            FlowKey::CLIENT => record.client.ip(),
            n => world.tables.nat_addresses[usize::from(n)],
        };
        let at = (source, record.key.nat_port, backend.address, backend.port, backend.protocol);
        if let Some(other) = sources.insert(at, record) {
            panic!("one source, two flows: {other:?} and {record:?}");
        }
        if let Some(other) = clients.insert((record.client, record.service), record) {
            panic!("one client, two flows: {other:?} and {record:?}");
        }
        assert!(leads.contains_key(&record.place), "no index entry leads to {record:?}");
    }
    found
}
