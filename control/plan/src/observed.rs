//! What the world looks like: health, and the kernel's routes and neighbours.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::records::Records;
use crate::tables::NextHop;

/// What a health check knows of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// It answers.
    Up,
    /// It does not, or has not been asked yet.
    Down,
    /// Nobody asks; taken to be up.
    Unchecked,
}

/// Everything a plan depends on besides the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    health: HashMap<String, HashMap<SocketAddr, Health>>,
    /// Way out to each backend address. Absent: no route, no neighbour, or a way out by an
    /// interface that is not the gateway's.
    pub next_hops: HashMap<IpAddr, NextHop>,
    /// Source address the kernel would use towards each backend address, for nat and tunnels
    /// without configured ones.
    pub sources: HashMap<IpAddr, IpAddr>,
    /// The time, seconds of CLOCK_MONOTONIC: when slots change owners.
    pub now: u32,
    /// What the records of tracked flows said when they were looked through last.
    pub records: Records,
    /// Backend addresses that are reached by way of a router, which dsr-l2 cannot do.
    pub behind_router: HashSet<IpAddr>,
}

impl Observed {
    /// Notes the health of a backend of the service of that name.
    pub fn set_health(&mut self, service: &str, backend: SocketAddr, health: Health) {
        match self.health.get_mut(service) {
            Some(backends) => drop(backends.insert(backend, health)),
            None => drop(self.health.insert(service.into(), [(backend, health)].into())),
        }
    }

    /// The health of all backends of the service of that name, see [`Observed::health`].
    pub(crate) fn health_of(&self, service: &str) -> impl Fn(SocketAddr) -> Health {
        let backends = self.health.get(service);
        move |backend| {
            backends.and_then(|backends| backends.get(&backend)).copied().unwrap_or(Health::Down)
        }
    }

    /// The health noted last; [`Health::Down`] for a backend never heard of, so that one with a
    /// check waits for its first. A service without a check does not ask.
    pub fn health(&self, service: &str, backend: SocketAddr) -> Health {
        self.health_of(service)(backend)
    }
}
