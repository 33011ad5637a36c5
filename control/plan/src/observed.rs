//! What the world looks like: health, and the kernel's routes and neighbours.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, SocketAddr};

use crate::records::Records;
use crate::tables::NextHop;

/// What a health check knows of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// It answers.
    Up,
    /// It does not.
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
    health: HashMap<String, Quick<SocketAddr, Health>>,
    /// Of those that get less than their weight, tenths.
    shares: HashMap<String, Quick<SocketAddr, u16>>,
    /// Way out to each backend address. Absent: no route, no neighbour, or a way out by an
    /// interface that is not the gateway's.
    pub next_hops: Quick<IpAddr, NextHop>,
    /// Source address the kernel would use towards each backend address, for nat and tunnels
    /// without configured ones.
    pub sources: Quick<IpAddr, IpAddr>,
    /// The time, seconds of CLOCK_MONOTONIC: when slots change owners.
    pub now: u32,
    /// What the records of tracked flows said when they were looked through last.
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

    /// What each backend of the service of that name weighs in its ring. A ring depends on the
    /// proportions alone, so those of a service where all get their whole weight stay as they are.
    pub(crate) fn weight_of(&self, service: &str) -> impl Fn(SocketAddr, u16) -> u16 {
        let shares = self.shares.get(service);
        move |backend, weight| match shares {
            None => weight,
            Some(shares) => weight * shares.get(&backend).copied().unwrap_or(10),
        }
    }

    /// The health noted last; [`Health::Unknown`] for a backend never heard of, so that one with a
    /// check waits for its first. A service without a check does not ask.
    pub fn health(&self, service: &str, backend: SocketAddr) -> Health {
        self.health_of(service)(backend)
    }
}

/// A map that is asked for every backend at every plan. Its keys come from the configuration, so
/// nobody can choose them such that they collide.
pub type Quick<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Multiplies and rotates, a word at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}
