//! What the world looks like: health, the kernel's routes and neighbours, and what the records of
//! tracked flows say about slots that have changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::fast_map::FastMap;
use crate::history::Moment;
use crate::tables::{NextHop, SynOffer};

/// Health of a backend, as its check knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// Its checks pass.
    Up,
    /// Its checks fail.
    Down,
    /// It has not been asked yet, and gets nothing.
    Unknown,
    /// It does not, but its established TCP flows go on.
    Kept,
    /// Nobody asks; taken to be up.
    Unchecked,
}

/// Everything a plan depends on besides the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    health: HashMap<String, FastMap<SocketAddr, Health>>,
    /// Tenths of the weight, for backends that get less than all of it.
    shares: HashMap<String, FastMap<SocketAddr, u16>>,
    /// Backends that do not open connections of the gateway's SYN cookies, by their service.
    no_cookies: HashMap<String, HashSet<SocketAddr>>,
    /// What backends have offered in handshakes with this node.
    offers: HashMap<String, FastMap<SocketAddr, SynOffer>>,
    /// Way out to each backend address. Absent: no route, no neighbour, or a way out by an
    /// interface that is not the gateway's.
    pub next_hops: FastMap<IpAddr, NextHop>,
    /// Source address the kernel would use towards each backend address, for nat and tunnels
    /// without configured ones.
    pub sources: FastMap<IpAddr, IpAddr>,
    /// The time, seconds of CLOCK_MONOTONIC: when slots change owners.
    pub now: u32,
    /// The last reading of the records of tracked flows.
    pub records: Records,
    /// Backend addresses that are reached by way of a router, which dsr-l2 cannot do.
    pub behind_router: HashSet<IpAddr>,
    /// Addresses of the node that packets can come to from other machines.
    pub own_addresses: BTreeSet<IpAddr>,
}

impl Observed {
    /// Notes the health of a backend of the service of that name.
    pub fn set_health(&mut self, service: &str, backend: SocketAddr, health: Health) {
        match self.health.get_mut(service) {
            Some(backends) => {
                backends.insert(backend, health);
            }
            None => {
                let backends = [(backend, health)].into_iter().collect();
                self.health.insert(service.into(), backends);
            }
        }
    }

    /// The health of all backends of the service of that name, see [`Observed::health`].
    pub(crate) fn health_of(&self, service: &str) -> impl Fn(SocketAddr) -> Health {
        let backends = self.health.get(service);
        move |backend| {
            backends.and_then(|backends| backends.get(&backend)).copied().unwrap_or(Health::Unknown)
        }
    }

    /// Notes that a backend gets only so many tenths of its weight for now: it came up lately.
    pub fn set_share(&mut self, service: &str, backend: SocketAddr, tenths: u16) {
        self.shares.entry(service.into()).or_default().insert(backend, tenths.min(10));
    }

    /// Notes that a backend is not known to open connections of the gateway's SYN cookies.
    pub fn set_no_cookies(&mut self, service: &str, backend: SocketAddr) {
        self.no_cookies.entry(service.into()).or_default().insert(backend);
    }

    /// Whether a backend opens connections of SYN cookies. One that nobody asks is taken to.
    pub fn takes_cookies(&self, service: &str, backend: SocketAddr) -> bool {
        !self.no_cookies.get(service).is_some_and(|backends| backends.contains(&backend))
    }

    /// What each backend of the service of that name weighs in its ring. A ring depends on the
    /// proportions alone, so those of a service where all get their whole weight stay as they are.
    pub(crate) fn weight_of(&self, service: &str) -> impl Fn(SocketAddr, u16) -> u16 {
        let shares = self.shares.get(service);
        move |backend, weight| match shares {
            None => weight,
            Some(shares) => weight * shares.get(&backend).copied().unwrap_or(10),
        }
    }

    /// Notes what a backend has offered in its last handshake.
    pub fn set_offer(&mut self, service: &str, backend: SocketAddr, offer: SynOffer) {
        self.offers.entry(service.into()).or_default().insert(backend, offer);
    }

    /// What each backend of the service of that name has offered; `None`: nobody has asked it.
    pub(crate) fn offers_of(&self, service: &str) -> impl Fn(SocketAddr) -> Option<SynOffer> {
        let offers = self.offers.get(service);
        move |backend| offers.and_then(|offers| offers.get(&backend)).copied()
    }

    /// The health noted last; [`Health::Unknown`] for a backend never heard of, so that one with a
    /// check waits for its first. A service without a check does not ask.
    pub fn health(&self, service: &str, backend: SocketAddr) -> Health {
        self.health_of(service)(backend)
    }
}

/// Result of reading all records. Empty until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// When they were looked through, seconds of CLOCK_MONOTONIC; 0: never.
    pub looked: u32,
    /// By service id: when a flow could not be given a record last, in the same seconds.
    pub failed: HashMap<u16, u32>,
    /// By service id: slots with a record that does not lead to the current owner.
    pub(crate) elsewhere: HashMap<u16, HashSet<u32>>,
}

impl Records {
    /// Facts about slots of these services.
    pub(crate) fn moment<'s>(
        &self,
        services: impl Iterator<Item = &'s u16>,
        now: u32,
        timeout: u32,
    ) -> Moment {
        let failed = services.filter_map(|id| self.failed.get(id)).copied().max();
        Moment { now, timeout, failed: failed.unwrap_or(0), looked: self.looked }
    }

    /// Slots in which any of these services has a flow of another owner.
    pub(crate) fn elsewhere<'s>(&self, services: impl Iterator<Item = &'s u16>) -> HashSet<u32> {
        services.filter_map(|id| self.elsewhere.get(id)).flatten().copied().collect()
    }
}
