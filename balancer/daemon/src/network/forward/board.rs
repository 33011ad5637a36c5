//! What the keeper of the tables tells the loop.

use std::sync::{Arc, Mutex, PoisonError};

use ringway_api::documents::forward::ForwardStatus;
use ringway_api::documents::status::Problem;

/// Shared; the keeper writes, the loop reads.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Posted>>);

#[derive(Clone, Debug, Default)]
pub struct Posted {
    /// `None`: nothing is forwarded here.
    pub status: Option<ForwardStatus>,
    pub problems: Vec<Problem>,
    pub findings: Vec<Problem>,
}

impl Board {
    pub(super) fn post(&self, posted: Posted) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = posted;
    }

    /// As it was posted last.
    pub fn read(&self) -> Posted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
