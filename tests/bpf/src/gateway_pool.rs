//! Gateways that worlds use one after the other: the verifier takes longer over one than most tests
//! last. A world gives its own back, emptied; the next world of that size writes its tables over
//! the rest.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle};
use ringway_abi::{FromBytes, Slot};
use ringway_kernel::Gateway;

use crate::audit;
use crate::dry::Dry;
use crate::map_batch::clear;

/// Maps that packets write and tables do not.
const WRITTEN: [&str; 12] = [
    "flows",
    "flow_index",
    "tracked",
    "track_quotas",
    "untracked",
    "tracking",
    "fragments",
    "traffic",
    "kept_flows",
    "vain_searches",
    "ledger",
    "scratch",
];
/// Of the balancer's programs alone: what they may still send, and who else sent.
const OWN: [&str; 2] = ["answer_budget", "other_senders"];

/// Larger ones are not kept.
const MOST_FLOWS: u32 = 60_000;

static SPARE: Mutex<Vec<(u32, Gateway, Option<Dry>)>> = Mutex::new(Vec::new());

/// A gateway, and the dry instance that is asked before each frame once it is loaded.
#[derive(Debug)]
pub struct PooledGateway {
    /// `None` only while it is dropped.
    gateway: Option<Gateway>,
    pub(crate) dry: Mutex<Option<Dry>>,
    flows: u32,
    spoilt: AtomicBool,
}

impl PooledGateway {
    /// One for so many flows that was used before, if there is any.
    pub(crate) fn spare(flows: u32) -> Option<Self> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = spare.iter().position(|(of, ..)| *of == flows)?;
        let (_, gateway, dry) = spare.swap_remove(at);
        let (gateway, dry, spoilt) = (Some(gateway), Mutex::new(dry), AtomicBool::default());
        Some(Self { gateway, dry, flows, spoilt })
    }

    /// One of its own, which is not used again if it is `spoilt`, say pinned.
    pub(crate) fn own(gateway: Gateway, flows: u32, spoilt: bool) -> Self {
        let spoilt = AtomicBool::new(spoilt || flows > MOST_FLOWS);
        Self { gateway: Some(gateway), dry: Mutex::default(), flows, spoilt }
    }

    /// Something was changed that tables do not change back.
    pub(crate) fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
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
        let Some(gateway) = self.gateway.take() else { return };
        if std::thread::panicking() || self.spoilt.load(Ordering::Relaxed) {
            return;
        }
        empty(&gateway);
        let dry = self.dry.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push((self.flows, gateway, dry));
    }
}

fn empty(gateway: &Gateway) {
    for name in WRITTEN {
        clear(gateway.map(name).unwrap());
    }
    for map in own(gateway.map("slots").unwrap()) {
        clear(map.as_fd());
    }
}

fn own(slots: BorrowedFd<'_>) -> impl Iterator<Item = MapHandle> {
    let id = u32::read_from_bytes(&audit::read(slots, Slot::Balance as u32)).unwrap();
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == id).unwrap();
    let maps = program.map_ids.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
    maps.filter(|map| OWN.iter().any(|name| map.name() == *name))
}
