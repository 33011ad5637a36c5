//! Everything around a step, as a model: the packet path's thread, the file, the disk, who asks. It
//! holds each effect against what may be done at that time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem::discriminant;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ringway_api::clock::Timestamp;
use ringway_api::documents::changes::Changes;
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::error::Error;
use ringway_api::overrides::{OverrideChange, Overrides};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::shield::{RuntimeShield, ShieldChange};
use ringway_config::{Config, ShieldMode};
use ringway_kernel::{AttachState, Attached, Interface, XdpMode};
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::{Protocol, ServiceKey};
use tokio::sync::oneshot;

use super::super::attachment::Stage;
use super::super::{Effect, Event, FIRST_RESULTS, Judge, Moment, Reload, Shield, State, Survey};
use crate::backends::BackendSet;
use crate::commit_confirm::Confirm;
use crate::daemon::announce;
use crate::daemon::background::{BackgroundEvent, BackgroundWork};
use crate::daemon::datapath_thread::{Attachments, DatapathCommand, DatapathEvent};
use crate::daemon::document_writer::NONE;
use crate::daemon::load::{Loaded, Refusal};
use crate::daemon::netlink_watch::Found;
use crate::daemon::shield_plan::PlannedShield;
use crate::health::Health;
use crate::health::dsr_probe::Surroundings;
use crate::monitor::attack_watch::Arrived;
use crate::network::next_hop::{Existing, NoWay, Ways};
use crate::server::control::{Asker, Command, PendingRequests, Reply, ShieldReply};
use crate::testing;

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Slots of the interfaces; the first carries the default route.
pub(super) const SLOTS: [u32; 2] = [0, 1];

pub(super) type ShieldAnswer = oneshot::Receiver<Result<ShieldStatus, Error>>;
type Answer = oneshot::Receiver<Result<Changes, Error>>;

const MITIGATION: &str = "[shield.mitigation]\npackets = \"100kpps\"\nfor = \"10s\"\n\
                          run = [\"/usr/local/lib/announce\"]\nrun_after = ";

fn name(slot: u32) -> String {
    format!("eth{slot}")
}

fn interface(slot: u32, mtu: u16) -> Interface {
    Interface { mtu, ..testing::interface(slot, 10 + slot, &name(slot)) }
}

/// A file with so many backends. With three, attacks are not looked for; with four, the program is
/// told as soon as can be.
fn file(backends: usize) -> Arc<Config> {
    let all: Vec<String> =
        (1..=backends).map(|n| format!("{{ address = \"10.0.0.{n}\" }}")).collect();
    let text = format!(
        "[node]\nname = \"gw\"\ninterfaces = [\"eth0\", \"eth1\"]\n[[service]]\nname = \"web\"\n\
         address = \"203.0.113.9\"\nport = 80\nannounce = \"arp\"\ncheck = {{ type = \"tcp\" }}\nbackends = [{}]\n[shield]\n{}",
        all.join(", "),
        match backends {
            3 => String::new(),
            4 => format!("{MITIGATION}\"0s\"\n"),
            _ => format!("{MITIGATION}\"3s\"\n"),
        },
    );
    Arc::new(ringway_config::parse(&text, "gw.toml").expect("valid"))
}

fn refused() -> Error {
    Error::failed("it refuses", "")
}

/// What is being read, with what was in force when that began.
struct Reading {
    number: u64,
    judge: Judge,
    file: Arc<Config>,
    known: Overrides,
    kept: Option<Overrides>,
}

/// What a restart forgets.
#[derive(Default)]
struct Process {
    orders: VecDeque<DatapathCommand>,
    readings: VecDeque<Reading>,
    writes: VecDeque<(u64, Overrides)>,
    background: VecDeque<BackgroundWork>,
    leading: bool,
    looking: bool,
    reloading: bool,
    confirming: bool,
    /// What was done of that which must be: addresses by slot, and what asks for them.
    announced: BTreeSet<(u32, IpAddr)>,
    solicited: bool,
    /// What the thread knows of each slot.
    described: BTreeMap<u32, u16>,
    /// Backends that were on the disk when the process began.
    inherited: Vec<String>,
    /// The newest change, the newest order to write the tables, and the newest change that was kept.
    numbers: (u64, u64, u64),
    /// The start or the change that the thread was given the newest order of.
    newest: Option<u64>,
    /// It has asked what has come.
    has_sampled: bool,
}

pub(super) struct World {
    pub(super) state: State,
    process: Process,
    started: Instant,
    pub(super) now: Instant,
    /// What the file has now: so many backends; 0: it is wrong.
    pub(super) file: usize,
    /// What the state directory has, and whether it was last unusable.
    pub(super) disk: Overrides,
    pub(super) trouble: bool,
    /// The next process cannot read it at first.
    pub(super) unreadable: bool,
    /// The configuration that the thread has, and the one that the tables were written from.
    config: Arc<Config>,
    pub(super) tables: Option<Arc<Config>>,
    /// Interfaces that are there, those that our program is on, and on which until it is confirmed.
    pub(super) there: BTreeSet<u32>,
    /// Of all of them.
    pub(super) mtu: u16,
    pub(super) on: BTreeSet<u32>,
    pub(super) provisional: BTreeSet<u32>,
    /// Who asked, and for which backend's override.
    pub(super) asked: Vec<(Option<String>, Answer)>,
    /// The process is killed after so many effects.
    pub(super) fuse: Option<usize>,
    requests: PendingRequests<Reply>,
    shield_requests: PendingRequests<ShieldReply>,
    /// What the shield has, and what of it is kept.
    pub(super) shield: Arc<RuntimeShield>,
    pub(super) kept_shield: Arc<RuntimeShield>,
    /// Who asked for a change of it, and for which.
    pub(super) asked_shield: Vec<(ShieldChange, ShieldAnswer)>,
    /// Each effect is carried out twice.
    pub(super) twice: bool,
    /// Packets a second that come for the service, how many have come, and up to when.
    pub(super) pps: u64,
    packets: u64,
    counted: Instant,
    /// Until when it is armed, and whether the program was told last that it is attacked.
    pub(super) armed: Option<Instant>,
    pub(super) told: Option<bool>,
    /// Lines of the log.
    pub(super) log: Vec<String>,
}

impl World {
    pub(super) fn new() -> World {
        let (config, now) = (file(2), Instant::now());
        let mut world = World {
            state: begin(&config, &Overrides::default(), true, RuntimeShield::default(), now),
            process: Process::default(),
            started: now,
            now,
            file: 2,
            disk: Overrides::default(),
            trouble: false,
            unreadable: false,
            config,
            tables: None,
            there: SLOTS.into(),
            mtu: 1500,
            on: BTreeSet::new(),
            provisional: BTreeSet::new(),
            asked: Vec::new(),
            fuse: None,
            requests: PendingRequests::default(),
            shield_requests: PendingRequests::default(),
            shield: Arc::default(),
            kept_shield: Arc::default(),
            asked_shield: Vec::new(),
            twice: false,
            pps: 0,
            packets: 0,
            counted: now,
            armed: None,
            told: None,
            log: Vec::new(),
        };
        world.start();
        world
    }

    /// The process ends, and another begins.
    pub(super) fn restart(&mut self) {
        self.on.retain(|slot| !self.provisional.contains(slot));
        self.provisional.clear();
        self.file = self.file.max(1);
        self.process = Process::default();
        (self.fuse, self.told) = (None, None);
        self.asked.clear();
        self.asked_shield.clear();
        self.start();
    }

    fn start(&mut self) {
        self.there = SLOTS.into();
        self.process.inherited = of(&self.disk).collect();
        self.trouble = std::mem::take(&mut self.unreadable);
        let known = if self.trouble { &Overrides::default() } else { &self.disk };
        let shield = self.kept_shield.as_ref().clone();
        self.state = begin(&file(self.file), known, !self.trouble, shield, self.now);
        self.started = self.now;
        self.config = self.state.reload.config.clone();
        self.network();
    }

    /// What `status` shows, but for what time alone changes.
    fn shown(&self) -> String {
        let State { reload, attachment, confirm, .. } = &self.state;
        let mut problems = self.state.own_problems();
        problems.retain(|problem| problem.kind != ProblemKind::PathSilent);
        let (modes, waiting) = (&attachment.modes, confirm.waiting());
        let ids = self.state.shown_backend_set().ids();
        format!(
            "{problems:?} {ids:?} {modes:?} {waiting:?} {:?} {:?} {:?}",
            reload.last, reload.overrides, self.state.shield.in_force
        )
    }

    /// As the loop does.
    pub(super) fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (before, what) = (self.shown(), format!("{event:?}"));
            let at = Moment { now: self.now, wall: SystemTime::UNIX_EPOCH };
            let effects = self.state.step(at, event);
            let posts = effects.iter().filter(|effect| matches!(effect, Effect::Post)).count();
            let after = self.shown();
            assert!(posts == 1 || before == after, "not posted: {what}\n{before}\n{after}");
            for effect in effects {
                if self.fuse.is_some_and(|left| left == 0) {
                    return self.restart();
                }
                self.fuse = self.fuse.map(|left| left - 1);
                if self.twice {
                    events.extend(self.carry_out(effect.clone()));
                }
                events.extend(self.carry_out(effect));
            }
        }
        assert!(self.state.until().is_none_or(|until| until > self.now), "the loop would spin");
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Datapath(command) => self.order(command),
            Effect::Lead(_) => {
                assert!(
                    (!self.process.leading || self.twice) && self.state.reload.next().is_some()
                );
                self.process.leading = true;
            }
            Effect::Load(number, judge) => {
                if std::mem::replace(&mut self.process.numbers.0, number) >= number {
                    assert!(self.twice, "each change has a number of its own");
                    return None;
                }
                let reload = &self.state.reload;
                let (file, known) = (reload.file.clone(), reload.overrides.clone());
                let kept = reload.to_keep().cloned();
                if self.process.readings.len() >= 4 {
                    return Some(Event::Judged(Box::new((number, Err(refused().into())))));
                }
                self.process.readings.push_back(Reading { number, judge, file, known, kept });
            }
            Effect::Keep(number, overrides) => {
                if number != NONE
                    && std::mem::replace(&mut self.process.numbers.2, number) >= number
                {
                    assert!(self.twice, "each change is kept once");
                    return None;
                }
                // What is being written is the first; of those that wait the newest alone is
                // written.
                self.process.writes.truncate(1);
                self.process.writes.push_back((number, overrides));
            }
            Effect::LookUpWays(..) => self.process.looking = true,
            Effect::Announce(addresses, interfaces) => {
                let given_up = self.state.confirm.reverted();
                assert!(!interfaces.iter().any(|one| given_up.contains(&one.name)));
                let places = interfaces.iter().flat_map(|one| {
                    addresses.iter().map(|address| BackgroundWork::Announce(one.slot, *address))
                });
                self.process.background.extend(places);
            }
            Effect::ReceiveSolicitations => {
                self.process.background.push_back(BackgroundWork::ReceiveSolicitations)
            }
            Effect::Release(next_hops) => {
                let release = |(ifindex, address)| BackgroundWork::Release(ifindex, address);
                self.process.background.extend(next_hops.into_iter().map(release));
            }
            Effect::Doubt(backend) => {
                self.process.background.push_back(BackgroundWork::Doubt(backend))
            }
            Effect::ReadTraffic => self.process.background.push_back(BackgroundWork::ReadTraffic),
            Effect::ReadCounters(_) => {
                self.process.background.push_back(BackgroundWork::ReadCounters)
            }
            Effect::ReadTables => self.process.background.push_back(BackgroundWork::ReadTables),
            Effect::Survey => {
                let idle = self.process.readings.is_empty() && self.process.writes.is_empty();
                let unknown = self.trouble || !self.state.reload.recalled;
                let overrides_unknown = unknown && idle;
                return Some(Event::Surveyed(Survey { overrides_unknown, ..Survey::default() }));
            }
            Effect::Post => return Some(Event::Posted(Survey::default())),
            Effect::Reloading => {
                assert!(!std::mem::replace(&mut self.process.reloading, true) || self.twice)
            }
            Effect::Reloaded => {
                assert!(std::mem::replace(&mut self.process.reloading, false) || self.twice)
            }
            Effect::Serving => assert!(self.state.attachment.is_done()),
            Effect::Answer(request, outcome) => match self.requests.take(request) {
                Some(reply) => drop(reply.send(*outcome)),
                None => assert!(self.twice, "answered once"),
            },
            Effect::KeepShield(runtime) => self.kept_shield = runtime,
            Effect::AnswerShield(request, _, outcome) => match self.shield_requests.take(request) {
                Some(reply) => drop(reply.send(*outcome)),
                None => assert!(self.twice, "answered once"),
            },
            Effect::RunProgram(run) => self.told = Some(run.begins),
            Effect::AnswerConfirm(_) => self.process.confirming = false,
            Effect::Log(line) => self.log.push(line.text),
            Effect::Fail(_) => {
                // The loop ends.
                self.fuse = Some(0);
            }
            _ => {}
        }
        None
    }

    /// The thread is given an order.
    fn order(&mut self, command: DatapathCommand) {
        if command.number().is_some_and(|new| self.process.newest.replace(new) == Some(new)) {
            assert!(self.twice, "ordered once");
            return;
        }
        if !self.twice {
            self.hold_against_others(&command);
        }
        self.process.orders.push_back(command);
    }

    /// An order, against those that wait.
    fn hold_against_others(&mut self, command: &DatapathCommand) {
        let reverted = self.state.confirm.reverted().to_vec();
        let waits = |what: fn(&DatapathCommand) -> bool| self.process.orders.iter().any(what);
        let alike = |other| discriminant(other) == discriminant(command);
        let is_like_another = self.process.orders.iter().any(alike);
        match command {
            DatapathCommand::Attach(..) => {
                assert!(!is_like_another);
                let late = self.now >= self.started + FIRST_RESULTS;
                assert!(late || !self.state.tables.backend_set.waiting(), "checks come first");
            }
            DatapathCommand::Apply(number, _) => {
                assert!(*number > self.process.numbers.1 && self.state.attachment.is_done());
                let adopts = waits(|order| matches!(order, DatapathCommand::Adopt(..)));
                assert!(!adopts, "backends in force, though others are being written");
                self.process.numbers.1 = *number;
            }
            DatapathCommand::Reattach(interfaces) => {
                assert!(!is_like_another);
                let given_up = interfaces.iter().any(|one| reverted.contains(&one.name));
                assert!(!given_up, "it was given up");
            }
            DatapathCommand::Confirm => assert!(reverted.is_empty()),
            DatapathCommand::Revert => {
                let confirms = waits(|order| matches!(order, DatapathCommand::Confirm));
                assert!(!confirms && !reverted.is_empty(), "it is confirmed");
            }
            DatapathCommand::Shield(..) => {
                assert!(!is_like_another && self.state.attachment.is_done(), "one after the other");
            }
            DatapathCommand::Adopt(..)
            | DatapathCommand::Lists(_)
            | DatapathCommand::ReadArrivals => assert!(!is_like_another, "one at a time"),
            DatapathCommand::Arm(..) | DatapathCommand::Describe(_) | DatapathCommand::Beat => {}
        }
    }

    /// The thread carries out an order, or cannot.
    pub(super) fn work(&mut self, good: bool) {
        let Some(order) = self.process.orders.pop_front() else { return };
        let outcome = if good { Ok(()) } else { Err(refused()) };
        let event = match order {
            DatapathCommand::Apply(number, _) => DatapathEvent::Applied(Some(number), outcome),
            DatapathCommand::Adopt(number, config, ..) => {
                if good {
                    (self.config, self.tables) = (config.clone(), Some(config));
                }
                DatapathEvent::Adopted(number, outcome)
            }
            DatapathCommand::Attach(interfaces, _) => {
                let outcome = outcome.map(|()| self.attach(&interfaces, true));
                DatapathEvent::Attached(interfaces, outcome)
            }
            DatapathCommand::Reattach(interfaces) => {
                let here = interfaces.iter().all(|one| self.there.contains(&one.slot));
                let outcome = outcome.and_then(|()| match here {
                    true => Ok(self.attach(&interfaces, false)),
                    false => Err(refused()),
                });
                DatapathEvent::Reattached(interfaces, outcome)
            }
            DatapathCommand::Confirm => {
                let mut names =
                    || std::mem::take(&mut self.provisional).into_iter().map(name).collect();
                DatapathEvent::Confirmed(outcome.map(|()| names()))
            }
            DatapathCommand::Revert => {
                let given_up = std::mem::take(&mut self.provisional);
                self.on.retain(|slot| !given_up.contains(slot));
                DatapathEvent::Reverted(outcome)
            }
            DatapathCommand::Describe(interface) => {
                if good {
                    self.process.described.insert(interface.slot, interface.mtu);
                }
                DatapathEvent::Described(interface, outcome)
            }
            DatapathCommand::Shield(number, runtime, changed) => {
                if good {
                    self.write_shield(&runtime, changed.as_deref());
                }
                DatapathEvent::Shielded(number, outcome)
            }
            DatapathCommand::Lists(plan) => DatapathEvent::Listed(plan, outcome),
            DatapathCommand::ReadArrivals => {
                DatapathEvent::Arrivals(outcome.map(|()| (self.now, vec![self.arrived()])))
            }
            DatapathCommand::Arm(service, until) => {
                if good {
                    self.armed = until;
                }
                DatapathEvent::Armed(service, outcome)
            }
            DatapathCommand::Beat => {
                self.event(Event::Datapath(DatapathEvent::Swept(outcome.clone())));
                self.event(Event::Datapath(DatapathEvent::Beat(outcome)));
                DatapathEvent::AttachStates(Ok(SLOTS
                    .map(|slot| (slot, self.attach_state(slot)))
                    .into()))
            }
        };
        self.event(Event::Datapath(event));
    }

    /// Nothing is written but what has changed.
    fn write_shield(&mut self, runtime: &RuntimeShield, changed: Option<&[Prefix]>) {
        let mut has = self.shield.as_ref().clone();
        has.mode = runtime.mode;
        match changed {
            None => has.entries = runtime.entries.clone(),
            Some(changed) => changed.iter().for_each(|prefix| {
                has.entries.remove(prefix);
                runtime.of(prefix).into_iter().for_each(|it| has.entries.insert(it.clone()));
            }),
        }
        self.shield = Arc::new(has);
    }

    /// What has come for the service.
    fn arrived(&mut self) -> Arrived {
        let since = self.now.saturating_duration_since(self.counted);
        self.counted = self.now;
        self.packets += self.pps * since.as_millis() as u64 / 1000;
        let service = ServiceKey::new([203, 0, 113, 9].into(), 80, Protocol::Tcp);
        let (name, mode) = ("web".to_owned(), ShieldMode::Enforce);
        let armed = self.armed.filter(|_| !std::mem::replace(&mut self.process.has_sampled, true));
        let (packets, refused) = (self.packets, self.packets / 2);
        let (new_flows, answered) = (0, self.packets / 4);
        Arrived { service, name, mode, packets, new_flows, refused, answered, armed }
    }

    /// Work on other threads is done, or cannot be.
    pub(super) fn background(&mut self, good: bool) {
        let work = std::mem::take(&mut self.process.background);
        let done = work.into_iter().map(|work| {
            let good = self.work_done(work, good);
            (work, if good { Ok(()) } else { Err(refused()) })
        });
        let done = done.collect();
        self.event(Event::Background(BackgroundEvent::Done(done)));
    }

    fn work_done(&mut self, work: BackgroundWork, good: bool) -> bool {
        match work {
            BackgroundWork::Announce(slot, address) => {
                let sent = good && self.there.contains(&slot);
                self.process.announced.extend(sent.then_some((slot, address)));
                sent
            }
            BackgroundWork::ReceiveSolicitations => {
                self.process.solicited = good;
                good
            }
            _ => good,
        }
    }

    /// At a start what is not pinned yet waits for a confirmation where it has the default route.
    fn attach(&mut self, interfaces: &[Interface], starts: bool) -> Attachments {
        self.tables = Some(self.config.clone());
        let each = interfaces.iter().map(|one| {
            self.process.described.insert(one.slot, one.mtu);
            let taken_over = !self.on.insert(one.slot);
            if starts && one.slot == 0 && !taken_over {
                self.provisional.insert(one.slot);
            }
            let provisional = self.provisional.contains(&one.slot);
            Attached { mode: XdpMode::Native, refused: None, taken_over, provisional }
        });
        Attachments { each: each.collect(), stacked: HashMap::new() }
    }

    fn attach_state(&self, slot: u32) -> AttachState {
        match (self.there.contains(&slot), self.on.contains(&slot)) {
            (false, _) => AttachState::Gone,
            (true, true) => AttachState::Attached { mode: XdpMode::Native, link: 1, program: 1 },
            (true, false) => AttachState::Detached,
        }
    }

    /// A change was read and judged.
    pub(super) fn read(&mut self, good: bool) {
        let Some(reading) = self.process.readings.pop_front() else { return };
        let Reading { number, judge, file: in_force, known, kept } = reading;
        let readable = good && self.file > 0;
        let loaded = match judge {
            Judge::File(_) if readable => Ok((file(self.file), known.clone(), known)),
            Judge::File(_) => Err(refused()),
            Judge::Overridden(change) => {
                let known = kept.unwrap_or_else(|| self.disk.clone());
                let with = known.with(&change, &in_force, Timestamp::default());
                with.map(|overrides| (in_force, overrides, known))
            }
            Judge::Recalled if good => {
                self.trouble = false;
                Ok((in_force, self.disk.clone(), self.disk.clone()))
            }
            Judge::Recalled => Err(refused()),
        };
        let loaded = loaded.map(|(file, overrides, kept)| Loaded {
            config: Arc::new(overrides.apply(&file)),
            changes: Changes { changed: true, ..Changes::default() },
            file,
            overrides,
            kept,
            shield: PlannedShield::Same,
        });
        self.event(Event::Judged(Box::new((number, loaded.map_err(Refusal::from)))));
    }

    /// The daemon has no file that could be read.
    pub(super) fn no_file(&mut self) {
        let Some(Reading { number, .. }) = self.process.readings.pop_front() else { return };
        let error = Error::configuration("no file", "stop it");
        self.event(Event::Judged(Box::new((number, Err(Refusal::Foreign(error))))));
    }

    /// A document was written, or could not be.
    pub(super) fn write(&mut self, good: bool) {
        let Some((number, overrides)) = self.process.writes.pop_front() else { return };
        self.trouble = !good;
        if good {
            self.disk = overrides;
        }
        let outcome = if good { Ok(()) } else { Err(refused()) };
        self.event(Event::Written((number, outcome)));
    }

    pub(super) fn lead(&mut self, good: bool) {
        if std::mem::take(&mut self.process.leading) {
            self.event(Event::Led(if good { Ok(()) } else { Err(refused()) }));
        }
    }

    /// The ways are looked up: there are some while the first interface is there.
    pub(super) fn network(&mut self) {
        self.process.looking = false;
        let way = match self.there.contains(&0) {
            true => Ok(testing::hop()),
            false => Err(NoWay::NoRoute("no route".into())),
        };
        let all = (1..=4).map(|n| (IpAddr::from([10, 0, 0, n]), way.clone()));
        let ways = Ways { ways: all.collect(), kept: BTreeMap::new(), macs: HashMap::new() };
        let interfaces = self.there.iter().map(|slot| interface(*slot, self.mtu)).collect();
        let existing = Existing { interfaces, ..Existing::default() };
        let found = Found { existing, ways, probe_tunnel: Surroundings::default() };
        self.event(Event::Network(Ok(Box::new(found))));
    }

    /// They cannot be looked up.
    pub(super) fn network_unknown(&mut self) {
        self.process.looking = false;
        self.event(Event::Network(Err(refused())));
    }

    pub(super) fn check(&mut self, backend: usize, up: bool) {
        let next = self.state.reload.next().map(|(_, next)| next.ids());
        let mut ids = self.state.tables.backend_set.ids();
        ids.extend(next.unwrap_or_default());
        let id = ids[backend % ids.len()];
        let health = if up { Health::Up } else { Health::Down };
        self.event(Event::Checked(testing::event(id, health)));
    }

    /// Somebody asks for a change; he waits while another is on its way.
    pub(super) fn ask(&mut self, change: Option<OverrideChange>, dry_run: bool) {
        if !self.state.takes_commands() {
            return;
        }
        let (reply, answer) = oneshot::channel();
        let backend = match &change {
            Some(OverrideChange::Drain { backend, .. }) => Some(backend.clone()),
            _ => None,
        };
        self.asked.push((backend, answer));
        let command = match change {
            Some(change) => Command::Override { change, by: Asker { user: None } },
            None => Command::Reload { dry_run, file: None },
        };
        let request = self.requests.add(reply);
        self.event(Event::Command(command, request));
    }

    /// Somebody asks for a change of the shield; he waits while another is on its way.
    pub(super) fn ask_shield(&mut self, change: ShieldChange) {
        if !self.state.takes_shield_changes() {
            return;
        }
        let (reply, answer) = oneshot::channel();
        self.asked_shield.push((change.clone(), answer));
        let request = self.shield_requests.add(reply);
        self.event(Event::Shield(change, Asker { user: None }, request));
    }

    pub(super) fn confirm(&mut self) {
        self.process.confirming = true;
        self.event(Event::Confirm);
    }

    /// Time passes; the loop wakes where it wanted to.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(until) = self.state.until().filter(|until| *until <= end) {
            self.now = self.now.max(until);
            self.event(Event::Time);
        }
        self.now = end;
    }

    /// So long come so many packets a second, while the thread carries out its orders.
    pub(super) fn traffic(&mut self, pps: u64, ms: u64) {
        self.pps = pps;
        for _ in 0..ms / 50 {
            self.wait(Duration::from_millis(50));
            while !self.process.orders.is_empty() {
                self.work(true);
            }
        }
    }

    /// Everything is answered, and goes well.
    pub(super) fn settle(&mut self) {
        self.file = self.file.max(1);
        self.pps = 0;
        for _ in 0..100 {
            self.wait(Duration::from_millis(500));
            self.event(Event::Tick);
            self.read(true);
            while !self.process.writes.is_empty() {
                self.write(true);
            }
            self.lead(true);
            if self.process.looking {
                self.network();
            }
            while !self.process.orders.is_empty() {
                self.work(true);
            }
            self.background(true);
        }
    }

    pub(super) fn ends_well(&mut self) {
        self.settle();
        self.audit();
    }

    /// What must hold when everything was answered.
    pub(super) fn audit(&mut self) {
        let State { reload, attachment, tables, confirm, .. } = &self.state;
        assert!(reload.change.is_none() && !self.process.reloading && !self.process.confirming);
        let mut granted = self.process.inherited.clone();
        for (backend, asked) in &mut self.asked {
            let answer = asked.try_recv().expect("somebody waits for an answer");
            granted.extend(backend.take().filter(|_| answer.is_ok()));
        }
        assert!(of(&reload.overrides).all(|one| granted.contains(&one)), "in force, but refused");
        assert_eq!(attachment.stage, Stage::Attached);
        let written = self.tables.as_ref().expect("tables");
        assert!(Arc::ptr_eq(written, &reload.config), "the tables have another configuration");
        assert_eq!(*written.as_ref(), reload.overrides.apply(&reload.file));
        assert_eq!(self.disk, reload.overrides, "what is in force is kept");
        assert!(!self.trouble);
        let shield = &self.state.shield.in_force;
        assert_eq!(self.shield, *shield, "packets meet what is in force");
        assert_eq!(self.kept_shield.entries.len(), shield.entries.len(), "and it is kept");
        for (change, asked) in &mut self.asked_shield {
            asked.try_recv().unwrap_or_else(|_| panic!("{change} has no answer")).ok();
        }
        let attacked = self.armed.is_some_and(|until| until > self.now);
        assert!(!attacked && self.told != Some(true), "an attack has ended");
        assert_eq!(tables.written.ids(), tables.backend_set.ids());
        assert_eq!(tables.written.serving(), tables.backend_set.serving());
        assert!(self.process.solicited);
        for work in [BackgroundWork::LookUpWays, BackgroundWork::SweepCaptures] {
            assert_eq!(self.state.failed.get(&work), None, "{work:?}");
        }
        for slot in &self.there {
            let given_up = confirm.reverted().contains(&name(*slot));
            for address in announce::ours(&reload.config) {
                let announced = self.process.announced.contains(&(*slot, address));
                assert!(announced || given_up, "announced on {}", name(*slot));
            }
            assert_eq!(self.on.contains(slot), !given_up, "{}", name(*slot));
            assert_eq!(self.process.described[slot], self.mtu, "{}", name(*slot));
        }
        assert_eq!(self.provisional.is_empty(), !matches!(confirm, Confirm::Waiting { .. }));
    }
}

/// Backends that these are about.
fn of(overrides: &Overrides) -> impl Iterator<Item = String> {
    overrides.overrides.iter().map(|one| one.address.to_string())
}

fn begin(
    file: &Arc<Config>,
    overrides: &Overrides,
    recalled: bool,
    shield: RuntimeShield,
    now: Instant,
) -> State {
    let config = Arc::new(overrides.apply(file));
    let mut backend_set = BackendSet::new(&config, now);
    backend_set.mark(file, overrides);
    let at = Moment { now, wall: SystemTime::UNIX_EPOCH };
    let reload = Reload::new(config, file.clone(), overrides.clone(), recalled, at.wall);
    let interfaces = SLOTS.map(|slot| interface(slot, 1500)).into();
    State::new(reload, Shield::new(Some(shield), None), interfaces, backend_set, PATIENCE, at)
}
