//! How programs stand on their interfaces.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ringway_api::error::Error;
use ringway_kernel::AttachStateQuery;
use tokio::sync::mpsc;

use super::{DatapathEvent, kernel};
use crate::descriptor_reserve::DescriptorReserve;

/// Asks how programs stand, on a thread of its own: the kernel answers under RTNL, for which tables
/// must not wait.
pub(super) struct AttachStateReader {
    ask: SyncSender<(u64, Vec<AttachStateQuery>)>,
    /// How often programs were attached.
    turn: Arc<Mutex<u64>>,
}

impl AttachStateReader {
    pub(super) fn start(
        reports: mpsc::UnboundedSender<DatapathEvent>,
    ) -> Result<AttachStateReader, Error> {
        let (ask, asked) = sync_channel(0);
        let turn = Arc::<Mutex<u64>>::default();
        let current = Arc::clone(&turn);
        let answer = move || {
            let reserve = DescriptorReserve::new(1);
            for (turn, queries) in asked {
                let queries: Vec<AttachStateQuery> = queries;
                let read = || queries.iter().map(AttachStateQuery::ask).collect::<Result<_, _>>();
                let found = read().or_else(|_| {
                    reserve.give_up();
                    let found = read();
                    reserve.fill();
                    found
                });
                let current = current.lock().unwrap_or_else(PoisonError::into_inner);
                // Not where programs were attached meanwhile.
                if *current == turn {
                    let _ = reports.send(DatapathEvent::AttachStates(found.map_err(kernel)));
                }
            }
        };
        let thread = thread::Builder::new().name("attach-states".into()).spawn(answer);
        thread.map_err(|error| Error::failed(format!("no thread to ask with: {error}"), ""))?;
        Ok(AttachStateReader { ask, turn })
    }

    /// Nothing, while the last answer is waited for.
    pub(super) fn ask(&self, queries: Vec<AttachStateQuery>) {
        let turn = *self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.ask.try_send((turn, queries));
    }

    /// What is being asked is not told any more.
    pub(super) fn outdate(&self) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
}
