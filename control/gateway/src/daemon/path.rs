//! The packet path on a thread of its own: planning a large configuration and writing its rings
//! takes milliseconds, and the daemon's loop must not wait for that.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use ringway_config::Config;
use ringway_host::addresses;
use ringway_kernel::{Attached, Gateway, Interface, Opened, ProbeRoad, Standing, View, XdpMode};
use ringway_plan::{Observed, Planner, Records};
use tokio::sync::{mpsc, oneshot};

use crate::next_hop;
use crate::preflight;
use crate::privileges;
use crate::problem::Error;
use crate::upgrade;

/// Records of tracked flows are looked through this often, in heartbeats, and only while a ring is
/// changing.
const SETTLE_PERIOD: u64 = 10;

/// What the loop asks for.
#[derive(Debug)]
pub enum Order {
    /// Make the tables fit this state of the world.
    Apply(Box<Observed>),
    /// Make the tables fit another configuration, or leave them as they are.
    Adopt(Arc<Config>, Box<Observed>),
    /// Write the tables, attach to every interface, then give up those of an earlier
    /// configuration.
    Attach(Vec<Interface>, Box<Observed>, oneshot::Sender<Result<Vec<Attached>, Error>>),
    /// Attach again to those of these interfaces that have lost our program.
    Mend(Vec<Interface>),
    /// Pin what is attached provisionally; names of interfaces.
    Confirm(oneshot::Sender<Result<Vec<String>, Error>>),
    /// Take it off again.
    Revert,
    /// Another MAC address, MTU or index.
    Describe(Interface),
    /// Say that the daemon is alive, and look whether everything is still attached.
    Beat,
}

/// What the loop is told.
#[derive(Debug)]
pub enum Report {
    /// The tables were written, or why not.
    Applied(Result<(), Error>),
    /// Those of another configuration were written; or why not, and the one from before is in force.
    Adopted(Result<(), Error>),
    /// The heartbeat was written. How our program stands on each interface slot.
    Beat(Result<Vec<(u32, Standing)>, Error>),
    /// Attached again to these interfaces, or why not.
    Mended(Vec<Interface>, Result<Vec<Attached>, Error>),
}

/// The open packet path.
#[derive(Debug)]
pub struct Path {
    /// What was found when it was opened.
    pub opened: Opened,
    /// Counters and tables.
    pub view: View,
    /// The program of the road of checks, until there is a road; a reload may open one, when nothing can be loaded any
    /// more. `None` where the kernel refuses it: who needs the road hears why.
    pub probe: Option<ProbeRoad>,
    orders: mpsc::UnboundedSender<Order>,
    thread: thread::JoinHandle<()>,
}

impl Path {
    /// Loads programs and opens or makes the pinned tables, then gives up the privileges that were
    /// needed for that alone. Attaches nothing.
    ///
    /// # Errors
    /// Another daemon runs this node, or the kernel refuses.
    pub fn open(
        config: &Arc<Config>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Path, Error> {
        let (mut gateway, opened) = Gateway::open(&upgrade::options(config)).map_err(kernel)?;
        let on_pass = config.node.on_pass.as_ref().map(|path| path.as_path());
        gateway.set_on_pass(on_pass).map_err(kernel)?;
        let probe = ProbeRoad::load();
        let probe = probe.inspect_err(|error| tracing::debug!(%error, "no road of checks")).ok();
        privileges::give_up()?;
        let existing = gateway.existing().map_err(kernel)?;
        let view = gateway.view();
        let planner = existing.planner();
        let (orders, receiver) = mpsc::unbounded_channel();
        let (config, observed) = (config.clone(), Observed::default());
        let worker = Worker {
            config,
            gateway,
            planner,
            observed,
            records: Records::default(),
            beats: 0,
            provisional: Vec::new(),
            reports,
        };
        let thread = thread::Builder::new()
            .name("packet-path".into())
            .spawn(move || worker.work(receiver))
            .map_err(|error| {
                Error::failed(format!("no thread for the packet path: {error}"), "")
            })?;
        Ok(Path { opened, view, probe, orders, thread })
    }

    /// Hands over an order; the thread lives as long as this.
    pub fn order(&self, order: Order) {
        // The thread ends only after this sender is gone.
        let _ = self.orders.send(order);
    }

    /// Ends the thread and lets go of the node. Pinned state stays.
    pub fn close(self) {
        drop(self.orders);
        if self.thread.join().is_err() {
            tracing::error!("the packet path's thread panicked");
        }
    }

    /// Pins what is attached provisionally; the names of its interfaces.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn confirm(&self) -> Result<Vec<String>, Error> {
        let (done, wait) = oneshot::channel();
        self.order(Order::Confirm(done));
        wait.await.unwrap_or_else(|_| Err(Error::failed("the packet path's thread died", "")))
    }

    /// Writes the tables and attaches to every interface.
    ///
    /// # Errors
    /// The tables do not fit, or the first interface that could not be attached to.
    pub async fn attach(
        &self,
        interfaces: Vec<Interface>,
        observed: Observed,
    ) -> Result<Vec<Attached>, Error> {
        let (done, wait) = oneshot::channel();
        self.order(Order::Attach(interfaces, Box::new(observed), done));
        wait.await.unwrap_or_else(|_| Err(Error::failed("the packet path's thread died", "")))
    }
}

struct Worker {
    config: Arc<Config>,
    gateway: Gateway,
    planner: Planner,
    /// What was applied last.
    observed: Observed,
    /// What the last look through the records of tracked flows found.
    records: Records,
    beats: u64,
    /// Attached, but not pinned: slots and names.
    provisional: Vec<(u32, String)>,
    reports: mpsc::UnboundedSender<Report>,
}

impl Worker {
    fn work(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut next = orders.blocking_recv();
        while let Some(order) = next.take() {
            next = match order {
                Order::Apply(mut observed) => {
                    // Only the newest state of the world matters.
                    let mut after = orders.try_recv().ok();
                    while let Some(Order::Apply(newer)) = after {
                        observed = newer;
                        after = orders.try_recv().ok();
                    }
                    let outcome = self.apply(*observed);
                    let _ = self.reports.send(Report::Applied(outcome));
                    after
                }
                Order::Adopt(config, observed) => {
                    let outcome = self.adopt(config, *observed);
                    let _ = self.reports.send(Report::Adopted(outcome));
                    None
                }
                Order::Attach(interfaces, observed, done) => {
                    let guarded = preflight::guarded(&self.config);
                    let attached = self.attach(&interfaces, *observed, &guarded);
                    let _ = done.send(attached);
                    None
                }
                Order::Mend(interfaces) => {
                    let outcome = self.mend(&interfaces);
                    let _ = self.reports.send(Report::Mended(interfaces, outcome));
                    None
                }
                Order::Confirm(done) => {
                    let _ = done.send(self.confirm());
                    None
                }
                Order::Revert => {
                    self.revert();
                    None
                }
                Order::Describe(interface) => {
                    if let Err(error) = self.gateway.set_iface(&interface) {
                        // Mostly gone since it was seen, which the watch over interfaces tells.
                        tracing::warn!(interface = interface.name, %error, "not described");
                    }
                    None
                }
                Order::Beat => {
                    let beat = self.beat();
                    let _ = self.reports.send(Report::Beat(beat));
                    if let Some(outcome) = self.settle() {
                        let _ = self.reports.send(Report::Applied(outcome));
                    }
                    None
                }
            };
            if next.is_none() {
                next = orders.blocking_recv();
            }
        }
    }

    /// Lets slots that have changed become stable again. `None`: there is nothing to do yet.
    fn settle(&mut self) -> Option<Result<(), Error>> {
        self.beats += 1;
        if !self.beats.is_multiple_of(SETTLE_PERIOD) || !self.planner.is_changing() {
            return None;
        }
        let applied = match self.gateway.view().look(&self.planner) {
            Ok(records) => {
                self.records = records.unwrap_or_default();
                self.apply(self.observed.clone())
            }
            Err(error) => Err(kernel(error)),
        };
        Some(applied)
    }

    fn adopt(&mut self, config: Arc<Config>, observed: Observed) -> Result<(), Error> {
        let old = (std::mem::replace(&mut self.config, config), self.observed.clone());
        self.apply(observed).inspect_err(|_| {
            self.config = old.0;
            // What was written of the new one is taken back.
            if let Err(error) = self.apply(old.1) {
                tracing::error!(%error, "tables of the configuration in force not written");
            }
        })
    }

    fn apply(&mut self, mut observed: Observed) -> Result<(), Error> {
        observed.now = ringway_kernel::now_seconds();
        observed.records = self.records.clone();
        if self.config.services.iter().any(|service| service.forward.is_dsr()) {
            observed.own_addresses = own_addresses()?;
        }
        self.observed = observed;
        let tables = self
            .planner
            .plan(&self.config, &self.observed)
            .map_err(|error| Error::configuration(error.to_string(), ""))?;
        let applied = self.gateway.apply(&tables).map_err(kernel)?;
        if !applied.is_unchanged() {
            tracing::debug!(?applied, "tables written");
        }
        Ok(())
    }

    fn attach(
        &mut self,
        interfaces: &[Interface],
        observed: Observed,
        guarded: &BTreeSet<String>,
    ) -> Result<Vec<Attached>, Error> {
        for interface in interfaces {
            self.gateway.set_iface(interface).map_err(kernel)?;
        }
        let stacked = next_hop::stacked(interfaces);
        for slot in stacked.keys() {
            self.gateway.set_generic(*slot, true).map_err(kernel)?;
        }
        self.apply(observed)?;
        let mode = match *self.config.node.xdp_mode {
            // Faster than the kernel's forwarding, and needs none.
            ringway_config::XdpMode::Auto if next_hop::obstacle(interfaces, &stacked).is_some() => {
                ringway_kernel::Mode::Generic
            }
            ringway_config::XdpMode::Auto => ringway_kernel::Mode::Auto,
            ringway_config::XdpMode::Native => ringway_kernel::Mode::Native,
            ringway_config::XdpMode::Generic => ringway_kernel::Mode::Generic,
        };
        let mut all = Vec::new();
        let generic = ringway_kernel::Mode::Generic;
        let devices: Vec<&Interface> = interfaces.iter().filter(|i| i.vlan.is_none()).collect();
        for interface in &devices {
            let mode = if stacked.contains_key(&interface.slot) { generic } else { mode };
            all.push(self.attach_one(interface, mode, guarded)?);
        }
        // Native XDP cannot send to a device that has none, so `auto` does not mix. Into a layer-3
        // device generic XDP cannot either: that alone is no reason.
        let refused = |(interface, attached): (&Interface, &Attached)| {
            attached.mode == XdpMode::Generic && !stacked.contains_key(&interface.slot)
        };
        if devices.iter().copied().zip(&all).any(refused) {
            for (interface, attached) in devices.iter().zip(&mut all) {
                if attached.mode == XdpMode::Native {
                    *attached = self.attach_one(interface, generic, guarded)?;
                }
            }
        }
        for name in self.gateway.release_others().map_err(kernel)? {
            tracing::warn!(interface = name, "detached: no longer in [node] interfaces");
        }
        self.gateway.heartbeat(SystemTime::now()).map_err(kernel)?;
        // A VLAN device is attached as the device below it is.
        let of = |interface: &Interface| {
            let slot = below(interface);
            let (_, found) = devices.iter().zip(&all).find(|(device, _)| device.slot == slot)?;
            let Attached { mode, taken_over, provisional, .. } = *found;
            Some(Attached { mode, refused: None, taken_over, provisional })
        };
        let vlans: Vec<Attached> =
            interfaces.iter().filter(|i| i.vlan.is_some()).filter_map(of).collect();
        let (mut all, mut vlans) = (all.into_iter(), vlans.into_iter());
        let mut each = Vec::new();
        for interface in interfaces {
            let attached = if interface.vlan.is_some() { vlans.next() } else { all.next() };
            if let Some(attached) = attached {
                if interface.vlan.is_some() {
                    let generic = attached.mode == XdpMode::Generic;
                    self.gateway.set_generic(interface.slot, generic).map_err(kernel)?;
                }
                each.push(attached);
            }
        }
        Ok(each)
    }

    fn attach_one(
        &mut self,
        interface: &Interface,
        mode: ringway_kernel::Mode,
        guarded: &BTreeSet<String>,
    ) -> Result<Attached, Error> {
        let Interface { slot, name, .. } = interface;
        self.provisional.retain(|(provisional, _)| provisional != slot);
        if !guarded.contains(name) {
            return self.gateway.attach(*slot, mode).map_err(kernel);
        }
        let attached = self.gateway.attach_provisionally(*slot, mode).map_err(kernel)?;
        if attached.provisional {
            self.provisional.push((*slot, name.clone()));
        }
        Ok(attached)
    }

    fn confirm(&mut self) -> Result<Vec<String>, Error> {
        for (slot, _) in &self.provisional {
            self.gateway.confirm(*slot).map_err(kernel)?;
        }
        Ok(std::mem::take(&mut self.provisional).into_iter().map(|(_, name)| name).collect())
    }

    fn revert(&mut self) {
        for (slot, name) in std::mem::take(&mut self.provisional) {
            match self.gateway.revert(slot) {
                Ok(()) => tracing::warn!(interface = name, "detached"),
                Err(error) => tracing::error!(interface = name, %error, "not detached"),
            }
        }
    }

    fn beat(&mut self) -> Result<Vec<(u32, Standing)>, Error> {
        self.gateway.heartbeat(SystemTime::now()).map_err(kernel)?;
        self.sweep_captures();
        let provisional: Vec<u32> = self.provisional.iter().map(|(slot, _)| *slot).collect();
        for name in self.gateway.pin_again(&provisional).map_err(kernel)? {
            tracing::error!(
                interface = name,
                "somebody removed the attachment's pin: pinned again"
            );
        }
        self.gateway.standings().map_err(kernel)
    }

    /// All of them anew, so that they agree on a mode: where our program still is, it stays. The programs are
    /// loaded already, for which this process has no privilege any more. What was confirmed needs it no more.
    fn mend(&mut self, interfaces: &[Interface]) -> Result<Vec<Attached>, Error> {
        let guarded = self.provisional.iter().map(|(_, name)| name.clone()).collect();
        self.attach(interfaces, self.observed.clone(), &guarded)
    }

    /// A capture whose process was killed. Packets are served with it as without.
    fn sweep_captures(&self) {
        let Some(pins) = self.gateway.pins() else { return };
        match ringway_kernel::capture::sweep(pins) {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "cleaned up after captures that were killed"),
            Err(error) => tracing::warn!(%error, "captures that were killed are still there"),
        }
    }
}

/// Slot of the device that an interface's frames are met on: its own, or that below a VLAN device.
pub fn below(interface: &Interface) -> u32 {
    interface.vlan.as_ref().map_or(interface.slot, |vlan| vlan.device)
}

/// Where health checks come from, and where nothing to a dsr service does.
fn own_addresses() -> Result<BTreeSet<IpAddr>, Error> {
    let all = addresses::all().map_err(|error| Error::failed(error.to_string(), ""))?;
    let reachable = all.into_iter().filter(|own| !own.local_scope && !own.address.is_loopback());
    Ok(reachable.map(|own| own.address).collect())
}

/// The kernel crate's messages carry their remedies themselves.
pub fn kernel(error: ringway_kernel::Error) -> Error {
    Error::failed(error.to_string(), "")
}
