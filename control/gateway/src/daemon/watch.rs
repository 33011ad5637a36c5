//! Watches the kernel's links, routes and neighbours, and looks up the ways to backends anew when
//! they change.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ringway_host::{Change, Mac, Monitor, MonitorThread};
use tokio::sync::{Notify, mpsc};

use crate::next_hop::{self, Existing, Ways};
use crate::problem::Error;
use crate::slots::Slots;

/// What a look found.
#[derive(Debug)]
pub struct Found {
    /// The interfaces.
    pub existing: Existing,
    /// Ways to all backends.
    pub ways: Ways,
}

/// What the loop has to do.
#[derive(Debug)]
pub enum News {
    /// Something changed that may change a way: look again.
    Changed,
    /// A look is done.
    Found(Found),
    /// A look came to nothing: what was known stays.
    Unknown,
}

/// The watch; dropping it ends it.
pub struct Watch {
    slots: Slots,
    notify: Arc<Notify>,
    looking: bool,
    again: bool,
    failed: bool,
    send: mpsc::UnboundedSender<ringway_host::Result<Found>>,
    receive: mpsc::UnboundedReceiver<ringway_host::Result<Found>>,
    _thread: MonitorThread,
}

impl Watch {
    /// Begins watching in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn start(slots: Slots) -> Result<Watch, Error> {
        let failed = |error: ringway_host::Error| Error::failed(error.to_string(), "");
        let notify = Arc::new(Notify::new());
        let teller = notify.clone();
        let mut known = HashMap::new();
        let thread = Monitor::open()
            .and_then(|monitor| {
                monitor.spawn(move |change| {
                    if matters(&change, &mut known) {
                        teller.notify_one();
                    }
                    true
                })
            })
            .map_err(failed)?;
        let (send, receive) = mpsc::unbounded_channel();
        Ok(Watch {
            slots,
            notify,
            looking: false,
            again: false,
            failed: false,
            send,
            receive,
            _thread: thread,
        })
    }

    /// Looks on a thread that may wait, one look at a time; [`News::Found`] has the result. `known`: the
    /// interfaces that our program is on, index by slot.
    pub fn look(&mut self, addresses: Vec<IpAddr>, known: HashMap<u32, u32>) {
        if self.looking {
            self.again = true;
            return;
        }
        self.looking = true;
        let (slots, send) = (self.slots.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            // Closed only when the daemon has ended.
            let _ = send.send(look(&slots, &addresses, &known));
        });
    }

    /// The last look came to nothing.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Waits for something to do.
    pub async fn next(&mut self) -> News {
        tokio::select! {
            () = self.notify.notified() => News::Changed,
            Some(found) = self.receive.recv() => {
                self.looking = false;
                if std::mem::take(&mut self.again) {
                    self.notify.notify_one();
                }
                self.failed = found.is_err();
                match found {
                    Ok(found) => News::Found(found),
                    Err(error) => {
                        tracing::warn!(%error, "the ways to the backends could not be looked up: they stay as they were");
                        News::Unknown
                    }
                }
            }
        }
    }
}

/// One look, here and now.
///
/// # Errors
/// The kernel does not tell which interfaces, neighbours or ports of bridges there are.
pub fn look(
    slots: &Slots,
    addresses: &[IpAddr],
    known: &HashMap<u32, u32>,
) -> ringway_host::Result<Found> {
    let existing = next_hop::existing(slots, known)?;
    let ways = next_hop::look(addresses, &existing.interfaces)?;
    Ok(Found { existing, ways })
}

/// Has the next hop to a backend asked again, on a thread that may wait.
pub fn doubt(backend: IpAddr) {
    tokio::task::spawn_blocking(move || next_hop::doubt(backend));
}

/// Lets go of neighbours, on a thread that may wait.
pub fn release(neighbours: Vec<(u32, IpAddr)>) {
    if !neighbours.is_empty() {
        tokio::task::spawn_blocking(move || next_hop::release(neighbours.iter()));
    }
}

/// A neighbour is confirmed again and again; only a new MAC address, or none any more, counts.
fn matters(change: &Change, known: &mut HashMap<(u32, IpAddr), Option<Mac>>) -> bool {
    match change {
        Change::Neighbour(neighbour) => {
            let key = (neighbour.ifindex, neighbour.address);
            known.insert(key, neighbour.usable()) != Some(neighbour.usable())
        }
        Change::NeighbourGone { ifindex, address } => {
            known.remove(&(*ifindex, *address));
            true
        }
        Change::Lost => {
            known.clear();
            true
        }
        _ => true,
    }
}
