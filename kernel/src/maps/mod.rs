//! The packet path's maps by name, and typed access to their entries.

pub(crate) mod shape;
pub(crate) mod table_view;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use std::{fs, io};

use libbpf_rs::libbpf_sys::{BPF_F_RDONLY, bpf_map_create_opts};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapMut, MapType, OpenMapMut};
use ringway_abi::raw::{
    rw_address, rw_arrivals, rw_backend, rw_daemon, rw_flow_bucket, rw_fragment_bucket,
    rw_heavy_bucket, rw_iface, rw_index_bucket, rw_label, rw_ledger, rw_rated, rw_scratch,
    rw_service, rw_service_index, rw_service_info, rw_service_key, rw_service_place, rw_settings,
    rw_shield_budget, rw_shield_control, rw_shield_count, rw_shield_observed, rw_shield_policy,
    rw_shield_prefix, rw_shield_runtime, rw_sketch_line, rw_syn_secrets, rw_track_bucket,
    rw_tracking, rw_traffic, rw_vlan_key,
};
use ringway_abi::{FromBytes, IntoBytes};
use zerocopy::Immutable;

use self::WhenFull::{Never, Then};
use crate::objects::capture::OpenCaptureMaps;
use crate::objects::capture_forward::OpenCaptureForwardMaps;
use crate::objects::capture_shield::OpenCaptureShieldMaps;
use crate::objects::forward::OpenForwardMaps;
use crate::objects::gateway::{self, GatewayMaps, OpenGatewayMaps};
use crate::objects::shield::OpenShieldMaps;
use crate::pins::Pins;
use crate::sources::Sources;
use crate::{Error, Result};

use shape::{Shape, shape_of, wanted_shape};

/// Behaviour of a full map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Nothing: it cannot be.
    Never(&'static str),
    Then(&'static str),
}

impl WhenFull {
    pub fn text(self) -> &'static str {
        let (Never(text) | Then(text)) = self;
        text
    }
}

/// The name of a program's own map, what it is for, and what happens when it is full.
pub(crate) type MapText = (&'static str, &'static str, WhenFull);

/// A map with the types of its keys and values. [`map!`] checks them where the map is one of an
/// object's.
#[derive(Debug)]
pub(crate) struct Map<K, V> {
    handle: MapHandle,
    types: PhantomData<fn() -> (K, V)>,
}

/// The [`Map`] of a loaded skeleton's field. Its keys and values have the types that the object
/// gives them, or this does not compile; an array of maps or of programs takes descriptors and
/// gives ids.
macro_rules! map {
    ($object:ident, $maps:expr, $name:ident) => {
        $crate::maps::Map::of(&$maps.$name, |of: &$object::types::maps| {
            (of.$name.key, of.$name.value)
        })
    };
    ($object:ident, $maps:expr, $name:ident [maps]) => {
        $crate::maps::Map::of(&$maps.$name, |of: &$object::types::maps| {
            (of.$name.key, std::ptr::null_mut::<u32>())
        })
    };
}
pub(crate) use map;

/// One structure with a field per map, so that a missing map is found when it is built. Behind the
/// name of one whose contents a start makes anew or compares: from what, and what of them stays all
/// the same.
macro_rules! maps {
    ($($name:ident: $key:ty => $value:ty $([$maps:ident])?,
        $purpose:literal, $full:expr $(, rebuilt $rebuilt:literal)?;)*) => {
        /// Every shared map of the packet path (bpf/common/stage.bpf.h, bpf/gateway/maps.bpf.h).
        #[derive(Debug)]
        pub(crate) struct Maps {
            $(#[doc = $purpose] pub(crate) $name: Map<$key, $value>,)*
            /// Of the gateway whose maps they are; the kernel's where only pins are known.
            pub(crate) sources: Sources,
            /// Rows of `backends` that were ever written: those below this index. All of them,
            /// where another process may write.
            pub(crate) written_backends: AtomicU32,
        }

        /// A map, by the name that bpf and its pin have.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum MapName { $($name),* }

        impl MapName {
            pub(crate) const ALL: &[MapName] = &[$(MapName::$name),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(MapName::$name => stringify!($name)),* }
            }

            /// Whether a release before did not have it.
            fn is_added(self) -> bool {
                use MapName::*;
                const ADDED: [MapName; 22] = [
                    arrivals, flow_budgets, heavy_sources, learnt_sources, proven, rule_budgets,
                    rule_programs, runtime_allow, runtime_block, service_budgets, service_index,
                    service_places, shield_armed, shield_control, shield_counts, shield_exceeded,
                    shield_labels, shield_observed, shield_policies, shifts, source_sketch,
                    syn_secrets,
                ];
                ADDED.contains(&self)
            }

            /// What the map is for, and what happens when it is full.
            pub(crate) fn text(self) -> (&'static str, WhenFull) {
                match self { $(MapName::$name => ($purpose, $full)),* }
            }
        }

        impl Maps {
            /// From what a start makes a map's contents anew, and what of them stays; `None`: they
            /// go on as they are.
            pub(crate) fn rebuilt(name: &str) -> Option<&'static str> {
                match name {
                    $($(stringify!($name) => Some($rebuilt),)?)*
                    _ => None,
                }
            }

            /// Those of a gateway that was loaded.
            pub(crate) fn of(loaded: &GatewayMaps<'_>, sources: &Sources) -> Result<Self> {
                let (sources, written_backends) = (sources.clone(), u32::MAX.into());
                Ok(Self { sources, written_backends, $($name: map!(gateway, loaded, $name $([$maps])?)?,)* })
            }

            /// Opens the pinned maps for reading only.
            pub(crate) fn open_read_only(pins: &Pins) -> Result<Self> {
                let (sources, written_backends) = (Sources::default(), u32::MAX.into());
                Ok(Self { sources, written_backends, $($name: open_read_only(pins, MapName::$name)?.into(),)* })
            }

            /// Refuses those of an earlier version: programs of this one would find no service.
            /// Waits for a change that is under way.
            pub(crate) fn require_all(&self) -> Result<()> {
                let deadline = Instant::now() + PATIENCE;
                while !self.has_all()? {
                    if Instant::now() >= deadline {
                        return Err(Error::EarlierVersion);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(())
            }

            /// And the index is of what `services` holds: an earlier version does not write it.
            fn has_all(&self) -> Result<bool> {
                Ok(self.service_index.value_size() != ABSENT
                    && self.service_places.value_size() != ABSENT
                    && self.service_index.get(0)?.epoch == self.settings.get(0)?.services_epoch)
            }

            /// All maps, in the order of [`MapName::ALL`].
            pub(crate) fn all(&self) -> impl Iterator<Item = (MapName, &MapHandle)> {
                [$((MapName::$name, &*self.$name)),*].into_iter()
            }

            /// Puts them in the place of those that a gateway would create, but for some of them.
            pub(crate) fn share(
                &self,
                open: &mut OpenGatewayMaps<'_>,
                but: &[&MapHandle],
            ) -> Result<()> {
                $(if !but.iter().any(|map| std::ptr::eq(*map, &*self.$name)) {
                    reuse(&mut open.$name, &self.$name)?;
                })*
                Ok(())
            }

            /// Puts them in the place of those that a capture would create.
            pub(crate) fn share_with_capture(&self, open: &mut OpenCaptureMaps<'_>) -> Result<()> {
                $(reuse(&mut open.$name, &self.$name)?;)*
                Ok(())
            }

            /// Puts them in the place of those that a shield would create.
            pub(crate) fn share_with_shield(&self, open: &mut OpenShieldMaps<'_>) -> Result<()> {
                $(reuse(&mut open.$name, &self.$name)?;)*
                Ok(())
            }

            /// The same for a capture's shield.
            pub(crate) fn share_with_capture_shield(
                &self,
                open: &mut OpenCaptureShieldMaps<'_>,
            ) -> Result<()> {
                $(reuse(&mut open.$name, &self.$name)?;)*
                Ok(())
            }

            /// The same for what forwards.
            pub(crate) fn share_with_forward(&self, open: &mut OpenForwardMaps<'_>) -> Result<()> {
                $(reuse(&mut open.$name, &self.$name)?;)*
                Ok(())
            }

            /// The same for a capture's.
            pub(crate) fn share_with_capture_forward(
                &self,
                open: &mut OpenCaptureForwardMaps<'_>,
            ) -> Result<()> {
                $(reuse(&mut open.$name, &self.$name)?;)*
                Ok(())
            }

            /// Puts those that are pinned in the place of those that a gateway would create.
            pub(crate) fn share_pinned(pins: &Pins, open: &mut OpenGatewayMaps<'_>) -> Result<()> {
                $(if let Some(map) = open_pinned(&pins.map(stringify!($name)))? {
                    reuse(&mut open.$name, &map)?;
                })*
                Ok(())
            }

            /// Shapes of the maps that a gateway would create.
            pub(crate) fn wanted(open: &OpenGatewayMaps<'_>) -> BTreeMap<String, Shape> {
                [$((stringify!($name).to_owned(), wanted_shape(&open.$name))),*].into()
            }
        }
    };
}
maps! {
    settings: u32 => rw_settings,
        "layout, timeouts, nat pool, keys of the hashes",
        Never("cannot be: one entry"),
        rebuilt "from the configuration; the keys of hashes stay";
    slots: u32 => u32,
        "the programs of the stages",
        Never("cannot be: a place for each"),
        rebuilt "with the new programs";
    ledger: u32 => rw_ledger,
        "packets by verdict and reason, per interface",
        Never("cannot be: a place for each interface");
    roots: u32 => u32,
        "which programs are this node's, to count what the kernel drops",
        Then("the start is refused"),
        rebuilt "with the new programs";
    scratch: u32 => rw_scratch,
        "what a stage has learnt about one packet",
        Never("cannot be: one entry");
    ifaces: u32 => rw_iface,
        "interfaces: device, MAC addresses, MTU",
        Then("the configuration is refused"),
        rebuilt "from the configuration and this machine";
    devices: u32 => u32,
        "where packets are redirected to",
        Never("cannot be: a place for each interface"),
        rebuilt "from the configuration and this machine";
    vlans: rw_vlan_key => u32,
        "VLAN devices, by device and tags",
        Then("the configuration is refused"),
        rebuilt "from the configuration and this machine";
    services: rw_service_key => rw_service,
        "what clients connect to: addresses and blocks of ports",
        Then("the configuration is refused"),
        rebuilt "from the configuration; services keep their numbers";
    service_index: u32 => rw_service_index,
        "how a port's place in service_places is found",
        Never("cannot be: one entry"),
        rebuilt "from the services";
    service_places: u32 => rw_service_place,
        "the same as services, for each packet",
        Then("the configuration is refused"),
        rebuilt "from the services";
    service_info: u32 => rw_service_info,
        "services as their clients see them",
        Then("the configuration is refused"),
        rebuilt "from the configuration; services keep their numbers";
    backends: u32 => rw_backend,
        "backends: address, way there, whether they are up",
        Then("the configuration is refused"),
        rebuilt "from the configuration, overrides and health; the numbers by which flows name backends stay";
    nat_addrs: u32 => rw_address,
        "source addresses of nat",
        Then("the configuration is refused"),
        rebuilt "from the configuration; addresses keep their numbers";
    labels: u32 => rw_label,
        "names of services",
        Never("cannot be: a place for each service"),
        rebuilt "from the configuration";
    members: u32 => u32,
        "backends of each service",
        Then("the change is refused, what was in force stays"),
        rebuilt "from the configuration";
    rings: u32 => u32 [maps],
        "which member of a service has a slot, a map for each ring",
        Then("the change is refused, what was in force stays"),
        rebuilt "from the configuration; slots of dsr services keep their owners";
    pairs: u32 => u32 [maps],
        "current and former owners of slots, for rings that are changing",
        Never("cannot be: a place for each ring");
    tracked: u32 => rw_track_bucket,
        "flows of dsr services in slots that have changed",
        Then("those on probation give way; else to the former owner, or dropped (track-full)");
    track_quotas: u32 => u64,
        "records that each source prefix has opened in this second",
        Then("two prefixes may share one quota");
    untracked: u32 => u32,
        "when a flow of a service could not be tracked last",
        Never("cannot be: a place for each service");
    tracking: u32 => rw_tracking,
        "what became of tracked flows",
        Never("cannot be: counters");
    flows: u32 => rw_flow_bucket,
        "flows of nat services",
        Then("those on probation give way; else the packet is dropped (flow-table-full, nat-exhausted)");
    flow_index: u32 => rw_index_bucket,
        "the way from a client to its flow",
        Then("the packet is dropped (flow-table-full)");
    port_hands: u32 => u32,
        "where the next nat port towards each backend is looked for",
        Never("cannot be: a place for each backend");
    shifts: u32 => u32 [maps],
        "how the numbers of flows are shifted whose handshake the gateway has made",
        Never("cannot be: a place for each flow");
    kept_flows: u32 => u32,
        "how many flows of each source prefix are kept, by backend",
        Then("two prefixes may share one count");
    vain_searches: u32 => gateway::types::vain_search,
        "how many searches for a nat port were in vain for a backend in this second",
        Then("the older one is forgotten, and searched in full");
    fragments: u32 => rw_fragment_bucket,
        "ports of datagrams in fragments, for 30 s",
        Then("the oldest is forgotten, the rest of it dropped (fragment-early)");
    traffic: u32 => rw_traffic,
        "packets, bytes and flows of each backend",
        Never("cannot be: a place for each backend");
    shield_control: u32 => rw_shield_control,
        "the shield's mode of this moment, and how many prefixes are blocked and allowed",
        Never("cannot be: one entry");
    rule_programs: u32 => u32,
        "the shield's rules, a program for each generation",
        Never("cannot be: a place for each"),
        rebuilt "from the configuration";
    runtime_allow: rw_shield_prefix => rw_shield_runtime,
        "prefixes that `ringway allow` lets through the shield",
        Then("one more is refused"),
        rebuilt "from the state directory";
    runtime_block: rw_shield_prefix => rw_shield_runtime,
        "prefixes that `ringway block` shuts out",
        Then("one more is refused"),
        rebuilt "from the state directory";
    rule_budgets: u32 => rw_shield_budget,
        "when the next packet of a rule with a rate conforms",
        Never("cannot be: a place for each rule");
    shield_counts: u32 => rw_shield_count,
        "packets and bytes of each rule and list of the shield",
        Never("cannot be: counters");
    shield_observed: u32 => rw_shield_observed,
        "packets that the shield would have dropped, by reason",
        Never("cannot be: counters");
    shield_policies: u32 => rw_shield_policy,
        "limits of services",
        Never("cannot be: a place for each service"),
        rebuilt "from the configuration";
    shield_armed: u32 => u32,
        "until when automatic mitigation has armed a service",
        Never("cannot be: a place for each service");
    proven: u32 => rw_rated,
        "sources and connections that have met a challenge",
        Then("the one that has been silent longest gives way");
    syn_secrets: u32 => rw_syn_secrets,
        "keys of challenges to SYNs",
        Never("cannot be: one value");
    arrivals: u32 => rw_arrivals,
        "packets to each service with limits",
        Never("cannot be: counters");
    shield_exceeded: u32 => u32,
        "when a limit of a service was exceeded last",
        Never("cannot be: a place for each service");
    service_budgets: u32 => rw_shield_budget,
        "when the next packet of a service with limits conforms",
        Never("cannot be: a place for each service");
    source_sketch: u32 => rw_sketch_line,
        "about how much each source has sent in this second",
        Never("cannot be: counts that sources share");
    learnt_sources: u32 => rw_rated,
        "sources that clients of nat services were seen at",
        Then("the one that has been silent longest gives way");
    flow_budgets: u32 => rw_rated,
        "when the next packet of an established flow conforms, while a limit is exceeded",
        Then("the one that has been silent longest gives way");
    heavy_sources: u32 => rw_heavy_bucket,
        "sources that send much to a service, and when their next packets conform",
        Then("the one that has been silent longest gives way");
    shield_labels: u32 => rw_label,
        "names of the shield's rules and lists",
        Never("cannot be: a place for each"),
        rebuilt "from the configuration; rules and lists keep their places";
    daemon: u32 => rw_daemon,
        "who looks after the node, and when it was alive last",
        Never("cannot be: one entry"),
        rebuilt "once a second";
}

/// Maps that a program has for itself, of which nothing is pinned: part of the name, what it is
/// for, and what happens when it is full.
pub(crate) const PRIVATE: &[MapText] = &[
    ("icmp_rooms", "room to build one ICMP error in", Never("cannot be: one entry")),
    ("syn_rooms", "room to build one segment of a handshake in", Never("cannot be: one entry")),
    ("csum_rooms", "room to sum up one packet in", Never("cannot be: one entry")),
    ("claims", "how far the search for one nat port is", Never("cannot be: one entry")),
    (
        "answer_due",
        "when the next answer of a kind to a prefix would be in time",
        Then("two prefixes may share one budget"),
    ),
    (
        "other_senders",
        "who else than a flow's client has sent for it lately",
        Then("the older one is forgotten: a flow whose client moved follows later"),
    ),
    ("captures", "captures under way", Then("one more is refused")),
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
    (
        "list_index",
        "which leaf of the shield's lists an address may be in",
        Never("cannot be: made for them"),
    ),
    (
        "list_spans",
        "parts of that index where many prefixes are near each other",
        Never("cannot be: made for them"),
    ),
    ("list_v4", "IPv4 prefixes of the shield's lists", Never("cannot be: made for them")),
    ("list_v6", "IPv6 prefixes of the shield's lists", Never("cannot be: made for them")),
    (
        "list_counts",
        "where the packets of each list are counted",
        Never("cannot be: a place for each list"),
    ),
    (
        "stations",
        "hosts behind a bridge's ports, as the bridge has learnt them",
        Then("frames from and to the others are left to the kernel"),
    ),
    ("ports", "interfaces that are forwarded between", Never("cannot be: a place for each")),
    ("port_vlans", "VLANs of a bridge's ports", Never("cannot be: a place for each")),
    ("ways", "which interface a route leads out by", Never("cannot be: a place for each")),
    (
        "forwarding",
        "until when forwarding counts, and which next hops are in use",
        Never("cannot be: one entry"),
    ),
    ("rule_table", "what follows when a rule matches", Never("cannot be: a place for each rule")),
    (".rodata", "constants of a program", Never("cannot be")),
    (".data", "variables of a program", Never("cannot be")),
    (".bss", "variables of a program", Never("cannot be")),
];

/// Entries that go into one system call.
const BATCH: usize = 4096;

/// For a change of the services.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a value of what stands in for a map that the version which made the pins did not have.
const ABSENT: u32 = 1;

fn open_read_only(pins: &Pins, map: MapName) -> Result<MapHandle> {
    let added = map.is_added();
    if added && !pins.map(map.name()).exists() {
        return create(MapType::Array, map.name(), (4, ABSENT), 1, 0);
    }
    // One that is read where it lies: mm/mmap.c makes a shared mapping of a file that is
    // open for reading only a private one, which BPF maps refuse.
    let flags = if matches!(map, MapName::tracked | MapName::flows) { 0 } else { BPF_F_RDONLY };
    MapHandle::from_pinned_path_with_file_flags(pins.map(map.name()), flags)
        .map_err(map_error("open", map.name()))
}

pub(crate) fn map_error(action: &'static str, map: &str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let map = map.to_owned();
    move |source| Error::Map { action, map, source }
}

impl<K, V> From<MapHandle> for Map<K, V> {
    fn from(handle: MapHandle) -> Self {
        Self { handle, types: PhantomData }
    }
}

impl<K, V> From<Map<K, V>> for MapHandle {
    fn from(map: Map<K, V>) -> Self {
        map.handle
    }
}

impl<K, V> Deref for Map<K, V> {
    type Target = MapHandle;

    fn deref(&self) -> &MapHandle {
        &self.handle
    }
}

impl<K, V> Map<K, V> {
    /// By [`map!`]. A handle of its own: the map outlives the object.
    pub(crate) fn of<T>(map: &MapMut<'_>, _layout: fn(&T) -> (*mut K, *mut V)) -> Result<Self> {
        let handle = MapHandle::try_from(map);
        handle.map(Self::from).map_err(|error| map_error("open", &text(map.name()))(error))
    }

    /// Another descriptor of the same map.
    pub(crate) fn try_clone(&self) -> Result<Self> {
        let handle = MapHandle::try_from(&self.handle);
        handle.map(Self::from).map_err(self.failed("open"))
    }

    /// A map of a loaded program, by the end of its name.
    pub(crate) fn of_program(program: u32, name: &str) -> Result<Option<Self>> {
        let failed = |source| Error::System { action: "look at a program's maps", source };
        let fd = ringway_bpf_sys::by_id(program).map_err(failed)?;
        for id in ringway_bpf_sys::map_ids(fd.as_fd()).map_err(failed)? {
            let map = MapHandle::from_map_id(id).map_err(map_error("open", name))?;
            if map.name().as_encoded_bytes().ends_with(name.as_bytes()) {
                return Ok(Some(map.into()));
            }
        }
        Ok(None)
    }

    fn failed(&self, action: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
        move |source| Error::Map { action, map: text(self.name()), source }
    }

    fn content(&self, detail: String) -> Error {
        Error::Content { map: text(self.name()), detail }
    }

    fn parse<T: FromBytes>(&self, bytes: &[u8]) -> Result<T> {
        T::read_from_bytes(bytes).map_err(|_| {
            self.content(format!("{} bytes where {} belong", bytes.len(), size_of::<T>()))
        })
    }
}

impl<K: IntoBytes + Immutable, V> Map<K, V> {
    /// Reads one entry; `None` when the key is not there.
    pub(crate) fn find(&self, key: &K) -> Result<Option<V>>
    where
        V: FromBytes,
    {
        let found = self.lookup(key.as_bytes(), MapFlags::ANY).map_err(self.failed("read"))?;
        found.map(|bytes| self.parse(&bytes)).transpose()
    }

    pub(crate) fn put(&self, key: &K, value: &V) -> Result<()>
    where
        V: IntoBytes + Immutable,
    {
        self.update(key.as_bytes(), value.as_bytes(), MapFlags::ANY).map_err(self.failed("write"))
    }

    /// Writes many entries with few system calls.
    pub(crate) fn put_all(&self, keys: &[K], values: &[V]) -> Result<()>
    where
        V: IntoBytes + Immutable,
    {
        for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
            let (count, any) = (keys.len() as u32, MapFlags::ANY);
            self.update_batch(keys.as_bytes(), values.as_bytes(), count, any, any)
                .map_err(self.failed("write"))?;
        }
        Ok(())
    }

    /// Removes one entry; one that is not there is fine.
    pub(crate) fn remove(&self, key: &K) -> Result<()> {
        match self.delete(key.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("write")(error)),
            _ => Ok(()),
        }
    }

    /// Every entry of a hash that nobody else writes meanwhile.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>>
    where
        K: FromBytes,
        V: FromBytes,
    {
        let value = |key: K| Ok(self.find(&key)?.map(|value| (key, value)));
        self.keys_there()?.into_iter().filter_map(|key| value(key).transpose()).collect()
    }

    /// Every key of a hash.
    pub(crate) fn keys_there(&self) -> Result<Vec<K>>
    where
        K: FromBytes,
    {
        self.keys().map(|bytes| self.parse(&bytes)).collect()
    }

    /// Reads one entry of a per-CPU map, one value per possible CPU; none when the key is not
    /// there.
    pub(crate) fn percpu(&self, key: &K) -> Result<Vec<V>>
    where
        V: FromBytes,
    {
        let found = self.lookup_percpu(key.as_bytes(), MapFlags::ANY);
        let values = found.map_err(self.failed("read"))?.unwrap_or_default();
        values.iter().map(|bytes| self.parse(bytes)).collect()
    }

    /// The same, added up.
    pub(crate) fn sum(&self, key: &K, add: impl Fn(&mut V, &V)) -> Result<V>
    where
        V: FromBytes + Default,
    {
        let mut sum = V::default();
        self.percpu(key)?.iter().for_each(|one| add(&mut sum, one));
        Ok(sum)
    }

    /// Writes one entry of a per-CPU map, the same on every possible CPU.
    pub(crate) fn put_percpu(&self, key: &K, value: &V) -> Result<()>
    where
        V: IntoBytes + Immutable,
    {
        let cpus = libbpf_rs::num_possible_cpus().map_err(self.failed("write"))?;
        let values = vec![value.as_bytes().to_vec(); cpus];
        self.update_percpu(key.as_bytes(), &values, MapFlags::ANY).map_err(self.failed("write"))
    }
}

impl<V: FromBytes> Map<u32, V> {
    /// Reads an element of an array.
    pub(crate) fn get(&self, index: u32) -> Result<V> {
        self.find(&index)?
            .ok_or_else(|| self.content(format!("no element {index} of {}", self.max_entries())))
    }

    /// Visits every element of an array, many per system call.
    pub(crate) fn for_each(&self, visit: impl FnMut(u32, V)) -> Result<()> {
        self.for_each_below(self.max_entries(), visit)
    }

    /// The elements below an index.
    pub(crate) fn for_each_below(&self, end: u32, mut visit: impl FnMut(u32, V)) -> Result<()> {
        let elements = end.min(self.max_entries());
        let batch = elements.clamp(1, BATCH as u32);
        let found = self.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY);
        let mut visited = 0;
        for (key, value) in found.map_err(self.failed("read"))?.take(elements as usize) {
            visit(self.parse(&key)?, self.parse(&value)?);
            visited += 1;
        }
        // The iterator ends early on an error without telling it.
        if visited != elements {
            let detail = format!("only {visited} of {elements} elements could be read");
            return Err(self.content(detail));
        }
        Ok(())
    }
}

/// Arrays of programs or maps.
impl Map<u32, u32> {
    /// Puts a program or map into it.
    pub(crate) fn put_fd(&self, index: u32, fd: BorrowedFd<'_>) -> Result<()> {
        self.put(&index, &fd.as_raw_fd().cast_unsigned())
    }
}

fn text(name: &std::ffi::OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Puts a map in the place of one that an object would create. The number of entries may differ: a
/// pinned table keeps its size.
pub(crate) fn reuse(map: &mut OpenMapMut<'_>, existing: &MapHandle) -> Result<()> {
    let name = text(map.name());
    if let Some(detail) = shape_of(existing).unfit(&wanted_shape(map)) {
        return Err(Error::PinnedMap { map: name, detail });
    }
    map.reuse_fd(existing.as_fd()).map_err(map_error("reuse", &name))
}

/// Makes a map with keys and values of so many bytes.
pub(crate) fn create(
    kind: MapType,
    name: &str,
    (key, value): (u32, u32),
    entries: u32,
    map_flags: u32,
) -> Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        map_flags,
        ..Default::default()
    };
    let map = MapHandle::create(kind, Some(name), key, value, entries, &options);
    map.map_err(map_error("create", name))
}

pub(crate) fn pin(map: &MapHandle, path: &Path) -> Result<()> {
    let pinned = ringway_bpf_sys::pin(map.as_fd(), path);
    pinned.map_err(|error| map_error("pin", &name_of(path))(error.into()))
}

/// Opens a pinned map to use it; `None` when there is no such pin.
pub(crate) fn open_pinned(path: &Path) -> Result<Option<MapHandle>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => MapHandle::from_pinned_path(path).map(Some).map_err(map_error("open", &name_of(path))),
    }
}

/// Pins lie where their maps' names say.
fn name_of(path: &Path) -> String {
    path.file_name().map(text).unwrap_or_default()
}
