//! Watches the kernel's links, routes and neighbours, and looks up the ways to backends anew when
//! they change.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_host::netlink::neighbours::NeighbourState;
use ringway_host::{Mac, MonitorThread, NetlinkChange, NetlinkMonitor};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::health::dsr_probe::Surroundings;
use crate::network::interface_slots::InterfaceSlots;
use crate::network::next_hop::{self, Existing, KnownMac, KnownMacs, Ways};

/// From the beginning of one look to that of the next at least: a look takes longer the more
/// backends there are, and routes may change hundreds of times a second.
const PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Found {
    pub existing: Existing,
    pub ways: Ways,
    /// What checks of dsr backends leave from, and are led by.
    pub probe_tunnel: Surroundings,
}

/// News for the loop.
#[derive(Debug)]
pub enum NetlinkEvent {
    /// Something changed that may change a way: look again.
    Changed,
    /// What a look found; or it came to nothing, and what was known stays.
    Found(Result<Box<Found>, Error>),
}

/// The watch; dropping it ends it.
pub struct NetlinkWatch {
    slots: InterfaceSlots,
    notify: Arc<Notify>,
    looking: bool,
    again: bool,
    /// No look begins before then.
    not_before: Instant,
    /// As the last look found them.
    macs: KnownMacs,
    /// Written by the thread that listens.
    unheard: Arc<Mutex<Option<Problem>>>,
    send: mpsc::UnboundedSender<ringway_host::Result<Found>>,
    receive: mpsc::UnboundedReceiver<ringway_host::Result<Found>>,
    _thread: MonitorThread,
}

impl NetlinkWatch {
    /// Begins watching in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn start(slots: InterfaceSlots) -> Result<NetlinkWatch, Error> {
        let failed = |error: ringway_host::Error| Error::failed(error.to_string(), "");
        let notify = Arc::new(Notify::new());
        let teller = notify.clone();
        let mut known = HashMap::new();
        let unheard = Arc::default();
        let noted = Arc::clone(&unheard);
        let thread = NetlinkMonitor::open()
            .and_then(|monitor| {
                monitor.spawn(move |change| {
                    note_hearing(&change, &noted);
                    if matters(&change, &mut known) {
                        teller.notify_one();
                    }
                    true
                })
            })
            .map_err(failed)?;
        let (send, receive) = mpsc::unbounded_channel();
        Ok(NetlinkWatch {
            slots,
            notify,
            looking: false,
            again: false,
            not_before: Instant::now(),
            macs: KnownMacs::new(),
            unheard,
            send,
            receive,
            _thread: thread,
        })
    }

    /// Looks on a thread that may wait, one look at a time; [`NetlinkEvent::Found`] has the result.
    /// `known`: the interfaces that our program is on, index by slot.
    pub fn refresh(&mut self, addresses: Vec<IpAddr>, known: HashMap<u32, u32>) {
        if self.looking || Instant::now() < self.not_before {
            self.again = true;
            return;
        }
        (self.looking, self.again) = (true, false);
        self.not_before = Instant::now() + PERIOD;
        let (slots, macs, send) = (self.slots.clone(), self.macs.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            // Closed only when the daemon has ended.
            let _ = send.send(read_network(&slots, &addresses, &known, &macs));
        });
    }

    /// Takes note of what a look found.
    pub fn note(&mut self, found: &Found) {
        self.macs.clone_from(&found.ways.macs);
    }

    /// The kernel has lost MAC addresses, and asks: the answers, or that there are none, are to be
    /// looked for.
    pub fn is_asking(&self) -> bool {
        self.macs.values().any(KnownMac::is_missing)
    }

    /// Changes are not heard now.
    pub fn finding(&self) -> Option<Problem> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for something to do.
    pub async fn next(&mut self) -> NetlinkEvent {
        tokio::select! {
            () = self.notify.notified() => NetlinkEvent::Changed,
            () = sleep_until(self.not_before), if self.again && !self.looking => NetlinkEvent::Changed,
            Some(found) = self.receive.recv() => {
                self.looking = false;
                let found = found.inspect(|found| self.note(found)).map(Box::new);
                NetlinkEvent::Found(found.map_err(|error| Error::failed(error.to_string(), "")))
            }
        }
    }
}

/// One look, here and now.
///
/// # Errors
/// The kernel does not tell which interfaces, neighbours or ports of bridges there are.
pub fn read_network(
    slots: &InterfaceSlots,
    addresses: &[IpAddr],
    known: &HashMap<u32, u32>,
    macs: &KnownMacs,
) -> ringway_host::Result<Found> {
    let existing = next_hop::existing(slots, known)?;
    let ways = next_hop::resolve(addresses, &existing.interfaces, macs)?;
    Ok(Found { existing, ways, probe_tunnel: Surroundings::now()? })
}

/// When changes are heard again, [`NetlinkChange::Lost`] comes first.
fn note_hearing(change: &NetlinkChange, unheard: &Mutex<Option<Problem>>) {
    let problem = match change {
        NetlinkChange::Unheard(why) => Some(ProblemKind::ChangesUnheard.problem(
            format!(
                "changes of routes, neighbours and links are not heard: {why}; the ways to the \
                 backends are looked up every 30 s"
            ),
            "it is tried again every second; if it stays, restart the daemon (no packet is lost)",
        )),
        NetlinkChange::Lost => None,
        _ => return,
    };
    if let Some(problem) = &problem {
        tracing::warn!(remedy = problem.remedy.to_string(), "{}", problem.error);
    }
    *unheard.lock().unwrap_or_else(PoisonError::into_inner) = problem;
}

/// The part of a neighbour that counts: its MAC address, and whether it was asked for in vain.
type Counts = (Option<Mac>, bool);

/// A neighbour is confirmed again and again; only a new MAC address, or none any more, counts.
fn matters(change: &NetlinkChange, known: &mut HashMap<(u32, IpAddr), Counts>) -> bool {
    match change {
        NetlinkChange::Neighbour(neighbour) => {
            let key = (neighbour.ifindex, neighbour.address);
            let now = (neighbour.usable(), neighbour.state == NeighbourState::Failed);
            known.insert(key, now) != Some(now)
        }
        NetlinkChange::NeighbourGone { ifindex, address } => {
            known.remove(&(*ifindex, *address));
            true
        }
        NetlinkChange::Lost => {
            known.clear();
            true
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> NetlinkWatch {
        let config =
            "[node]\nname = \"gw\"\ninterfaces = [\"none0\"]\n[forward]\nmode = \"route\"\n";
        let config = crate::testing::parsed(config);
        let slots = InterfaceSlots::assign(&config.node, &[], |_| None);
        NetlinkWatch::start(slots).expect("the kernel tells of changes")
    }

    #[test]
    fn what_is_not_heard_is_a_finding_until_it_is_heard_again() {
        let watch = watch();
        assert_eq!(watch.finding(), None);
        note_hearing(&NetlinkChange::Unheard("no descriptor".into()), &watch.unheard);
        note_hearing(&NetlinkChange::Routes, &watch.unheard);
        let finding = watch.finding().expect("a finding");
        assert!(finding.error.contains(": no descriptor;"), "{finding:?}");
        note_hearing(&NetlinkChange::Lost, &watch.unheard);
        assert_eq!(watch.finding(), None);
    }

    /// A chatty routing daemon.
    #[tokio::test]
    async fn looks_do_not_begin_as_often_as_something_changes() {
        let mut watch = watch();
        let (began, mut looks) = (Instant::now(), 0);
        while looks < 5 {
            watch.refresh(Vec::new(), HashMap::new());
            tokio::select! {
                news = watch.next() => looks += u32::from(matches!(news, NetlinkEvent::Found(_))),
                // Something has changed.
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        assert!(began.elapsed() >= PERIOD * 4, "5 looks in {:?}", began.elapsed());
    }
}
