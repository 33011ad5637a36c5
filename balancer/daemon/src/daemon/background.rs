//! Work on threads that may block: slow reads (the traffic counters, the tables, the machine), and
//! what is told to the network.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_api::documents::status::{FlowTable, Tracked};
use ringway_api::error::Error;
use ringway_config::{Config, Protocol, Syn};
use ringway_doctor::Report;
use ringway_host::netlink::{counters as device_counters, neighbours};
use ringway_kernel::{Interface, ServiceState, View};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

use super::announce;
use crate::backends::{self, Replies};
use crate::daemon::shield_plan::{self, ShieldPlan, Stamp, Unreadable};
use crate::monitor::counter_watch::{Counts, Sample};
use crate::monitor::{answer_watch, no_reply_watch};
use crate::network::next_hop;
use crate::network::solicitations::Solicitations;
use crate::preflight;
use crate::snapshot::StatusStore;

/// A list file that has not changed for so long is taken to be complete.
const SETTLED: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub enum BackgroundEvent {
    Done(Vec<Done>),
    /// Every TCP service's counters, and what has come from each backend.
    Traffic(no_reply_watch::Sample, Replies),
    /// What services have met whose SYNs are answered.
    Answers(answer_watch::Sample),
    Counters(Sample),
    /// How full the tables are.
    Tables(FlowTable, Tracked),
    /// Files of the shield's lists have changed, to these stamps; the shield with them, or why they
    /// stay as they were. Of this configuration.
    Lists(Arc<Config>, Vec<Stamp>, Result<Option<Arc<ShieldPlan>>, Error>),
    /// The machine, as `ringway check --host` sees it.
    Machine(Report),
}

/// Work that may fail. The step logs a failure once, and orders the work again while it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackgroundWork {
    /// By the slot of an interface.
    Announce(u32, IpAddr),
    ReceiveSolicitations,
    /// By the index of an interface.
    Release(u32, IpAddr),
    /// Has the kernel keep a next hop resolved; by the index of an interface.
    KeepNeighbour(u32, IpAddr),
    LookUpWays,
    /// Has the next hop to a backend asked again.
    Doubt(IpAddr),
    SweepCaptures,
    ReadTraffic,
    ReadCounters,
    ReadTables,
    /// What arrives for services.
    ReadArrivals,
    /// Services that are attacked.
    Arm,
}

pub type Done = (BackgroundWork, Result<(), Error>);

/// Starts the work, and receives what came of it.
pub struct Background {
    status_store: Arc<StatusStore>,
    view: View,
    config: Arc<Config>,
    send: UnboundedSender<BackgroundEvent>,
    receive: mpsc::UnboundedReceiver<BackgroundEvent>,
    traffic: OneAtATime,
    counters: OneAtATime,
    tables: OneAtATime,
    machine: OneAtATime,
    lists: OneAtATime,
    solicitations: Solicitations,
    doubts: Arc<Mutex<Doubts>>,
}

/// Runs what may hang on a thread that may wait; while that lasts, nothing more of its sort.
#[derive(Debug, Default)]
struct OneAtATime {
    running: Option<JoinHandle<()>>,
}

impl OneAtATime {
    fn run(&mut self, work: impl FnOnce() + Send + 'static) {
        if self.running.as_ref().is_none_or(JoinHandle::is_finished) {
            self.running = Some(tokio::task::spawn_blocking(work));
        }
    }
}

impl Background {
    pub fn new(status_store: Arc<StatusStore>, view: View, config: Arc<Config>) -> Background {
        let (send, receive) = mpsc::unbounded_channel();
        let solicitations = Solicitations::inherit(&view);
        let (traffic, counters) = (OneAtATime::default(), OneAtATime::default());
        let (tables, machine) = (OneAtATime::default(), OneAtATime::default());
        let lists = OneAtATime::default();
        Background {
            status_store,
            view,
            config,
            send,
            receive,
            traffic,
            counters,
            tables,
            machine,
            lists,
            solicitations,
            doubts: Arc::default(),
        }
    }

    /// From now on at the machine as this configuration needs it.
    pub fn reconfigure(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    pub fn read_traffic(&mut self) {
        let (status_store, view, send) =
            (self.status_store.clone(), self.view.clone(), self.send.clone());
        let config = self.config.clone();
        self.traffic.run(move || {
            let read = view.services().and_then(|services| {
                status_store.meter(&services)?;
                if let Some(sample) = answers(&config, &view, &services)? {
                    let _ = send.send(BackgroundEvent::Answers(sample));
                }
                // Closed only when the daemon has ended.
                let sample = no_reply_watch::sample(&services);
                let _ = send.send(BackgroundEvent::Traffic(sample, backends::replies(&services)));
                Ok(())
            });
            tell(&send, BackgroundWork::ReadTraffic, read.map_err(failed));
        });
    }

    /// Reads these interfaces' ledgers and their devices' drop counters.
    pub fn read_counters(&mut self, interfaces: Vec<(String, u32, u32)>) {
        let (view, send) = (self.view.clone(), self.send.clone());
        self.counters.run(move || {
            let (mut sample, mut read) = (Sample::new(), Ok(()));
            for (name, slot, ifindex) in interfaces {
                // One that has just vanished is told elsewhere.
                let drops = device_counters::drops(ifindex).ok();
                match view.ledger(slot) {
                    Ok(ledger) => drop(sample.insert(name, Counts { ledger, drops })),
                    Err(error) => read = Err(failed(error)),
                }
            }
            let _ = send.send(BackgroundEvent::Counters(sample));
            tell(&send, BackgroundWork::ReadCounters, read);
        });
    }

    /// Counts flows, unless somebody has just asked how many there are.
    pub fn read_tables(&mut self) {
        let (status_store, send) = (self.status_store.clone(), self.send.clone());
        self.tables.run(move || {
            let read = status_store.flow_tables().map(|counted| {
                if let Some((flows, tracked)) = counted {
                    let _ = send.send(BackgroundEvent::Tables(flows, tracked));
                }
            });
            tell(&send, BackgroundWork::ReadTables, read.map_err(failed));
        });
    }

    /// Looks at the machine.
    pub fn read_machine(&mut self) {
        let (config, send) = (self.config.clone(), self.send.clone());
        self.machine.run(move || {
            // What could not be asked is as it was.
            if let Some(report) = preflight::run_sighted(&config) {
                let _ = send.send(BackgroundEvent::Machine(report));
            }
        });
    }

    /// Reads the files of the shield's lists if any has changed.
    pub fn read_lists(
        &mut self,
        config: Arc<Config>,
        in_force: Option<Arc<ShieldPlan>>,
        known: Vec<Stamp>,
    ) {
        let send = self.send.clone();
        self.lists.run(move || {
            let now = shield_plan::stamps(&config);
            if now == known {
                return;
            }
            // Who writes one anew may not have come to its end: then it is read the next time.
            std::thread::sleep(SETTLED);
            if shield_plan::stamps(&config) != now {
                return;
            }
            // Another key is for a reload to put in force.
            let secret = in_force.as_ref().map(|plan| plan.secret.clone()).unwrap_or_default();
            let plan = ShieldPlan::read(&config, Unreadable::kept(in_force.as_deref()), secret);
            if shield_plan::stamps(&config) == now {
                let _ = send.send(BackgroundEvent::Lists(config, now, plan));
            }
        });
    }

    pub fn announce(&self, addresses: BTreeSet<IpAddr>, interfaces: &[Interface]) {
        let send = self.send.clone();
        announce::start(addresses, interfaces, move |all| {
            let done = |(slot, address, sent): (_, _, Result<_, _>)| {
                (BackgroundWork::Announce(slot, address), sent.map_err(failed))
            };
            let _ = send.send(BackgroundEvent::Done(all.into_iter().map(done).collect()));
        });
    }

    /// Has the interfaces receive what asks for these addresses.
    pub fn receive_solicitations(&self, announced: &BTreeSet<IpAddr>, interfaces: &[Interface]) {
        let send = self.send.clone();
        self.solicitations.follow(announced, interfaces, move |received| {
            tell(&send, BackgroundWork::ReceiveSolicitations, received.map_err(failed));
        });
    }

    /// Lets next hops age like any other neighbour.
    pub fn release(&self, next_hops: Vec<(u32, IpAddr)>) {
        if next_hops.is_empty() {
            return;
        }
        let send = self.send.clone();
        tokio::task::spawn_blocking(move || {
            let release = |(ifindex, address)| {
                let released = neighbours::release(ifindex, address).map_err(failed);
                (BackgroundWork::Release(ifindex, address), released)
            };
            let done = next_hops.into_iter().map(release).collect();
            let _ = send.send(BackgroundEvent::Done(done));
        });
    }

    /// Has the next hop to a backend asked again.
    pub fn doubt(&self, backend: IpAddr) {
        if !lock(&self.doubts).add(backend) {
            return;
        }
        let (doubts, send) = (self.doubts.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            let next = || lock(&doubts).next();
            while let Some(backend) = next() {
                let asked = next_hop::doubt(backend).map_err(failed);
                tell(&send, BackgroundWork::Doubt(backend), asked);
            }
        });
    }

    pub async fn next(&mut self) -> Option<BackgroundEvent> {
        self.receive.recv().await
    }
}

/// Backends whose next hops are to be asked again, by one thread for all: the kernel may take its
/// time.
#[derive(Debug, Default)]
struct Doubts {
    waiting: BTreeSet<IpAddr>,
    /// A thread asks for one after the other.
    asking: bool,
}

impl Doubts {
    /// Adds one; returns whether a thread is to begin.
    fn add(&mut self, backend: IpAddr) -> bool {
        self.waiting.insert(backend);
        !std::mem::replace(&mut self.asking, true)
    }

    /// The next one; `None`: the thread ends.
    fn next(&mut self) -> Option<IpAddr> {
        let next = self.waiting.pop_first();
        self.asking = next.is_some();
        next
    }
}

fn lock(doubts: &Mutex<Doubts>) -> MutexGuard<'_, Doubts> {
    doubts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(send: &UnboundedSender<BackgroundEvent>, work: BackgroundWork, outcome: Result<(), Error>) {
    let _ = send.send(BackgroundEvent::Done(vec![(work, outcome)]));
}

fn failed(error: impl ToString) -> Error {
    Error::failed(error.to_string(), "")
}

/// What services have met whose SYNs are answered; none where there are none.
fn answers(
    config: &Config,
    view: &View,
    services: &[ServiceState],
) -> ringway_kernel::Result<Option<answer_watch::Sample>> {
    let answered =
        |name: &str| config.services.iter().any(|it| *it.name == *name && *it.syn != Syn::Off);
    if config.shield.is_none() || !services.iter().any(|service| answered(&service.name)) {
        return Ok(None);
    }
    let arrivals = view.arrivals()?;
    let tcp = services.iter().filter(|it| it.key.protocol == Protocol::Tcp && answered(&it.name));
    let found = tcp.filter_map(|it| Some((it.name.clone(), *arrivals.get(&it.id)?)));
    Ok(Some(found.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_hangs_is_not_begun_again() {
        let (begun, mut count) = mpsc::unbounded_channel();
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let mut sort = OneAtATime::default();
        let first = begun.clone();
        sort.run(move || {
            let _ = first.send(1);
            let _ = gate.recv();
        });
        assert_eq!(count.recv().await, Some(1));
        sort.run(|| unreachable!("the first hangs"));
        drop(release);
        while !sort.running.as_ref().is_some_and(JoinHandle::is_finished) {
            tokio::task::yield_now().await;
        }
        sort.run(move || {
            let _ = begun.send(2);
        });
        assert_eq!(count.recv().await, Some(2));
    }

    /// A switch that dies takes hundreds of backends with it.
    #[test]
    fn next_hops_are_asked_again_by_one_thread() {
        let [one, two, three] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut doubts = Doubts::default();
        assert!(doubts.add(one), "a thread begins");
        assert_eq!(doubts.next(), Some(one));
        let others = [three, two, three].map(|backend| doubts.add(backend));
        assert_eq!(others, [false; 3], "it hangs, and no other begins");
        assert_eq!([doubts.next(), doubts.next(), doubts.next()], [Some(two), Some(three), None]);
        assert!(doubts.add(one), "it has ended");
    }
}
