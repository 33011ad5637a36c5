//! Our programs on their interfaces: attached at start, watched, and attached again where somebody took them off
//! or a device came back.

use std::time::Duration;

use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_kernel::{AttachState, Interface};
use tokio::time::Instant;

use super::{Daemon, announce, observed, start};
use crate::daemon::datapath_thread::{self, Attachments, DatapathCommand};
use crate::network::next_hop;

/// That a program was attached again is told for this long.
const LATELY: Duration = Duration::from_secs(600);

impl Daemon {
    /// Has the tables written, then packets let in; the loop waits for nobody.
    pub(super) fn attach(&mut self) {
        self.attaching = true;
        let observed = observed(&self.backend_set, &self.own_addresses);
        self.in_tables = self.backend_set.clone();
        self.datapath.order(DatapathCommand::Attach(self.interfaces.clone(), observed));
        self.post();
    }

    /// Packets come in, or why not: then there is no use in going on.
    pub(super) fn attached(
        &mut self,
        interfaces: &[Interface],
        outcome: Result<Attachments, Error>,
    ) -> Result<(), Error> {
        self.attaching = false;
        let attachments = outcome?;
        let all = interfaces.iter().zip(&attachments.each);
        let provisional = all.filter(|(_, attached)| attached.provisional);
        let names: Vec<String> = provisional.map(|(one, _)| one.name.clone()).collect();
        if !names.is_empty() {
            let shown = names.join(", ");
            let within = self.status_store.commit_confirm.begin(names).as_secs();
            tracing::warn!(
                "{shown} carries the default route: within {within} s see that this machine can still be \
                 reached, and run `ringway confirm`; otherwise it is detached again"
            );
        }
        self.describe(interfaces, &attachments);
        self.attached = true;
        // What has changed meanwhile.
        self.apply_soon();
        self.backend_set.start();
        // What comes from now on is compared with this.
        self.looks.at_traffic();
        self.looks.at_machine();
        self.receive_solicitations();
        announce::start(&self.config, &self.interfaces);
        Ok(())
    }

    /// Takes note of how these are attached, and says so where that is new.
    fn describe(&mut self, interfaces: &[Interface], attachments: &Attachments) {
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
                None => start::why(*self.config.node.xdp_mode, attached, refused.as_deref()),
            };
            let (name, mode) = (&interface.name, attached.mode.name());
            tracing::info!(
                interface = name,
                mode,
                taken_over = attached.taken_over,
                "attached: {why}"
            );
            self.modes.insert(interface.slot, (attached.mode, why));
        }
    }

    /// Takes note of how our programs stand, and has those attached again that can be.
    pub(super) fn verify(&mut self, attach_states: Vec<(u32, AttachState)>) {
        for (slot, standing) in attach_states {
            let before = self.attach_states.insert(slot, standing.clone());
            if before.as_ref() == Some(&standing) {
                continue;
            }
            let Some(interface) = self.interfaces.iter().find(|i| i.slot == slot) else { continue };
            let name = &interface.name;
            match &standing {
                AttachState::Attached { .. } => match before {
                    None => {}
                    Some(_) => tracing::info!(interface = name, "our program is on it again"),
                },
                AttachState::Gone => tracing::error!(interface = name, "the interface is gone"),
                AttachState::Detached => {
                    tracing::error!(interface = name, "our program is not on it any more")
                }
                AttachState::Foreign { what, .. } => {
                    tracing::error!(interface = name, "our program is not on it any more: {what}");
                }
            }
        }
        self.mend();
    }

    /// Has our program attached again where it is missing and nobody else's is.
    fn mend(&mut self) {
        let reverted = self.status_store.commit_confirm.reverted();
        let lacking = |interface: &Interface| {
            matches!(self.standing(interface), Some(AttachState::Detached))
                && !reverted.contains(&interface.name)
        };
        if self.mending || !self.interfaces.iter().any(lacking) {
            return;
        }
        // The others' modes count, too.
        let whole = |interface: &&Interface| {
            matches!(self.standing(interface), Some(AttachState::Attached { .. }))
                || lacking(interface)
        };
        let whole = self.interfaces.iter().filter(whole).cloned().collect();
        self.mending = true;
        self.datapath.order(DatapathCommand::Mend(whole));
    }

    /// Our program is where it was missing, or why not.
    pub(super) fn mended(&mut self, interfaces: &[Interface], outcome: Result<Attachments, Error>) {
        self.mending = false;
        match outcome {
            Ok(attachments) => {
                self.mend_error = None;
                for (interface, attached) in interfaces.iter().zip(&attachments.each) {
                    if interface.vlan.is_none() && !attached.taken_over {
                        let again = self.again.entry(interface.slot);
                        let times = again.or_insert((0, Instant::now()));
                        *times = (times.0 + 1, Instant::now());
                    }
                }
                self.describe(interfaces, &attachments);
                announce::start(&self.config, interfaces);
                self.refresh();
            }
            Err(error) => {
                // It is tried again every moment; once is enough to tell.
                if self.mend_error.as_ref() != Some(&error) {
                    tracing::error!(%error, "not attached again");
                }
                self.mend_error = Some(error);
            }
        }
        // Whether it holds.
        self.datapath.order(DatapathCommand::Beat);
    }

    /// How our program stands on the device that an interface's frames come by; `None`: not known yet.
    pub(super) fn standing(&self, interface: &Interface) -> Option<&AttachState> {
        self.attach_states.get(&datapath_thread::below(interface))
    }

    /// Whether packets of this interface come to our program.
    pub(super) fn is_attached(&self, interface: &Interface) -> bool {
        let here = !self.gone.contains(&interface.slot);
        here && matches!(self.standing(interface), None | Some(AttachState::Attached { .. }))
    }

    /// What is wrong with each interface.
    pub(super) fn interface_problems(&self) -> Vec<Problem> {
        let reverted = self.status_store.commit_confirm.reverted();
        let of = |interface: &Interface| -> Option<Problem> {
            let name = &interface.name;
            if self.gone.contains(&interface.slot) {
                return Some(gone(name));
            }
            if self.existing.down.contains(name) {
                return Some(ProblemKind::InterfaceDown.of_interface(
                    name,
                    format!("interface {name} is down: no packet comes in or goes out by it"),
                    format!("ip link set dev {name} up"),
                ));
            }
            if self.existing.no_carrier.contains(name) {
                return Some(ProblemKind::NoCarrier.of_interface(
                    name,
                    format!("interface {name} has no carrier: no packet comes in or goes out by it"),
                    format!(
                        "check its cable and switch port, or the far end of its veth pair; `ip -s link show dev \
                         {name}` has NO-CARRIER until then"
                    ),
                ));
            }
            match self.standing(interface).filter(|_| !reverted.contains(name))? {
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
                        false => "take it off as said: ours is attached again by itself",
                    },
                )),
            }
        };
        self.interfaces.iter().filter_map(of).collect()
    }

    fn detached(&self, name: &str) -> Problem {
        let why =
            self.mend_error.as_ref().map_or_else(String::new, |error| format!(": {}", error.what));
        ProblemKind::ProgramDetached.of_interface(
            name,
            format!("{name}: our program is not on it any more, and is being attached again{why}"),
            "if this stays: see the daemon's log, and restart it (flows are kept)",
        )
    }

    /// Interfaces that are called otherwise than in the configuration.
    pub(super) fn renamed(&self) -> impl Iterator<Item = Problem> + '_ {
        self.existing.renamed.iter().map(|(name, now)| {
            ProblemKind::InterfaceRenamed.of_interface(
                name,
                format!(
                    "interface {name} is called {now} now: its packets flow on, but the next daemon would \
                     not find it"
                ),
                format!(
                    "ip link set dev {now} name {name}; or write {now:?} into [node] interfaces and restart \
                     the daemon"
                ),
            )
        })
    }

    /// Programs that had to be attached again: whoever took them off may do so again.
    pub(super) fn attached_again(&self) -> impl Iterator<Item = Problem> + '_ {
        let lately = self.again.iter().filter(|(_, (_, at))| at.elapsed() < LATELY);
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
