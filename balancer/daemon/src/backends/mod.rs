//! Each backend as the daemon knows it: its health and the way to it. Pure.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cookies;
mod on_down;
mod reconfigure;
mod restore;
mod slow_start;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock::Timestamp;
use ringway_api::documents::status::{self, Problem};
use ringway_api::problem_kind::ProblemKind;
use ringway_config::{
    Check, Config, Forward, MaxUnhealthy, Protocol, WhenNoneHealthy, endpoint_text,
};
use ringway_plan::Observed;
use ringway_plan::tables::{NextHop, ServiceKey, SynOffer};

use crate::health::cookies::Cookies;
use crate::health::{CheckEvent, CheckTarget, Health, ProbeRoute, Record, by_hand};
use crate::network::next_hop::{Hop, NoWay};

use on_down::Kept;
use reconfigure::Asked;

pub use on_down::{Replies, replies};
use slow_start::SlowStart;

/// All services, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub struct BackendSet {
    services: Vec<Entry>,
    /// Where the backend of a number is: its service's place, and its own there.
    places: HashMap<usize, (usize, usize)>,
    /// Numbers below have been given out.
    next: usize,
    /// Backends that come up now begin slowly where they are to.
    started: bool,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub address: IpAddr,
    pub port: u16,
    /// One or two.
    pub protocols: Vec<Protocol>,
    forward: Forward,
    slow_start: Option<Duration>,
    keep_for: Option<Duration>,
    shape: status::Service,
    when_none: WhenNoneHealthy,
    max_unhealthy: Option<MaxUnhealthy>,
    /// In the order of the configuration.
    pub members: Vec<Member>,
}

/// One backend of a service.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number, which no other backend ever gets, nor itself once it is asked in another way.
    pub id: usize,
    /// Its own address and port.
    pub endpoint: SocketAddr,
    /// Share of new flows.
    pub weight: u16,
    /// The file's weight, where there is an override.
    file_weight: Option<u16>,
    drained: bool,
    /// It came up lately, or its weight was 0 until lately.
    slow_start: Option<SlowStart>,
    asked: Asked,
    pub health: Health,
    /// It is down, and its established TCP connections go on.
    kept: Option<Kept>,
    since: Option<SystemTime>,
    reason: Option<String>,
    record: Arc<Record>,
    /// Of `syn = "backend"`, where that is asked.
    cookies: Cookies,
    /// What its server offers in TCP handshakes, as its checks have seen it last.
    offer: Option<SynOffer>,
    pub way: Result<Hop, NoWay>,
    /// The interface of the way that there was, and whose loss was told.
    lost_by: Option<String>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// False for a fault.
    pub good: bool,
    pub text: String,
    /// The interface that the way to the backend was lost by, if it was.
    pub lost_by: Option<String>,
}

impl BackendSet {
    /// Everything unknown, but what has no check.
    pub fn new(config: &Config, now: Instant) -> BackendSet {
        BackendSet::default().reconfigure(config, now)
    }

    /// From now on backends that come up begin slowly where they are to.
    pub fn start(&mut self) {
        self.started = true;
    }

    /// Whether a backend that began slowly has not its whole weight yet.
    pub fn is_starting_slowly(&self, now: Instant) -> bool {
        self.members()
            .any(|(_, member)| member.slow_start.is_some_and(|rise| rise.tenths(now) < 10))
    }

    /// Numbers of all backends, in the order of the configuration.
    pub fn ids(&self) -> Vec<usize> {
        self.members().map(|(_, member)| member.id).collect()
    }

    /// Whether one of these backends has this number.
    pub fn has(&self, id: usize) -> bool {
        self.places.contains_key(&id)
    }

    fn find(&self, id: usize) -> Option<(&Entry, &Member)> {
        let (service, place) = *self.places.get(&id)?;
        let entry = self.services.get(service)?;
        Some((entry, entry.members.get(place)?))
    }

    pub fn services(&self) -> &[Entry] {
        &self.services
    }

    /// Backends as they were left by an earlier daemon, as far as the tables tell.
    pub fn inherit(
        &mut self,
        now: Instant,
        left: impl Fn(&Entry, &Member) -> Option<ringway_plan::Health>,
    ) {
        for entry in &mut self.services {
            let known: Vec<_> = entry.members.iter().map(|member| left(entry, member)).collect();
            for (member, left) in entry.members.iter_mut().zip(known) {
                let (Health::Unknown, Some(left)) = (member.health, left) else { continue };
                (member.health, member.kept) = match left {
                    ringway_plan::Health::Up | ringway_plan::Health::Unchecked => {
                        (Health::Up, None)
                    }
                    ringway_plan::Health::Unknown => (Health::Unknown, None),
                    ringway_plan::Health::Down => (Health::Down, None),
                    ringway_plan::Health::Kept => (Health::Down, Kept::begin(entry.keep_for, now)),
                };
            }
        }
    }

    /// One check per backend that has one; one that has a lane is asked at the service address, one
    /// that has an address of its own there.
    pub fn targets(&self, lanes: &BTreeMap<usize, ProbeRoute>) -> Vec<CheckTarget> {
        self.members()
            .filter_map(|(entry, member)| {
                let id = member.id;
                let check = member.asked.check.clone()?;
                let probe_route = lanes.get(&id).cloned();
                let own = if probe_route.is_some() { entry.address } else { member.endpoint.ip() };
                let address = member.asked_at(&check, own);
                let record = member.record.clone();
                let (service, backend) = (entry.name.clone(), member.endpoint);
                let initial = member.health;
                Some(CheckTarget {
                    id,
                    service,
                    backend,
                    address,
                    probe_route,
                    check,
                    initial,
                    record,
                })
            })
            .collect()
    }

    /// The ways to the backends, by the numbers of their checks.
    pub fn ways(&self) -> HashMap<usize, &Result<Hop, NoWay>> {
        self.members().map(|(_, member)| (member.id, &member.way)).collect()
    }

    /// Takes a result of a check; returns a line for the log.
    pub fn take(&mut self, event: &CheckEvent, now: Instant) -> Option<String> {
        let (service, place) = *self.places.get(&event.id)?;
        let entry = self.services.get_mut(service)?;
        let (service, member) = (&entry.name, entry.members.get_mut(place)?);
        member.offer = event.offer.or(member.offer);
        if (event.health, member.health) == (Health::Down, Health::Down) {
            return member.still_down(service, event);
        }
        if event.health == member.health {
            return None;
        }
        let came_up = event.health.is_up() && !member.health.is_up();
        let whole = entry.slow_start.filter(|_| came_up && self.started);
        member.slow_start = SlowStart::begin(whole, now);
        let had_flows = member.health.is_up() || entry.when_none == WhenNoneHealthy::All;
        member.health = event.health;
        member.settle_keeping(entry.keep_for.filter(|_| had_flows), now);
        member.since = Some(event.at);
        member.reason.clone_from(&event.reason);
        let why = event.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        Some(format!(
            "{service}: backend {} is {}{why}{}",
            endpoint_text(member.endpoint),
            event.health.as_str(),
            member.kept_told()
        ))
    }

    /// The service of the backend that an event is about.
    pub fn service(&self, event: &CheckEvent) -> Option<&str> {
        self.find(event.id).map(|(entry, _)| entry.name.as_str())
    }

    /// The interface that the way to its backend was lost by.
    pub fn lost_by(&self, event: &CheckEvent) -> Option<String> {
        self.find(event.id).and_then(|(_, member)| member.lost_by.clone())
    }

    /// Whether this interface took the ways to several backends with it.
    pub fn lost_several(&self, interface: &str) -> bool {
        let lost = |member: &Member| member.lost_by.as_deref() == Some(interface);
        self.members().filter(|(_, member)| lost(member)).nth(1).is_some()
    }

    /// Address of the backend that an event is about.
    pub fn address(&self, event: &CheckEvent) -> Option<IpAddr> {
        self.find(event.id).map(|(_, member)| member.endpoint.ip())
    }

    /// Whether a check has not had its first result, or the next hop to a backend that is up has
    /// not been heard of.
    pub fn waiting(&self) -> bool {
        self.members().any(|(_, member)| member.waiting())
    }

    /// The same of backends that `other` has not.
    pub fn waiting_beside(&self, other: &BackendSet) -> bool {
        let mut new = self.members().filter(|(_, member)| !other.has(member.id));
        new.any(|(_, member)| member.waiting())
    }

    /// Addresses of all backends, each once.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.members().map(|(_, m)| m.endpoint.ip()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Takes the ways to all backends; returns whether any is another than before, and what to say
    /// of ways that are lost or found again.
    pub fn take_ways(&mut self, ways: impl Fn(IpAddr) -> Result<Hop, NoWay>) -> (bool, Vec<Line>) {
        let (mut changed, mut news) = (false, Vec::new());
        for entry in &mut self.services {
            for member in &mut entry.members {
                let way = ways(member.endpoint.ip()).and_then(|hop| match hop.router {
                    Some(router) if entry.forward == Forward::DsrL2 => {
                        Err(NoWay::Router { router })
                    }
                    _ => Ok(hop),
                });
                changed |= way != member.way;
                news.extend(member.take_way(&entry.name, way));
            }
        }
        (changed, news)
    }

    /// Input of the plan.
    pub fn observed(&self, now: Instant) -> Observed {
        let mut observed = Observed::default();
        for (entry, member) in self.members() {
            let tenths = member.slow_start.map_or(10, |rise| rise.tenths(now));
            if tenths < 10 {
                observed.set_share(&entry.name, member.endpoint, tenths);
            }
            let health = match member.health {
                Health::Up => ringway_plan::Health::Up,
                Health::Unchecked => ringway_plan::Health::Unchecked,
                Health::Down if member.kept.is_some() => ringway_plan::Health::Kept,
                Health::Unknown => ringway_plan::Health::Unknown,
                Health::Down => ringway_plan::Health::Down,
            };
            observed.set_health(&entry.name, member.endpoint, health);
            if member.lacks_cookies() {
                observed.set_no_cookies(&entry.name, member.endpoint);
            }
            if let Some(offer) = member.offer {
                observed.set_offer(&entry.name, member.endpoint, offer);
            }
            let Ok(hop) = &member.way else { continue };
            let address = member.endpoint.ip();
            let next_hop = NextHop { iface: hop.slot, mac: hop.mac.0, mtu: hop.mtu };
            observed.next_hops.insert(address, next_hop);
            if hop.router.is_some() {
                observed.behind_router.insert(address);
            }
            observed.sources.extend(hop.source.map(|source| (address, source)));
        }
        observed
    }

    /// How many backends get traffic, and how many there are.
    pub fn serving(&self) -> (usize, usize) {
        (self.members().filter(|(_, member)| member.serves()).count(), self.members().count())
    }

    fn members(&self) -> impl Iterator<Item = (&Entry, &Member)> {
        self.services.iter().flat_map(|entry| entry.members.iter().map(move |m| (entry, m)))
    }

    /// Services as `ringway status` shows them, without counters: one per protocol.
    pub fn shown(&self, now: Instant) -> Vec<status::Service> {
        let shown = |entry: &Entry, protocol: &Protocol| status::Service {
            protocol: *protocol,
            backends: entry.members.iter().map(|member| member.shown_of(*protocol, now)).collect(),
            ..entry.shape.clone()
        };
        let all = self.services.iter();
        all.flat_map(|entry| entry.protocols.iter().map(move |p| shown(entry, p))).collect()
    }

    /// Names of services no backend of which takes new connections.
    pub fn unserved(&self) -> impl Iterator<Item = &str> {
        let unserved = self.services.iter().filter(|entry| entry.problem().is_some());
        unserved.map(|entry| entry.name.as_str())
    }

    /// Services without a backend that gets traffic.
    pub fn problems(&self) -> Vec<Problem> {
        self.services.iter().filter_map(Entry::problem).collect()
    }

    /// Services whose checks are not believed.
    pub fn panicking(&self) -> impl Iterator<Item = Problem> {
        self.services.iter().filter_map(Entry::panicking)
    }
}

impl Entry {
    fn new(service: &ringway_config::Service) -> Entry {
        Entry {
            name: service.name.to_string(),
            address: *service.address,
            port: *service.port,
            protocols: service.protocols.clone(),
            forward: service.forward,
            slow_start: service.slow_start,
            keep_for: service.keep_for.filter(|_| service.protocols.contains(&Protocol::Tcp)),
            when_none: service.when_none_healthy,
            max_unhealthy: service.max_unhealthy,
            shape: status::Service {
                last_port: service.last_port,
                source: service.source,
                answers: Some(service.announce),
                ..status::Service::new(
                    &service.name,
                    ServiceKey::new(*service.address, *service.port, service.protocols[0]),
                    service.forward,
                )
            },
            members: Vec::with_capacity(service.backends.len()),
        }
    }

    fn problem(&self) -> Option<Problem> {
        if self.members.iter().any(Member::serves) {
            return None;
        }
        let blind = self.when_none == WhenNoneHealthy::All || self.panicking().is_some();
        if blind && self.members.iter().any(|member| member.way.is_ok() && member.weight > 0) {
            return None;
        }
        let reasons = |member: &Member| {
            let withheld = || member.shown().withheld().map(str::to_owned);
            let why = member.obstacle().or_else(withheld).unwrap_or_default();
            format!("{} {why}", endpoint_text(member.endpoint))
        };
        let why = self.members.iter().map(reasons).collect::<Vec<_>>().join("; ");
        let error = format!("service {}: no backend gets traffic ({why})", self.name);
        Some(ProblemKind::NoBackend.of_service(&self.name, error, self.remedy()))
    }

    /// The problem that more of its backends fail their checks than `max_unhealthy` allows.
    fn panicking(&self) -> Option<Problem> {
        let max = self.max_unhealthy?;
        let weighted = || self.members.iter().filter(|member| member.weight > 0);
        let all = weighted().count();
        let down = weighted().filter(|member| member.health == Health::Down).count();
        max.is_exceeded(down, all).then(|| {
            let error = format!(
                "service {}: {down} of {all} backends fail their checks, more than max_unhealthy = {} \
                 percent: every backend gets traffic, whatever its checks say",
                self.name, max.0
            );
            let mut down = self.members.iter().filter(|member| member.health == Health::Down);
            let remedy = down.next().map(Member::next_step).unwrap_or_default();
            ProblemKind::MaxUnhealthy.of_service(&self.name, error, remedy)
        })
    }

    fn remedy(&self) -> String {
        let able = self.members.iter().filter(|member| member.obstacle().is_none());
        let mut withheld = able.map(Member::shown).filter(|member| member.withheld().is_some());
        if let Some(first) = withheld.next() {
            return format!("`{}` gives it new connections again", first.release(&self.name));
        }
        let down = |member: &Member| member.health == Health::Down && member.asked.by_lane();
        if !self.members.iter().any(down) {
            let mut lacking = self.members.iter().filter(|member| member.obstacle().is_some());
            return lacking.next().map(Member::next_step).unwrap_or_default();
        }
        let opens = match self.forward.is_tunnel() {
            true => ", and does `ringway decap` (or the kernel's tunnel) run there",
            false => "",
        };
        format!(
            "on a backend: is {} on its lo, does the server listen on that{opens}? See docs/forwarding.md",
            self.address
        )
    }
}

impl Member {
    /// Takes a way; says something where one is lost, for whichever reason, or found again.
    fn take_way(&mut self, service: &str, way: Result<Hop, NoWay>) -> Option<Line> {
        let told = match (&self.way, &way) {
            (Ok(_), Err(why)) => Some((false, format!("no way to it: {why}"))),
            (Err(before), Err(why)) if self.lost_by.is_some() && before != why => {
                Some((false, format!("no way to it: {why}")))
            }
            (Err(_), Ok(hop)) if self.lost_by.is_some() => {
                Some((true, format!("there is a way to it again, by {}", hop.interface)))
            }
            _ => None,
        };
        self.lost_by = match (&self.way, &way) {
            (_, Ok(_)) => None,
            (Ok(hop), Err(_)) => Some(hop.interface.clone()),
            (Err(_), Err(_)) => self.lost_by.take(),
        };
        self.way = way;
        let backend = endpoint_text(self.endpoint);
        told.map(|(good, what)| Line {
            good,
            text: format!("{service}: backend {backend}: {what}"),
            lost_by: self.lost_by.clone(),
        })
    }

    /// Where its check asks; `own`: where it asks unless told otherwise.
    fn asked_at(&self, check: &Check, own: IpAddr) -> SocketAddr {
        let ip = check.address.as_deref().copied().unwrap_or(own);
        SocketAddr::new(ip, check.port.unwrap_or(self.endpoint.port()))
    }

    /// The command that shows more of why it gets no traffic.
    fn next_step(&self) -> String {
        let own = self.endpoint.ip();
        match (&self.way, &self.asked.check) {
            (Err(NoWay::Unresolved { next_hop, interface }), _) => format!(
                "is the machine of {next_hop} on, and on the link of {interface}? ip neighbour show dev {interface}; \
                 ping -c 3 {next_hop}"
            ),
            (Err(NoWay::Local), _) => {
                "give the address of another machine, then `ringway reload`".to_owned()
            }
            (Err(NoWay::UnknownPort { bridge, next_hop, .. }), _) => {
                format!("ping -c 3 {next_hop}; bridge fdb show br {bridge}")
            }
            (Err(_), _) => {
                format!("ip route get {own}: it must leave by one of [node] interfaces")
            }
            (Ok(_), Some(check)) if self.health == Health::Down => format!(
                "ask as its check does, and see what the server there says: {}",
                by_hand::command(check, self.asked_at(check, own))
            ),
            (Ok(_), _) => "wait for the first results of its checks".to_owned(),
        }
    }

    /// Its checks fail for another reason than before.
    fn still_down(&mut self, service: &str, event: &CheckEvent) -> Option<String> {
        self.reason.clone_from(&event.reason);
        let backend = endpoint_text(self.endpoint);
        Some(format!("{service}: backend {backend} is still down, now: {}", event.reason.as_ref()?))
    }

    fn waiting(&self) -> bool {
        let unheard = matches!(self.way, Err(NoWay::NotYet | NoWay::Unresolved { .. }));
        self.health == Health::Unknown || self.health.is_up() && unheard
    }

    fn serves(&self) -> bool {
        self.health.is_up() && self.way.is_ok() && self.weight > 0
    }

    /// Why it gets no traffic, apart from its weight.
    fn obstacle(&self) -> Option<String> {
        match (self.health, &self.way) {
            (Health::Unknown, _) => Some("has not been checked yet".into()),
            // Its checks fail because of this.
            (Health::Down, Err(no_way @ (NoWay::NoRoute(_) | NoWay::Unresolved { .. }))) => {
                Some(no_way.to_string())
            }
            (Health::Down, _) => {
                let failure = self.record.last_failure().or_else(|| self.reason.clone());
                Some(failure.unwrap_or_else(|| "was down before, and is not up yet".into()))
            }
            (_, Err(no_way)) => Some(no_way.to_string()),
            (_, Ok(_)) => None,
        }
    }

    /// Only TCP has connections that continue.
    fn shown_of(&self, protocol: Protocol, now: Instant) -> status::Backend {
        let offer = self.offer.filter(|_| protocol == Protocol::Tcp);
        status::Backend {
            kept: self.kept.is_some() && protocol == Protocol::Tcp,
            offers: offer.map(Into::into),
            slow_start_percent: self.slow_start.and_then(|rise| rise.percent(now)),
            ..self.shown()
        }
    }

    fn shown(&self) -> status::Backend {
        status::Backend {
            weight: Some(self.weight),
            file_weight: self.file_weight,
            drained: self.drained,
            health: self.health,
            since: self.since.map(Timestamp),
            reason: self.obstacle(),
            cookies_refused: self.cookies_refused(),
            next_hop: self.way.as_ref().ok().map(Hop::shown),
            checks_passed: self.record.passed(),
            checks_failed: self.record.failed(),
            check_durations: self.record.durations(),
            ..status::Backend::new(self.endpoint)
        }
    }
}

pub mod departed;
#[cfg(test)]
mod tests;
