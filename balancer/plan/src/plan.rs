//! Configuration and observations in, tables out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use ringway_abi::raw::{RW_MAX_BACKENDS, RW_MAX_NAT_ADDRS, RW_MAX_SERVICES};
use ringway_config::{
    Affinity, Announce, Backend, Config, Forward, MssClamp, Service, Shield, ShieldLimits,
    SourceMode, Syn, WhenNoneHealthy,
};

use crate::ids::{BackendKey, Ids};
use crate::maglev::Member;
use crate::observed::{Health, Observed};
use crate::rings::{RecordWalk, Rings, Wish};
use crate::sources::Places;
use crate::tables::{
    BackendRow, Protocol, RingRow, ServiceKey, ServicePolicy, ServiceRow, SynAnswer, SynOffer,
    SynPolicy, Tables, Timeouts, Tunnel,
};

/// Why there is no plan. The one in force stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More service entries than the kernel's table holds.
    #[error(
        "more than {RW_MAX_SERVICES} services (each protocol counts): move some to another node"
    )]
    Services,
    /// More backends than the kernel's table holds.
    #[error(
        "more than {0} backends (each service and protocol counts): `ringway detach`, then a new \
         start, makes tables that fit the configuration, for {RW_MAX_BACKENDS} at most"
    )]
    Backends(u32),
    /// More source addresses than the kernel's table holds.
    #[error(
        "more than {RW_MAX_NAT_ADDRS} source addresses towards backends: name those to use in \
         addresses of [nat]"
    )]
    Sources,
}

/// Makes plans, and remembers what must be the same in the next one.
#[derive(Debug, Default)]
pub struct Planner {
    ids: Ids,
    /// Input of the last plan.
    given: Vec<Given>,
    rings: Rings,
}

impl Planner {
    /// `Ids::default()` for a node that starts from nothing, [`Ids::from_rows`] for one that
    /// takes over tables without dsr services.
    pub fn new(ids: Ids) -> Planner {
        Planner { ids, ..Planner::default() }
    }

    /// For a node that takes over: with the services it finds, and the rings of dsr services at
    /// least. Flows of slots that have changed are kept as if by the planner that changed them.
    pub fn take_over(ids: Ids, services: &[ServiceRow], rings: &[RingRow]) -> Planner {
        Planner { ids, rings: Rings::new(services, rings), ..Planner::default() }
    }

    /// Whether slots have changed and are not stable yet: then a plan with newer
    /// [`Observed::records`] differs from the last one even if nothing else happens.
    pub fn is_changing(&self) -> bool {
        self.rings.changing()
    }

    /// A look through the records of tracked flows, begun at `now` (seconds of CLOCK_MONOTONIC).
    /// `failed`: by service id, when a flow could not be given a record last.
    pub fn observe(&self, now: u32, failed: HashMap<u16, u32>) -> RecordWalk<'_> {
        RecordWalk::new(&self.rings, now, failed)
    }

    /// The tables for this configuration and this state of the world.
    ///
    /// - A service with two protocols becomes two entries with their own backends and rings.
    /// - A ring has the backends that are up, have weight and can be reached: with a next hop and a
    ///   source address for nat. Flows of one that cannot be reached for a while stay with it.
    /// - While no backend with weight is up, the ring is empty, or with
    ///   `when_none_healthy = "all"` every backend counts as up; so it does with more backends that
    ///   are known to be down than `max_unhealthy` allows.
    ///
    /// # Errors
    /// Something does not fit its table; nothing has changed then.
    pub fn plan(&mut self, config: &Config, observed: &Observed) -> Result<Tables, PlanError> {
        let entries: Vec<Entry> = config.services.iter().flat_map(Entry::of).collect();
        let new = self.number(&entries)?;
        let given = new.as_ref().map_or(&self.given, |(_, given)| given);
        let mut places = self.ids.places.clone();
        places.begin(&wanted_sources(config, observed));
        let configured = Sources::new(config, &mut places)?;
        let mut plan = Plan { config, observed, configured, places, tables: Tables::default() };
        plan.tables.backends.reserve(given.iter().map(|given| given.backends.len()).sum());
        let mut wishes = Vec::with_capacity(entries.len());
        for (entry, given) in entries.iter().zip(given) {
            wishes.push(plan.entry(entry, given)?);
        }
        let Plan { places, mut tables, .. } = plan;
        let (rings, rows) = self.rings.plan(wishes, observed.now, &observed.records);
        for (service, ring) in tables.services.iter_mut().zip(rings) {
            service.ring = ring;
        }
        tables.rings = rows;
        tables.services.sort_by_key(|row| row.id);
        tables.backends.sort_by_key(|row| row.index);
        tables.nat_addresses = places.table().to_vec();
        tables.nat_ports = (config.nat.ports.first, config.nat.ports.count());
        tables.own_addresses.clone_from(&observed.own_addresses);
        tables.timeouts = timeouts(config);
        tables.track_quota = config.flows.new_per_prefix;
        if let Some((ids, given)) = new {
            (self.ids, self.given) = (ids, given);
        }
        self.ids.places = places;
        Ok(tables)
    }

    /// Gives every service and backend its number, in the order of the entries. `None`: they are
    /// those of the last plan, which is how it is nearly always.
    fn number(&self, entries: &[Entry]) -> Result<Option<(Ids, Vec<Given>)>, PlanError> {
        let mut last = self.given.iter();
        if entries.iter().all(|entry| last.next().is_some_and(|given| given.is_for(entry)))
            && last.next().is_none()
        {
            return Ok(None);
        }
        let mut ids = self.ids.clone();
        ids.services.keep(&entries.iter().map(|entry| entry.key).collect());
        ids.backends.keep(&entries.iter().flat_map(Entry::backend_keys).collect());
        let full = PlanError::Backends(ids.limit);
        let one = |entry: &Entry| {
            let (id, _) = ids.services.number(entry.key).ok_or(PlanError::Services)?;
            let mut backends = Vec::with_capacity(entry.service.backends.len());
            for key in entry.backend_keys() {
                let (index, generation) = ids.backend(key).ok_or_else(|| full.clone())?;
                backends.push((key.endpoint, index, generation));
            }
            Ok(Given { key: entry.key, id, backends })
        };
        let given = entries.iter().map(one).collect::<Result<_, PlanError>>()?;
        Ok(Some((ids, given)))
    }
}

/// The numbers of an entry.
#[derive(Debug)]
struct Given {
    key: ServiceKey,
    id: u16,
    /// In the order of the configuration, with index and generation.
    backends: Vec<(SocketAddr, u32, u16)>,
}

impl Given {
    fn is_for(&self, entry: &Entry) -> bool {
        let mine = self.backends.iter().map(|(endpoint, ..)| *endpoint);
        self.key == entry.key && mine.eq(entry.service.backends.iter().map(Backend::endpoint))
    }
}

/// A service under one of its protocols.
struct Entry<'c> {
    service: &'c Service,
    key: ServiceKey,
}

impl<'c> Entry<'c> {
    fn of(service: &'c Service) -> impl Iterator<Item = Entry<'c>> {
        let (address, port) = (*service.address, *service.port);
        service.protocols.iter().map(move |protocol| Entry {
            service,
            key: ServiceKey { address, port, last_port: service.last_port, protocol: *protocol },
        })
    }

    /// The protocol by which its ring tells members. With `affinity = "source"` all protocols of a
    /// service have one ring, so that a client has one backend.
    fn ring_protocol(&self) -> Protocol {
        match self.service.affinity {
            Affinity::Source => self.service.protocols.first().copied().unwrap_or(Protocol::Tcp),
            Affinity::FiveTuple => self.key.protocol,
        }
    }

    fn backend_keys(&self) -> impl Iterator<Item = BackendKey> {
        let service = self.key;
        let endpoints = self.service.backends.iter().map(Backend::endpoint);
        endpoints.map(move |endpoint| BackendKey { service, endpoint })
    }
}

/// Where configured nat addresses are in the table, by family; `None`: not configured.
struct Sources {
    v4: Option<Range<usize>>,
    v6: Option<Range<usize>>,
}

impl Sources {
    fn new(config: &Config, places: &mut Places) -> Result<Sources, PlanError> {
        let mut family = |v4: bool| {
            let addresses: BTreeSet<IpAddr> = config.nat.addresses.iter().map(|a| **a).collect();
            let mine: Vec<IpAddr> = addresses.into_iter().filter(|a| a.is_ipv4() == v4).collect();
            match mine.is_empty() {
                true => Ok(None),
                false => places.place(&mine).map(Some).ok_or(PlanError::Sources),
            }
        };
        Ok(Sources { v4: family(true)?, v6: family(false)? })
    }
}

/// A plan in the making.
struct Plan<'p> {
    config: &'p Config,
    observed: &'p Observed,
    configured: Sources,
    places: Places,
    tables: Tables,
}

impl Plan<'_> {
    /// Adds a service entry, still without its ring, and its backends.
    fn entry(&mut self, entry: &Entry, given: &Given) -> Result<Wish, PlanError> {
        let (service, id) = (entry.service, given.id);
        self.tables.services.push(ServiceRow {
            id,
            key: entry.key,
            name: service.name.to_string(),
            ring: 0,
            members: Vec::new(),
            affinity_source: service.affinity == Affinity::Source,
            forward: service.forward,
            source_client: service.forward == Forward::Nat && service.source == SourceMode::Client,
            announce: service.announce == Announce::Arp,
            reset_when_none: service.when_none_healthy == WhenNoneHealthy::Reset,
            shield: service.shield.and_then(|own| own.mode),
            policy: self.config.shield.as_ref().and_then(|shield| policy(shield, service)),
        });
        let mut rows = Vec::with_capacity(service.backends.len());
        let up = up(service, self.observed);
        for ((backend, up), (_, index, generation)) in
            service.backends.iter().zip(up).zip(&given.backends)
        {
            rows.push(self.backend(entry, id, backend, up, (*index, *generation))?);
        }
        let timeouts = &self.config.nat.timeouts;
        let timeout = match entry.key.protocol {
            Protocol::Tcp => timeouts.established,
            Protocol::Udp => timeouts.udp,
        };
        let weight = self.observed.weight_of(&service.name);
        let mut wish = wish(entry, id, &rows, weight);
        wish.remember = service.forward.is_dsr().then_some(timeout.as_secs() as u32);
        if let Some(row) = self.tables.services.last_mut() {
            row.members.clone_from(&wish.references);
            if let (Some(policy), Syn::Proxy | Syn::Backend) = (&mut row.policy, *service.syn) {
                match take_cookies(service, &rows, self.observed) {
                    true => policy.syn.offer = offer(service, &rows, self.observed),
                    false => policy.syn.answer = SynAnswer::Challenge,
                }
            }
        }
        self.tables.backends.append(&mut rows);
        Ok(wish)
    }

    fn backend(
        &mut self,
        entry: &Entry,
        service: u16,
        backend: &Backend,
        up: bool,
        (index, generation): (u32, u16),
    ) -> Result<BackendRow, PlanError> {
        let (forward, address) = (entry.service.forward, *backend.address);
        let protocol = entry.key.protocol;
        let nat = match entry.service.source {
            SourceMode::Client => Some(0..0),
            SourceMode::Node => self.sources(address)?,
        };
        let tunnel = self.tunnel(entry.service, address);
        let possible = match forward {
            Forward::Nat => nat.is_some(),
            Forward::DsrL2 => !self.observed.behind_router.contains(&address),
            Forward::DsrIpip | Forward::DsrGue => tunnel.is_some(),
        };
        let next_hop = self.observed.next_hops.get(&address).copied().filter(|_| possible);
        Ok(BackendRow {
            index,
            generation,
            service,
            address,
            port: backend.port,
            protocol,
            weight: backend.weight,
            up,
            kept: !up && protocol == Protocol::Tcp && self.is_kept(entry.service, backend),
            next_hop,
            nat: nat.map_or((0, 0), |run| (run.start as u32, run.len() as u32)),
            tunnel,
            mss: next_hop.map_or(0, |hop| mss(entry.service, address, hop.mtu)),
        })
    }

    /// Whether the established TCP flows of a backend that is down go on.
    fn is_kept(&self, service: &Service, backend: &Backend) -> bool {
        let health = || self.observed.health(&service.name, backend.endpoint());
        service.check.is_some() && health() == Health::Kept
    }

    /// The outer header towards a backend; `None` also while its source address is not known.
    fn tunnel(&self, service: &Service, backend: IpAddr) -> Option<Tunnel> {
        if !service.forward.is_tunnel() {
            return None;
        }
        let configured = self.config.tunnel.source_towards(backend);
        let source = configured.or_else(|| self.observed.sources.get(&backend).copied())?;
        match service.forward {
            Forward::Nat | Forward::DsrL2 => None,
            Forward::DsrIpip => Some(Tunnel { source, port: 0 }),
            Forward::DsrGue => Some(Tunnel { source, port: service.gue_port }),
        }
    }

    /// The source addresses towards a backend; `None` while none is known.
    fn sources(&mut self, backend: IpAddr) -> Result<Option<Range<usize>>, PlanError> {
        let configured = if backend.is_ipv4() { &self.configured.v4 } else { &self.configured.v6 };
        if let Some(run) = configured {
            return Ok(Some(run.clone()));
        }
        match self.observed.sources.get(&backend) {
            Some(source) => self.places.place(&[*source]).map(Some).ok_or(PlanError::Sources),
            None => Ok(None),
        }
    }
}

/// Whether every backend opens connections of cookies that may get some: one that does not would
/// reset them.
fn take_cookies(service: &Service, rows: &[BackendRow], observed: &Observed) -> bool {
    let mut all = service.backends.iter().zip(rows);
    all.all(|(backend, row)| {
        let gets_flows = row.up && row.weight > 0 && row.next_hop.is_some();
        !gets_flows || observed.takes_cookies(&service.name, backend.endpoint())
    })
}

/// What all backends take that clients may meet: the MSS of each that can be reached, and what those
/// that take new flows were seen to offer.
fn offer(service: &Service, backends: &[BackendRow], observed: &Observed) -> SynOffer {
    let seen = observed.offers_of(&service.name);
    let proxies = *service.syn == Syn::Proxy;
    // `ringway accept` refuses a backend whose kernel has no time stamps or SACK.
    let unseen = SynOffer { mss: u16::MAX, stamps: !proxies, sack: true, ecn: false };
    let mut offer = SynOffer { mss: u16::MAX, stamps: true, sack: true, ecn: true };
    let mut taking = false;
    for backend in backends {
        let Some(hop) = backend.next_hop else { continue };
        let one = seen(backend.endpoint()).unwrap_or(unseen);
        offer.mss = offer.mss.min(segment(service, backend.address, hop.mtu)).min(one.mss);
        if backend.up && backend.weight > 0 {
            taking = true;
            offer.stamps &= one.stamps;
            offer.sack &= one.sack;
            offer.ecn &= one.ecn;
        }
    }
    if taking { offer } else { SynOffer { sack: true, ..SynOffer::default() } }
}

/// None without limits, mitigation and answers to SYNs.
fn policy(shield: &Shield, service: &Service) -> Option<ServicePolicy> {
    let (limits, armed) = (shield.limits_of(service), shield.armed_limits_of(service));
    let ShieldLimits { source_prefix, flow_rate, allow_rate, learn_udp, .. } = shield.limits;
    let answer = match *service.syn {
        Syn::Off => SynAnswer::Forward,
        Syn::Challenge => SynAnswer::Challenge,
        Syn::Proxy => SynAnswer::Proxy,
        Syn::Backend => SynAnswer::Backend,
    };
    // What it offers is known when all backends are.
    let syn = SynPolicy { answer, always: shield.syn.always, ..SynPolicy::default() };
    let has_policy =
        !limits.is_empty() || shield.mitigation.is_some() || answer != SynAnswer::Forward;
    has_policy.then(|| ServicePolicy {
        mode: shield.mode_of(service),
        limits,
        armed,
        flow: flow_rate,
        learnt: allow_rate,
        learns: service.forward == Forward::Nat,
        learns_udp: learn_udp,
        source_prefix,
        syn,
    })
}

/// The MSS that segments to this backend may have, 0 for any; `mtu`: of the way to it.
fn mss(service: &Service, backend: IpAddr, mtu: u16) -> u16 {
    match service.mss_clamp {
        _ if !service.forward.is_dsr() => 0,
        MssClamp::Off => 0,
        MssClamp::Bytes(bytes) => bytes,
        MssClamp::Auto if service.forward.is_tunnel() => segment(service, backend, mtu),
        MssClamp::Auto => 0,
    }
}

/// Every source address a plan can use.
fn wanted_sources(config: &Config, observed: &Observed) -> HashSet<IpAddr> {
    let configured = config.nat.addresses.iter().map(|address| **address);
    configured.chain(observed.sources.values().copied()).collect()
}

/// Bytes of a segment without options (RFC 6691) that fit the way to a backend.
fn segment(service: &Service, backend: IpAddr, mtu: u16) -> u16 {
    const TCP_HEADER: u16 = 20;
    let inner = if service.address.is_ipv4() { 20 } else { 40 };
    let headers = service.forward.overhead(backend.is_ipv6()) + inner + TCP_HEADER;
    mtu.saturating_sub(headers)
}

/// Which backends of a service count as up, in the order of the configuration.
fn up(service: &Service, observed: &Observed) -> Vec<bool> {
    let health = observed.health_of(&service.name);
    let health = |backend: &Backend| match service.check {
        Some(_) => health(backend.endpoint()),
        None => Health::Unchecked,
    };
    let is_up = |backend: &Backend| matches!(health(backend), Health::Up | Health::Unchecked);
    let is_down = |backend: &&Backend| matches!(health(backend), Health::Down | Health::Kept);
    let mut up: Vec<bool> = service.backends.iter().map(is_up).collect();
    let weighted = || service.backends.iter().filter(|backend| backend.weight > 0);
    let (all, down) = (weighted().count(), weighted().filter(is_down).count());
    let panics = service.max_unhealthy.is_some_and(|max| max.is_exceeded(down, all));
    let serves = weighted().any(is_up);
    if panics || !serves && service.when_none_healthy == WhenNoneHealthy::All {
        up.fill(true);
    }
    up
}

/// The members of a ring, in the order of identity, without a memory. A port is part of a
/// member's identity only where two of them have one address: so services on different ports of
/// the same machines share a ring.
fn wish(
    entry: &Entry,
    service: u16,
    rows: &[BackendRow],
    weight: impl Fn(SocketAddr, u16) -> u16,
) -> Wish {
    let mut rows: Vec<&BackendRow> = rows.iter().collect();
    rows.sort_by_key(|row| (row.address, row.port));
    let protocol = entry.ring_protocol();
    Wish {
        key: entry.key,
        service,
        members: (0..rows.len()).map(|place| member(&rows, place, protocol, &weight)).collect(),
        references: rows.iter().map(|row| row.reference()).collect(),
        live: rows.iter().map(|row| row.flows_live()).collect(),
        remember: None,
    }
}

/// Of rows in the order of identity.
fn member(
    rows: &[&BackendRow],
    place: usize,
    protocol: Protocol,
    weight: &impl Fn(SocketAddr, u16) -> u16,
) -> Member {
    let row = rows[place];
    let beside = [place.wrapping_sub(1), place + 1];
    let twice = beside.iter().filter_map(|n| rows.get(*n)).any(|r| r.address == row.address);
    let port = if twice { row.port } else { 0 };
    let weight = if row.takes_new() { weight(row.endpoint(), row.weight) } else { 0 };
    Member { address: row.address, port, protocol, weight }
}

fn timeouts(config: &Config) -> Timeouts {
    let seconds = |duration: std::time::Duration| duration.as_secs() as u32;
    let timeouts = &config.nat.timeouts;
    Timeouts {
        syn: seconds(timeouts.syn),
        established: seconds(timeouts.established),
        closing: seconds(timeouts.closing),
        closed: seconds(timeouts.closed),
        udp_new: seconds(timeouts.udp_new),
        udp: seconds(timeouts.udp),
    }
}
