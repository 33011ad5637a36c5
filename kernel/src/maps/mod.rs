//! The packet path's maps by name, and typed access to their entries.

pub(crate) mod mapped;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::{fs, io};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use ringway_abi::{FromBytes, IntoBytes};
use zerocopy::Immutable;

use self::WhenFull::{Never, Then};
use crate::objects::gateway::GatewayMaps;
use crate::pins::Pins;
use crate::{Error, Result};

/// What happens when a map is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Nothing: it cannot be.
    Never(&'static str),
    /// This.
    Then(&'static str),
}

impl WhenFull {
    /// In words.
    pub fn text(self) -> &'static str {
        let (Never(text) | Then(text)) = self;
        text
    }
}

/// A map's name, what it is for, and what happens when it is full.
pub(crate) type MapText = (&'static str, &'static str, WhenFull);

/// One structure with a field per map, so that a missing map is found when it is built. Behind the name of one whose
/// contents a start makes anew or compares: from what, and what of them stays all the same.
macro_rules! maps {
    ($($name:ident: $purpose:literal, $full:expr $(, rebuilt $rebuilt:literal)?;)*) => {
        /// Every shared map of the packet path (bpf/common/stage.bpf.h, bpf/gateway/maps.bpf.h).
        #[derive(Debug)]
        pub(crate) struct Maps {
            $(#[doc = $purpose] pub(crate) $name: MapHandle,)*
        }

        impl Maps {
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// From what a start makes a map's contents anew, and what of them stays; `None`: they go on as they are.
            pub(crate) fn rebuilt(name: &str) -> Option<&'static str> {
                match name {
                    $($(stringify!($name) => Some($rebuilt),)?)*
                    _ => None,
                }
            }

            /// Name, what it is for, and what happens when it is full.
            pub(crate) const TEXTS: &[MapText] =
                &[$((stringify!($name), $purpose, $full)),*];

            /// Those of a gateway that was loaded.
            pub(crate) fn of(loaded: &GatewayMaps<'_>) -> Result<Self> {
                let own = |map| MapHandle::try_from(map);
                Ok(Self {
                    $($name: own(&loaded.$name).map_err(map_error("open", stringify!($name)))?,)*
                })
            }

            /// Builds the set from whatever gives a map by its name.
            pub(crate) fn from_each(mut get: impl FnMut(&'static str) -> Result<MapHandle>) -> Result<Self> {
                Ok(Self { $($name: get(stringify!($name))?,)* })
            }

            /// All maps with their names.
            pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut MapHandle)> {
                [$((stringify!($name), &mut self.$name)),*].into_iter()
            }

            pub(crate) fn get(&self, name: &str) -> Option<&MapHandle> {
                match name {
                    $(stringify!($name) => Some(&self.$name),)*
                    _ => None,
                }
            }
        }
    };
}
maps! {
    settings:
        "layout, timeouts, nat pool, keys of the hashes",
        Never("cannot be: one entry"),
        rebuilt "from the configuration; the keys of hashes stay";
    slots:
        "the programs of the stages",
        Never("cannot be: a place for each"),
        rebuilt "with the new programs";
    ledger:
        "packets by verdict and reason, per interface",
        Never("cannot be: a place for each interface");
    roots:
        "which programs are this node's, to count what the kernel drops",
        Then("the start is refused"),
        rebuilt "with the new programs";
    scratch:
        "what a stage has learnt about one packet",
        Never("cannot be: one entry");
    ifaces:
        "interfaces: device, MAC addresses, MTU",
        Then("the configuration is refused"),
        rebuilt "from the configuration and this machine";
    devices:
        "where packets are redirected to",
        Never("cannot be: a place for each interface"),
        rebuilt "from the configuration and this machine";
    vlans:
        "VLAN devices, by device and tags",
        Then("the configuration is refused"),
        rebuilt "from the configuration and this machine";
    services:
        "what clients connect to: addresses and blocks of ports",
        Then("the configuration is refused"),
        rebuilt "from the configuration; services keep their numbers";
    service_info:
        "services as their clients see them",
        Then("the configuration is refused"),
        rebuilt "from the configuration; services keep their numbers";
    backends:
        "backends: address, way there, whether they are up",
        Then("the configuration is refused"),
        rebuilt "from the configuration, overrides and health; the numbers by which flows name backends stay";
    nat_addrs:
        "source addresses of nat",
        Then("the configuration is refused"),
        rebuilt "from the configuration; addresses keep their numbers";
    labels:
        "names of services",
        Never("cannot be: a place for each service"),
        rebuilt "from the configuration";
    members:
        "backends of each service",
        Then("the change is refused, what was in force stays"),
        rebuilt "from the configuration";
    rings:
        "which member of a service has a slot, a map for each ring",
        Then("the change is refused, what was in force stays"),
        rebuilt "from the configuration; slots of dsr services keep their owners";
    pairs:
        "current and former owners of slots, for rings that are changing",
        Never("cannot be: a place for each ring");
    tracked:
        "flows of dsr services in slots that have changed",
        Then("those on probation give way; else to the former owner, or dropped (track-full)");
    track_quotas:
        "records that each source prefix has opened in this second",
        Then("two prefixes may share one quota");
    untracked:
        "when a flow of a service could not be tracked last",
        Never("cannot be: a place for each service");
    tracking:
        "what became of tracked flows",
        Never("cannot be: counters");
    flows:
        "flows of nat services",
        Then("those on probation give way; else the packet is dropped (flow-table-full, nat-exhausted)");
    flow_index:
        "the way from a client to its flow",
        Then("the packet is dropped (flow-table-full)");
    port_hands:
        "where the next nat port towards each backend is looked for",
        Never("cannot be: a place for each backend");
    kept_flows:
        "how many flows of each source prefix are kept, by backend",
        Then("two prefixes may share one count");
    vain_searches:
        "how many searches for a nat port were in vain for a backend in this second",
        Then("the older one is forgotten, and searched in full");
    fragments:
        "ports of datagrams in fragments, for 30 s",
        Then("the oldest is forgotten, the rest of it dropped (fragment-early)");
    traffic:
        "packets, bytes and flows of each backend",
        Never("cannot be: a place for each backend");
    daemon:
        "who looks after the node, and when it was alive last",
        Never("cannot be: one entry"),
        rebuilt "once a second";
}

/// Maps that a program has for itself, of which nothing is pinned: part of the name, what it is for,
/// and what happens when it is full.
pub(crate) const PRIVATE: &[MapText] = &[
    ("icmp_rooms", "room to build one ICMP error in", Never("cannot be: one entry")),
    ("csum_rooms", "room to sum up one packet in", Never("cannot be: one entry")),
    ("claims", "how far the search for one nat port is", Never("cannot be: one entry")),
    (
        "answer_budget",
        "when the next answer of a kind to a prefix would be in time",
        Then("two prefixes may share one budget"),
    ),
    (
        "other_senders",
        "who else than a flow's client has sent for it lately",
        Then("the older one is forgotten: a flow whose client moved follows later"),
    ),
    (
        "services_met",
        "services that each CPU has met last",
        Then("the one met longest ago is looked up again"),
    ),
    ("captures", "captures under way", Then("the thirteenth is refused")),
    ("capture_counts", "packets of each capture", Never("cannot be: counters")),
    ("capture_linked", "captures that packets meet the filters of", Never("cannot be: one entry")),
    (
        "capture_packet",
        "room to copy one packet for captures",
        Never("cannot be: a place for each CPU"),
    ),
    (
        "capture_rings",
        "packets that captures have not read yet, a ring for each",
        Then("the packet is forwarded, not captured, and counted as lost"),
    ),
    ("capture_state", "what captures want of the packet at hand", Never("cannot be: one entry")),
    (
        "capture_chain",
        "the way through the captures' filters",
        Never("cannot be: a place for each capture"),
    ),
    (
        "capture_slots",
        "programs of the gateway that captures look into",
        Never("cannot be: a place for each"),
    ),
    (".rodata", "constants of a program", Never("cannot be")),
    (".data", "variables of a program", Never("cannot be")),
    (".bss", "variables of a program", Never("cannot be")),
];

/// Entries that go into one system call.
const BATCH: usize = 4096;

/// Read-only handle, linux/bpf.h BPF_F_RDONLY.
const RDONLY: u32 = libbpf_rs::libbpf_sys::BPF_F_RDONLY;

impl Maps {
    /// Opens the pinned maps for reading only.
    pub(crate) fn open_read_only(pins: &Pins) -> Result<Self> {
        Self::from_each(|name| {
            // One that is read where it lies: mm/mmap.c makes a shared mapping of a file that is
            // open for reading only a private one, which BPF maps refuse.
            let flags = if matches!(name, "tracked" | "flows") { 0 } else { RDONLY };
            MapHandle::from_pinned_path_with_file_flags(pins.map(name), flags)
                .map_err(map_error("open", name))
        })
    }
}

pub(crate) fn map_error(action: &'static str, map: &str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let map = map.to_owned();
    move |source| Error::Map { action, map, source }
}

fn name_of(map: &MapHandle) -> String {
    map.name().to_string_lossy().into_owned()
}

fn parse<T: FromBytes>(map: &MapHandle, bytes: &[u8]) -> Result<T> {
    T::read_from_bytes(bytes).map_err(|_| Error::Content {
        map: name_of(map),
        detail: format!("{} bytes where {} belong", bytes.len(), size_of::<T>()),
    })
}

/// Reads one entry; `None` when the key is not there.
pub(crate) fn find<K, V>(map: &MapHandle, key: &K) -> Result<Option<V>>
where
    K: IntoBytes + Immutable,
    V: FromBytes,
{
    let found = map.lookup(key.as_bytes(), MapFlags::ANY);
    found.map_err(map_error("read", &name_of(map)))?.map(|bytes| parse(map, &bytes)).transpose()
}

/// Reads an element of an array.
pub(crate) fn get<V: FromBytes>(map: &MapHandle, index: u32) -> Result<V> {
    find(map, &index)?.ok_or_else(|| Error::Content {
        map: name_of(map),
        detail: format!("no element {index} of {}", map.max_entries()),
    })
}

pub(crate) fn put<K, V>(map: &MapHandle, key: &K, value: &V) -> Result<()>
where
    K: IntoBytes + Immutable + ?Sized,
    V: IntoBytes + Immutable + ?Sized,
{
    map.update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
        .map_err(map_error("write", &name_of(map)))
}

/// Writes many entries with few system calls.
pub(crate) fn put_all<K, V>(map: &MapHandle, keys: &[K], values: &[V]) -> Result<()>
where
    K: IntoBytes + Immutable,
    V: IntoBytes + Immutable,
{
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        let count = keys.len() as u32;
        map.update_batch(keys.as_bytes(), values.as_bytes(), count, MapFlags::ANY, MapFlags::ANY)
            .map_err(map_error("write", &name_of(map)))?;
    }
    Ok(())
}

/// Puts a program or map into an array of such.
pub(crate) fn put_fd(map: &MapHandle, index: u32, fd: BorrowedFd<'_>) -> Result<()> {
    put(map, &index, &fd.as_raw_fd())
}

/// Removes one entry; one that is not there is fine.
pub(crate) fn remove<K: IntoBytes + Immutable + ?Sized>(map: &MapHandle, key: &K) -> Result<()> {
    match map.delete(key.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(map_error("write", &name_of(map))(error))
        }
        _ => Ok(()),
    }
}

/// Reads one element of a per-CPU array, one value per possible CPU.
pub(crate) fn get_percpu<V: FromBytes>(map: &MapHandle, index: u32) -> Result<Vec<V>> {
    let found = map.lookup_percpu(index.as_bytes(), MapFlags::ANY);
    let values = found.map_err(map_error("read", &name_of(map)))?.unwrap_or_default();
    values.iter().map(|bytes| parse(map, bytes)).collect()
}

/// Writes one element of a per-CPU array, the same on every possible CPU.
pub(crate) fn put_percpu<V>(map: &MapHandle, index: u32, value: &V) -> Result<()>
where
    V: IntoBytes + Immutable,
{
    let failed = |error| map_error("write", &name_of(map))(error);
    let cpus = libbpf_rs::num_possible_cpus().map_err(failed)?;
    let values = vec![value.as_bytes().to_vec(); cpus];
    map.update_percpu(index.as_bytes(), &values, MapFlags::ANY).map_err(failed)
}

/// Visits every element of an array, many per system call.
pub(crate) fn for_each<V: FromBytes>(map: &MapHandle, mut visit: impl FnMut(u32, V)) -> Result<()> {
    let elements = map.max_entries();
    let batch = elements.clamp(1, 4096);
    let found = map.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY);
    let mut visited = 0;
    for (key, value) in found.map_err(map_error("read", &name_of(map)))? {
        visit(parse(map, &key)?, parse(map, &value)?);
        visited += 1;
    }
    // The iterator ends early on an error without telling it.
    if visited != elements {
        let detail = format!("only {visited} of {elements} elements could be read");
        return Err(Error::Content { map: name_of(map), detail });
    }
    Ok(())
}

/// Every entry of a hash that nobody else writes meanwhile.
pub(crate) fn entries<K, V>(map: &MapHandle) -> Result<Vec<(K, V)>>
where
    K: FromBytes + IntoBytes + Immutable,
    V: FromBytes,
{
    let mut all = Vec::new();
    for bytes in map.keys() {
        let key: K = parse(map, &bytes)?;
        if let Some(value) = find(map, &key)? {
            all.push((key, value));
        }
    }
    Ok(all)
}

/// Opens a pinned map to use it; `None` when there is no such pin.
pub(crate) fn open_pinned(path: &Path, name: &str) -> Result<Option<MapHandle>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => MapHandle::from_pinned_path(path).map(Some).map_err(map_error("open", name)),
    }
}
