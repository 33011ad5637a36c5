//! The packet path on a thread of its own: planning a large configuration and writing its rings
//! takes milliseconds, and the daemon's loop must not wait for that.

mod attach;
mod attach_states;
mod forward;
mod shield;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use ringway_api::error::Error;
use ringway_api::shield::RuntimeShield;
use ringway_config::{Config, ShieldMode};
use ringway_kernel::{
    AttachState, AttachStateQuery, Attached, Gateway, Interface, Opened, ProbeProgram, View,
};
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::{ServiceKey, ServiceRow};
use ringway_plan::{Observed, Planner, Records};
use tokio::sync::mpsc;

use crate::daemon::shield_plan::{PlannedShield, ShieldPlan};
use crate::descriptor_reserve::DescriptorReserve;
use crate::monitor::attack_watch::Arrived;
use crate::network::forward::{Board, Keeper};
use crate::{preflight, privileges, upgrade};
use attach_states::AttachStateReader;

/// Records of tracked flows are looked through this often, in heartbeats, and only while a ring is
/// changing.
const SETTLE_PERIOD: u64 = 10;

/// Loans of descriptors that the thread keeps for itself.
const RESERVED: usize = 2;

/// Orders of the loop.
#[derive(Clone, Debug)]
pub enum DatapathCommand {
    /// Make the tables fit this state of the world, which has a number.
    Apply(u64, Box<Observed>),
    /// Make the tables fit another configuration, that of the change of this number, or leave them
    /// as they are.
    Adopt(u64, Arc<Config>, Box<Observed>, PlannedShield),
    /// Write the tables, attach to every interface, then give up those of an earlier
    /// configuration.
    Attach(Vec<Interface>, Box<Observed>),
    /// Attach again to those of these interfaces that have lost our program.
    Reattach(Vec<Interface>),
    /// Pin what is attached provisionally.
    Confirm,
    /// Take off what is attached provisionally.
    Revert,
    /// Another MAC address, MTU or index.
    Describe(Interface),
    /// Give the shield all that was typed about it. With the number of this.
    Shield(u64, Arc<RuntimeShield>, Option<Vec<Prefix>>),
    /// Put a shield with other lists in force.
    Lists(Arc<ShieldPlan>),
    /// Read what has arrived for services.
    ReadArrivals,
    /// Put the armed limits of a service in force until then; none: no more.
    Arm(ServiceKey, Option<Instant>),
    /// Say that the daemon is alive, and look whether everything is still attached.
    Beat,
}

impl DatapathCommand {
    /// Of a change; 0: the start.
    pub fn number(&self) -> Option<u64> {
        match self {
            DatapathCommand::Attach(..) => Some(0),
            DatapathCommand::Adopt(number, ..) => Some(*number),
            _ => None,
        }
    }
}

/// News for the loop.
#[derive(Debug)]
pub enum DatapathEvent {
    /// The tables were written, or why not; with the number of the newest order, if there was one.
    Applied(Option<u64>, Result<(), Error>),
    /// Those of another configuration were written; or why not, and the one from before is in
    /// force.
    Adopted(u64, Result<(), Error>),
    Beat(Result<(), Error>),
    /// Killed captures left nothing behind, or what they left is still there.
    Swept(Result<(), Error>),
    /// How our program stands on each interface slot.
    AttachStates(Result<Vec<(u32, AttachState)>, Error>),
    /// Provisional attachments are pinned: names of interfaces, or why they are not.
    Confirmed(Result<Vec<String>, Error>),
    /// Provisional attachments are off, or why they may not be.
    Reverted(Result<(), Error>),
    /// The packet path knows how this interface is now, or why not.
    Described(Interface, Result<(), Error>),
    /// The shield has what was typed, or why not.
    Shielded(u64, Result<(), Error>),
    /// The shield has these lists, or why not.
    Listed(Arc<ShieldPlan>, Result<(), Error>),
    /// What had arrived for services at this moment.
    Arrivals(Result<(Instant, Vec<Arrived>), Error>),
    /// The service is armed, or no more; or why not.
    Armed(ServiceKey, Result<(), Error>),
    /// Attached to these interfaces; or the tables do not fit, or the first interface that refused.
    Attached(Vec<Interface>, Result<Attachments, Error>),
    /// Attached again to these interfaces, or why not.
    Reattached(Vec<Interface>, Result<Attachments, Error>),
}

/// How our programs are attached.
#[derive(Debug)]
pub struct Attachments {
    /// In the order of the interfaces.
    pub each: Vec<Attached>,
    /// [`stacked`](crate::network::next_hop::stacked)
    pub stacked: HashMap<u32, String>,
}

#[derive(Debug)]
pub struct DatapathThread {
    /// Findings of its opening.
    pub opened: Opened,
    pub view: View,
    /// The program of the probe tunnel, until there is a tunnel; a reload may open one, when
    /// nothing can be loaded any more. `None` where the kernel refuses it: who needs the tunnel
    /// hears why.
    pub probe: Option<ProbeProgram>,
    /// What is forwarded between interfaces, as its keeper posts it.
    pub forward: Board,
    commands: mpsc::UnboundedSender<DatapathCommand>,
    /// The start or the change of the newest order that has a number.
    newest: Option<u64>,
    thread: thread::JoinHandle<()>,
}

impl DatapathThread {
    /// Loads programs and opens or makes the pinned tables, then gives up the privileges that were
    /// needed for that alone. Attaches nothing.
    ///
    /// # Errors
    /// Another daemon runs this node, or the kernel refuses.
    pub fn open(
        config: &Arc<Config>,
        shield: Option<Arc<ShieldPlan>>,
        reports: mpsc::UnboundedSender<DatapathEvent>,
    ) -> Result<DatapathThread, Error> {
        let (mut gateway, opened) = Gateway::open(&upgrade::options(config)).map_err(kernel)?;
        let on_pass = config.node.on_pass.as_ref().map(|datapath| datapath.as_path());
        gateway.set_on_pass(on_pass).map_err(kernel)?;
        let probe = ProbeProgram::load();
        let probe = probe.inspect_err(|error| tracing::debug!(%error, "no tunnel for checks")).ok();
        privileges::give_up(config.shield.is_some() || config.forward.is_some())?;
        let existing = gateway.existing().map_err(kernel)?;
        let view = gateway.view();
        let planner = existing.planner();
        let (commands, receiver) = mpsc::unbounded_channel();
        let (config, observed) = (config.clone(), Observed::default());
        let attach_states = AttachStateReader::start(reports.clone())?;
        let forward = Board::default();
        let worker = Worker {
            config,
            gateway,
            planner,
            observed,
            shield,
            limited: BTreeMap::new(),
            has_read_arrivals: false,
            records: Records::default(),
            beats: 0,
            provisional: Vec::new(),
            reserve: DescriptorReserve::new(RESERVED),
            attach_states,
            board: forward.clone(),
            keeper: None,
            reports,
        };
        let thread = thread::Builder::new()
            .name("packet-path".into())
            .spawn(move || worker.work(receiver))
            .map_err(|error| {
                Error::failed(format!("no thread for the packet path: {error}"), "")
            })?;
        Ok(DatapathThread { opened, view, probe, forward, commands, newest: None, thread })
    }

    /// Hands over an order; the thread lives as long as this. One to attach, or of a change, is
    /// carried out once.
    pub fn order(&mut self, order: DatapathCommand) {
        if order.number().is_some_and(|new| self.newest.replace(new) == Some(new)) {
            return;
        }
        // The thread ends only after this sender is gone.
        let _ = self.commands.send(order);
    }

    /// Ends the thread and lets go of the node. Pinned state stays.
    pub fn close(self) {
        drop(self.commands);
        if self.thread.join().is_err() {
            tracing::error!("the packet path's thread panicked");
        }
    }
}

struct Worker {
    config: Arc<Config>,
    gateway: Gateway,
    planner: Planner,
    observed: Observed,
    shield: Option<Arc<ShieldPlan>>,
    /// Services that have limits, or may be armed: keys, names and modes by their ids.
    limited: BTreeMap<u16, (ServiceKey, String, ShieldMode)>,
    has_read_arrivals: bool,
    /// The last reading of the records of tracked flows.
    records: Records,
    beats: u64,
    /// Attached, but not pinned: slots and names.
    provisional: Vec<(u32, String)>,
    /// A ring that is written anew takes a descriptor, and so does each question.
    reserve: DescriptorReserve,
    attach_states: AttachStateReader,
    board: Board,
    /// Of the tables of forwarding, where there are any.
    keeper: Option<Keeper>,
    reports: mpsc::UnboundedSender<DatapathEvent>,
}

impl Worker {
    fn work(mut self, mut commands: mpsc::UnboundedReceiver<DatapathCommand>) {
        let mut next = commands.blocking_recv();
        while let Some(order) = next.take() {
            next = match order {
                DatapathCommand::Apply(mut number, mut observed) => {
                    // Only the newest state of the world matters.
                    let mut after = commands.try_recv().ok();
                    while let Some(DatapathCommand::Apply(newest, newer)) = after {
                        (number, observed) = (newest, newer);
                        after = commands.try_recv().ok();
                    }
                    let outcome = self.apply(*observed);
                    let _ = self.reports.send(DatapathEvent::Applied(Some(number), outcome));
                    after
                }
                DatapathCommand::Adopt(number, config, observed, shield) => {
                    let outcome = self.adopt(config, *observed, shield);
                    let _ = self.reports.send(DatapathEvent::Adopted(number, outcome));
                    None
                }
                DatapathCommand::Attach(interfaces, observed) => {
                    let needs_confirm = preflight::needs_confirm(&self.config);
                    let outcome = self.attach(&interfaces, *observed, &needs_confirm);
                    let _ = self.reports.send(DatapathEvent::Attached(interfaces, outcome));
                    None
                }
                DatapathCommand::Reattach(interfaces) => {
                    let outcome = self.reattach(&interfaces);
                    let _ = self.reports.send(DatapathEvent::Reattached(interfaces, outcome));
                    None
                }
                DatapathCommand::Confirm => {
                    let outcome = self.confirm();
                    let _ = self.reports.send(DatapathEvent::Confirmed(outcome));
                    None
                }
                DatapathCommand::Revert => {
                    let outcome = self.revert();
                    let _ = self.reports.send(DatapathEvent::Reverted(outcome));
                    None
                }
                DatapathCommand::Describe(interface) => {
                    let outcome = self.gateway.set_iface(&interface).map_err(kernel);
                    let _ = self.reports.send(DatapathEvent::Described(interface, outcome));
                    None
                }
                DatapathCommand::Shield(number, runtime, changed) => {
                    let outcome =
                        self.by_all_means(|worker| worker.shield(&runtime, changed.as_deref()));
                    let _ = self.reports.send(DatapathEvent::Shielded(number, outcome));
                    None
                }
                DatapathCommand::Lists(plan) => {
                    let outcome = self.raise(Some(plan.clone()));
                    let _ = self.reports.send(DatapathEvent::Listed(plan, outcome));
                    None
                }
                DatapathCommand::ReadArrivals => {
                    let sample = self.by_all_means(Worker::arrivals);
                    let _ = self.reports.send(DatapathEvent::Arrivals(sample));
                    None
                }
                DatapathCommand::Arm(service, until) => {
                    let outcome = self.by_all_means(|worker| worker.arm(service, until));
                    let _ = self.reports.send(DatapathEvent::Armed(service, outcome));
                    None
                }
                DatapathCommand::Beat => {
                    let beat = self.by_all_means(Worker::beat);
                    let beat = beat.map(|queries| self.attach_states.ask(queries));
                    let _ = self.reports.send(DatapathEvent::Beat(beat));
                    if let Some(outcome) = self.settle() {
                        let _ = self.reports.send(DatapathEvent::Applied(None, outcome));
                    }
                    None
                }
            };
            if next.is_none() {
                next = commands.blocking_recv();
            }
        }
    }

    /// Lets slots that have changed become stable again. `None`: there is nothing to do yet.
    fn settle(&mut self) -> Option<Result<(), Error>> {
        self.beats += 1;
        if !self.beats.is_multiple_of(SETTLE_PERIOD) || !self.planner.is_changing() {
            return None;
        }
        let applied = match self.gateway.view().read_records(&self.planner) {
            Ok(records) => {
                self.records = records.unwrap_or_default();
                self.apply(self.observed.clone())
            }
            Err(error) => Err(kernel(error)),
        };
        Some(applied)
    }

    fn adopt(
        &mut self,
        config: Arc<Config>,
        observed: Observed,
        shield: PlannedShield,
    ) -> Result<(), Error> {
        let old = (std::mem::replace(&mut self.config, config), self.observed.clone());
        // Last, because a failure leaves the former one in force.
        let written = self.apply(observed).and_then(|()| match shield {
            PlannedShield::Same => Ok(()),
            PlannedShield::Other(plan) => self.raise(plan),
        });
        written.inspect_err(|_| {
            self.config = old.0;
            // What was written of the new one is taken back.
            if let Err(error) = self.apply(old.1) {
                tracing::error!(%error, "tables of the configuration in force not written");
            }
        })
    }

    /// Once more with descriptors of the reserve, where it fails: mostly there is enough of all
    /// else.
    fn by_all_means<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        work(self).or_else(|_| {
            self.reserve.give_up();
            let outcome = work(self);
            self.reserve.fill();
            outcome
        })
    }

    fn apply(&mut self, observed: Observed) -> Result<(), Error> {
        self.by_all_means(|worker| worker.write(observed.clone()))
    }

    fn write(&mut self, mut observed: Observed) -> Result<(), Error> {
        observed.now = ringway_kernel::now_seconds();
        observed.records = self.records.clone();
        self.observed = observed;
        let tables = self
            .planner
            .plan(&self.config, &self.observed)
            .map_err(|error| Error::configuration(error.to_string(), ""))?;
        let applied = self.gateway.apply(&tables).map_err(kernel)?;
        let limited =
            |row: &ServiceRow| Some((row.id, (row.key, row.name.clone(), row.policy?.mode)));
        self.limited = tables.services.iter().filter_map(limited).collect();
        if !applied.is_unchanged() {
            tracing::debug!(?applied, "tables written");
        }
        Ok(())
    }

    fn beat(&mut self) -> Result<Vec<AttachStateQuery>, Error> {
        self.gateway.heartbeat(SystemTime::now()).map_err(kernel)?;
        self.check_keeper()?;
        let _ = self.reports.send(DatapathEvent::Swept(self.sweep_captures()));
        let provisional: Vec<u32> = self.provisional.iter().map(|(slot, _)| *slot).collect();
        for name in self.gateway.pin_again(&provisional).map_err(kernel)? {
            tracing::error!(
                interface = name,
                "somebody removed the attachment's pin: pinned again"
            );
        }
        self.gateway.attach_state_queries().map_err(kernel)
    }

    /// A capture whose process was killed. Packets are served with it as without.
    fn sweep_captures(&self) -> Result<(), Error> {
        let Some(pins) = self.gateway.pins() else { return Ok(()) };
        let count = ringway_kernel::programs::capture::sweep(pins).map_err(kernel)?;
        if count > 0 {
            tracing::info!(count, "cleaned up after captures that were killed");
        }
        Ok(())
    }
}

/// Slot of the device that an interface's frames are met on: its own, or that below a VLAN device.
pub fn below(interface: &Interface) -> u32 {
    interface.vlan.as_ref().map_or(interface.slot, |vlan| vlan.device)
}

/// The kernel crate's messages carry their remedies themselves.
pub fn kernel(error: ringway_kernel::Error) -> Error {
    Error::failed(error.to_string(), "")
}
