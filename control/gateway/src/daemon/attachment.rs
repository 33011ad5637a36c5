//! Our programs on their interfaces: attached at start, watched, and attached again where somebody took them off
//! or a device came back.

use std::time::Duration;

use ringway_kernel::{Interface, Standing};
use tokio::time::Instant;

use super::path::{self, Attachments, Order};
use super::{Daemon, announce, observed, start};
use crate::next_hop;
use crate::problem::Error;
use crate::status::Problem;
use crate::trouble::Trouble;

/// That a program was attached again is told for this long.
const LATELY: Duration = Duration::from_secs(600);

impl Daemon {
    /// Has the tables written, then packets let in; the loop waits for nobody.
    pub(super) fn attach(&mut self) {
        self.attaching = true;
        let observed = observed(&self.roster, &self.own_addresses);
        self.in_tables = self.roster.clone();
        self.path.order(Order::Attach(self.interfaces.clone(), observed));
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
            let within = self.board.guard.begin(names).as_secs();
            tracing::warn!(
                "{shown} carries the default route: within {within} s see that this machine can still be \
                 reached, and run `ringway confirm`; otherwise it is detached again"
            );
        }
        self.describe(interfaces, &attachments);
        self.attached = true;
        // What has changed meanwhile.
        self.apply_soon();
        self.roster.start();
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
    pub(super) fn verify(&mut self, standings: Vec<(u32, Standing)>) {
        for (slot, standing) in standings {
            let before = self.standings.insert(slot, standing.clone());
            if before.as_ref() == Some(&standing) {
                continue;
            }
            let Some(interface) = self.interfaces.iter().find(|i| i.slot == slot) else { continue };
            let name = &interface.name;
            match &standing {
                Standing::Attached { .. } => match before {
                    None => {}
                    Some(_) => tracing::info!(interface = name, "our program is on it again"),
                },
                Standing::Gone => tracing::error!(interface = name, "the interface is gone"),
                Standing::Detached => {
                    tracing::error!(interface = name, "our program is not on it any more")
                }
                Standing::Foreign { what, .. } => {
                    tracing::error!(interface = name, "our program is not on it any more: {what}");
                }
            }
        }
        self.mend();
    }

    /// Has our program attached again where it is missing and nobody else's is.
    fn mend(&mut self) {
        let reverted = self.board.guard.reverted();
        let lacking = |interface: &Interface| {
            matches!(self.standing(interface), Some(Standing::Detached))
                && !reverted.contains(&interface.name)
        };
        if self.mending || !self.interfaces.iter().any(lacking) {
            return;
        }
        // The others' modes count, too.
        let whole = |interface: &&Interface| {
            matches!(self.standing(interface), Some(Standing::Attached { .. }))
                || lacking(interface)
        };
        let whole = self.interfaces.iter().filter(whole).cloned().collect();
        self.mending = true;
        self.path.order(Order::Mend(whole));
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
                self.look();
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
        self.path.order(Order::Beat);
    }

    /// How our program stands on the device that an interface's frames come by; `None`: not known yet.
    pub(super) fn standing(&self, interface: &Interface) -> Option<&Standing> {
        self.standings.get(&path::below(interface))
    }

    /// Whether packets of this interface come to our program.
    pub(super) fn is_attached(&self, interface: &Interface) -> bool {
        let here = !self.gone.contains(&interface.slot);
        here && matches!(self.standing(interface), None | Some(Standing::Attached { .. }))
    }

    /// What is wrong with each interface.
    pub(super) fn interface_problems(&self) -> Vec<Problem> {
        let reverted = self.board.guard.reverted();
        let of = |interface: &Interface| -> Option<Problem> {
            let name = &interface.name;
            if self.gone.contains(&interface.slot) {
                return Some(gone(name));
            }
            if self.existing.down.contains(name) {
                return Some(Trouble::InterfaceDown.problem(
                    format!("interface {name} is down: no packet comes in or goes out by it"),
                    format!("ip link set dev {name} up"),
                ));
            }
            if self.existing.no_carrier.contains(name) {
                return Some(Trouble::NoCarrier.problem(
                    format!("interface {name} has no carrier: no packet comes in or goes out by it"),
                    format!(
                        "check its cable and switch port, or the far end of its veth pair; `ip -s link show dev \
                         {name}` has NO-CARRIER until then"
                    ),
                ));
            }
            match self.standing(interface).filter(|_| !reverted.contains(name))? {
                Standing::Attached { .. } => None,
                Standing::Gone => Some(gone(name)),
                Standing::Detached => Some(self.detached(name)),
                Standing::Foreign { what, swapped } => Some(Trouble::ProgramReplaced.problem(
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
        Trouble::ProgramDetached.problem(
            format!("{name}: our program is not on it any more, and is being attached again{why}"),
            "if this stays: see the daemon's log, and restart it (flows are kept)",
        )
    }

    /// Interfaces that are called otherwise than in the configuration.
    pub(super) fn renamed(&self) -> impl Iterator<Item = Problem> + '_ {
        self.existing.renamed.iter().map(|(name, now)| {
            Trouble::InterfaceRenamed.problem(
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
            Some(Trouble::ProgramDetached.problem(
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
    Trouble::InterfaceGone.problem(
        format!("interface {name} is gone: no packet comes in or goes out by it"),
        format!(
            "bring it back under this name (`ip link`, `dmesg`): it is attached again by itself; or take {name} \
             out of [node] interfaces and restart the daemon"
        ),
    )
}
