//! The tables' rows between the plan's plain values and the packet path's structures.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::MapCore;
use ringway_abi::raw::{
    RW_ADDR_ANNOUNCE, RW_ADDR_BACKEND, RW_ADDR_NODE, RW_ADDR_SERVICE, RW_BACKEND_KEPT,
    RW_BACKEND_RESOLVED, RW_BACKEND_TAKES_NEW, RW_BACKEND_UP, RW_LABEL_LEN, RW_SVC_AFFINITY_SOURCE,
    RW_SVC_LIMITED, RW_SVC_NONE_RESET, RW_SVC_SHIELD_MASK, RW_SVC_SHIELD_SHIFT,
    RW_SVC_SOURCE_CLIENT, RW_SVC_SYN_COOKIES, rw_address, rw_backend, rw_label, rw_service,
    rw_service_info, rw_service_key, rw_shield_policy,
};
use ringway_abi::{IntoBytes, ShieldMode, addr_from_words, addr_to_words};
use ringway_plan::tables::{
    BackendRow, Forward, NextHop, Protocol, RingRow, ServiceKey, ServiceRow, SynAnswer, Tables,
    Tunnel,
};
use ringway_plan::{Ids, Planner};

use crate::Result;
use crate::maps::Maps;
use crate::sources::clock::Clock;
use crate::tables::members::{self, Members};
use crate::tables::policies::policies;
use crate::tables::rings;

/// IP protocol numbers, as in the packet's header.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What the tables of a running gateway hold: what a new daemon must keep for flows to survive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Services, by ascending id.
    pub services: Vec<ServiceRow>,
    /// Backends, by ascending index. Their weights are not in the tables: 0 here.
    pub backends: Vec<BackendRow>,
    /// Backends that the table has room for.
    pub max_backends: u32,
    /// Rings of dsr services.
    pub rings: Vec<RingRow>,
    /// Index and generation of every place in the backend table that was used and is free.
    pub retired: Vec<(u32, u16)>,
    /// nat addresses in their order, the unspecified address where a place is empty. A flow
    /// remembers its address by position.
    pub nat_addresses: Vec<IpAddr>,
    /// Interface slots in use: slot and device index. A flow remembers its client's slot.
    pub ifaces: Vec<(u32, u32)>,
}

impl Existing {
    /// The numbers a new plan must keep.
    pub fn ids(&self) -> Ids {
        Ids::from_rows(&self.services, &self.backends, &self.retired, &self.nat_addresses)
    }

    /// A planner that goes on from here.
    pub fn planner(&self) -> Planner {
        let ids = self.ids().within(self.max_backends);
        Planner::take_over(ids, &self.services, &self.rings)
    }
}

/// Everything but settings, as the packet path holds it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) info: BTreeMap<u32, rw_service_info>,
    pub(crate) labels: BTreeMap<u32, rw_label>,
    /// Sorted by index.
    pub(crate) backends: Vec<(u32, rw_backend)>,
    pub(crate) nat: Vec<rw_address>,
    /// Keyed by service id.
    pub(crate) members: BTreeMap<u16, Members>,
    /// `None`: there is a ring, its content is not known. Cheap to keep and compare: plans share
    /// the slots of a ring that did not change.
    pub(crate) rings: BTreeMap<u32, Option<RingRow>>,
    pub(crate) services: BTreeMap<rw_service_key, rw_service>,
    /// Keyed by service id: of those with limits.
    pub(crate) policies: BTreeMap<u32, rw_shield_policy>,
}

impl Rows {
    /// What the tables should hold, members where they are already if possible. Fails when there
    /// is no room for them.
    pub(crate) fn wanted(tables: &Tables, have: &Self, clock: &Clock) -> Result<Self> {
        let id = |service: &ServiceRow| u32::from(service.id);
        let members = members::place(&tables.services, &have.members)?;
        Ok(Self {
            info: tables.services.iter().map(|s| (id(s), service_info(s))).collect(),
            labels: tables.services.iter().map(|s| (id(s), label(&s.name))).collect(),
            backends: tables.backends.iter().map(|b| (b.index, backend(b))).collect(),
            nat: tables.nat_addresses.iter().map(|a| rw_address::from(*a)).collect(),
            rings: tables.rings.iter().map(|ring| (ring.id, Some(ring.clone()))).collect(),
            services: service_entries(tables, &members),
            policies: policies(&tables.services, clock)?,
            members,
        })
    }

    /// What the tables hold now.
    pub(crate) fn read(maps: &Maps) -> Result<Self> {
        let mut rows = Self::read_services(maps)?;
        maps.shield_policies.for_each(|id, policy| {
            if policy != rw_shield_policy::default() {
                rows.policies.insert(id, policy);
            }
        })?;
        maps.nat_addrs.for_each(|_, address| rows.nat.push(address))?;
        let used = rows.nat.iter().rposition(|address| *address != rw_address::default());
        rows.nat.truncate(used.map_or(0, |last| last + 1));
        Ok(rows)
    }

    /// The same without policies and nat addresses.
    pub(crate) fn read_services(maps: &Maps) -> Result<Self> {
        let mut rows = Self::default();
        maps.service_info.for_each(|id, info| {
            if info.used != 0 {
                rows.info.insert(id, info);
            }
        })?;
        for id in rows.info.keys() {
            rows.labels.insert(*id, maps.labels.get(*id)?);
        }
        maps.backends.for_each_below(maps.written_backends.load(Relaxed), |index, row| {
            if row != rw_backend::default() {
                rows.backends.push((index, row));
            }
        })?;
        for (key, service) in maps.services.entries()? {
            // Rings are read where they matter: up to 6.7 the kernel waits an RCU grace period
            // for each look at one, a minute for all.
            if key.proto != 0 {
                rows.rings.insert(service.ring, None);
                let id = service.id as u16;
                if let Entry::Vacant(place) = rows.members.entry(id) {
                    place.insert(Members::read(maps, &service)?);
                }
            }
            rows.services.insert(key, service);
        }
        Ok(rows)
    }

    /// Reads the rings that flows without a record depend on.
    pub(crate) fn read_rings(&mut self, maps: &Maps) -> Result<()> {
        let dsr = |service: &&rw_service| forward_from(service.forward).is_dsr();
        let ids: BTreeSet<u32> = self.services.values().filter(dsr).map(|s| s.ring).collect();
        for ring in rings::read(maps, &ids.into_iter().collect::<Vec<_>>())? {
            self.rings.insert(ring.id, Some(ring));
        }
        Ok(())
    }

    /// The same as the plan writes it.
    pub(crate) fn existing(&self, maps: &Maps) -> Result<Existing> {
        let mut ifaces = Vec::new();
        maps.ifaces.for_each(|slot, iface| {
            if iface.ifindex != 0 {
                ifaces.push((slot, iface.ifindex));
            }
        })?;
        let (vacant, owned): (Vec<_>, Vec<_>) =
            self.backends.iter().copied().partition(|(_, row)| is_vacant(row));
        Ok(Existing {
            services: self.info.iter().filter_map(|(id, info)| self.service(*id, info)).collect(),
            backends: owned.iter().map(|(index, row)| backend_row(*index, row)).collect(),
            max_backends: maps.backends.max_entries(),
            rings: self.rings.values().flatten().cloned().collect(),
            retired: vacant.into_iter().map(|(i, row)| (i, row.generation)).collect(),
            nat_addresses: self.nat.iter().map(|address| IpAddr::from(*address)).collect(),
            ifaces,
        })
    }

    /// `None` for one that clients cannot reach: its removal was cut short.
    pub(crate) fn service(&self, id: u32, info: &rw_service_info) -> Option<ServiceRow> {
        let entry = self.services.get(&info_key(info))?;
        let address = self.services.get(&address_key(info.addr))?;
        Some(ServiceRow {
            id: id as u16,
            key: service_key_of(info),
            name: label_text(self.labels.get(&id)?),
            ring: entry.ring,
            members: self.members.get(&(id as u16)).map_or_else(Vec::new, |m| m.references.clone()),
            affinity_source: entry.flags & RW_SVC_AFFINITY_SOURCE != 0,
            forward: forward_from(entry.forward),
            source_client: entry.flags & RW_SVC_SOURCE_CLIENT != 0,
            announce: address.flags & RW_ADDR_ANNOUNCE != 0,
            reset_when_none: entry.flags & RW_SVC_NONE_RESET != 0,
            shield: (entry.flags >> RW_SVC_SHIELD_SHIFT & RW_SVC_SHIELD_MASK)
                .checked_sub(1)
                .and_then(|mode| ShieldMode::try_from(mode).ok()),
            // A new plan has it from the configuration.
            policy: None,
        })
    }
}

/// The number in packets.
pub(crate) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
    }
}

/// One that this version does not know cannot be taken over: the layout's number tells first.
pub(crate) fn forward_from(number: u32) -> Forward {
    Forward::try_from(number).unwrap_or(Forward::Nat)
}

fn protocol_from(number: u8) -> Protocol {
    if number == UDP { Protocol::Udp } else { Protocol::Tcp }
}

fn info_key(info: &rw_service_info) -> rw_service_key {
    let (first, block) = service_key_of(info).ports().blocks()[0];
    rw_service_key { addr: info.addr, port_be: first.to_be(), proto: info.proto, block }
}

fn address_key(addr: [u32; 4]) -> rw_service_key {
    rw_service_key { addr, ..Default::default() }
}

/// What clients address, from the service's row.
pub(crate) fn service_key_of(info: &rw_service_info) -> ServiceKey {
    ServiceKey {
        address: addr_from_words(info.addr),
        port: u16::from_be(info.port_be),
        last_port: u16::from_be(info.last_port_be),
        protocol: protocol_from(info.proto),
    }
}

/// How SYNs to it are answered.
fn syn_answer(service: &ServiceRow) -> Option<SynAnswer> {
    service.policy.as_ref().map(|policy| policy.syn.answer)
}

/// Whether the gateway makes handshakes for it.
pub(crate) fn is_proxied(service: &ServiceRow) -> bool {
    syn_answer(service) == Some(SynAnswer::Proxy)
}

fn sends_cookies(service: &ServiceRow) -> bool {
    matches!(syn_answer(service), Some(SynAnswer::Proxy | SynAnswer::Backend))
}

fn service_flags(service: &ServiceRow) -> u32 {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    flag(service.source_client, RW_SVC_SOURCE_CLIENT)
        | flag(service.reset_when_none, RW_SVC_NONE_RESET)
        | flag(service.affinity_source, RW_SVC_AFFINITY_SOURCE)
        | flag(service.policy.is_some(), RW_SVC_LIMITED)
        | flag(sends_cookies(service), RW_SVC_SYN_COOKIES)
        | service.shield.map_or(0, |mode| (mode as u32 + 1) << RW_SVC_SHIELD_SHIFT)
}

fn service_info(service: &ServiceRow) -> rw_service_info {
    rw_service_info {
        addr: addr_to_words(service.key.address),
        port_be: service.key.port.to_be(),
        proto: protocol_number(service.key.protocol),
        used: 1,
        flags: service_flags(service),
        forward: service.forward as u32,
        last_port_be: service.key.last_port.to_be(),
        pad: 0,
    }
}

/// Service entries by address, port and protocol; address entries by address alone.
fn service_entries(
    tables: &Tables,
    members: &BTreeMap<u16, Members>,
) -> BTreeMap<rw_service_key, rw_service> {
    let mut entries = BTreeMap::new();
    for service in &tables.services {
        let flags = service_flags(service);
        let (id, ring, forward) = (service.id.into(), service.ring, service.forward as u32);
        let (first, count) = members.get(&service.id).map_or((0, 0), Members::range);
        let value = rw_service { id, ring, flags, forward, members: first, member_count: count };
        let mut sizes = 0;
        for (first, block) in service.key.ports().blocks() {
            let key = rw_service_key {
                addr: addr_to_words(service.key.address),
                port_be: first.to_be(),
                proto: protocol_number(service.key.protocol),
                block,
            };
            sizes |= 1 << block;
            entries.insert(key, value);
        }
        let announce = if service.announce { RW_ADDR_ANNOUNCE } else { 0 };
        add_address(&mut entries, service.key.address, RW_ADDR_SERVICE | announce, sizes & !1);
    }
    let keep_client: HashSet<u16> =
        tables.services.iter().filter(|s| s.source_client).map(|s| s.id).collect();
    let kept = |b: &&BackendRow| !keep_client.is_empty() && keep_client.contains(&b.service);
    for backend in tables.backends.iter().filter(kept) {
        add_address(&mut entries, backend.address, RW_ADDR_BACKEND, 0);
    }
    for address in &tables.own_addresses {
        add_address(&mut entries, *address, RW_ADDR_NODE, 0);
    }
    entries
}

/// `sizes`: of blocks of ports at the address, bit by bit.
fn add_address(
    entries: &mut BTreeMap<rw_service_key, rw_service>,
    address: IpAddr,
    flags: u32,
    sizes: u32,
) {
    let key = address_key(addr_to_words(address));
    let entry = entries.entry(key).or_default();
    entry.flags |= flags;
    entry.id |= sizes;
}

fn backend(row: &BackendRow) -> rw_backend {
    let hop = row.next_hop;
    let up = if row.flows_live() { RW_BACKEND_UP } else { 0 };
    let kept = if row.kept { RW_BACKEND_KEPT } else { 0 };
    let resolved = if hop.is_some() { RW_BACKEND_RESOLVED } else { 0 };
    let takes_new = if row.takes_new() { RW_BACKEND_TAKES_NEW } else { 0 };
    rw_backend {
        addr: addr_to_words(row.address),
        port_be: row.port.to_be(),
        proto: protocol_number(row.protocol),
        flags: (up | kept | resolved | takes_new) as u8,
        generation: row.generation,
        service: row.service,
        dmac: hop.map_or([0; 6], |hop| hop.mac),
        mtu: hop.map_or(0, |hop| hop.mtu),
        iface: hop.map_or(0, |hop| hop.iface),
        nat_first: row.nat.0,
        nat_count: row.nat.1,
        tunnel_saddr: row.tunnel.map_or([0; 4], |tunnel| addr_to_words(tunnel.source)),
        tunnel_port_be: row.tunnel.map_or(0, |tunnel| tunnel.port.to_be()),
        mss: row.mss,
    }
}

/// An index without owner: the generation stays, so that the next owner gets another one.
pub(crate) fn vacated(row: &rw_backend) -> rw_backend {
    rw_backend { generation: row.generation, ..Default::default() }
}

/// Nobody has this index.
pub(crate) fn is_vacant(row: &rw_backend) -> bool {
    row.addr == [0; 4]
}

/// The backend that has this place.
pub(crate) fn backend_row(index: u32, row: &rw_backend) -> BackendRow {
    let flags = u32::from(row.flags);
    let hop = NextHop { iface: row.iface, mac: row.dmac, mtu: row.mtu };
    let tunnel = Tunnel {
        source: addr_from_words(row.tunnel_saddr),
        port: u16::from_be(row.tunnel_port_be),
    };
    BackendRow {
        index,
        generation: row.generation,
        service: row.service,
        address: addr_from_words(row.addr),
        port: u16::from_be(row.port_be),
        protocol: protocol_from(row.proto),
        weight: 0,
        up: flags & RW_BACKEND_UP != 0 && flags & RW_BACKEND_KEPT == 0,
        kept: flags & RW_BACKEND_KEPT != 0,
        next_hop: (flags & RW_BACKEND_RESOLVED != 0).then_some(hop),
        nat: (row.nat_first, row.nat_count),
        tunnel: (row.tunnel_saddr != [0; 4]).then_some(tunnel),
        mss: row.mss,
    }
}

pub(crate) fn label(name: &str) -> rw_label {
    let mut label = rw_label::default();
    // The last byte stays NUL.
    let room = RW_LABEL_LEN as usize - 1;
    for (to, from) in label.name[..room].iter_mut().zip(name.bytes()) {
        *to = from as std::ffi::c_char;
    }
    label
}

/// The text of a label, up to its NUL.
pub(crate) fn label_text(label: &rw_label) -> String {
    let bytes = label.name.as_bytes().split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(id: u16, address: &str, source_client: bool, announce: bool) -> ServiceRow {
        ServiceRow {
            id,
            key: ServiceKey::new(address.parse().unwrap(), 80, Protocol::Tcp),
            name: format!("s{id}"),
            ring: id.into(),
            members: vec![],
            affinity_source: false,
            forward: Forward::Nat,
            source_client,
            announce,
            reset_when_none: true,
            shield: None,
            policy: None,
        }
    }

    fn one_backend(service: u16, next_hop: Option<NextHop>) -> BackendRow {
        BackendRow {
            index: 5,
            generation: 2,
            service,
            address: "10.0.0.2".parse().unwrap(),
            port: 8080,
            protocol: Protocol::Udp,
            weight: 1,
            up: true,
            kept: false,
            next_hop,
            nat: (1, 2),
            tunnel: Some(Tunnel { source: "10.0.0.1".parse().unwrap(), port: 6080 }),
            mss: 1400,
        }
    }

    #[test]
    fn ports_and_addresses_are_as_on_the_wire() {
        let row = backend(&one_backend(0, None));
        assert_eq!(row.port_be.to_ne_bytes(), [0x1f, 0x90]);
        assert_eq!(row.addr[3].to_ne_bytes(), [10, 0, 0, 2]);
        assert_eq!((row.proto, row.flags, row.generation), (17, RW_BACKEND_UP as u8, 2));
        let hop = NextHop { iface: 3, mac: [1, 2, 3, 4, 5, 6], mtu: 1500 };
        let row = backend(&one_backend(0, Some(hop)));
        assert_eq!(row.flags, (RW_BACKEND_UP | RW_BACKEND_RESOLVED | RW_BACKEND_TAKES_NEW) as u8);
        assert_eq!((row.iface, row.dmac, row.mtu), (3, hop.mac, 1500));
        let back = BackendRow { weight: 0, ..one_backend(0, Some(hop)) };
        assert_eq!(backend_row(5, &row), back);
    }

    #[test]
    fn addresses_have_entries_of_their_own() {
        let tables = Tables {
            services: vec![
                service(0, "203.0.113.10", false, false),
                service(1, "203.0.113.11", true, true),
            ],
            backends: vec![one_backend(1, None)],
            own_addresses: ["203.0.113.10", "10.0.0.1"].map(|a| a.parse().unwrap()).into(),
            ..Default::default()
        };
        let entries = service_entries(&tables, &BTreeMap::new());
        assert_eq!(entries.len(), 6);
        let flags_of = |address: &str| {
            let addr = addr_to_words(address.parse().unwrap());
            entries[&address_key(addr)].flags
        };
        assert_eq!(flags_of("203.0.113.10"), RW_ADDR_SERVICE | RW_ADDR_NODE);
        assert_eq!(flags_of("10.0.0.1"), RW_ADDR_NODE);
        assert_eq!(flags_of("203.0.113.11"), RW_ADDR_SERVICE | RW_ADDR_ANNOUNCE);
        assert_eq!(flags_of("10.0.0.2"), RW_ADDR_BACKEND);
    }

    #[test]
    fn labels_end_with_nul() {
        assert_eq!(label_text(&label("web")), "web");
        let long = "x".repeat(100);
        assert_eq!(label_text(&label(&long)).len(), RW_LABEL_LEN as usize - 1);
        assert_eq!(label(&long).name[RW_LABEL_LEN as usize - 1], 0);
    }

    #[test]
    fn a_vacated_index_keeps_its_generation() {
        let row = vacated(&backend(&one_backend(0, None)));
        assert!(is_vacant(&row));
        assert_eq!((row.generation, row.flags), (2, 0));
    }
}
