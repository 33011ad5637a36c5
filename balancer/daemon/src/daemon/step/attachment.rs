//! Our programs on their interfaces: attached at start, watched, and attached again where somebody
//! took them off or a device came back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ringway_api::documents::status::{self, Problem};
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_host::Fix;
use ringway_kernel::{AttachState, Attached, Interface, XdpMode};
use tracing::Level;

use super::effect::{Effect, Effects, LogLine};
use super::{FIRST_RESULTS, State};
use crate::commit_confirm::{Answer, Confirm};
use crate::daemon::announce;
use crate::daemon::datapath_thread::{self, Attachments, DatapathCommand};
use crate::network::next_hop::{self, Existing};

/// How long status reports that a program was attached again.
const LATELY: Duration = Duration::from_secs(600);

/// The interfaces, and how our programs are on them.
#[derive(Debug, Default)]
pub struct Attachment {
    pub interfaces: Vec<Interface>,
    pub(super) stage: Stage,
    /// The configured mode; `None`: auto.
    asked: Option<XdpMode>,
    pub modes: BTreeMap<u32, (XdpMode, String)>,
    /// How our programs stood at the last beat, by slot.
    states: BTreeMap<u32, AttachState>,
    /// Slots of interfaces that are not there.
    gone: BTreeSet<u32>,
    /// Why the packet path knows these interfaces only as they were, by slot.
    outdated: BTreeMap<u32, Error>,
    /// The interfaces as they were found last.
    pub existing: Existing,
    /// An order to attach again is on its way.
    reattaching: bool,
    reattach_error: Option<Error>,
    /// How often each was attached again, and when last, by slot.
    pub again: BTreeMap<u32, (u64, Instant)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// For the first results of checks, until then.
    Waiting {
        until: Instant,
    },
    /// An order to attach is on its way.
    #[default]
    Attaching,
    Attached,
}

impl Attachment {
    pub(super) fn new(
        interfaces: Vec<Interface>,
        asked: Option<XdpMode>,
        now: Instant,
    ) -> Attachment {
        let stage = Stage::Waiting { until: now + FIRST_RESULTS };
        Attachment { interfaces, stage, asked, ..Attachment::default() }
    }

    /// Whether packets are let in.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Attached
    }

    /// Attach at the latest then, whatever is not known yet.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// Takes note of how these are attached, and says so where that is new.
    fn describe(
        &mut self,
        interfaces: &[Interface],
        attachments: &Attachments,
        effects: &mut Effects,
    ) {
        let Attachments { each, stacked } = attachments;
        let refused = each.iter().position(|attached| attached.refused.is_some());
        let refused = refused
            .map(|place| format!("{}, which refuses it", interfaces[place].name))
            .or_else(|| next_hop::obstacle(interfaces, stacked));
        for (interface, attached) in interfaces.iter().zip(each) {
            let known = self.modes.get(&interface.slot);
            if attached.taken_over && known.is_some_and(|(mode, _)| *mode == attached.mode) {
                continue;
            }
            let why = match stacked.get(&interface.slot) {
                Some(kind) => format!("native XDP can neither run on it nor send to it: a {kind}"),
                None => why(self.asked, attached, refused.as_deref()),
            };
            effects.log(LogLine {
                interface: Some(interface.name.clone()),
                mode: Some(attached.mode.name()),
                taken_over: Some(attached.taken_over),
                ..LogLine::new(Level::INFO, format!("attached: {why}"))
            });
            self.modes.insert(interface.slot, (attached.mode, why));
        }
    }

    /// Takes note of how our programs stand; returns whether that is new.
    fn note(&mut self, states: Vec<(u32, AttachState)>, effects: &mut Effects) -> bool {
        let mut changed = false;
        for (slot, state) in states {
            let before = self.states.insert(slot, state.clone());
            if before.as_ref() == Some(&state) {
                continue;
            }
            changed = true;
            let Some(interface) = self.interfaces.iter().find(|i| i.slot == slot) else { continue };
            let (level, text) = match &state {
                AttachState::Attached { .. } if before.is_none() => continue,
                AttachState::Attached { .. } => (Level::INFO, "our program is on it again".into()),
                AttachState::Gone => (Level::ERROR, "the interface is gone".into()),
                AttachState::Detached => (Level::ERROR, "our program is not on it any more".into()),
                AttachState::Foreign { what, .. } => {
                    (Level::ERROR, format!("our program is not on it any more: {what}"))
                }
            };
            let interface = Some(interface.name.clone());
            effects.log(LogLine { interface, ..LogLine::new(level, text) });
        }
        changed
    }

    /// Has our program attached again where it is missing and nobody else's is.
    fn reattach(&mut self, confirm: &Confirm, effects: &mut Effects) {
        let given_up = |interface: &Interface| confirm.reverted().contains(&interface.name);
        let lacking = |interface: &Interface| {
            matches!(self.attach_state(interface), Some(AttachState::Detached))
                && !given_up(interface)
        };
        if self.reattaching || !self.interfaces.iter().any(lacking) {
            return;
        }
        // The others' modes count, too; of one that is given up the state may be that of before.
        let whole = |interface: &&Interface| {
            let attached =
                matches!(self.attach_state(interface), Some(AttachState::Attached { .. }));
            attached && !given_up(interface) || lacking(interface)
        };
        let whole = self.interfaces.iter().filter(whole).cloned().collect();
        self.reattaching = true;
        effects.order(DatapathCommand::Reattach(whole));
    }

    /// The packet path knows how an interface is now, or not. Mostly it is gone since it was seen;
    /// it is tried again, and told once.
    pub(super) fn described(
        &mut self,
        interface: &Interface,
        outcome: Result<(), Error>,
        effects: &mut Effects,
    ) {
        let known = self.outdated.remove(&interface.slot);
        let Err(error) = outcome else { return };
        if known.as_ref() != Some(&error) {
            let (name, error) = (Some(interface.name.clone()), Some(error.to_string()));
            let line = LogLine::new(Level::WARN, "not described");
            effects.log(LogLine { interface: name, error, ..line });
        }
        self.outdated.insert(interface.slot, error);
    }

    /// Tells the packet path once more what it could not take.
    fn describe_again(&self, effects: &mut Effects) {
        let outdated = |slot| self.outdated.contains_key(slot) && !self.gone.contains(slot);
        for interface in self.interfaces.iter().filter(|interface| outdated(&interface.slot)) {
            effects.order(DatapathCommand::Describe(interface.clone()));
        }
    }

    /// Takes note of how the interfaces are, and tells the packet path. Whether they come, go or
    /// stand otherwise.
    fn found(&mut self, existing: Existing, effects: &mut Effects) -> bool {
        for interface in &existing.interfaces {
            let known = self.interfaces.iter_mut().find(|known| known.slot == interface.slot);
            if let Some(known) = known.filter(|known| *known != interface) {
                effects.order(DatapathCommand::Describe(interface.clone()));
                *known = interface.clone();
            }
        }
        let here: BTreeSet<u32> = existing.interfaces.iter().map(|i| i.slot).collect();
        let all = self.interfaces.iter().map(|interface| interface.slot);
        let gone: BTreeSet<u32> = all.filter(|slot| !here.contains(slot)).collect();
        let moved = self.gone != gone;
        if moved {
            // How our program stands there.
            effects.order(DatapathCommand::Beat);
        }
        let of = |e: &Existing| (e.down.clone(), e.no_carrier.clone(), e.renamed.clone());
        let changed = moved || of(&self.existing) != of(&existing);
        (self.gone, self.existing) = (gone, existing);
        changed
    }

    /// Whether an interface of this name is down, without carrier, or gone.
    pub(super) fn is_cut_off(&self, name: &str) -> bool {
        let gone = |one: &Interface| one.name == name && self.gone.contains(&one.slot);
        self.existing.is_cut_off(name) || self.interfaces.iter().any(gone)
    }

    /// Interfaces with a ledger of their own: name, slot and index.
    pub(super) fn with_counters(&self) -> Vec<(String, u32, u32)> {
        let here = self.interfaces.iter().filter(|i| !self.gone.contains(&i.slot));
        here.map(|i| (i.name.clone(), i.slot, i.ifindex)).collect()
    }

    /// Interfaces that our program is on, index by slot.
    pub(super) fn on(&self) -> HashMap<u32, u32> {
        let ours = self.interfaces.iter().filter(|interface| self.is_attached(interface));
        ours.map(|i| (i.slot, i.ifindex)).collect()
    }

    /// How our program stands on the device that an interface's frames come by; `None`: not known
    /// yet.
    pub fn attach_state(&self, interface: &Interface) -> Option<&AttachState> {
        self.states.get(&datapath_thread::below(interface))
    }

    /// Whether packets of this interface come to our program.
    pub fn is_attached(&self, interface: &Interface) -> bool {
        let here = !self.gone.contains(&interface.slot);
        here && matches!(self.attach_state(interface), None | Some(AttachState::Attached { .. }))
    }

    /// An interface as status shows it.
    pub(super) fn shown(&self, interface: &Interface) -> status::Interface {
        let mode = self.modes.get(&interface.slot);
        let (link_id, program_id) = match self.attach_state(interface) {
            Some(AttachState::Attached { link, program, .. }) => (*link, *program),
            _ => (0, 0),
        };
        status::Interface {
            name: interface.name.clone(),
            ifindex: interface.ifindex,
            slot: interface.slot,
            faces: Some(interface.faces),
            link_id,
            program_id,
            attached: mode.is_some() && self.is_attached(interface),
            attached_again: self.again.get(&interface.slot).map_or(0, |(times, _)| *times),
            mode: mode.map(|(mode, _)| *mode),
            mode_reason: mode.map(|(_, why)| why.clone()).unwrap_or_default(),
            ..status::Interface::default()
        }
    }

    /// Problems of each interface.
    pub fn problems(&self, confirm: &Confirm) -> Vec<Problem> {
        let reverted = confirm.reverted();
        let of = |interface: &Interface| -> Option<Problem> {
            let name = &interface.name;
            if self.gone.contains(&interface.slot) {
                return Some(gone(name));
            }
            if self.existing.down.contains(name) {
                return Some(ProblemKind::InterfaceDown.of_interface(
                    name,
                    format!("interface {name} is down: no packet comes in or goes out by it"),
                    Fix::link(name, "up"),
                ));
            }
            if self.existing.no_carrier.contains(name) {
                return Some(ProblemKind::NoCarrier.of_interface(
                    name,
                    format!(
                        "interface {name} has no carrier: no packet comes in or goes out by it"
                    ),
                    Fix::Sequence(vec![
                        "check its cable and switch port, or the far end of its veth pair".into(),
                        Fix::command(["ip", "-s", "link", "show", "dev", name])
                            .before("has NO-CARRIER until then"),
                    ]),
                ));
            }
            match self.attach_state(interface).filter(|_| !reverted.contains(name))? {
                AttachState::Attached { .. } => None,
                AttachState::Gone => Some(gone(name)),
                AttachState::Detached => Some(self.detached(name)),
                AttachState::Foreign { what, swapped } => Some(ProblemKind::ProgramReplaced.of_interface(
                    name,
                    format!("{name}: our program was replaced: {what}"),
                    match swapped {
                        true => {
                            "restart the daemon (no packet is lost): it puts its own program back"
                        }
                        false => "detach that program; Ringway then attaches its own again",
                    },
                )),
            }
        };
        self.interfaces.iter().filter_map(of).collect()
    }

    fn detached(&self, name: &str) -> Problem {
        let why = self
            .reattach_error
            .as_ref()
            .map_or_else(String::new, |error| format!(": {}", error.what));
        ProblemKind::ProgramDetached.of_interface(
            name,
            format!("{name}: our program is not on it any more, and is being attached again{why}"),
            "if this stays: see the daemon's log, and restart it (flows are kept)",
        )
    }

    /// Interfaces that are called otherwise than in the configuration.
    pub fn renamed(&self) -> impl Iterator<Item = Problem> + '_ {
        self.existing.renamed.iter().map(|(name, now)| {
            ProblemKind::InterfaceRenamed.of_interface(
                name,
                format!(
                    "interface {name} is called {now} now: its packets flow on, but the next daemon would \
                     not find it"
                ),
                Fix::Sequence(vec![
                    Fix::link(now, format!("name {name}")),
                    format!("or write {now:?} into [node] interfaces and restart the daemon").into(),
                ]),
            )
        })
    }

    /// Programs that had to be attached again: whoever took them off may do so again.
    pub fn attached_again(&self, now: Instant) -> impl Iterator<Item = Problem> + '_ {
        let recent = move |at: &Instant| now.saturating_duration_since(*at) < LATELY;
        let lately = self.again.iter().filter(move |(_, (_, at))| recent(at));
        lately.filter_map(|(slot, (times, _))| {
            let interface = self.interfaces.iter().find(|interface| interface.slot == *slot)?;
            let times = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            Some(ProblemKind::ProgramDetached.of_interface(
                &interface.name,
                format!(
                    "{}: our program had vanished from it and was attached again, {times} since the daemon \
                     began",
                    interface.name
                ),
                "see the daemon's log for when, and find what makes the device anew or detaches programs",
            ))
        })
    }
}

impl State {
    /// Has the tables written, then packets let in.
    pub(super) fn attach(&mut self) {
        self.attachment.stage = Stage::Attaching;
        let observed = self.tables.observed(self.at.now);
        self.tables.written = self.tables.backend_set.clone();
        let interfaces = self.attachment.interfaces.clone();
        self.effects.order(DatapathCommand::Attach(interfaces, observed));
        self.effects.post();
    }

    /// Packets come in, or why not: then there is no use in going on.
    pub(super) fn attached(
        &mut self,
        interfaces: &[Interface],
        outcome: Result<Attachments, Error>,
    ) {
        if self.attachment.stage != Stage::Attaching {
            return;
        }
        let attachments = match outcome {
            Ok(attachments) => attachments,
            Err(error) => return self.effects.push(Effect::Fail(error)),
        };
        let all = interfaces.iter().zip(&attachments.each);
        let provisional = all.filter(|(_, attached)| attached.provisional);
        let names: Vec<String> = provisional.map(|(one, _)| one.name.clone()).collect();
        if !names.is_empty() {
            self.effects.warn(format!(
                "{} carries the default route: within {} s see that this machine can still be \
                 reached, and run `ringway confirm`; otherwise it is detached again",
                names.join(", "),
                self.patience.as_secs()
            ));
            let until = self.at.now + self.patience;
            self.confirm = Confirm::Waiting { names, until, pinning: false };
        }
        self.attachment.describe(interfaces, &attachments, &mut self.effects);
        self.attachment.stage = Stage::Attached;
        // What has changed meanwhile.
        self.apply_soon();
        self.tables.backend_set.start();
        // What comes from now on is compared with this.
        self.effects.push(Effect::ReadTraffic);
        self.effects.push(Effect::ReadMachine(self.reload.config.clone()));
        self.effects.push(Effect::ReceiveSolicitations);
        self.announce(&self.attachment.interfaces.clone());
    }

    /// Our program is where it was missing, or why not.
    pub(super) fn reattached(
        &mut self,
        interfaces: &[Interface],
        outcome: Result<Attachments, Error>,
    ) {
        self.attachment.reattaching = false;
        match outcome {
            Ok(attachments) => {
                self.attachment.reattach_error = None;
                for (interface, attached) in interfaces.iter().zip(&attachments.each) {
                    if interface.vlan.is_none() && !attached.taken_over {
                        let again = self.attachment.again.entry(interface.slot);
                        let times = again.or_insert((0, self.at.now));
                        *times = (times.0 + 1, self.at.now);
                    }
                }
                self.attachment.describe(interfaces, &attachments, &mut self.effects);
                self.announce(interfaces);
                self.look_up_ways();
                // Whether it holds.
                self.effects.order(DatapathCommand::Beat);
            }
            Err(error) => {
                // It is tried again at every beat; once is enough to tell.
                if self.attachment.reattach_error.as_ref() != Some(&error) {
                    self.effects.error("not attached again", &error);
                }
                self.attachment.reattach_error = Some(error);
            }
        }
    }

    /// Takes note of how our programs stand, and has those attached again that can be.
    pub(super) fn verify(&mut self, states: Vec<(u32, AttachState)>) {
        let mut changed = self.monitor.beat_error.take().is_some();
        if self.attachment.is_done() {
            changed |= self.attachment.note(states, &mut self.effects);
            self.attachment.describe_again(&mut self.effects);
            self.attachment.reattach(&self.confirm, &mut self.effects);
        }
        if changed {
            self.effects.post();
        }
    }

    /// Takes note of how the interfaces are.
    pub(super) fn found(&mut self, existing: Existing) {
        let changed = self.attachment.found(existing, &mut self.effects);
        if self.attachment.is_done() {
            self.effects.push(Effect::ReceiveSolicitations);
        }
        if changed {
            self.effects.post();
        }
    }

    /// Interfaces that our program is on, and stays on.
    pub(super) fn served_interfaces(&self) -> Vec<Interface> {
        let all = self.attachment.interfaces.iter();
        let served = all.filter(|one| self.attachment.is_attached(one) && !self.is_given_up(one));
        served.cloned().collect()
    }

    fn is_given_up(&self, interface: &Interface) -> bool {
        self.confirm.reverted().contains(&interface.name)
    }

    fn announce(&mut self, interfaces: &[Interface]) {
        let ours = announce::ours(&self.reload.config);
        let interfaces = interfaces.iter().filter(|one| !self.is_given_up(one)).cloned();
        self.effects.push(Effect::Announce(ours, interfaces.collect()));
    }

    /// Somebody says that the machine can be reached: what is provisional is pinned.
    pub(super) fn confirm(&mut self) {
        if self.confirm.pin() {
            self.effects.order(DatapathCommand::Confirm);
        }
        let nothing = self.confirm.nothing();
        self.effects.0.extend(nothing.map(Effect::AnswerConfirm));
    }

    pub(super) fn confirmed(&mut self, answer: Answer) {
        if let Some(names) = self.confirm.end(&answer) {
            let (interfaces, text) = (Some(names.to_vec()), "confirmed: attached for good");
            self.effects.log(LogLine { interfaces, ..LogLine::new(Level::INFO, text) });
        }
        // The client may ask for the status next.
        self.effects.post();
        self.effects.push(Effect::AnswerConfirm(answer));
    }

    /// Takes the program off again where nobody confirmed in time.
    pub(super) fn revert(&mut self) {
        let Some(names) = self.confirm.expire(self.at.now) else { return };
        let text = "no `ringway confirm` in time: detaching again";
        let interfaces = Some(names);
        self.effects.log(LogLine { interfaces, ..LogLine::new(Level::ERROR, text) });
        self.effects.order(DatapathCommand::Revert);
        self.effects.post();
    }
}

fn gone(name: &str) -> Problem {
    ProblemKind::InterfaceGone.of_interface(
        name,
        format!("interface {name} is gone: no packet comes in or goes out by it"),
        format!(
            "bring it back under this name (`ip link`, `dmesg`): it is attached again by itself; or take {name} \
             out of [node] interfaces and restart the daemon"
        ),
    )
}

/// Why the mode is what it is, for people. `without_native`: an interface that has none, and why.
fn why(asked: Option<XdpMode>, attached: &Attached, without_native: Option<&str>) -> String {
    match (&attached.refused, asked, without_native) {
        (Some(refused), ..) => refused.to_string(),
        (None, None, Some(other)) => {
            format!("auto: native XDP cannot send to {other}")
        }
        (None, None, None) if attached.taken_over => {
            "kept from the previous daemon; xdp_mode or `ringway detach` changes it".into()
        }
        (None, None, None) => "auto: the driver takes it".into(),
        (None, Some(_), _) => "as configured".into(),
    }
}
