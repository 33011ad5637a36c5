//! Where the pools and ports of an engine's workers come from.

use ringway_xsk::Watch;

use crate::buffer_pool::BufferPool;
use crate::error::EngineError;
use crate::port::Port;
use crate::port_context::PortContext;
use crate::spec::PortSpec;
use crate::status::leak::{self, Leak};

/// The pool of a worker and its opened ports.
pub type Opened<P> = (P, Vec<Box<dyn Port<P>>>);

/// What opens the pools and ports of an engine's workers. [`PortContext`] is the one that an engine
/// has unless another is named: its ports share a UMEM.
pub trait PortOpener: Clone + Send + 'static {
    type Pool: BufferPool;
    type Port: Clone + Send + 'static;

    /// Opens the pool and the ports of a worker, on its thread. Called once for each, in order.
    ///
    /// # Errors
    /// Why no packet could pass.
    fn open(&self, worker: usize, ports: &[Self::Port]) -> Result<Opened<Self::Pool>, EngineError>;

    /// All workers have opened theirs.
    ///
    /// # Errors
    /// What one opened lacks its other part.
    fn opened(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether workers may begin.
    fn may_begin(&self) -> bool {
        true
    }

    /// Records of where frames are, if there are any.
    fn watch(&self) -> Option<Watch> {
        None
    }

    /// Frames still held in a pool whose worker has ended and freed all that it knew.
    fn left_behind(&self, pool: &Self::Pool) -> Vec<Leak> {
        let _ = pool;
        Vec::new()
    }
}

impl PortOpener for PortContext {
    type Pool = ringway_xsk::Pool;
    type Port = PortSpec;

    fn open(&self, worker: usize, ports: &[PortSpec]) -> Result<Opened<Self::Pool>, EngineError> {
        let pool = self.pool(worker)?;
        let ports: Result<_, _> = ports.iter().map(|spec| spec.open(&pool, self)).collect();
        let ports = ports.map_err(|source| EngineError::Port { worker, source })?;
        Ok((pool, ports))
    }

    fn opened(&self) -> Result<(), EngineError> {
        self.loose().pop().map_or(Ok(()), |name| Err(EngineError::Loose(name)))
    }

    fn may_begin(&self) -> bool {
        self.predecessor().is_none_or(|before| before.is_claimed())
    }

    fn watch(&self) -> Option<Watch> {
        Some(self.umem().watch())
    }

    fn left_behind(&self, pool: &Self::Pool) -> Vec<Leak> {
        leak::left_behind(self.umem().watch(), pool)
    }
}
