//! Gateways that worlds use one after the other: the verifier takes longer over one than most tests
//! last. A world gives its own back, emptied; the next world of that size writes its tables over
//! the rest.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle};
use ringway_abi::{FromBytes, Slot};
use ringway_kernel::{Clock, Gateway, GatewayOptions, ManualClock, Randomness, Sources};

use crate::audit;
use crate::clock::{START, seed};
use crate::dry::{self, Dry};
use crate::map_batch::clear;

/// Of the balancer's programs alone: what they may still send, and who else sent.
const OWN: [&str; 2] = ["answer_due", "other_senders"];

/// Maps that packets of services with limits write, and a shield.
const LIMITED: [&str; 13] = [
    "arrivals",
    "flow_budgets",
    "heavy_sources",
    "learnt_sources",
    "proven",
    "rule_budgets",
    "service_budgets",
    "shield_armed",
    "shield_counts",
    "shield_exceeded",
    "shield_labels",
    "shield_observed",
    "source_sketch",
];

/// Larger ones are not kept.
const MOST_FLOWS: u32 = 60_000;

static SPARE: Mutex<Vec<Spare>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Spare {
    flows: u32,
    gateway: Gateway,
    clock: Arc<ManualClock>,
    dry: Option<Dry>,
}

/// A gateway, and the dry instance that is asked before each frame once it is loaded.
pub struct PooledGateway {
    /// `None` only while it is dropped.
    gateway: Option<Gateway>,
    pub(crate) dry: Mutex<Option<Dry>>,
    clock: Arc<ManualClock>,
    flows: u32,
    spoilt: AtomicBool,
    limited: AtomicBool,
    undo: Mutex<Vec<Undo>>,
}

/// Takes back what tables do not.
type Undo = Box<dyn FnOnce(&mut Gateway) + Send>;

impl PooledGateway {
    /// One for so many flows that was used before, if there is any.
    pub(crate) fn spare(flows: u32) -> Option<Self> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = spare.iter().position(|spare| spare.flows == flows)?;
        let Spare { gateway, clock, mut dry, .. } = spare.swap_remove(at);
        dry.iter_mut().for_each(Dry::begin_world);
        clock.set(START).unwrap();
        Some(Self::of(gateway, Mutex::new(dry), clock, flows))
    }

    /// A new one, which is not used again if it is pinned or large.
    pub(crate) fn open(options: GatewayOptions) -> Self {
        let clock = ManualClock::new(START).unwrap();
        let randomness = Randomness::Seeded(seed());
        let sources = Sources { clock: Clock::Manual(Arc::clone(&clock)), randomness };
        let GatewayOptions { flows, pin, .. } = options;
        let gateway = Gateway::open(&GatewayOptions { sources, ..options }).unwrap().0;
        let new = Self::of(gateway, Mutex::default(), clock, flows);
        if pin || flows > MOST_FLOWS {
            new.spoil();
        }
        new
    }

    fn of(gateway: Gateway, dry: Mutex<Option<Dry>>, clock: Arc<ManualClock>, flows: u32) -> Self {
        let (spoilt, limited) = (AtomicBool::default(), AtomicBool::default());
        Self { gateway: Some(gateway), dry, clock, flows, spoilt, limited, undo: Mutex::default() }
    }

    /// Its clock, which stands still.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Its services have limits, and maybe a shield, which are taken away before it is used again.
    pub(crate) fn limit(&self) {
        self.limited.store(true, Ordering::Relaxed);
    }

    /// Keeps `undo` until the gateway is used again: it takes back what tables do not.
    pub(crate) fn undo(&self, undo: impl FnOnce(&mut Gateway) + Send + 'static) {
        self.undo.lock().unwrap().push(Box::new(undo));
    }

    /// Something was changed that nothing changes back.
    pub(crate) fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for PooledGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledGateway").field("gateway", &self.gateway).finish_non_exhaustive()
    }
}

impl Deref for PooledGateway {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }
}

impl DerefMut for PooledGateway {
    fn deref_mut(&mut self) -> &mut Gateway {
        self.gateway.as_mut().unwrap()
    }
}

impl Drop for PooledGateway {
    fn drop(&mut self) {
        let Some(mut gateway) = self.gateway.take() else { return };
        if std::thread::panicking() || self.spoilt.load(Ordering::Relaxed) {
            return;
        }
        let undo = self.undo.get_mut().unwrap_or_else(PoisonError::into_inner);
        undo.drain(..).rev().for_each(|undo| undo(&mut gateway));
        empty(&gateway);
        if self.limited.load(Ordering::Relaxed) {
            remove_limits(&mut gateway);
        }
        let dry = self.dry.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let spare = Spare { flows: self.flows, gateway, clock: Arc::clone(&self.clock), dry };
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(spare);
    }
}

fn empty(gateway: &Gateway) {
    for name in dry::MAPPED.into_iter().chain(dry::WRITTEN) {
        clear(gateway.map(name).unwrap());
    }
    for map in own(gateway.map("slots").unwrap()) {
        clear(map.as_fd());
    }
}

fn remove_limits(gateway: &mut Gateway) {
    gateway.set_shield(None).unwrap();
    gateway.set_shield_override(None).unwrap();
    gateway.set_runtime_prefixes(&[]).unwrap();
    for name in LIMITED {
        clear(gateway.map(name).unwrap());
    }
}

fn own(slots: BorrowedFd<'_>) -> impl Iterator<Item = MapHandle> {
    let id = u32::read_from_bytes(&audit::read(slots, Slot::Balance as u32)).unwrap();
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == id).unwrap();
    let maps = program.map_ids.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
    maps.filter(|map| OWN.iter().any(|name| map.name() == *name))
}
