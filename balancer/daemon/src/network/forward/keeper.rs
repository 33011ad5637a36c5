//! The thread that keeps the tables of forwarding as the kernel has them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_api::error::Error;
use ringway_config::{ForwardMode, InterfaceForward};
use ringway_host::netlink::bridge::{self, BridgeChange, BridgeMonitor};
use ringway_host::netlink::neighbours::{self, NeighbourState};
use ringway_kernel::forward::ForwardTables;
use ringway_kernel::now_seconds;

use super::board::Board;
use super::facts::Facts;
use super::mirror::Mirror;
use super::plan::{Plan, PlannedPort, plan, refresh_period};
use super::sync_state::SyncState;

/// The tables count for five seconds from each beat on.
const BEAT: Duration = Duration::from_secs(1);
/// Links may change hundreds of times a second.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// What nobody announces (firewalls, rules, settings) is looked at so often.
const LOOK_BEATS: u32 = 5;
/// Neighbours that are used and that the kernel has not heard of lately are asked so often.
const NEIGHBOUR_BEATS: u32 = 10;
/// Entries that are refreshed before their announcements are read.
const REFRESHED_AT_ONCE: usize = 32;
const PAUSE: Duration = Duration::from_millis(1);
/// The mirror is compared with the bridge this often: changes may be announced in a wrong order.
const RECONCILE_BEATS: u32 = 30;
/// After changes were lost: there are too many to follow.
const CALM: Duration = Duration::from_secs(1);
/// Batches of changes that are read before others have their turn.
const DRAIN: usize = 1024;

/// Ends the thread when dropped. The tables then count for some seconds more.
#[derive(Debug)]
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Keeps these tables, in the calling thread's network namespace. `slots`: the interfaces of
    /// `[forward]`, with their slots.
    ///
    /// # Errors
    /// The kernel does not tell of changes, or there is no thread.
    pub fn start(
        forward: InterfaceForward,
        slots: Vec<(u32, String)>,
        tables: ForwardTables,
        board: Board,
    ) -> Result<Keeper, Error> {
        let monitor = BridgeMonitor::open().map_err(|e| Error::failed(e.to_string(), ""))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut work = Work {
            forward,
            slots,
            tables,
            board,
            monitor,
            mirror: None,
            state: SyncState::default(),
            has_held: false,
            refreshed: now_seconds(),
            beats: 0,
        };
        let run = move || work.run(&stopped);
        let thread = thread::Builder::new().name("forward".into()).spawn(run);
        let thread =
            thread.map_err(|e| Error::failed(format!("no thread for forwarding: {e}"), ""))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }

    /// It has, and was not told to.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It looks every second.
            let _ = thread.join();
        }
    }
}

struct Work {
    forward: InterfaceForward,
    slots: Vec<(u32, String)>,
    tables: ForwardTables,
    board: Board,
    monitor: BridgeMonitor,
    mirror: Option<Mirror>,
    state: SyncState,
    /// The tables held after the last look.
    has_held: bool,
    /// Second (CLOCK_MONOTONIC) since which stations that are used have not been refreshed.
    refreshed: u32,
    beats: u32,
}

impl Work {
    fn run(&mut self, stopped: &AtomicBool) {
        self.look();
        let (mut beat, mut look_at) = (Instant::now(), Instant::now());
        while !stopped.load(Ordering::Relaxed) {
            let wake = if self.state.must_look { beat.min(look_at) } else { beat };
            self.listen(wake.saturating_duration_since(Instant::now()));
            if self.state.must_look && Instant::now() >= look_at {
                look_at = Instant::now() + if self.state.must_renew { CALM } else { LOOK_PERIOD };
                self.look();
            }
            if Instant::now() >= beat {
                beat = Instant::now() + BEAT;
                self.beat();
            }
        }
    }

    /// Takes note of changes, or waits for some.
    fn listen(&mut self, timeout: Duration) {
        let changes = match self.monitor.next(Some(timeout)) {
            Ok(changes) => changes,
            Err(error) => return self.listen_again(&error),
        };
        for change in changes {
            match (change, &mut self.mirror) {
                (BridgeChange::Fdb(entry), Some(mirror)) => mirror.put(entry, &self.tables),
                (BridgeChange::FdbGone(entry), Some(mirror)) => mirror.remove(&entry, &self.tables),
                (BridgeChange::Fdb(_) | BridgeChange::FdbGone(_), None) => {}
                (BridgeChange::Link, _) => self.state.must_look = true,
                (BridgeChange::Lost, _) => {
                    self.tables.suspend();
                    self.state.lose();
                    tracing::warn!("changes came faster than they were read: all is read anew");
                }
            }
        }
    }

    /// Puts the end of the tables off, if they are as the kernel has it: also by what it has said
    /// that was not read yet.
    fn keep(&mut self) {
        for _ in 0..DRAIN {
            if self.monitor.is_drained() {
                break;
            }
            self.listen(Duration::ZERO);
        }
        if self.holds() && self.monitor.is_drained() {
            self.tables.keep();
        }
    }

    fn listen_again(&mut self, error: &ringway_host::Error) {
        self.tables.suspend();
        self.state.look_failed(error.to_string());
        self.post();
        thread::sleep(BEAT);
        if let Ok(monitor) = BridgeMonitor::open() {
            self.monitor = monitor;
        }
    }

    /// Once a second.
    fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
        self.state.must_look |= self.is_look_due();
        self.keep();
        if self.holds() {
            if let Some(mirror) = &mut self.mirror {
                mirror.settle(&self.tables);
            }
            self.refresh();
            self.reconcile();
            if self.forward.mode == ForwardMode::Route && self.beats.is_multiple_of(NEIGHBOUR_BEATS)
            {
                self.ask_neighbours();
            }
        }
        self.post();
    }

    /// A bridge's own settings, and that its topology changes, are not announced.
    fn is_look_due(&self) -> bool {
        let known = self.state.plan.bridge.as_ref();
        let now = known.and_then(|known| bridge::bridge(known.ifindex).ok().flatten());
        now.as_ref() != known || self.beats.is_multiple_of(LOOK_BEATS)
    }

    /// What the tables say is true.
    fn holds(&self) -> bool {
        let mirrors = self.mirror.is_some() || self.forward.mode == ForwardMode::Route;
        mirrors && self.state.holds()
    }

    fn look(&mut self) {
        self.state.must_look = false;
        let outcome = Facts::read(&self.forward).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|facts| {
            let plan = self.described(plan(&self.forward, &self.slots, &facts))?;
            self.follow(&plan)?;
            Ok(plan)
        });
        match outcome {
            Ok(plan) => self.state.looked(plan),
            Err(why) => self.state.look_failed(why),
        }
        let holds = self.holds();
        let held = std::mem::replace(&mut self.has_held, holds);
        match (held, self.has_held) {
            (true, false) => tracing::warn!("suspended: the kernel forwards everything"),
            (false, true) => tracing::info!("in force: the tables are as the kernel has them"),
            _ => {}
        }
        match self.has_held {
            true => self.keep(),
            false => self.tables.suspend(),
        }
        self.post();
    }

    /// An interface that was made again, or has got another's name, is not yet the one that the
    /// packet path has in its slot.
    fn described(&self, mut plan: Plan) -> Result<Plan, String> {
        for port in &mut plan.ports {
            let known = self.tables.ifindex(port.slot).map_err(|error| error.to_string())?;
            if port.ifindex != Some(known) && port.trouble.is_none() {
                port.leave("the packet path does not know it yet");
            }
        }
        Ok(plan)
    }

    /// Tells the packet path. What is to be forgotten is, before anything new is forwarded by it.
    fn follow(&mut self, plan: &Plan) -> Result<(), String> {
        let failed = |error: ringway_kernel::Error| error.to_string();
        let former = &self.state.plan;
        let anew = self.state.must_renew || plan.is_another_topology(former);
        if anew {
            self.tables.suspend();
            self.mirror = None;
            self.tables.clear_stations();
        }
        for port in &plan.ports {
            if !former.ports.contains(port) {
                tell(port);
                self.tables.set_port(port.slot, &port.port).map_err(failed)?;
            }
        }
        if self.forward.mode == ForwardMode::Route && plan.ways() != former.ways() {
            self.tables.set_ways(&plan.ways()).map_err(failed)?;
        }
        if self.forward.mode == ForwardMode::Route && (anew || plan.own != former.own) {
            self.tables.set_own(plan.own.as_deref());
        }
        if let Some(bridge) = plan.bridge.as_ref().filter(|_| anew) {
            let slots: HashMap<u32, u32> = plan.ways().into_iter().collect();
            let mut mirror = Mirror::new(bridge.ifindex, slots, &self.tables);
            self.discard_waiting()?;
            let entries = bridge::fdb(bridge.ifindex).map_err(|e| e.to_string())?;
            entries.into_iter().for_each(|entry| mirror.put(entry, &self.tables));
            (self.mirror, self.refreshed) = (Some(mirror), now_seconds());
        }
        Ok(())
    }

    /// Discards the announcements that wait. They are older than the table that is read next, and
    /// would undo parts of it.
    fn discard_waiting(&mut self) -> Result<(), String> {
        for _ in 0..DRAIN {
            if self.monitor.is_drained() {
                return Ok(());
            }
            let changes = self.monitor.next(Some(Duration::ZERO)).map_err(|e| e.to_string())?;
            self.state.must_look |= changes.contains(&BridgeChange::Link);
        }
        Err("the kernel announces changes faster than they can be read".into())
    }

    fn reconcile(&mut self) {
        let (Some(mirror), Some(bridge)) = (&mut self.mirror, &self.state.plan.bridge) else {
            return;
        };
        if !self.beats.is_multiple_of(RECONCILE_BEATS) {
            return;
        }
        match bridge::fdb(bridge.ifindex) {
            Ok(entries) => mirror.reconcile(entries, &self.tables),
            Err(error) => tracing::debug!(%error, "not compared with the bridge"),
        }
    }

    /// The bridge does not see what is forwarded past it, and would forget who sent it.
    fn refresh(&mut self) {
        let (Some(mirror), Some(bridge)) = (&self.mirror, &self.state.plan.bridge) else { return };
        let now = now_seconds();
        if u64::from(now.wrapping_sub(self.refreshed)) < refresh_period(bridge).as_secs() {
            return;
        }
        let mut used = mirror.used_since(self.refreshed, &self.tables);
        used.retain(|entry| self.state.plan.ages(entry));
        self.refreshed = now;
        for entries in used.chunks(REFRESHED_AT_ONCE) {
            // What the bridge forgets, it tells; those frames are its own then.
            if let Err(error) = bridge::touch_all(entries) {
                tracing::debug!(%error, "entries not refreshed");
            }
            // Each is announced, also to others, who have to read it.
            self.keep();
            thread::sleep(PAUSE);
        }
    }

    /// The kernel asks again only for what it sends itself.
    fn ask_neighbours(&self) {
        let Ok(all) = neighbours::all() else { return };
        let ours = |ifindex| self.state.plan.ports.iter().any(|port| port.ifindex == Some(ifindex));
        for neighbour in all.iter().filter(|neighbour| ours(neighbour.ifindex)) {
            let used = neighbour.mac.is_some_and(|mac| self.tables.is_used(mac.0));
            if used && neighbour.state == NeighbourState::Stale {
                let asked = neighbours::doubt(neighbour.ifindex, neighbour.address);
                asked.unwrap_or_else(|error| tracing::debug!(%error, "neighbour not asked"));
            }
        }
        self.tables.forget_used();
    }

    fn post(&self) {
        let stations = self.mirror.as_ref().map(|mirror| (mirror.len(), mirror.left_out()));
        self.board.post(self.state.posted(self.forward.mode, stations));
    }
}

fn tell(port: &PlannedPort) {
    match &port.trouble {
        None => tracing::info!(interface = port.name, "forwarded past the kernel"),
        Some(trouble) => {
            tracing::warn!(interface = port.name, "left to the kernel: {}", trouble.found);
        }
    }
}
