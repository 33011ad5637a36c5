//! The step from one configuration to the next: what changes, and which flows move.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::net::SocketAddr;

use ringway_abi::raw::RW_RING_SLOTS;
use ringway_api::documents::changes::{
    BackendChange, Changes, FlowChange, RingChange, SCHEMA, ServiceChange, What,
};
use ringway_api::error::Error;
use ringway_config::{
    Backend, CheckAt, Config, RateLimit, Service, Shield, ShieldList, ShieldMode, ShieldRule,
};
use ringway_kernel::View;
use ringway_plan::tables::{NextHop, Protocol, ServiceKey};
use ringway_plan::{Health, Observed, Planner};

use crate::backends::BackendSet;

/// A configuration and the one that follows.
#[derive(Clone, Copy)]
pub struct ConfigDiff<'c> {
    pub old: &'c Config,
    pub new: &'c Config,
}

impl ConfigDiff<'_> {
    /// What changes, without flows. Backends that `backend_set` does not know to be down count as
    /// up.
    ///
    /// # Errors
    /// The new configuration does not fit the tables.
    pub fn changes(self, backend_set: &BackendSet) -> Result<Changes, Error> {
        let ConfigDiff { old, new } = self;
        let mut changes = Changes {
            schema: SCHEMA.into(),
            node: new.node.name.to_string(),
            file: new.filename().to_owned(),
            settings: self.settings(),
            shield: self.shield(),
            ..Changes::default()
        };
        let mut reshaped = HashSet::new();
        for (was, is) in self.pairs() {
            let (service, change) = match (was, is) {
                (Some(was), Some(is)) => {
                    let (names, keys): (Vec<_>, Vec<_>) = keys(was, is).into_iter().unzip();
                    let before = changes.backends.len();
                    backends(was, is, &mut changes.backends);
                    if changes.backends.len() > before {
                        // Under both names, where it gets another.
                        reshaped.extend([was.name.as_str(), is.name.as_str()]);
                    }
                    if keys.is_empty() {
                        continue;
                    }
                    changes.services.push(ServiceChange {
                        service: is.name.to_string(),
                        change: What::Changed,
                        keys,
                        names,
                        backends: 0,
                    });
                    continue;
                }
                (None, Some(is)) => (is, What::Added),
                (Some(was), None) => (was, What::Removed),
                (None, None) => continue,
            };
            changes.services.push(ServiceChange {
                service: service.name.to_string(),
                change,
                backends: service.backends.len() as u64,
                ..ServiceChange::default()
            });
        }
        changes.lost_endpoints = self.lost();
        changes.ended_services =
            self.ended().into_values().collect::<BTreeSet<_>>().into_iter().collect();
        changes.rings = rings(old, new, &reshaped, backend_set)?;
        changes.changed = old != new;
        Ok(changes)
    }

    /// The fate of the present flows.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn flows(self, view: &View) -> ringway_kernel::Result<FlowChange> {
        let mut found = FlowChange::default();
        let gone = self.gone();
        if gone.is_empty() {
            return Ok(found);
        }
        let ended = self.ended();
        // Those of services that end, too.
        let (mut nat, mut dsr, mut over) = (HashSet::new(), HashSet::new(), HashSet::new());
        for service in view.services()? {
            for backend in &service.backends {
                if !gone.contains(&(service.key, backend.address)) {
                    continue;
                }
                let reference = backend.reference();
                let of = if service.forward.is_dsr() { &mut dsr } else { &mut nat };
                of.insert(reference);
                if ended.contains_key(&service.key) {
                    over.insert(reference);
                }
            }
        }
        if !nat.is_empty() {
            let flows = view.flows()?.by_backend;
            for (reference, flows) in flows.iter().filter(|(reference, _)| nat.contains(reference))
            {
                found.reset_flows += flows.tcp;
                match over.contains(reference) {
                    true => {
                        found.ended_reset_flows += flows.tcp;
                        found.ended_flows += flows.udp;
                    }
                    false => found.moved_flows += flows.udp,
                }
            }
        }
        if !dsr.is_empty() {
            found.some_are_not_counted = true;
            view.tracked(|flow| match over.contains(&flow.backend) {
                true => found.ended_flows += u64::from(dsr.contains(&flow.backend)),
                false => found.moved_tracked_flows += u64::from(dsr.contains(&flow.backend)),
            })?;
        }
        Ok(found)
    }

    fn settings(self) -> Vec<String> {
        let ConfigDiff { old, new } = self;
        let tables = [
            ("nat", old.nat != new.nat),
            ("flows", old.flows != new.flows),
            ("tunnel", old.tunnel != new.tunnel),
            ("shield", old.shield != new.shield),
            ("forward", old.forward != new.forward),
        ];
        tables.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).into()).collect()
    }

    /// What changes of `[shield]`, in words.
    fn shield(self) -> Vec<String> {
        let (was, is) = match (&self.old.shield, &self.new.shield) {
            (Some(was), Some(is)) => (was, is),
            (None, Some(_)) => return vec!["added".into()],
            (Some(_), None) => return vec!["removed".into()],
            (None, None) => return Vec::new(),
        };
        let mut changes = Vec::new();
        let mut push = |key: &str, was: &dyn Display, is: &dyn Display| {
            changes.extend(becomes(key, was, is));
        };
        push("mode", &was.mode.name(), &is.mode.name());
        push("protect", &was.protect, &is.protect);
        push("sanity", &was.sanity, &is.sanity);
        push("syn always", &was.syn.always, &is.syn.always);
        let before = was.limits.named();
        for ((key, was), (_, is)) in before.into_iter().zip(is.limits.named()) {
            changes.extend(optional(key, &was, &is));
        }
        let secret = |shield: &Shield| {
            let secret = shield.syn.secret.as_ref();
            secret.map_or("none".to_owned(), |secret| secret.display().to_string())
        };
        changes.extend(optional("syn secret", &secret(was), &secret(is)));
        match (&was.mitigation, &is.mitigation) {
            (Some(was), Some(is)) => {
                for ((key, was), (_, is)) in was.named().into_iter().zip(is.named()) {
                    changes.extend(optional(&format!("mitigation {key}"), &was, &is));
                }
            }
            (None, Some(_)) => changes.push("mitigation added".into()),
            (Some(_), None) => changes.push("mitigation removed".into()),
            (None, None) => {}
        }
        let name = |list: &ShieldList| list.name.to_string();
        changes.extend(named("list", &was.lists, &is.lists, name));
        let name = |rule: &ShieldRule| rule.name.to_string();
        changes.extend(named("rule", &was.rules, &is.rules, name));
        changes
    }

    /// Services of both, those of one name or of one address and port beside each other; in the
    /// order of the new configuration, then those that go.
    fn pairs(&self) -> Vec<(Option<&Service>, Option<&Service>)> {
        let key = |service: &Service| (*service.address, *service.port, service.protocols.clone());
        let named: HashMap<&str, &Service> =
            self.old.services.iter().map(|service| (service.name.as_str(), service)).collect();
        let kept: HashSet<&str> = self.new.services.iter().map(|s| s.name.as_str()).collect();
        let renamed: HashMap<_, &Service> = self
            .old
            .services
            .iter()
            .filter(|service| !kept.contains(service.name.as_str()))
            .map(|service| (key(service), service))
            .collect();
        let mut taken = HashSet::new();
        let mut pairs = Vec::new();
        for is in &self.new.services {
            let was = named.get(is.name.as_str()).or_else(|| renamed.get(&key(is))).copied();
            taken.extend(was.map(|was| was.name.as_str()));
            pairs.push((was, Some(is)));
        }
        let gone = self.old.services.iter().filter(|was| !taken.contains(was.name.as_str()));
        pairs.extend(gone.map(|was| (Some(was), None)));
        pairs
    }

    /// Backends whose flows end: they go, or packets get to them in another way.
    fn gone(self) -> HashSet<(ServiceKey, SocketAddr)> {
        let all = |config: &Config| -> HashMap<(ServiceKey, SocketAddr), bool> {
            let of = |service: &Service| -> Vec<_> {
                let dsr = service.forward.is_dsr();
                let backends = || service.backends.iter().map(Backend::endpoint);
                let both = |key| backends().map(move |backend| ((key, backend), dsr));
                entries(service).into_iter().flat_map(both).collect()
            };
            config.services.iter().flat_map(of).collect()
        };
        let new = all(self.new);
        let stays = |who: &_, dsr: bool| new.get(who).is_some_and(|now| *now == dsr);
        all(self.old)
            .into_iter()
            .filter(|(who, dsr)| !stays(who, *dsr))
            .map(|(who, _)| who)
            .collect()
    }

    /// Entries all of whose flows end, with the names of their services.
    fn ended(self) -> HashMap<ServiceKey, String> {
        let all = |config: &Config| -> HashMap<ServiceKey, (bool, String)> {
            let of = |service: &Service| {
                let what = (service.forward.is_dsr(), service.name.to_string());
                entries(service).into_iter().map(move |key| (key, what.clone()))
            };
            config.services.iter().flat_map(of).collect()
        };
        let new = all(self.new);
        let goes_on = |key: &ServiceKey, dsr| new.get(key).is_some_and(|(now, _)| *now == dsr);
        let ends = all(self.old).into_iter().filter(|(key, (dsr, _))| !goes_on(key, *dsr));
        ends.map(|(key, (_, name))| (key, name)).collect()
    }

    /// Endpoints that are served now and will not be.
    fn lost(self) -> Vec<String> {
        let new: Vec<ServiceKey> = self.new.services.iter().flat_map(entries).collect();
        let still = |old: &ServiceKey| {
            let serves = |new: &ServiceKey| {
                (new.address, new.protocol) == (old.address, old.protocol)
                    && new.port <= old.port
                    && old.last_port <= new.last_port
            };
            new.iter().any(serves)
        };
        let lost = |service: &'_ Service| -> Vec<String> {
            let keys = entries(service).into_iter().filter(|key| !still(key));
            keys.map(|key| format!("{} {} {}", *service.name, key.endpoint(), key.protocol))
                .collect()
        };
        self.old.services.iter().flat_map(lost).collect()
    }
}

/// Addresses of a service: one for each protocol.
fn entries(service: &Service) -> Vec<ServiceKey> {
    let key = |protocol: &Protocol| ServiceKey {
        address: *service.address,
        port: *service.port,
        last_port: service.last_port,
        protocol: *protocol,
    };
    service.protocols.iter().map(key).collect()
}

/// Flows that one backend of a service has now, those of dsr as far as they have a record.
///
/// # Errors
/// The kernel's tables cannot be read.
pub fn flows_of(view: &View, service: &str, at: SocketAddr) -> ringway_kernel::Result<u64> {
    let (mut nat, mut dsr) = (HashSet::new(), HashSet::new());
    for state in view.services()?.iter().filter(|state| state.name == service) {
        let of = if state.forward.is_dsr() { &mut dsr } else { &mut nat };
        for backend in &state.backends {
            if backend.address == at {
                of.insert(backend.reference());
            }
        }
    }
    let mut found = 0;
    if !nat.is_empty() {
        let flows = view.flows()?.by_backend;
        let own = flows.iter().filter(|(reference, _)| nat.contains(reference));
        found += own.map(|(_, flows)| flows.tcp + flows.udp).sum::<u64>();
    }
    if !dsr.is_empty() {
        view.tracked(|flow| found += u64::from(dsr.contains(&flow.backend)))?;
    }
    Ok(found)
}

/// In words, where a key says something else.
fn becomes(key: &str, was: &dyn Display, is: &dyn Display) -> Option<String> {
    let (was, is) = (was.to_string(), is.to_string());
    (was != is).then(|| format!("{key} {was} becomes {is}"))
}

/// The same of a setting that may be missing, which is called `none`.
fn optional(key: &str, was: &str, is: &str) -> Option<String> {
    match (was, is) {
        ("none", "none") => None,
        ("none", is) => Some(format!("{key} is set to {is}")),
        (was, "none") => Some(format!("{key} is removed, was {was}")),
        (was, is) => becomes(key, &was, &is),
    }
}

/// Which of the shield's lists or rules come, go or say something else, by name; `rule 2` is named
/// by its number. Where only their order differs, that.
fn named<T: PartialEq>(
    what: &str,
    was: &[T],
    is: &[T],
    name: impl Fn(&T) -> String,
) -> Vec<String> {
    let by_name =
        |all| -> HashMap<String, &T> { <[T]>::iter(all).map(|one| (name(one), one)).collect() };
    let (before, after) = (by_name(was), by_name(is));
    let says = |name: &str, change: &str| match name.starts_with(what) {
        true => format!("{name} {change}"),
        false => format!("{what} {name} {change}"),
    };
    let mut changes: Vec<String> = is
        .iter()
        .filter_map(|one| match before.get(&name(one)) {
            None => Some(says(&name(one), "added")),
            Some(was) if *was != one => Some(says(&name(one), "changed")),
            Some(_) => None,
        })
        .collect();
    let gone = was.iter().map(&name).filter(|name| !after.contains_key(name));
    changes.extend(gone.map(|name| says(&name, "removed")));
    if changes.is_empty() && was != is {
        changes.push(format!("order of {what}s changed"));
    }
    changes
}

/// Keys of a service that say something else, by name and in words: with the values where they are
/// short.
fn keys(was: &Service, is: &Service) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    let mut push = |key, was: &dyn Display, is: &dyn Display| {
        keys.extend(becomes(key, was, is).map(|words| (key, words)));
    };
    let protocols = |service: &Service| {
        service.protocols.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    };
    push("name", &was.name, &is.name);
    push("address", &was.address, &is.address);
    push("port", &was.ports(), &is.ports());
    push("protocol", &protocols(was), &protocols(is));
    push("forward", &was.forward, &is.forward);
    push("gue_port", &was.gue_port, &is.gue_port);
    push("source", &was.source, &is.source);
    push("affinity", &was.affinity, &is.affinity);
    push("announce", &was.announce, &is.announce);
    push("when_none_healthy", &was.when_none_healthy, &is.when_none_healthy);
    push("syn", &*was.syn, &*is.syn);
    push("shield", &shield_of(was), &shield_of(is));
    for (key, differs) in [
        ("mss_clamp", was.mss_clamp != is.mss_clamp),
        ("on_down", was.keep_for.is_some() != is.keep_for.is_some()),
        ("keep_for", was.keep_for.zip(is.keep_for).is_some_and(|(was, is)| was != is)),
        ("max_unhealthy", was.max_unhealthy != is.max_unhealthy),
        ("slow_start", was.slow_start != is.slow_start),
        ("check", was.check != is.check || asked_elsewhere(was, is)),
    ] {
        if differs {
            keys.push((key, key.into()));
        }
    }
    keys
}

/// What a service says in place of `[shield]`: its mode and limits.
fn shield_of(service: &Service) -> String {
    let own = service.shield.unwrap_or_default();
    let mode = own.mode.map_or("as [shield]", ShieldMode::name);
    let limit = |(key, limit): (&str, Option<Option<RateLimit>>)| {
        Some(format!("{key} {}", limit?.map_or("none".into(), RateLimit::rate)))
    };
    let limits = own.limits.named().into_iter().filter_map(limit);
    [mode.into()].into_iter().chain(limits).collect::<Vec<_>>().join(", ")
}

/// Whether a backend that stays is checked at another address or port of its own.
fn asked_elsewhere(was: &Service, is: &Service) -> bool {
    let before: HashMap<SocketAddr, &CheckAt> =
        was.backends.iter().map(|backend| (backend.endpoint(), &backend.check)).collect();
    let differs = |backend: &Backend| {
        before.get(&backend.endpoint()).is_some_and(|check| **check != backend.check)
    };
    is.backends.iter().any(differs)
}

fn backends(was: &Service, is: &Service, changes: &mut Vec<BackendChange>) {
    let of = |service: &Service| -> HashMap<SocketAddr, u16> {
        service.backends.iter().map(|backend| (backend.endpoint(), backend.weight)).collect()
    };
    let (before, after) = (of(was), of(is));
    let gone = was.backends.iter().filter(|backend| !after.contains_key(&backend.endpoint()));
    for backend in is.backends.iter().chain(gone) {
        let endpoint = backend.endpoint();
        let (was, now) = (before.get(&endpoint).copied(), after.get(&endpoint).copied());
        if was == now {
            continue;
        }
        changes.push(BackendChange {
            service: is.name.to_string(),
            address: endpoint.ip(),
            port: endpoint.port(),
            change: match (was, now) {
                (None, _) => What::Added,
                (_, None) => What::Removed,
                _ => What::Changed,
            },
            weight_before: was,
            weight_after: now,
        });
    }
}

/// Slots that move in the rings of these services, one plan after the other.
fn rings(
    old: &Config,
    new: &Config,
    services: &HashSet<&str>,
    backend_set: &BackendSet,
) -> Result<Vec<RingChange>, Error> {
    if services.is_empty() {
        return Ok(Vec::new());
    }
    let mut planner = Planner::default();
    let mut plan = |config: &Config| {
        let mut some = config.clone();
        some.services.retain(|service| services.contains(service.name.as_str()));
        planner
            .plan(&some, &imagine(&some, backend_set))
            .map_err(|error| Error::configuration(error.to_string(), ""))
    };
    let (before, after) = (plan(old)?, plan(new)?);
    let moved = after.slots_moved(&before).into_iter().map(|(service, moved)| RingChange {
        service: service.name.clone(),
        protocol: service.key.protocol.to_string(),
        moved_slots: moved as u64,
        slots: RW_RING_SLOTS.into(),
        once_up: false,
    });
    Ok(moved.collect())
}

/// Everything can be reached, and nothing is down but what checks say is.
fn imagine(config: &Config, backend_set: &BackendSet) -> Observed {
    let mut observed = Observed::default();
    let hop = NextHop { iface: 0, mac: [2, 0, 0, 0, 0, 0], mtu: 1500 };
    let down = backend_set.down();
    // One source for all of a family: there is room for few.
    let all = || config.services.iter().flat_map(|service| &service.backends).map(|b| *b.address);
    let sources = [true, false].map(|v4| all().filter(|address| address.is_ipv4() == v4).min());
    for service in &config.services {
        for backend in &service.backends {
            let (endpoint, address) = (backend.endpoint(), *backend.address);
            let down = down.contains(&(service.name.as_str(), endpoint));
            let health = if down { Health::Down } else { Health::Up };
            observed.set_health(&service.name, endpoint, health);
            observed.next_hops.insert(address, hop);
            let source = sources[usize::from(address.is_ipv6())].unwrap_or(address);
            observed.sources.insert(address, source);
        }
    }
    observed
}

#[cfg(test)]
mod tests;
