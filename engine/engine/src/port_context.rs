//! The state that ports of several workers share: memory, cables, and the XDP programs of
//! interfaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringway_xsk::{Pool, Redirect, Umem, UmemError};

use crate::arch::Cycles;
use crate::ports::memory::{Plug, cable};
use crate::programs::{AllPackets, Programs};
use crate::takeover::Predecessor;

/// The state that ports of several workers share.
#[derive(Clone)]
pub struct PortContext {
    umem: Umem,
    programs: Arc<dyn Programs>,
    /// Cables by name. The first port of a name gets one end, the second the other. The value is
    /// the end that is left; none if both are taken.
    cables: Arc<Mutex<HashMap<String, Option<Plug>>>>,
    /// XDP programs by interface: one for all of its queues, for as long as any is open.
    redirects: Arc<Mutex<HashMap<String, Weak<Redirect>>>>,
    /// The engine from which pools, sockets and programs are taken over.
    predecessor: Option<Arc<Predecessor>>,
}

impl PortContext {
    /// Of ports in this UMEM.
    pub fn new(umem: &Umem) -> Self {
        let (cables, redirects) = Default::default();
        let umem = umem.clone();
        Self { umem, programs: Arc::new(AllPackets), cables, redirects, predecessor: None }
    }

    /// With these programs for AF_XDP ports.
    pub fn with_programs(self, programs: Arc<dyn Programs>) -> Self {
        Self { programs, ..self }
    }

    /// Of ports that a predecessor had.
    pub(crate) fn succeeding(predecessor: Arc<Predecessor>) -> Self {
        let programs = predecessor.programs.iter();
        let redirects = programs.map(|(name, r)| (name.clone(), Arc::downgrade(r))).collect();
        let redirects = Arc::new(Mutex::new(redirects));
        Self { redirects, predecessor: Some(predecessor.clone()), ..Self::new(&predecessor.umem) }
    }

    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    pub(crate) fn programs(&self) -> &dyn Programs {
        &*self.programs
    }

    pub(crate) fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.as_deref()
    }

    /// The pool of a worker, which opens it first: its share of the memory, or its predecessor's.
    ///
    /// # Errors
    /// The predecessor's ledger is damaged.
    pub(crate) fn pool(&self, worker: usize) -> Result<Pool, UmemError> {
        let Some(predecessor) = &self.predecessor else {
            let pool = self.umem.pool_at(Cycles::now().milliseconds(Cycles::per_millisecond()));
            return Ok(pool.expect("there is a pool for each worker"));
        };
        // As many as there are workers, at most 255 (`Predecessor::fits`).
        self.umem.take_over_pool(worker as u8, predecessor.free[worker])
    }

    /// The program on an interface: the present one, or the one that `attach` makes.
    pub(crate) fn redirect<E>(
        &self,
        interface: &str,
        attach: impl FnOnce() -> Result<Redirect, E>,
    ) -> Result<Arc<Redirect>, E> {
        let mut redirects = lock(&self.redirects);
        let there = redirects.get(interface).and_then(Weak::upgrade);
        // Of an interface that is gone, a port may still have it that has not noticed.
        if let Some(redirect) = there.filter(|there| there.is_attached().unwrap_or(false)) {
            return Ok(redirect);
        }
        let redirect = Arc::new(attach()?);
        redirects.insert(interface.into(), Arc::downgrade(&redirect));
        Ok(redirect)
    }

    /// An end of the cable of this name; none if both are taken.
    pub fn plug(&self, name: &str, slots: u32) -> Option<Plug> {
        let mut cables = lock(&self.cables);
        if let Some(other) = cables.get_mut(name) {
            return other.take();
        }
        let (one, other) = cable(&self.umem, slots);
        cables.insert(name.into(), Some(other));
        Some(one)
    }

    /// Names of the cables of which one end is left.
    pub fn loose(&self) -> Vec<String> {
        let cables = lock(&self.cables);
        let names = cables.iter().filter(|(_, plug)| plug.is_some());
        names.map(|(name, _)| name.clone()).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked left the map complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
